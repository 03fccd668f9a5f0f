//! Pods that may be stopped while a source is silent: each state of the API server against each
//! change.

use serde_json::json;

use super::super::*;
use super::bed::{Bed, SWEEP, api, left_behind, named, runs};
use mirrorlet_core::desired::{Origin, PodSource, SourcePod, SourceSet, SourceState};
use mirrorlet_core::merge::{Incumbents, SourceName, merge_sources};
use mirrorlet_testing::fake_runtime::FakeRuntime;

const A: &str = "aaaa0000-0000-4000-8000-000000000001";
const OLD: &str = "0123456789abcdef0123456789abcdef";
const NEW: &str = "fedcba9876543210fedcba9876543210";

/// The state of the API server.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Server {
    /// Not reached since this agent started; what the one before knew is on disk.
    LastKnown,
    /// Not reached, and nothing on disk: it was lost, or is not read yet.
    NeverReached,
    /// It has delivered; whether it is within reach now makes no difference.
    Delivered,
}

const SERVERS: [Server; 3] = [Server::LastKnown, Server::NeverReached, Server::Delivered];

fn state(source: PodSource, pods: &[Arc<Pod>], server: Server) -> SourceState {
    let pods = pods
        .iter()
        .map(|pod| SourcePod::new(Arc::clone(pod), Origin::whole(source, "")));
    let set = Arc::new(SourceSet {
        pods: pods.collect(),
        ..SourceSet::default()
    });
    match server {
        Server::LastKnown => SourceState::LastKnown(set),
        Server::NeverReached => SourceState::NotSynced,
        Server::Delivered => SourceState::Synced(set),
    }
}

/// The sources say this.
fn say(bed: &Bed, files: &[Arc<Pod>], server: Server, api: &[Arc<Pod>]) {
    let sources = BTreeMap::from([
        (
            SourceName::new(PodSource::File, "manifests"),
            state(PodSource::File, files, Server::Delivered),
        ),
        (
            SourceName::new(PodSource::Api, ""),
            state(PodSource::Api, api, server),
        ),
    ]);
    let merged = merge_sources(&sources, &Incumbents::default(), &BTreeMap::new());
    assert_eq!(merged.conflicts, []);
    let pods: Vec<_> = merged.pods.values().map(|pod| &pod.pod).collect();
    bed.tell(&pods, merged.delivered);
}

/// An agent that finds these running.
fn restarted(running: &[&Arc<Pod>]) -> Bed {
    let fake = FakeRuntime::new();
    for pod in running {
        left_behind(&fake, pod);
    }
    let clock = fake.clone();
    Bed::with(fake, Clock::new(move || clock.now()))
}

#[tokio::test(start_paused = true)]
async fn manifests_come_change_and_go_whatever_the_api_server_does() {
    for server in SERVERS {
        let a = api(A, json!({}));
        let bed = restarted(&[&a]);
        let theirs = [a];
        say(&bed, &[], server, &theirs);
        say(&bed, &[named(OLD, "web")], server, &theirs);
        bed.until_runs(OLD).await;
        say(&bed, &[named(NEW, "web")], server, &theirs);
        bed.until_runs(NEW).await;
        bed.until_gone(OLD).await;
        say(&bed, &[], server, &theirs);
        bed.until_gone(NEW).await;
        // api 14
        assert!(runs(&bed.fake, A), "{server:?}");
        bed.fake.assert_no_violations();
    }
}

#[tokio::test(start_paused = true)]
async fn what_became_of_manifests_while_no_agent_was_there_is_caught_up_with() {
    for server in SERVERS {
        // Edited meanwhile, and removed meanwhile.
        for files in [vec![named(NEW, "web")], vec![]] {
            let (old, a) = (named(OLD, "web"), api(A, json!({})));
            let bed = restarted(&[&old, &a]);
            say(&bed, &files, server, &[a]);
            bed.until_gone(OLD).await;
            if !files.is_empty() {
                bed.until_runs(NEW).await;
            }
            tokio::time::sleep(SWEEP).await;
            assert!(runs(&bed.fake, A), "{server:?}");
            // api 14
            bed.fake.assert_killed_pods(&[OLD]);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_vanished_at_the_api_server_stops_once_a_whole_list_says_so() {
    for server in SERVERS {
        let a = api(A, json!({}));
        let bed = restarted(&[&a]);
        let known = if server == Server::LastKnown {
            vec![a]
        } else {
            vec![]
        };
        say(&bed, &[], server, &known);
        if server != Server::Delivered {
            tokio::time::sleep(SWEEP * 3).await;
            assert!(runs(&bed.fake, A), "{server:?}");
            bed.fake.assert_call_counts("kill_pod", 0);
            say(&bed, &[], Server::Delivered, &[]);
        }
        // api 15
        bed.until_gone(A).await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_return_of_the_api_server_restarts_nothing() {
    for server in SERVERS {
        let (old, a) = (named(OLD, "web"), api(A, json!({})));
        let bed = restarted(&[&old, &a]);
        let known = if server == Server::NeverReached {
            vec![]
        } else {
            vec![Arc::clone(&a)]
        };
        say(&bed, &[Arc::clone(&old)], server, &known);
        tokio::time::sleep(SWEEP).await;
        say(&bed, &[old], Server::Delivered, &[a]);
        tokio::time::sleep(SWEEP).await;
        // api 14
        bed.fake.assert_call_counts("sync_pod", 0);
        bed.fake.assert_call_counts("kill_pod", 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_container_of_a_last_known_pod_is_started_again() {
    let a = api(A, json!({}));
    let bed = restarted(&[&a]);
    say(&bed, &[], Server::LastKnown, &[a]);
    tokio::time::sleep(SWEEP).await;
    bed.fake.exit_container(&A.into(), "app", 1);
    bed.until_runs(A).await;
    // api 15
    bed.fake.assert_started_containers(&["app"]);
}
