//! The node API as kubectl, the API server and strangers find it: a whole agent, on a real Engine
//! and real Kubernetes servers.

use crate::common::cluster::Cluster;
use crate::common::node::{Identity, NodeBed, QUIET, bound, is_ready, until};
use crate::common::{IMAGE, eventually};
use serde_json::{Value, json};

/// Writes ten numbered lines, half of them to standard error, and then nothing more.
const TEN_LINES: &str = "trap 'exit 0' TERM; for n in 0 2 4 6 8; do echo line $n; echo line $((n+1)) >&2; done; while :; do sleep 1 & wait $!; done";

/// `kubectl logs` in the bed's namespace.
fn logs(bed: &NodeBed, args: &[&str]) -> Result<String, String> {
    let mut all = vec!["logs", "-n", &bed.namespace];
    all.extend(args);
    bed.cluster.try_kubectl(&all)
}

/// Waits until the log holds all of [`TEN_LINES`]; its lines, sorted: both outputs have their own
/// way into it.
async fn until_ten_lines(bed: &NodeBed, pod: &str) {
    until(&format!("ten lines of {pod}"), async || {
        let log = logs(bed, &[pod])?;
        let mut lines: Vec<_> = log.lines().collect();
        lines.sort_unstable();
        let whole = lines
            .iter()
            .enumerate()
            .all(|(n, line)| *line == format!("line {n}"));
        if whole && lines.len() == 10 {
            Ok(())
        } else {
            Err(log)
        }
    })
    .await;
}

async fn logs_are_read(identity: Identity) {
    let bed = NodeBed::on(Cluster::shared().await, identity).await;
    let agent = bed.joined().await;
    let node = bed.api_node().await.unwrap();
    let port = node["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"].as_u64();
    assert!(port.is_some_and(|port| port > 0), "{port:?}");

    bed.write(
        "web.yaml",
        &bed.pod("web", IMAGE, 1, &TEN_LINES.replace('"', "\\\"")),
    );
    bed.cluster
        .apply(&bound(&bed, "api", IMAGE, TEN_LINES).to_string());
    bed.until_mirrored("web").await;
    bed.until_pod("api", is_ready).await;
    for pod in [bed.name("web").as_str(), "api"] {
        until_ten_lines(&bed, pod).await;
        let count = |args: &[&str]| {
            let mut all = vec![pod];
            all.extend(args);
            logs(&bed, &all).unwrap().lines().count()
        };
        // node-api 1
        assert_eq!(count(&["--tail=3"]), 3);
        assert_eq!(count(&["--tail=0"]), 0);
        assert_eq!(count(&["--since=1h"]), 10);
        assert_eq!(count(&["--since-time=2020-01-02T03:04:05Z"]), 10);
        assert_eq!(logs(&bed, &[pod, "--limit-bytes=4"]).unwrap(), "line");
        let stamped = logs(&bed, &[pod, "--timestamps", "--tail=1"]).unwrap();
        let (time, line) = stamped.split_once(' ').unwrap();
        assert!(
            time.parse::<mirrorlet_core::api::Timestamp>().is_ok(),
            "{stamped}"
        );
        assert!(line.starts_with("line "), "{stamped}");
        let error = logs(&bed, &[pod, "--previous"]).unwrap_err();
        assert!(
            error.contains("previous terminated container") && error.contains("not found"),
            "{error}"
        );
    }
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_reads_logs_of_a_node_with_a_certificate() {
    logs_are_read(Identity::Node).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_reads_logs_of_a_node_with_a_service_account() {
    logs_are_read(Identity::ServiceAccount).await;
}

/// Address of the bed's node API.
async fn node_api(bed: &NodeBed) -> String {
    let node = bed.api_node().await.unwrap();
    let addresses = node["status"]["addresses"].as_array().unwrap();
    let internal = addresses
        .iter()
        .find(|a| a["type"] == "InternalIP")
        .unwrap();
    let port = &node["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"];
    format!("https://{}:{port}", internal["address"].as_str().unwrap())
}

/// Asks the node API itself, with these arguments of kubectl for who asks.
async fn ask(bed: &NodeBed, path: &str, who: &[&str]) -> Result<String, String> {
    let nobody = bed.path().join("nobody.kubeconfig");
    std::fs::write(&nobody, "apiVersion: v1\nkind: Config\n").unwrap();
    let server = format!("--server={}", node_api(bed).await);
    let mut args = vec![server.as_str(), "get", "--raw", path];
    args.extend(who);
    if !who.iter().any(|arg| arg.starts_with("--token")) {
        // Without any credential kubectl would ask for this one, which nobody takes here.
        args.extend(["--username=nobody", "--password=none"]);
    }
    bed.cluster.try_kubectl_as(&nobody, &args)
}

const UNVERIFIED: &str = "--insecure-skip-tls-verify";

async fn who_may_is_asked_of_the_api_server(identity: Identity) {
    let bed = NodeBed::on(Cluster::shared().await, identity).await;
    let agent = bed.joined().await;
    let ask = async |path: &str, who: &[&str]| {
        let mut all = vec![UNVERIFIED];
        all.extend(who);
        ask(&bed, path, &all).await
    };
    let words = |answer: Result<String, String>| answer.unwrap_err();
    assert_eq!(ask("/healthz", &[]).await.as_deref(), Ok("ok"));
    // kubectl's words for a 401.
    let unauthorized = "the server has asked for the client to provide credentials";
    let refused = words(ask("/pods", &[]).await);
    assert!(refused.contains(unauthorized), "{refused}");
    let refused = words(ask("/pods", &["--token=nonsense"]).await);
    assert!(refused.contains(unauthorized), "{refused}");

    let namespace = bed.namespace.as_str();
    bed.cluster
        .kubectl(&["create", "serviceaccount", "-n", namespace, "looker"]);
    let token = bed
        .cluster
        .kubectl(&["create", "token", "-n", namespace, "looker"]);
    let token = format!("--token={token}");
    let user = format!("system:serviceaccount:{namespace}:looker");
    let refused = words(ask("/metrics", &[&token]).await);
    assert!(
        refused.contains(&format!(
            "Forbidden (user={user}, verb=get, resource=nodes, subresource(s)=[metrics])"
        )),
        "{refused}"
    );

    // Reading metrics is no right to read pods, let alone to enter containers.
    let role = format!("metrics-{namespace}");
    bed.cluster.kubectl(&[
        "create",
        "clusterrole",
        &role,
        "--verb=get",
        "--resource=nodes/metrics",
    ]);
    let account = format!("--serviceaccount={namespace}:looker");
    bed.cluster.kubectl(&[
        "create",
        "clusterrolebinding",
        &role,
        "--clusterrole",
        &role,
        &account,
    ]);
    // A refusal counts for half a minute, but every path asks for itself and another token is
    // another answer only where it has other rights: a new account is asked about anew.
    bed.cluster
        .kubectl(&["create", "serviceaccount", "-n", namespace, "second"]);
    let second = format!("--serviceaccount={namespace}:second");
    let binding = format!("{role}-second");
    bed.cluster.kubectl(&[
        "create",
        "clusterrolebinding",
        &binding,
        "--clusterrole",
        &role,
        &second,
    ]);
    let token = bed
        .cluster
        .kubectl(&["create", "token", "-n", namespace, "second"]);
    let token = format!("--token={token}");
    until("the right to count", async || {
        let answered = ask("/metrics", &[&token]).await?;
        if answered.contains("kubelet_http_requests_total") {
            Ok(())
        } else {
            Err(answered)
        }
    })
    .await;
    for _ in 0..5 {
        // node-api 7
        assert!(ask("/metrics", &[&token]).await.is_ok());
    }
    for path in [
        "/pods",
        "/containerLogs/a/b/c",
        "/exec/a/b/c",
        "/configz",
        "/stats/summary",
    ] {
        let refused = words(ask(path, &[&token]).await);
        assert!(refused.contains("Forbidden (user="), "{path}: {refused}");
    }
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_asks_who_may() {
    who_may_is_asked_of_the_api_server(Identity::Node).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_account_asks_who_may() {
    who_may_is_asked_of_the_api_server(Identity::ServiceAccount).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_published_authorities_are_believed_where_they_may_be_read() {
    let bed = NodeBed::on(Cluster::shared().await, Identity::ServiceAccount).await;
    let mut resolved = bed.resolved();
    resolved.config.client_ca_file = None;
    let agent = bed.agent_as(resolved).await;
    bed.write("web.yaml", &bed.pod("web", IMAGE, 1, TEN_LINES));
    bed.until_mirrored("web").await;
    until_ten_lines(&bed, &bed.name("web")).await;
    // The API server passes other questions on, too: what runs here is told with its status.
    let path = format!("/api/v1/nodes/{}/proxy/pods", bed.node);
    let pods: Value = serde_json::from_str(&bed.cluster.kubectl(&["get", "--raw", &path])).unwrap();
    let [pod] = pods["items"].as_array().unwrap().as_slice() else {
        panic!("{pods}");
    };
    // node-api 8
    assert_eq!(pod["metadata"]["name"], bed.name("web").as_str());
    assert_eq!(pod["status"]["phase"], "Running");
    let path = format!("/api/v1/nodes/{}/proxy/runningpods/", bed.node);
    let pods: Value = serde_json::from_str(&bed.cluster.kubectl(&["get", "--raw", &path])).unwrap();
    assert_eq!(pods["items"][0]["spec"]["containers"][0]["name"], "web");
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn logs_of_what_ended_waits_or_goes_on() {
    let bed = NodeBed::new().await;
    let agent = bed.joined().await;
    // It ends once, says something else the second time, and ends when a file is there.
    let script = "if [ -e /data/again ]; then echo second; until [ -e /data/end ]; do sleep 0.1; done; echo last; sleep 3600; else echo first; touch /data/again; exit 3; fi";
    let mut pod = bound(&bed, "web", IMAGE, script);
    pod["spec"]["volumes"] = json!([{"name": "data", "emptyDir": {}}]);
    pod["spec"]["containers"][0]["volumeMounts"] = json!([{"name": "data", "mountPath": "/data"}]);
    bed.cluster.apply(&pod.to_string());
    let mut waiting = bound(&bed, "waits", IMAGE, QUIET);
    waiting["spec"]["containers"][0]["image"] = "mirrorlet.test/absent:1".into();
    waiting["spec"]["containers"][0]["imagePullPolicy"] = "Never".into();
    bed.cluster.apply(&waiting.to_string());

    bed.until_pod("waits", |pod| {
        let state = &pod["status"]["containerStatuses"][0]["state"];
        state["waiting"]["reason"] == "ErrImageNeverPull"
    })
    .await;
    let error = logs(&bed, &["waits"]).unwrap_err();
    assert!(
        error.contains(
            "container \"waits\" in pod \"waits\" is waiting to start: ErrImageNeverPull"
        ),
        "{error}"
    );
    bed.until_pod("web", |pod| {
        let status = &pod["status"]["containerStatuses"][0];
        status["restartCount"] == 1 && status["state"]["running"].is_object()
    })
    .await;
    assert_eq!(logs(&bed, &["web", "--previous"]).as_deref(), Ok("first"));
    until("the second line", async || {
        let log = logs(&bed, &["web"]);
        if log.as_deref() == Ok("second") {
            Ok(())
        } else {
            Err(log)
        }
    })
    .await;
    let error = logs(&bed, &["web", "-c", "other"]).unwrap_err();
    assert!(
        error.contains("container other is not valid for pod web"),
        "{error}"
    );

    // A follower sees new lines, and the end of the container ends the log.
    let kubeconfig = bed.cluster.admin_kubeconfig();
    let mut command = bed.cluster.kubectl_command(&kubeconfig);
    command.args(["logs", "-n", &bed.namespace, "web", "--follow"]);
    let following = tokio::task::spawn_blocking(move || command.output().unwrap());
    bed.exec("web", "touch /data/end");
    until("the last line", async || {
        let log = logs(&bed, &["web"]);
        if log.as_deref() == Ok("second\nlast") {
            Ok(())
        } else {
            Err(log)
        }
    })
    .await;
    bed.delete_pod("web", false).await;
    let followed = following.await.unwrap();
    // node-api 2
    assert_eq!(String::from_utf8_lossy(&followed.stdout), "second\nlast\n");
    agent.stop().await;
}

/// The agent keeps little of it, and that is enough for whoever asks.
#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_is_over_is_there_for_everybody_until_it_is_deleted() {
    let bed = NodeBed::new().await;
    let mut agent = bed.joined().await;
    let mut pod = bound(&bed, "job", IMAGE, "echo bye; exit 3");
    pod["spec"]["restartPolicy"] = "Never".into();
    bed.cluster.apply(&pod.to_string());
    bed.until_pod("job", |pod| pod["status"]["phase"] == "Failed")
        .await;
    for is_restarted in [false, true] {
        if is_restarted {
            agent.stop().await;
            agent = bed.joined().await;
        }
        let report = agent
            .until_pod("job", |pod| pod.status == "Error" && pod.phase == "Failed")
            .await;
        assert_eq!(report.source, "api server");
        let container = &report.containers[0];
        assert_eq!(
            (container.exit_code, &*container.state),
            (Some(3), "terminated")
        );
        let failed = "mirrorlet_pods{state=\"failed\"} 1\n";
        eventually("it to be counted", || {
            agent.metrics().contains(failed).then_some(())
        })
        .await;
        // A restarted agent listens on another port, and the Node names it a moment later.
        let log = until("the Node to name the port", async || {
            match logs(&bed, &["job"]) {
                Err(error) if error.contains("connection refused") => Err(error),
                answer => Ok(answer),
            }
        })
        .await;
        // node 6k
        assert_eq!(log.as_deref(), Ok("bye"));
        let error = logs(&bed, &["job", "--previous"]).unwrap_err();
        assert!(error.contains("previous terminated container"), "{error}");
        let args = ["exec", "-n", &bed.namespace, "job", "--", "true"];
        let error = bed.cluster.try_kubectl(&args).unwrap_err();
        assert!(error.contains("completed pod"), "{error}");
        let view = agent.view();
        let pods = view.pods().into_iter();
        let phases: Vec<_> = pods.map(|pod| pod.status.unwrap().phase.unwrap()).collect();
        assert_eq!(phases, ["Failed"]);
        let story = view.explain("job").unwrap();
        assert!(
            story.story.iter().all(|entry| entry.reason != "Removed"),
            "{story:#?}"
        );
    }
    bed.delete_pod("job", false).await;
    bed.until_pod_gone("job").await;
    eventually("all containers to be gone", || {
        bed.containers().is_empty().then_some(())
    })
    .await;
    agent.until("no pod", |report| report.pods.is_empty()).await;
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_cluster_signs_the_certificate_once_somebody_approves() {
    let bed = NodeBed::new().await;
    let mut resolved = bed.resolved();
    resolved.config.rotate_server_certificates = true;
    let agent = bed.agent_as(resolved.clone()).await;
    let user = format!("system:node:{}", bed.node);
    let request = eventually("a request for a certificate", || {
        let all = bed.cluster.object(&["csr"])?;
        let mut all = all["items"].as_array()?.clone().into_iter();
        let ours = all.find(|csr| csr["spec"]["username"] == user.as_str())?;
        Some(ours["metadata"]["name"].as_str()?.to_owned())
    })
    .await;
    bed.until_node("registered", |node| {
        node["status"]["daemonEndpoints"].is_object()
    })
    .await;
    let authority = bed.cluster.authority();
    let verified = format!("--certificate-authority={}", authority.display());
    let error = ask(&bed, "/healthz", &[&verified]).await.unwrap_err();
    assert!(
        error.contains("certificate"),
        "self-signed at first: {error}"
    );
    bed.cluster.kubectl(&["certificate", "approve", &request]);
    let signed = async || {
        // node-api 9
        until("the signed certificate", async || {
            ask(&bed, "/healthz", &[&verified]).await
        })
        .await;
    };
    signed().await;
    agent.stop().await;
    // The next agent has it without asking anybody.
    let agent = bed.agent_as(resolved).await;
    signed().await;
    let all = bed.cluster.object(&["csr"]).unwrap();
    let ours = all["items"].as_array().unwrap().iter();
    assert_eq!(
        ours.filter(|csr| csr["spec"]["username"] == user.as_str())
            .count(),
        1
    );
    agent.stop().await;
}

/// The status of an added container, once the pod has it.
async fn until_debugger(bed: &NodeBed, pod: &str, name: &str, state: &str) -> Value {
    let find = |pod: &Value| {
        let all = pod["status"]["ephemeralContainerStatuses"].as_array()?;
        let found = all.iter().find(|status| status["name"] == name)?;
        found["state"][state].is_object().then(|| found.clone())
    };
    let pod = bed.until_pod(pod, |pod| find(pod).is_some()).await;
    find(&pod).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_debug_adds_a_container_that_is_started_once() {
    let bed = NodeBed::new().await;
    let agent = bed.joined().await;
    bed.cluster
        .apply(&bound(&bed, "web", IMAGE, QUIET).to_string());
    let before = bed.until_pod("web", is_ready).await;
    let debug = |pod: &str, name: &str, target: &[&str], script: &str| {
        let name = format!("--container={name}");
        let mut args = vec!["debug", "-n", &bed.namespace, pod, "--image", IMAGE, &name];
        args.extend(target);
        args.extend(["--", "sh", "-c", script]);
        bed.cluster.try_kubectl(&args)
    };
    debug("web", "dbg", &["--target=web"], QUIET).unwrap();
    let status = until_debugger(&bed, "web", "dbg", "running").await;
    assert_eq!(status["restartCount"], 0);
    // It is among the processes of its target, which goes on undisturbed.
    let seen = bed.exec("dbg", "ps");
    assert!(seen.matches("trap").count() >= 2, "{seen}");
    let after = bed.api_pod("web").await.unwrap();
    let id = |pod: &Value| pod["status"]["containerStatuses"][0]["containerID"].clone();
    assert_eq!(id(&before), id(&after));

    debug("web", "once", &[], "echo said; exit 3").unwrap();
    let status = until_debugger(&bed, "web", "once", "terminated").await;
    assert_eq!(status["state"]["terminated"]["exitCode"], 3);
    assert_eq!(logs(&bed, &["web", "-c", "once"]).as_deref(), Ok("said"));
    assert!(is_ready(&bed.api_pod("web").await.unwrap()));
    // Neither is started by the next agent.
    let all = bed.instances("once");
    agent.stop().await;
    let agent = bed.joined().await;
    agent
        .until_container("web", "once", |container| container.state == "terminated")
        .await;
    agent
        .until_container("web", "dbg", |container| container.state == "running")
        .await;
    // docker 30, node-api 13
    assert_eq!(bed.instances("once"), all);

    // The API server adds nothing to a mirror, and with the pod its containers go.
    bed.sleeper("static");
    bed.until_mirrored("static").await;
    let error = debug(&bed.name("static"), "dbg", &[], QUIET).unwrap_err();
    assert!(
        error.contains("static pods do not support ephemeral containers"),
        "{error}"
    );
    bed.delete_pod("web", false).await;
    bed.until_pod_gone("web").await;
    eventually("all containers of the pod to be gone", || {
        bed.instances("dbg").is_empty().then_some(())
    })
    .await;
    agent.stop().await;
}
