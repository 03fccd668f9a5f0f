use std::path::Path;
use std::pin::pin;

use kube::Api;

use super::*;
use crate::cluster::reach::ApiReach;
use mirrorlet_core::api::core::Node;

/// A kubeconfig whose plug-in is `sh -c`, with a secret in its environment.
fn with_plugin(path: &Path, script: &str) {
    let exec = format!(
        "{{apiVersion: client.authentication.k8s.io/v1, command: sh, args: [-c, '{script}'], env: [{{name: S, value: geheim}}], interactiveMode: Never}}"
    );
    let text = format!(
        "current-context: x\ncontexts: [{{name: x, context: {{cluster: c, user: u}}}}]\nclusters: [{{name: c, cluster: {{server: 'http://127.0.0.1:1'}}}}]\nusers: [{{name: u, user: {{exec: {exec}}}}}]\n"
    );
    std::fs::write(path, text).unwrap();
}

/// A kubeconfig with a token, for the server at that port.
fn with_token(path: &Path, port: u16) {
    let text = format!(
        "current-context: x\ncontexts: [{{name: x, context: {{cluster: c, user: u}}}}]\nclusters: [{{name: c, cluster: {{server: 'http://127.0.0.1:{port}'}}}}]\nusers: [{{name: u, user: {{token: t}}}}]\n"
    );
    std::fs::write(path, text).unwrap();
}

/// Checks, and waits for the run that it starts.
async fn check_and_run(task: &mut CredentialsTask) {
    task.check().await;
    if task.runs.under_way.is_some() {
        let made = end_of(&mut task.runs.under_way).await;
        task.end_plugin(made);
    }
}

/// Why a call fails.
async fn cause(client: &ClusterClient) -> String {
    let nodes: Api<Node> = Api::all(client.client());
    let call = client.read(Duration::from_secs(10), nodes.get("n")).await;
    assert!(call.is_err());
    match &*client.reach().get() {
        ApiReach::Down { cause, .. } => cause.clone(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_plug_in_that_fails_holds_up_no_start_and_is_reported_without_its_secrets() {
    let dir = tempfile::tempdir().unwrap();
    let (path, answer) = (dir.path().join("kubeconfig"), dir.path().join("answer"));
    with_plugin(
        &path,
        &format!("echo $S; exec cat {} 2>/dev/null", answer.display()),
    );
    let access = ApiAccess::Kubeconfig(path.clone());
    let opened = ClusterClient::open(&access, Metrics::new()).unwrap();
    let (client, mut task) = opened.unwrap();
    let problem = task.problem();
    let words = |how: &str| {
        format!(
            "the kubeconfig {} can't be used: its credential plug-in sh {how}",
            path.display()
        )
    };
    // node 6d
    assert_eq!(cause(&client).await, words("has not answered yet"));
    check_and_run(&mut task).await;
    let failed = words("failed: exit status: 1");
    // node 6d
    assert_eq!(
        *problem.get(),
        Some(CredentialsProblem {
            fault: CredentialsFault::Plugin,
            words: failed.clone()
        })
    );
    assert_eq!(cause(&client).await, failed);
    assert_eq!(&*client.server(), "http://127.0.0.1:1/");
    // With no credentials from before, none are kept.
    let fault = |problem: &Reader<Option<CredentialsProblem>>| {
        let problem = problem.get();
        (*problem).as_ref().map(|problem| problem.fault)
    };
    std::fs::write(&path, "a: [").unwrap();
    check_and_run(&mut task).await;
    // node 6d
    assert_eq!(fault(&problem), Some(CredentialsFault::Missing));
    // A replaced kubeconfig is taken up at once.
    with_plugin(&path, &format!("exec cat {}", answer.display()));
    std::fs::write(&answer, r#"{"status": {"token": "t"}}"#).unwrap();
    check_and_run(&mut task).await;
    assert_eq!(*problem.get(), None);
    let cause = cause(&client).await;
    assert!(!cause.contains("plug-in"), "{cause}");
    let made = std::fs::read(&path).unwrap();
    std::fs::write(&path, "a: [").unwrap();
    check_and_run(&mut task).await;
    // node 6d
    assert_eq!(fault(&problem), Some(CredentialsFault::Replaced));
    std::fs::write(&path, made).unwrap();
    check_and_run(&mut task).await;
    assert_eq!(*problem.get(), None);
    // Credentials without an end are made once.
    assert!(!task.runs.is_due(false, Timestamp::now()));
}

#[tokio::test(start_paused = true)]
async fn a_plug_in_is_run_before_its_credentials_end_and_with_pauses() {
    let now = Timestamp::now();
    let second = Duration::from_secs(1);
    let made = |seconds: u32| {
        let ends = now.checked_add(second * seconds).unwrap();
        let mut made = Credentials::default();
        made.ends = Some(ends);
        Some(Arc::new(made))
    };
    let mut runs = PluginRuns::default();
    assert!(runs.is_due(false, now), "never run");
    runs.ran = Some(Instant::now());
    for (case, made, failures, refused, pause) in [
        ("long good", made(3600), 0, false, None),
        ("refused", made(3600), 0, true, Some(60)),
        ("about to end", made(59), 0, false, Some(10)),
        ("none", None, 1, false, Some(10)),
        ("none again", None, 3, false, Some(40)),
        ("none for long", None, 30, false, Some(60)),
    ] {
        (runs.made, runs.failures) = (made, failures);
        runs.ran = Some(Instant::now());
        let mut due = None;
        for at in 0..100_u64 {
            if runs.is_due(refused, now) {
                due = Some(at);
                break;
            }
            tokio::time::advance(second).await;
        }
        // node 6c
        assert_eq!(due, pause, "{case}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_plug_in_that_hangs_holds_up_no_replaced_kubeconfig() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("kubeconfig");
    with_plugin(&path, "exec sleep 1000");
    let access = ApiAccess::Kubeconfig(path.clone());
    let opened = ClusterClient::open(&access, Metrics::new()).unwrap();
    let (client, task) = opened.unwrap();
    let mut run = pin!(task.run());
    let ended = tokio::time::timeout(CHECK_PERIOD / 2, &mut run).await;
    assert!(ended.is_err());
    assert_eq!(&*client.server(), "http://127.0.0.1:1/");
    with_token(&path, 2);
    let ended = tokio::time::timeout(CHECK_PERIOD, &mut run).await;
    assert!(ended.is_err());
    // node 6c
    assert_eq!(&*client.server(), "http://127.0.0.1:2/");
}

#[tokio::test(start_paused = true)]
async fn a_plug_in_that_hangs_is_run_after_a_pause_and_ends_with_its_kubeconfig() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("kubeconfig");
    with_plugin(&path, "exec sleep 1000");
    let access = ApiAccess::Kubeconfig(path.clone());
    let opened = ClusterClient::open(&access, Metrics::new()).unwrap();
    let (_client, mut task) = opened.unwrap();
    check_and_run(&mut task).await;
    task.check().await;
    // node 6d
    assert!(task.runs.under_way.is_none(), "it was given up just now");
    tokio::time::advance(CHECK_PERIOD).await;
    task.check().await;
    assert!(task.runs.under_way.is_some());
    with_token(&path, 2);
    task.check().await;
    // node 6d
    assert!(task.runs.under_way.is_none(), "its kubeconfig was replaced");
    assert_eq!(*task.problem().get(), None);
}

#[tokio::test]
async fn the_address_of_a_replaced_kubeconfig_is_named_and_a_bad_one_reported() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("kubeconfig");
    with_token(&path, 1);
    let access = ApiAccess::Kubeconfig(path.clone());
    let (client, mut task) = ClusterClient::open(&access, Metrics::new())
        .unwrap()
        .unwrap();
    assert_eq!(&*client.server(), "http://127.0.0.1:1/");
    with_token(&path, 2);
    task.check().await;
    // node 6c
    assert_eq!(&*client.server(), "http://127.0.0.1:2/");
    let problem = task.problem();
    std::fs::write(&path, "a: [").unwrap();
    task.check().await;
    let reported = (*problem.get()).clone().unwrap();
    let words = reported.words;
    assert!(words.contains(path.to_str().unwrap()), "{words}");
    // node 6d
    assert_eq!(reported.fault, CredentialsFault::Replaced);
    assert_eq!(&*client.server(), "http://127.0.0.1:2/");
    with_token(&path, 2);
    task.check().await;
    assert_eq!(*problem.get(), None, "it is what is in use");
}
