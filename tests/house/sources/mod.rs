//! Sources against the real thing: a directory with real inotify, URLs on a real server.

mod files;
mod http;

use std::time::Duration;

use mirrorlet::source::SourceReader;
use mirrorlet_core::desired::{SourceSet, SourceState};

/// Longest wait for a value; reached only when it never comes.
const PATIENCE: Duration = Duration::from_mins(2);

/// A manifest of one pod.
fn pod(name: &str, image: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata:\n  name: {name}\nspec:\n  containers:\n  \
         - name: main\n    image: {image}\n"
    )
}

/// One line per pod: name, image, `held` if so, codes of its problems.
fn pods(set: &SourceSet) -> Vec<String> {
    let line = |pod: &mirrorlet_core::desired::SourcePod| {
        let image = pod.pod.spec.as_ref().unwrap().containers[0]
            .image
            .clone()
            .unwrap();
        let mut line = format!("{} {image}", pod.full_name().name);
        if pod.held {
            line.push_str(" held");
        }
        for problem in pod.problems.iter().filter(|problem| problem.is_error()) {
            line.push(' ');
            line.push_str(problem.code.as_str());
        }
        line
    };
    set.pods.iter().map(line).collect()
}

/// Codes of the problems that belong to no pod.
fn problems(set: &SourceSet) -> Vec<String> {
    set.problems
        .iter()
        .map(|problem| problem.code.to_string())
        .collect()
}

fn set_of(state: &SourceState) -> Option<&SourceSet> {
    match state {
        SourceState::NotSynced | SourceState::LastKnown(_) => None,
        SourceState::Synced(set) => Some(set),
    }
}

/// Waits until the source delivers exactly these pods and problems.
async fn expect(reader: &mut SourceReader, want_pods: &[&str], want_problems: &[&str]) {
    let wanted = |state: &SourceState| {
        set_of(state).is_some_and(|set| pods(set) == want_pods && problems(set) == want_problems)
    };
    if tokio::time::timeout(PATIENCE, reader.state.wait_for(wanted))
        .await
        .is_err()
    {
        let state = reader.state.get();
        let seen = set_of(&state).map(|set| (pods(set), problems(set)));
        panic!("wanted {want_pods:?} {want_problems:?}, but it stays at {seen:?}");
    }
}
