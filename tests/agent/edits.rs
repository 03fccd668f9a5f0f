//! Edits of manifests, under a whole agent.

use crate::common::{Bed, IMAGE, IMAGE_2, TestAgent, eventually, free_port, sleeper, sleeper_of};
use mirrorlet_core::api::PodUid;
use mirrorlet_core::api::report::PodReport;

/// A pod that, told to stop, waits until it is let go, and is granted the time.
fn slow_to_stop(name: &str, note: &str) -> String {
    format!(
        r#"apiVersion: v1
kind: Pod
metadata:
  name: {name}
  labels: {{note: "{note}"}}
spec:
  terminationGracePeriodSeconds: 600
  containers:
  - name: {name}
    image: {IMAGE}
    command: ["sh", "-c", "trap 'until test -e /data/go; do sleep 0.1; done; exit 0' TERM; while :; do sleep 1 & wait $!; done"]
    volumeMounts: [{{name: data, mountPath: /data}}]
  volumes: [{{name: data, emptyDir: {{}}}}]
"#
    )
}

/// Lets such a pod go.
fn let_go(bed: &Bed, uid: &PodUid) {
    let volumes = bed.path().join(format!("pods/{uid}/volumes"));
    std::fs::write(volumes.join("kubernetes.io~empty-dir/data/go"), "").unwrap();
}

/// A pod whose manifest names its UID, of two containers.
fn with_uid(uid: &str, image_a: &str, image_b: &str, label: &str) -> String {
    let container = |name: &str, image: &str| {
        format!(
            "  - name: {name}\n    image: {image}\n    command: [\"sh\", \"-c\", \"trap 'exit 0' TERM; while :; do sleep 1 & wait $!; done\"]\n"
        )
    };
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata:\n  name: pinned\n  uid: {uid}\n  labels: {{v: \"{label}\"}}\nspec:\n  terminationGracePeriodSeconds: 60\n  containers:\n{}{}",
        container("a", image_a),
        container("b", image_b)
    )
}

/// Waits for one more round of every source and worker: a pod made and removed on the way.
async fn a_round(bed: &Bed, agent: &TestAgent) {
    bed.write("zz-mark.yaml", &sleeper("zz-mark"));
    agent.until_running("zz-mark").await;
    bed.remove("zz-mark.yaml");
    agent.until_gone("zz-mark").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_manifest_becomes_a_running_pod_and_its_removal_ends_it() {
    let bed = Bed::new();
    let agent = bed.agent().await;
    bed.write("web.yaml", &sleeper("web"));
    // pods 4
    let pod = agent.until_running("web").await;
    assert_eq!(pod.restarts, 0);
    assert_eq!(pod.ips.len(), 1, "{pod:?}");
    assert_eq!(bed.running().len(), 2, "a sandbox and a container");
    bed.remove("web.yaml");
    agent.until_gone("web").await;
    assert!(bed.containers().is_empty(), "{:?}", bed.containers());
    assert!(!bed.path().join("pods").join(pod.uid.as_str()).exists());
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_edited_image_replaces_the_pod_and_never_runs_two() {
    let bed = Bed::new();
    let agent = bed.agent().await;
    let events = bed.record();
    bed.write("web.yaml", &sleeper("web"));
    let old = agent.until_running("web").await;
    bed.until_traps("web").await;
    bed.write("web.yaml", &sleeper_of("web", IMAGE_2));
    let new = agent
        .until_pod("web", |pod| pod.uid != old.uid && pod.status == "Running")
        .await;
    assert_eq!(new.restarts, 0);
    agent
        .until("the old pod to be gone", |report| report.pods.len() == 1)
        .await;
    assert_eq!(bed.exec("web", "echo $EDITION"), "2");
    assert_eq!(bed.containers().len(), 2, "{:?}", bed.containers());
    // First all of the old pod ended, by its own choice, then anything of the new one started.
    let created = events.until("create", new.uid.as_str()).await.at;
    let ended = events
        .until("die", &format!("k8s_web_web-box_default_{}", old.uid))
        .await;
    assert_eq!(ended.attributes["exitCode"], "0");
    let sandbox = events
        .until("die", &format!("k8s_POD_web-box_default_{}", old.uid))
        .await;
    // pods 17
    assert!(ended.at < sandbox.at && sandbox.at < created);
    let successor = format!("k8s_web_web-box_default_{}", new.uid);
    events.until("start", &successor).await;
    // agent 1
    assert_eq!(events.most_at_once("k8s_web_"), 1);
    assert_eq!(events.most_at_once("k8s_POD_"), 1);
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_many_edits_during_a_grace_only_the_last_one_starts() {
    let bed = Bed::new();
    let agent = bed.agent().await;
    let events = bed.record();
    bed.write("slow.yaml", &slow_to_stop("slow", "first"));
    let first = agent.until_running("slow").await;
    bed.until_traps("slow").await;
    let mut waiting = Vec::new();
    for edit in 0..5 {
        bed.write("slow.yaml", &slow_to_stop("slow", &format!("edit-{edit}")));
        let queued = |pod: &PodReport| {
            pod.uid != first.uid
                && !waiting.contains(&pod.uid)
                && pod.message.contains("the previous pod of this name")
        };
        let pod = agent.until_pod("slow", queued).await;
        assert_eq!(pod.status, "Pending", "{pod:?}");
        waiting.push(pod.uid);
    }
    let last = waiting.pop().unwrap();
    let_go(&bed, &first.uid);
    let pod = agent
        .until_pod("slow", |pod| pod.uid == last && pod.status == "Running")
        .await;
    assert_eq!(pod.restarts, 0);
    agent
        .until("the others to be gone", |report| report.pods.len() == 1)
        .await;
    // The superseded ones caused no call: nothing of theirs was ever created.
    for uid in &waiting {
        // pods 43
        assert!(
            events
                .events()
                .iter()
                .all(|event| !event.container.contains(uid.as_str())),
            "{uid} did something"
        );
        assert!(!bed.path().join("pods").join(uid.as_str()).exists());
    }
    let successor = format!("k8s_slow_slow-box_default_{last}");
    events.until("start", &successor).await;
    assert_eq!(events.most_at_once("k8s_slow_"), 1);
    let died = events.until("die", first.uid.as_str()).await;
    assert_eq!(
        died.attributes["exitCode"], "0",
        "it had the time it asked for"
    );
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_removed_and_added_again_is_the_same_pod() {
    let bed = Bed::new();
    let agent = bed.agent().await;
    let events = bed.record();
    let manifest = slow_to_stop("again", "same");
    bed.write("again.yaml", &manifest);
    let before = agent.until_running("again").await;
    bed.until_traps("again").await;
    bed.remove("again.yaml");
    agent
        .until_pod("again", |pod| pod.status == "Terminating")
        .await;
    bed.write("again.yaml", &manifest);
    // It is known to be wanted again before it has ended.
    a_round(&bed, &agent).await;
    let_go(&bed, &before.uid);
    let after = agent
        .until_pod("again", |pod| pod.status == "Running" && pod.restarts == 1)
        .await;
    // pods 45
    assert_eq!(after.uid, before.uid);
    eventually("the second start to be told", || {
        let all = events.events().into_iter();
        let starts = all.filter(|e| e.action == "start" && e.container.contains("k8s_again_"));
        (starts.count() == 2).then_some(())
    })
    .await;
    assert_eq!(events.most_at_once("k8s_again_"), 1);
    a_round(&bed, &agent).await;
    let still = agent.pod("again").unwrap();
    assert_eq!((still.restarts, still.status.as_str()), (1, "Running"));
    assert_eq!(still.containers[0].id, after.containers[0].id);
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_edit_in_place_restarts_only_what_changed() {
    let bed = Bed::new();
    let agent = bed.agent().await;
    let uid = "5b0e3f52-7c5d-4a0c-9d52-0f6a1de9b001";
    bed.write("pinned.yaml", &with_uid(uid, IMAGE, IMAGE, "1"));
    let pod = agent.until_running("pinned").await;
    // pods 20
    assert_eq!(pod.uid.as_str(), uid);
    bed.until_traps("b").await;
    let (sandbox, a, b) = (
        bed.running_id("POD"),
        bed.running_id("a"),
        bed.running_id("b"),
    );
    // A label changes nothing that runs.
    bed.write("pinned.yaml", &with_uid(uid, IMAGE, IMAGE, "2"));
    a_round(&bed, &agent).await;
    assert_eq!(
        (bed.running_id("a"), bed.running_id("b")),
        (a.clone(), b.clone())
    );
    bed.write("pinned.yaml", &with_uid(uid, IMAGE, IMAGE_2, "2"));
    let container = agent
        .until_container("pinned", "b", |c| c.restarts == 1 && c.state == "running")
        .await;
    assert_eq!(container.image, IMAGE_2);
    assert_eq!(bed.exec("b", "echo $EDITION"), "2");
    assert_eq!(bed.running_id("POD"), sandbox);
    // agent 2
    assert_eq!(bed.running_id("a"), a);
    // docker 26
    assert_ne!(bed.running_id("b"), b);
    assert_eq!(agent.pod("pinned").unwrap().restarts, 1);
    // Stopped as any container is: its process ended by itself.
    assert_eq!(bed.inspect(&b)["State"]["ExitCode"], 0);
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broken_edit_holds_the_pod_across_agents() {
    let bed = Bed::new();
    let agent = bed.agent().await;
    bed.write("web.yaml", &sleeper("web"));
    let before = agent.until_running("web").await;
    let id = bed.running_id("web");
    let broken: [(&str, &[u8]); 6] = [
        ("empty", b""),
        ("cut", b"apiVersion: v1\nkind: Pod\nmetadata:\n  name: we"),
        ("not YAML", b"{{{ %"),
        ("not text", &[0xff, 0xfe, 0x00, 0x41]),
        (
            "another kind",
            b"apiVersion: v1\nkind: Service\nmetadata: {name: web}\n",
        ),
        (
            "invalid",
            b"apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {containers: []}\n",
        ),
    ];
    for (what, bytes) in broken {
        std::fs::write(bed.manifest("web.yaml"), bytes).unwrap();
        let pod = agent
            .until_pod("web", |pod| pod.held && !pod.problems.is_empty())
            .await;
        assert_eq!(
            (pod.status.as_str(), &pod.uid),
            ("Running", &before.uid),
            "{what}"
        );
        assert_eq!(bed.running_id("web"), id, "{what}");
        bed.write("web.yaml", &sleeper("web"));
        agent
            .until_pod("web", |pod| !pod.held && pod.problems.is_empty())
            .await;
    }
    std::fs::write(bed.manifest("web.yaml"), "kind: [").unwrap();
    agent.until_pod("web", |pod| pod.held).await;
    agent.stop().await;
    let agent = bed.agent().await;
    let pod = agent.until_running("web").await;
    assert!(pod.held && !pod.problems.is_empty(), "{pod:?}");
    assert_eq!((pod.restarts, &pod.uid), (0, &before.uid));
    // pods 9
    assert_eq!(bed.running_id("web"), id);
    // Mended with another image: the edit counts now.
    bed.write("web.yaml", &sleeper_of("web", IMAGE_2));
    let mended = agent
        .until_pod("web", |pod| {
            pod.uid != before.uid && pod.status == "Running"
        })
        .await;
    assert!(!mended.held && mended.problems.is_empty());
    // Only the file's removal removes the pod, though it is broken.
    std::fs::write(bed.manifest("web.yaml"), "kind: [").unwrap();
    agent.until_pod("web", |pod| pod.held).await;
    bed.remove("web.yaml");
    agent.until_gone("web").await;
    assert!(
        agent.status().problems.is_empty(),
        "{:?}",
        agent.status().problems
    );
    assert!(bed.containers().is_empty());
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn documents_and_lists_are_pods_of_their_own() {
    let bed = Bed::new();
    let agent = bed.agent().await;
    let (one, two) = (sleeper("one"), sleeper("two"));
    bed.write("both.yaml", &format!("{one}---\n{two}"));
    agent.until_running("one").await;
    // pods 8
    agent.until_running("two").await;
    let id = bed.running_id("one");
    bed.write("both.yaml", &one);
    agent.until_gone("two").await;
    assert_eq!(bed.running_id("one"), id);
    let json = |name: &str| {
        format!(
            r#"{{"apiVersion":"v1","kind":"Pod","metadata":{{"name":"{name}"}},"spec":{{"terminationGracePeriodSeconds":0,"containers":[{{"name":"{name}","image":"{IMAGE}","command":["sleep","1000000"]}}]}}}}"#
        )
    };
    bed.write(
        "list.json",
        &format!(
            r#"{{"apiVersion":"v1","kind":"List","items":[{},{}]}}"#,
            json("three"),
            json("four")
        ),
    );
    agent.until_running("three").await;
    // pods 7
    agent.until_running("four").await;
    let id_of_four = bed.running_id("four");
    let podlist = r#"{"apiVersion":"v1","kind":"PodList","items":[]}"#
        .replace("[]", &format!("[{}]", json("four")));
    bed.write("list.json", &podlist);
    agent.until_gone("three").await;
    assert_eq!(bed.running_id("four"), id_of_four);
    assert_eq!(bed.running_id("one"), id);
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_with_one_name_the_incumbent_keeps_running() {
    let bed = Bed::new();
    let agent = bed.agent().await;
    bed.write("m.yaml", &sleeper("web"));
    let incumbent = agent.until_running("web").await;
    let id = bed.running_id("web");
    // A file that sorts first, and differs.
    bed.write("a.yaml", &sleeper_of("web", IMAGE_2));
    let report = agent
        .until("the duplicate to be told", |report| {
            !report.problems.is_empty()
        })
        .await;
    assert_eq!(report.pods.len(), 1);
    assert_eq!(report.pods[0].uid, incumbent.uid);
    let problem = report.problems[0].to_string();
    assert!(
        problem.contains("a.yaml") && problem.contains("m.yaml"),
        "{problem}"
    );
    agent.stop().await;
    let agent = bed.agent().await;
    let pod = agent.until_running("web").await;
    assert_eq!(pod.uid, incumbent.uid);
    a_round(&bed, &agent).await;
    // pods 13
    assert_eq!(bed.running_id("web"), id);
    assert_eq!(agent.status().problems.len(), 1);
    // An edit leaves the name with its file.
    bed.write("m.yaml", &sleeper("web").replace("sleep 1", "sleep 2"));
    let edited = agent
        .until_pod("web", |pod| {
            pod.uid != incumbent.uid && pod.status == "Running"
        })
        .await;
    // pods 13
    assert!(edited.source.ends_with("m.yaml"), "{edited:?}");
    assert_eq!(agent.status().problems.len(), 1);
    bed.remove("m.yaml");
    let next = agent
        .until_pod("web", |pod| {
            pod.uid != edited.uid && pod.status == "Running"
        })
        .await;
    assert!(next.source.ends_with("a.yaml"), "{next:?}");
    assert_eq!(bed.exec("web", "echo $EDITION"), "2");
    assert!(agent.status().problems.is_empty());
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_moved_manifest_is_another_pod() {
    let bed = Bed::new();
    let agent = bed.agent().await;
    let events = bed.record();
    bed.write("here.yaml", &sleeper("web"));
    let before = agent.until_running("web").await;
    std::fs::rename(bed.manifest("here.yaml"), bed.manifest("there.yaml")).unwrap();
    // pods 5
    let after = agent
        .until_pod("web", |pod| {
            pod.uid != before.uid && pod.status == "Running"
        })
        .await;
    assert!(after.source.ends_with("there.yaml"), "{after:?}");
    agent
        .until("one pod", |report| report.pods.len() == 1)
        .await;
    let successor = format!("k8s_web_web-box_default_{}", after.uid);
    events.until("start", &successor).await;
    assert_eq!(events.most_at_once("k8s_web_"), 1);
    // A document that is no manifest makes no pod, and is reported.
    bed.write(".hidden.yaml", &sleeper("hidden"));
    bed.write("notes.txt", &sleeper("notes"));
    std::fs::create_dir(bed.manifest("below")).unwrap();
    std::fs::write(bed.manifest("below").join("x.yaml"), sleeper("below")).unwrap();
    let report = agent
        .until("the ignored to be told", |report| {
            report.sources[0]
                .ignored
                .iter()
                .any(|name| name.contains("notes.txt"))
        })
        .await;
    assert_eq!(report.pods.len(), 1);
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_that_vanishes_stops_nothing() {
    let bed = Bed::new();
    let agent = bed.agent().await;
    bed.write("web.yaml", &sleeper("web"));
    agent.until_running("web").await;
    let id = bed.running_id("web");
    let (dir, aside) = (bed.path().join("manifests"), bed.path().join("aside"));
    std::fs::rename(&dir, &aside).unwrap();
    let report = agent
        .until("its absence to be told", |report| {
            !report.sources[0].problems.is_empty()
        })
        .await;
    assert_eq!(report.pods.len(), 1);
    // pods 1
    assert_eq!(bed.running_id("web"), id);
    agent.stop().await;
    // An agent that finds it missing holds what it knows of it, and does not make an empty one.
    let agent = bed.agent().await;
    let report = agent
        .until("its absence to be told", |report| {
            !report.sources[0].problems.is_empty() && report.pods.len() == 1
        })
        .await;
    assert_eq!(report.pods[0].manifest_name, "web");
    agent.until_running("web").await;
    assert_eq!(bed.running_id("web"), id);
    assert!(!dir.exists());
    std::fs::write(aside.join("more.yaml"), sleeper("more")).unwrap();
    std::fs::rename(&aside, &dir).unwrap();
    agent.until_running("more").await;
    agent
        .until("the source to be well", |report| {
            report.sources[0].problems.is_empty()
        })
        .await;
    agent.until_pod("web", |pod| !pod.held).await;
    assert_eq!(bed.running_id("web"), id);
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_the_node_refused_is_in_nobodys_way() {
    let bed = Bed::new();
    let port = free_port();
    let with_port = |name: &str, note: &str| {
        sleeper(name)
            .replace("metadata:\n", &format!("metadata:\n  labels: {{note: {note}}}\n"))
            .replace(
                "  containers:\n",
                &format!("  containers:\n  - name: port\n    image: {IMAGE}\n    command: [sleep, \"1000\"]\n    ports: [{{containerPort: 80, hostPort: {port}}}]\n"),
            )
    };
    bed.write("web.yaml", &with_port("web", "a"));
    let agent = bed.agent().await;
    let first = agent.until_running("web").await;
    bed.write("clash.yaml", &with_port("clash", "a"));
    let refused = agent
        .until_pod("clash", |pod| pod.status == "NodePorts")
        .await;
    assert!(refused.message.contains(&port.to_string()), "{refused:?}");
    bed.write("web.yaml", &with_port("web", "b"));
    // rollouts 31
    let second = agent
        .until_pod("web", |pod| pod.uid != first.uid && pod.status == "Running")
        .await;
    assert!(!second.held, "{second:?}");
    agent.stop().await;
}
