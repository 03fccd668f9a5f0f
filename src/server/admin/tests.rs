use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::*;
use crate::cli::Failure;
use crate::cli::client::{Answer, get as ask};
use crate::config::socket_path;
use crate::server::body::SILENCE_MAX;
use crate::server::fake::FakeView;
use crate::server::frame::{Frame, FrameReader};
use mirrorlet_core::api::report::{EventReport, VolumeReport, VolumesReport};

struct Agent {
    root: tempfile::TempDir,
    view: Arc<FakeView>,
    cancel: CancellationToken,
    serving: JoinHandle<io::Result<()>>,
}

impl Agent {
    fn start() -> Self {
        let root = tempfile::tempdir().unwrap();
        let listener = bind(&socket_path(root.path())).unwrap();
        let view = Arc::new(FakeView::new());
        let cancel = CancellationToken::new();
        let serving = tokio::spawn(serve(
            listener,
            Arc::clone(&view) as Arc<dyn AgentView>,
            cancel.clone(),
        ));
        Self {
            root,
            view,
            cancel,
            serving,
        }
    }

    async fn get(&self, path: &str) -> Result<Answer, Failure> {
        ask(self.root.path(), path).await
    }

    async fn refused(&self, path: &str) -> String {
        match self.get(path).await {
            Ok(_) => panic!("{path} was answered"),
            Err(Failure::Failed(error)) => error.to_string(),
            Err(other) => panic!("{other:?}"),
        }
    }
}

async fn line(answer: &mut Answer) -> serde_json::Value {
    let mut bytes = Vec::new();
    while !bytes.ends_with(b"\n") {
        bytes.extend_from_slice(&answer.next().await.unwrap().unwrap());
    }
    serde_json::from_slice(&bytes).unwrap()
}

#[tokio::test]
async fn status_and_config_are_told() {
    let agent = Agent::start();
    let report = crate::cli::status::fetch(agent.root.path(), true)
        .await
        .unwrap();
    assert_eq!(report, agent.view.status());
    assert_eq!(
        *agent.view.refreshed.lock().unwrap(),
        1,
        "manifests are read"
    );
    let config = agent
        .get("/v1/config")
        .await
        .unwrap()
        .whole()
        .await
        .unwrap();
    assert_eq!(config, br#"[{"key":"root"}]"#);
}

#[tokio::test]
async fn a_watch_tells_every_change_once() {
    let agent = Agent::start();
    let mut answer = agent.get("/v1/status?watch=true").await.unwrap();
    assert_eq!(line(&mut answer).await["agent"]["version"], "0.1.0");
    agent.view.set_version("0.1.0"); // says so, yet nothing changed
    agent.view.set_version("2");
    assert_eq!(line(&mut answer).await["agent"]["version"], "2");
    agent.cancel.cancel();
    assert!(answer.next().await.unwrap().is_none());
    agent.serving.await.unwrap().unwrap();
}

#[tokio::test]
async fn entries_of_the_journal_come_once_and_in_order() {
    let agent = Agent::start();
    agent.view.set_version("2");
    let all = agent
        .get("/v1/events")
        .await
        .unwrap()
        .whole()
        .await
        .unwrap();
    let event: EventReport = serde_json::from_slice(&all).unwrap();
    assert_eq!(event, agent.view.events(0)[0]);
    let none = agent.get("/v1/events?from=1").await.unwrap();
    assert!(none.whole().await.unwrap().is_empty());
    let mut answer = agent.get("/v1/events?watch=true&from=1").await.unwrap();
    for number in [1, 2] {
        agent.view.set_version("3");
        assert_eq!(line(&mut answer).await["number"], number);
    }
    agent.cancel.cancel();
    assert!(answer.next().await.unwrap().is_none());
}

#[tokio::test]
async fn logs_keep_their_streams_apart() {
    let agent = Agent::start();
    let answer = agent
        .get("/v1/pods/u/logs/c?follow=true&tail=3&previous=true&timestamps=true&limitBytes=9")
        .await
        .unwrap();
    let mut reader = FrameReader::default();
    reader.push(&answer.whole().await.unwrap());
    assert_eq!(reader.next_frame(), Ok(Some(Frame::Stdout("out\n".into()))));
    assert_eq!(reader.next_frame(), Ok(Some(Frame::Stderr("err\n".into()))));
    assert_eq!(reader.next_frame(), Ok(None));
    let asked = agent.view.asked.lock().unwrap().clone();
    let options = LogOptions {
        follow: true,
        tail: Some(3),
        since: None,
        timestamps: true,
        limit_bytes: Some(9),
        source: mirrorlet_runtime::LogSource::All,
    };
    assert_eq!(asked, [("u".into(), Some("c".to_owned()), options, true)]);
}

#[tokio::test]
async fn a_log_that_breaks_off_says_why() {
    let agent = Agent::start();
    let answer = agent.get("/v1/pods/broken/logs").await.unwrap();
    let mut reader = FrameReader::default();
    reader.push(&answer.whole().await.unwrap());
    let mut last = None;
    while let Some(frame) = reader.next_frame().unwrap() {
        last = Some(frame);
    }
    let Some(Frame::Failed(words)) = last else {
        panic!("{last:?}")
    };
    assert!(words.contains("socket gone"), "{words}");
}

#[tokio::test]
async fn stopping_breaks_open_logs_off() {
    let agent = Agent::start();
    let mut answer = agent
        .get("/v1/pods/endless/logs?follow=true")
        .await
        .unwrap();
    assert!(answer.next().await.unwrap().is_some());
    agent.cancel.cancel();
    let broken = loop {
        match answer.next().await {
            Ok(Some(_)) => {}
            Ok(None) => break false,
            Err(_) => break true,
        }
    };
    // docker 52
    assert!(broken, "it looks complete");
    agent.serving.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_pods_story_is_told() {
    let agent = Agent::start();
    let answer = agent.get("/v1/explain?pod=ns%2Fgone").await.unwrap();
    let story: serde_json::Value = serde_json::from_slice(&answer.whole().await.unwrap()).unwrap();
    assert_eq!(story["namespace"], "ns");
    let words = agent.refused("/v1/explain?pod=nope").await;
    assert!(words.contains("pod \"nope\" not found"), "{words}");
    let words = agent.refused("/v1/explain").await;
    assert!(words.contains("pod"), "{words}");
}

#[tokio::test]
async fn rollouts_are_told_and_commanded() {
    let agent = Agent::start();
    let answer = agent.get("/v1/rollouts?pod=web").await.unwrap();
    let history: serde_json::Value =
        serde_json::from_slice(&answer.whole().await.unwrap()).unwrap();
    assert_eq!(history["name"], "web");
    let root = agent.root.path();
    let post = async |query: &str| {
        let answer = crate::cli::client::post(root, &format!("/v1/rollouts?{query}")).await;
        match answer {
            Ok(body) => String::from_utf8(body).unwrap(),
            Err(Failure::Failed(error)) => error.to_string(),
            Err(other) => panic!("{other:?}"),
        }
    };
    for (query, answer) in [
        ("pod=web&command=undo&toRevision=3", r#"{"revision":3}"#),
        ("pod=web&command=undo", r#"{"revision":7}"#),
        ("pod=web&command=retry", r#"{"revision":7}"#),
        (
            "pod=web&command=retry&toRevision=3",
            "only undo takes a revision",
        ),
        ("pod=web&command=pause", "already paused"),
        ("pod=gone&command=resume", "pod gone not found"),
    ] {
        assert_eq!(post(query).await, answer, "{query}");
    }
    assert!(post("pod=web&command=fly").await.contains("fly"));
}

#[tokio::test]
async fn orders_are_passed_on() {
    let agent = Agent::start();
    let root = agent.root.path();
    let post = async |query: &str| {
        let path = format!("/v1/orders?{query}");
        match crate::cli::client::post_patiently(root, &path).await {
            Ok(body) => String::from_utf8(body).unwrap(),
            Err(Failure::Failed(error)) => error.to_string(),
            Err(other) => panic!("{other:?}"),
        }
    };
    let web = |containers: &str| {
        format!(r#"{{"namespace":"ns","name":"web","containers":[{containers}]}}"#)
    };
    for (query, answer) in [
        ("pod=web&verb=stop", web("")),
        ("pod=web&verb=restart&pull=true&container=c", web(r#""c""#)),
        ("pod=gone&verb=start", "pod gone not found".to_owned()),
    ] {
        assert_eq!(post(query).await, answer, "{query}");
    }
    assert!(post("pod=web&verb=fly").await.contains("fly"));
}

#[tokio::test]
async fn volumes_are_listed_and_removed() {
    let agent = Agent::start();
    let root = agent.root.path();
    let body = crate::cli::client::get(root, "/v1/volumes").await.unwrap();
    let report: VolumesReport = serde_json::from_slice(&body.whole().await.unwrap()).unwrap();
    let names: Vec<&str> = report.volumes.iter().map(|volume| &*volume.claim).collect();
    assert_eq!(names, ["db", "old"]);
    let remove = async |claim: &str| {
        let path = format!("/v1/volumes/remove?name=mirrorlet_default_{claim}");
        crate::cli::client::post(root, &path).await
    };
    let removed: VolumeReport = serde_json::from_slice(&remove("old").await.unwrap()).unwrap();
    assert_eq!(removed, report.volumes[1]);
    let Err(Failure::Failed(error)) = remove("db").await else {
        panic!("a volume in use was removed");
    };
    assert_eq!(error.to_string(), "volume mirrorlet_default_db is used");
}

#[tokio::test]
async fn manifests_are_planned() {
    let agent = Agent::start();
    let file = serde_json::json!({"name": "web.yaml", "text": "words"});
    let request = serde_json::json!({"files": [file], "whole": false, "content": false});
    let post = async |request| {
        crate::cli::client::post_json(agent.root.path(), "/v1/plan", &request).await
    };
    let answer = post(request).await.unwrap();
    let plan: serde_json::Value = serde_json::from_slice(&answer).unwrap();
    assert_eq!(plan["problems"][0]["file"], "web.yaml");
    let Err(Failure::Failed(error)) = post(serde_json::json!({"files": 1})).await else {
        panic!("a plan of nothing")
    };
    assert!(error.to_string().contains("files"), "{error}");
}

#[tokio::test]
async fn errors_carry_their_help() {
    let agent = Agent::start();
    assert_eq!(
        agent.refused("/v1/pods/gone/logs").await,
        "pod gone not found; look again"
    );
    assert!(
        agent
            .refused("/v1/nothing")
            .await
            .starts_with("no such path; ")
    );
    let words = agent.refused("/v1/pods/u/logs?tail=x").await;
    assert!(words.contains("tail"), "{words}");
}

#[tokio::test]
async fn streams_are_bounded_and_leave_room_for_commands_that_end() {
    let agent = Agent::start();
    let mut open = Vec::new();
    for at in 0..STREAMS_MAX {
        let path = match at % 3 {
            0 => "/v1/status?watch=true",
            1 => "/v1/top?watch=true",
            _ => "/v1/pods/endless/logs?follow=true",
        };
        let mut answer = agent.get(path).await.unwrap();
        assert!(answer.next().await.unwrap().is_some());
        open.push(answer);
    }
    for path in [
        "/v1/status?watch=true",
        "/v1/events?watch=true",
        "/v1/top?watch=true",
        "/v1/pods/endless/logs?follow=true",
    ] {
        let words = agent.refused(path).await;
        // agent 14
        assert!(words.contains("already has 64 followed logs"), "{words}");
    }
    for path in ["/v1/status", "/v1/events", "/v1/top", "/v1/pods/u/logs"] {
        let whole = agent.get(path).await.unwrap().whole().await;
        // agent 14
        assert!(whole.is_ok(), "{path}");
    }
    let stop = "/v1/orders?pod=web&verb=stop";
    let stopped = crate::cli::client::post_patiently(agent.root.path(), stop).await;
    // agent 14
    assert!(stopped.is_ok());
    open.clear();
    // The agent learns of closed connections in its own time: ask until it has.
    while agent.get("/v1/status?watch=true").await.is_err() {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_that_its_client_stops_sending_is_not_waited_for() {
    let agent = Agent::start();
    for head in ["POST /v1/plan", "PUT /v1/pods/u/files?path=/dir"] {
        let socket = socket_path(agent.root.path());
        let mut stream = UnixStream::connect(socket).await.unwrap();
        let request = format!(
            "{head} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 9\r\n\r\n{{"
        );
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        let ended = timeout(2 * SILENCE_MAX, stream.read_to_string(&mut answer)).await;
        assert!(ended.is_ok(), "{head}: still connected");
        // agent 17
        assert!(answer.starts_with("HTTP/1.1 408"), "{head}: {answer}");
    }
}

#[tokio::test]
async fn without_an_agent_the_error_says_how_to_start_one() {
    let root = tempfile::tempdir().unwrap();
    let shown = root.path().display();
    let Err(Failure::NoAgent(error)) = ask(root.path(), "/v1/status").await else {
        panic!("an agent answered")
    };
    assert_eq!(
        error.to_string(),
        format!(
            "no mirrorlet agent is running with root directory {shown} (no answer on {shown}/mirrorlet.sock); if it uses another root directory, specify it with --root DIR; is the service running? see: systemctl status mirrorlet; or start one with: mirrorlet run --root {shown}"
        )
    );
}

#[tokio::test]
async fn the_socket_is_for_root_and_replaces_a_stale_one_only() {
    let dir = tempfile::tempdir().unwrap();
    let path = socket_path(dir.path());
    drop(bind(&path).unwrap());
    let _listener = bind(&path).unwrap();
    let mode = std::fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);

    let file = dir.path().join("file");
    std::fs::write(&file, "mine").unwrap();
    assert!(matches!(bind(&file), Err(SocketError::Io { .. })));
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "mine");

    let long = dir.path().join("x".repeat(120));
    let error = bind(&long).unwrap_err();
    assert!(matches!(error, SocketError::TooLong { .. }), "{error}");
    assert!(error.to_string().contains("shorter --root"), "{error}");
}
