//! Events, stories and the status report of an agent in a real cluster, on a real Engine.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::IMAGE;
use crate::common::cluster::Cluster;
use crate::common::node::{Identity, NodeBed, QUIET, uid, until};
use serde_json::Value;

/// Events about an object of that UID in a namespace, in the order of their names: that of the
/// times when they happened first.
fn events_of(bed: &NodeBed, namespace: &str, uid: &str) -> Vec<Value> {
    let selector = format!("--field-selector=involvedObject.uid={uid}");
    let list = bed.cluster.object(&["events", "-n", namespace, &selector]);
    // Told as nothing when there is none.
    let Some(list) = list else { return Vec::new() };
    let mut events = list["items"].as_array().unwrap().clone();
    events.sort_by_key(|event| event["metadata"]["name"].to_string());
    events
}

/// Waits until an object has events of all these reasons, and returns all it has.
async fn until_events(bed: &NodeBed, namespace: &str, uid: &str, reasons: &[&str]) -> Vec<Value> {
    until(&format!("events {reasons:?} of {uid}"), async || {
        let events = events_of(bed, namespace, uid);
        let has = |reason: &&str| events.iter().any(|event| event["reason"] == **reason);
        if reasons.iter().all(has) {
            Ok(events)
        } else {
            Err(events)
        }
    })
    .await
}

fn reasons(events: &[Value]) -> Vec<&str> {
    events
        .iter()
        .map(|event| event["reason"].as_str().unwrap())
        .collect()
}

/// The output of `kubectl get events --watch`, line by line.
struct Watched {
    kubectl: Child,
    lines: Arc<Mutex<Vec<String>>>,
}

impl Watched {
    fn start(bed: &NodeBed) -> Self {
        let columns = "custom-columns=NAME:.involvedObject.name,REASON:.reason";
        let mut command = bed.cluster.kubectl_command(&bed.cluster.admin_kubeconfig());
        let mut kubectl = command
            .args(["get", "events", "--watch", "--no-headers"])
            .args(["-n", &bed.namespace, "-o", columns])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = Arc::new(Mutex::new(Vec::new()));
        let (out, told) = (kubectl.stdout.take().unwrap(), Arc::clone(&lines));
        // Ends with kubectl, which is killed below.
        std::thread::spawn(move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                told.lock().unwrap().push(line);
            }
        });
        Self { kubectl, lines }
    }

    /// Reasons told of a pod so far; a repeat, whose count alone is new, is not told again.
    fn of(&self, pod: &str) -> Vec<String> {
        let lines = self.lines.lock().unwrap();
        let words = lines.iter().map(|line| line.split_whitespace());
        let mut reasons: Vec<String> = words
            .filter_map(|mut words| (words.next() == Some(pod)).then(|| words.next()).flatten())
            .map(str::to_owned)
            .collect();
        reasons.dedup();
        reasons
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        let _ = self.kubectl.kill();
        let _ = self.kubectl.wait();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn describing_a_mirror_shows_the_events_of_its_static_pod() {
    let bed = NodeBed::new().await;
    let agent = bed.joined().await;
    bed.sleeper("web");
    let pod = agent.until_running("web").await;
    let mirror = bed.until_mirrored("web").await;
    let static_uid = pod.uid.as_str();
    assert_ne!(uid(&mirror), static_uid);
    // pods 62
    let events = until_events(&bed, &bed.namespace, static_uid, &["Started"]).await;
    assert_eq!(reasons(&events), ["Pulled", "Created", "Started"]);
    for event in &events {
        let about = &event["involvedObject"];
        assert_eq!(about["kind"], "Pod");
        assert_eq!(about["apiVersion"], "v1");
        assert_eq!(about["name"], bed.name("web"));
        assert_eq!(about["namespace"], bed.namespace.as_str());
        assert_eq!(about["fieldPath"], "spec.containers{web}");
        assert_eq!(event["type"], "Normal");
        assert_eq!(event["source"]["component"], "mirrorlet");
        assert_eq!(event["source"]["host"], bed.node.as_str());
    }
    assert!(events_of(&bed, &bed.namespace, uid(&mirror)).is_empty());
    let described =
        bed.cluster
            .kubectl(&["describe", "pod", "-n", &bed.namespace, &bed.name("web")]);
    for words in [
        "already present on machine",
        "Container created",
        "Container started",
    ] {
        assert!(described.contains(words), "{words} is not in\n{described}");
    }
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pods_story_is_watched_in_its_order() {
    let bed = NodeBed::new().await;
    let agent = bed.joined().await;
    let watched = Watched::start(&bed);
    let init = "  initContainers:\n  - {name: setup, image: IMAGE, command: [\"true\"]}\n";
    let pod = bed.pod("web", IMAGE, 1, QUIET) + &init.replace("IMAGE", IMAGE);
    bed.write("web.yaml", &pod);
    let static_uid = agent.until_running("web").await.uid;
    let name = bed.name("web");
    // One start of the init container, then one of the other.
    let twice = [
        "Pulled", "Created", "Started", "Pulled", "Created", "Started",
    ];
    until("the start's events", async || {
        let seen = watched.of(&name);
        if seen == twice { Ok(()) } else { Err(seen) }
    })
    .await;
    bed.remove("web.yaml");
    agent
        .until("the pod to be gone", |report| report.pods.is_empty())
        .await;
    // events 2
    until("the stop's event", async || {
        let seen = watched.of(&name);
        if seen.len() == 7 && seen[6] == "Killing" {
            Ok(())
        } else {
            Err(seen)
        }
    })
    .await;
    let events = events_of(&bed, &bed.namespace, static_uid.as_str());
    assert_eq!(
        events[0]["involvedObject"]["fieldPath"],
        "spec.initContainers{setup}"
    );
    assert_eq!(events[6]["message"], "Stopping container web");
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_loop_is_counted_and_not_repeated() {
    let bed = NodeBed::new().await;
    let mut resolved = bed.resolved();
    resolved.config.max_container_backoff = Duration::from_secs(1);
    let agent = bed.agent_as(resolved).await;
    bed.write("web.yaml", &bed.pod("web", IMAGE, 1, "exit 3"));
    let pod = agent.until_pod("web", |pod| pod.restarts >= 3).await;
    let counted = |event: &Value| event["count"].as_i64().unwrap_or(0);
    let events = until("counts of 3", async || {
        let events = events_of(&bed, &bed.namespace, pod.uid.as_str());
        let many = |reason: &str| {
            let of = |event: &&Value| event["reason"] == reason;
            events.iter().filter(of).map(counted).max() >= Some(3)
        };
        if many("Started") && many("BackOff") {
            Ok(events)
        } else {
            Err(events)
        }
    })
    .await;
    let mut different = reasons(&events);
    different.sort_unstable();
    // events 1
    assert_eq!(different, ["BackOff", "Created", "Pulled", "Started"]);
    let backoff = events.iter().find(|event| event["reason"] == "BackOff");
    let backoff = backoff.unwrap();
    assert_eq!(backoff["type"], "Warning");
    let expected = format!(
        "Back-off restarting failed container web in pod {}_{}({})",
        bed.name("web"),
        bed.namespace,
        pod.uid
    );
    assert_eq!(backoff["message"], expected);
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_fails_is_an_event() {
    let bed = NodeBed::new().await;
    let agent = bed.joined().await;
    let never = bed.pod("never", "mirrorlet.test/absent:1", 1, QUIET);
    let never = never.replace("IfNotPresent", "Never");
    bed.write("never.yaml", &never);
    let wrong = bed.pod("wrong", IMAGE, 1, QUIET);
    bed.write(
        "wrong.yaml",
        &wrong.replace("\"sh\"", "\"/no/such/program\""),
    );
    let pod = agent
        .until_pod("never", |pod| pod.status == "ErrImageNeverPull")
        .await;
    let wanted = ["ErrImageNeverPull", "Failed"];
    let events = until_events(&bed, &bed.namespace, pod.uid.as_str(), &wanted).await;
    // docker 66
    assert_eq!(
        events[0]["message"],
        "Container image \"mirrorlet.test/absent:1\" is not present with pull policy of Never"
    );
    assert_eq!(events[1]["message"], "Error: ErrImageNeverPull");
    let pod = agent
        .until_pod("wrong", |pod| {
            ["RunContainerError", "CrashLoopBackOff"].contains(&pod.status.as_str())
        })
        .await;
    let events = until_events(&bed, &bed.namespace, pod.uid.as_str(), &["Failed"]).await;
    let failed = events.iter().find(|event| event["reason"] == "Failed");
    let message = failed.unwrap()["message"].as_str().unwrap();
    assert!(message.starts_with("Error: "), "{message}");
    assert!(message.contains("/no/such/program"), "{message}");
    // A second file that wants the same name.
    bed.sleeper("web");
    agent.until_running("web").await;
    let other = bed.pod("web", IMAGE, 2, QUIET);
    bed.write("zzz.yaml", &other);
    let refused = until("FailedValidation", async || {
        let list = bed.cluster.object(&["events", "-n", &bed.namespace]);
        let list = list.unwrap_or_default();
        let events = list["items"].as_array().cloned().unwrap_or_default();
        let found = events.iter().find(|e| e["reason"] == "FailedValidation");
        found.cloned().ok_or(events)
    })
    .await;
    let message = refused["message"].as_str().unwrap();
    assert!(message.contains("due to duplicate pod name"), "{message}");
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_nodes_events_have_its_name_as_uid() {
    let bed = NodeBed::on(Cluster::shared().await, Identity::ServiceAccount).await;
    let agent = bed.joined().await;
    let events = until_events(&bed, "default", &bed.node, &["Starting"]).await;
    // events 5
    assert!(events.iter().all(|e| e["involvedObject"]["kind"] == "Node"));
    let described = bed.cluster.kubectl(&["describe", "node", &bed.node]);
    assert!(described.contains("Starting mirrorlet."), "{described}");
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn events_wait_for_an_api_server_that_is_away_and_status_says_so() {
    let mut bed = NodeBed::new().await;
    let link = bed.link().await;
    let agent = bed.joined().await;
    let report = agent
        .until("a Node that is Ready", |report| {
            let node = report.node.as_ref();
            let ready = |node: &mirrorlet_core::api::report::NodeReport| {
                let mut all = node.conditions.iter();
                node.registered
                    && node.lease_renewed.is_some()
                    && all.any(|c| c.condition == "Ready" && c.status == "True")
            };
            node.is_some_and(ready)
        })
        .await;
    assert!(report.api.unwrap().reachable);
    link.refuse().await;
    bed.sleeper("web");
    let pod = agent.until_running("web").await;
    let report = agent
        .until("the API server to be away", |report| {
            let api = report.api.as_ref();
            api.is_some_and(|api| !api.reachable && api.unreachable_since.is_some())
        })
        .await;
    assert!(report.api.unwrap().error.is_some());
    let web = agent.until_pod("web", |pod| pod.mirror.is_some()).await;
    assert_ne!(web.mirror.unwrap().state, "Synced");
    link.accept().await;
    let events = until_events(&bed, &bed.namespace, pod.uid.as_str(), &["Started"]).await;
    // events 3
    assert_eq!(reasons(&events), ["Pulled", "Created", "Started"]);
    agent
        .until("the mirror", |report| {
            let mirrored = |pod: &mirrorlet_core::api::report::PodReport| {
                let mirror = pod.mirror.as_ref();
                mirror.is_some_and(|mirror| mirror.state == "Synced" && mirror.uid.is_some())
            };
            report.api.as_ref().is_some_and(|api| api.reachable) && report.pods.iter().all(mirrored)
        })
        .await;
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_story_has_everything_and_is_found_by_either_uid() {
    let bed = NodeBed::new().await;
    let agent = bed.joined().await;
    bed.sleeper("web");
    let pod = agent.until_running("web").await;
    let mirror = bed.until_mirrored("web").await;
    let view = agent.view();
    let wanted = [
        "ManifestRead",
        "Added",
        "Planned",
        "SandboxCreated",
        "Started",
        "EngineCalls",
        "Round",
        "MirrorCreated",
        "StatusWritten",
    ];
    let by_name = until("the whole story", async || {
        let story = view.explain("web").unwrap().story;
        let told = |reason: &&str| story.iter().any(|entry| entry.reason == **reason);
        if wanted.iter().all(told) {
            Ok(story)
        } else {
            Err(story)
        }
    })
    .await;
    let place = |reason: &str| by_name.iter().position(|entry| entry.reason == reason);
    for pair in [
        "ManifestRead",
        "Added",
        "Planned",
        "SandboxCreated",
        "Started",
    ]
    .windows(2)
    {
        // events 6
        assert!(place(pair[0]) < place(pair[1]), "{pair:?} in {by_name:#?}");
    }
    let read = &by_name[place("ManifestRead").unwrap()].message;
    assert!(read.contains("web.yaml"), "{read}");
    assert!(read.contains(pod.uid.as_str()), "{read}");
    for text in [pod.uid.as_str(), uid(&mirror)] {
        let found = view.explain(text).unwrap();
        assert_eq!(found.pod.unwrap().uid, pod.uid, "{text}");
    }
    bed.remove("web.yaml");
    agent
        .until("the pod to be gone", |report| report.pods.is_empty())
        .await;
    let gone = view.explain("web").unwrap();
    assert!(gone.pod.is_none());
    assert!(gone.story.iter().any(|entry| entry.reason == "Killing"));
    agent.stop().await;
}
