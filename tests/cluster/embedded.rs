//! kubectl without a cluster: the embedded API of an agent that runs alone.

use std::io::Write as _;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

use crate::common::cluster::programs;
use crate::common::{Bed, IMAGE, IMAGE_2, TestAgent, eventually};

/// An agent with the embedded API, and kubectl for it.
pub(super) struct Box {
    pub(super) bed: Bed,
    pub(super) agent: TestAgent,
}

impl Box {
    pub(super) async fn start() -> Self {
        Self::start_on(Bed::new()).await
    }

    pub(super) async fn start_on(bed: Bed) -> Self {
        Self::start_at(bed, ([127, 0, 0, 1], 0).into()).await
    }

    /// Starts one whose API is at that address.
    pub(super) async fn start_at(bed: Bed, address: SocketAddr) -> Self {
        let _ = std::fs::remove_file(bed.path().join("kubeconfig"));
        let mut resolved = bed.resolved();
        resolved.config.api_address = Some(address);
        let agent = bed.agent_as(resolved).await;
        let this = Self { bed, agent };
        eventually("a kubeconfig", || this.kubeconfig().exists().then_some(())).await;
        this
    }

    pub(super) fn kubeconfig(&self) -> PathBuf {
        self.bed.path().join("kubeconfig")
    }

    pub(super) fn command(&self) -> Command {
        let mut command = Command::new(programs::embedded_kubectl());
        command
            .arg("--kubeconfig")
            .arg(self.kubeconfig())
            .arg("--cache-dir")
            .arg(self.bed.path().join("kubectl-cache"))
            .env("GOGC", "400")
            .env_remove("KUBECONFIG");
        command
    }

    pub(super) fn output(&self, args: &[&str], input: &str) -> Output {
        let mut command = self.command();
        let command = command.args(args).stdin(Stdio::piped());
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = child.stdin.take().unwrap();
        // A command that reads nothing may have ended.
        let _ = stdin.write_all(input.as_bytes());
        drop(stdin);
        child.wait_with_output().unwrap()
    }

    pub(super) fn kubectl(&self, args: &[&str]) -> String {
        self.kubectl_with(args, "")
    }

    pub(super) fn kubectl_with(&self, args: &[&str], input: &str) -> String {
        let output = self.output(args, input);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "kubectl {args:?}: {stderr}");
        String::from_utf8(output.stdout).unwrap()
    }

    pub(super) fn kubectl_fails(&self, args: &[&str]) -> String {
        let output = self.output(args, "");
        assert!(!output.status.success(), "kubectl {args:?} did not fail");
        String::from_utf8_lossy(&output.stderr).into_owned()
    }

    /// Has a run of a CronJob begin now.
    fn run_job(&self, cron_job: &str) {
        let output = Command::new(env!("CARGO_BIN_EXE_mirrorlet"))
            .args(["run-job", cron_job, "--root"])
            .arg(self.bed.path())
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
    }

    pub(super) fn object(&self, args: &[&str]) -> Value {
        let mut all = vec!["get", "-o", "json"];
        all.extend(args);
        serde_json::from_str(&self.kubectl(&all)).unwrap()
    }
}

/// A pod with a long grace, that never ends by itself.
fn pod(name: &str, image: &str) -> String {
    format!(
        r#"apiVersion: v1
kind: Pod
metadata: {{name: {name}, labels: {{app: {name}}}}}
spec:
  terminationGracePeriodSeconds: 300
  containers:
  - name: web
    image: {image}
    command: ["sh", "-c", "echo hello; trap '' TERM; while :; do sleep 1; done"]
"#
    )
}

pub(super) fn deployment(replicas: u32, image: &str) -> String {
    format!(
        r#"apiVersion: apps/v1
kind: Deployment
metadata: {{name: d}}
spec:
  minReadySeconds: 0
  replicas: {replicas}
  selector: {{matchLabels: {{app: d}}}}
  template:
    metadata: {{labels: {{app: d}}}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - name: web
        image: {image}
        command: ["sh", "-c", "trap 'exit 0' TERM; while :; do sleep 1 & wait $!; done"]
"#
    )
}

pub(super) const STDIN: [&str; 3] = ["apply", "-f", "-"];

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_lives_and_ends_by_kubectl() {
    let alone = Box::start().await;
    let made = alone.kubectl_with(&STDIN, &pod("web", IMAGE));
    // embedded 1
    assert_eq!(made, "pod/web created\n");
    alone.kubectl(&["wait", "--for=condition=Ready", "pod/web", "--timeout=240s"]);
    // A second time nothing changes.
    let again = alone.kubectl_with(&STDIN, &pod("web", IMAGE));
    // embedded 2
    assert_eq!(again, "pod/web unchanged\n");
    let row = alone.kubectl(&["get", "pod", "web", "--no-headers"]);
    let columns: Vec<_> = row.split_whitespace().collect();
    // embedded 3
    assert_eq!(columns[..4], ["web", "1/1", "Running", "0"]);
    // embedded 4
    assert_eq!(alone.kubectl(&["logs", "web"]), "hello\n");
    assert_eq!(
        alone.kubectl_with(&["exec", "-i", "web", "--", "cat"], "through"),
        "through"
    );
    let described = alone.kubectl(&["describe", "pod", "web"]);
    // embedded 5
    assert!(described.contains("Container started"), "{described}");
    // Its labels are not its version: nothing restarts.
    let id = alone.bed.running_id("web_web_default");
    alone.kubectl(&["label", "pod", "web", "tier=front"]);
    let labelled = alone.object(&["pod", "web"]);
    // embedded 6
    assert_eq!(labelled["metadata"]["labels"]["tier"], "front");
    assert_eq!(alone.bed.running_id("web_web_default"), id);

    // An agent that is started anew has the pod and its objects.
    let uid = labelled["metadata"]["uid"].clone();
    let revision: u64 = text(&labelled["metadata"]["resourceVersion"])
        .parse()
        .unwrap();
    let Box { bed, agent } = alone;
    agent.stop().await;
    let alone = Box::start_on(bed).await;
    alone.kubectl(&["wait", "--for=condition=Ready", "pod/web", "--timeout=240s"]);
    let kept = alone.object(&["pod", "web"]);
    // embedded 7
    assert_eq!(kept["metadata"]["uid"], uid);
    assert!(
        text(&kept["metadata"]["resourceVersion"])
            .parse::<u64>()
            .unwrap()
            > revision
    );
    assert_eq!(alone.bed.running_id("web_web_default"), id);

    // Its containers have the grace of the deletion, if that is less than theirs.
    alone.kubectl(&["delete", "pod", "web", "--grace-period=1", "--timeout=240s"]);
    // embedded 8
    assert!(
        alone
            .kubectl_fails(&["get", "pod", "web"])
            .contains("NotFound")
    );
    assert!(alone.bed.running().is_empty());
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_label_changes_neither_the_version_that_waits_nor_the_one_that_runs() {
    let alone = Box::start().await;
    alone.kubectl_with(&STDIN, &pod("web", IMAGE));
    alone.kubectl(&["wait", "--for=condition=Ready", "pod/web", "--timeout=240s"]);
    let id = alone.bed.running_id("web_web_default");
    alone.kubectl(&["set", "image", "pod/web", "web=mirrorlet.test/none:1"]);
    let held = eventually("the new version to be held", || {
        let pod = alone.object(&["pod", "web"]);
        let annotations = &pod["metadata"]["annotations"];
        annotations["mirrorlet.dev/held-reason"]
            .is_string()
            .then_some(pod)
    })
    .await;
    let image = |pod: &Value| pod["spec"]["containers"][0]["image"].clone();
    // embedded 66
    assert_eq!(image(&held), "mirrorlet.test/none:1");
    alone.kubectl(&["label", "pod", "web", "tier=front"]);
    let labelled = alone.object(&["pod", "web"]);
    assert_eq!(labelled["metadata"]["labels"]["tier"], "front");
    let version = |pod: &Value| pod["metadata"]["resourceVersion"].clone();
    assert_ne!(version(&labelled), version(&held));
    let file = alone.bed.path().join("api/default/pods/web.yaml");
    let stored = std::fs::read_to_string(file).unwrap();
    // embedded 66
    assert!(stored.contains("mirrorlet.test/none:1"), "{stored}");
    assert!(!stored.contains("mirrorlet.dev/held-"), "{stored}");
    assert_eq!(alone.bed.running_id("web_web_default"), id);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deployment_is_rolled_out_by_kubectl_and_a_bad_image_harms_nothing() {
    let alone = Box::start().await;
    alone.kubectl_with(&STDIN, &deployment(2, IMAGE));
    let status = ["rollout", "status", "deployment/d", "--timeout=240s"];
    alone.kubectl(&status);
    alone.bed.until_healthy(2).await;
    alone.kubectl(&["set", "image", "deployment/d", "web=mirrorlet.test/none:1"]);
    // embedded 9
    assert!(alone.kubectl_fails(&status).contains("progress deadline"));
    let counts = alone.object(&["deployment", "d"])["status"].clone();
    assert_eq!(counts["readyReplicas"], 2, "{counts}");
    alone.kubectl(&["set", "image", "deployment/d", &format!("web={IMAGE_2}")]);
    alone.kubectl(&status);
    let edition = alone.kubectl(&["exec", "d-0", "--", "sh", "-c", "echo $EDITION"]);
    // embedded 10
    assert_eq!(edition, "2\n");
    alone.kubectl(&["scale", "deployment/d", "--replicas=1"]);
    // Versions that were replaced a moment ago may still be stopping.
    eventually("one pod", || {
        let pods = alone.object(&["pods"])["items"].as_array().unwrap().len();
        (pods == 1).then_some(())
    })
    .await;
    alone.kubectl(&["delete", "deployment", "d"]);
    alone.kubectl(&["wait", "--for=delete", "pod/d-0", "--timeout=240s"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_manifests_define_is_shown_and_not_changed() {
    let alone = Box::start().await;
    alone.bed.write("web.yaml", &pod("web", IMAGE));
    alone.agent.until_running("web").await;
    let shown = alone.object(&["pod", "web-box"]);
    let annotations = &shown["metadata"]["annotations"];
    // embedded 11
    assert!(
        annotations["kubernetes.io/config.mirror"].is_string(),
        "{annotations}"
    );
    for args in [
        &["delete", "pod", "web-box"][..],
        &["label", "pod", "web-box", "a=b"],
    ] {
        let refused = alone.kubectl_fails(args);
        // embedded 12
        assert!(
            refused.contains("Forbidden") && refused.contains("web.yaml"),
            "{refused}"
        );
    }
    alone.kubectl(&["create", "configmap", "c", "--from-literal=a=b"]);
    alone.kubectl(&[
        "create",
        "secret",
        "generic",
        "s",
        "--from-literal=a=hidden",
    ]);
    // embedded 13
    assert_eq!(alone.object(&["configmap", "c"])["data"]["a"], "b");
    let stored = std::fs::metadata(alone.bed.path().join("api/default/secrets/s.yaml")).unwrap();
    assert_eq!(stored.permissions().mode() & 0o077, 0);
    assert_eq!(alone.kubectl(&["auth", "can-i", "create", "pods"]), "yes\n");
    let rights = alone.kubectl(&["auth", "can-i", "--list", "--no-headers"]);
    assert!(
        rights.starts_with("*.* ") && rights.contains("[*]"),
        "{rights}"
    );
    let unknown = alone.output(
        &STDIN,
        &pod("x", IMAGE).replace("spec:", "colour: red\nspec:"),
    );
    // embedded 14
    assert!(!unknown.status.success());
    let missing = alone.kubectl_fails(&["-n", "other", "create", "configmap", "c"]);
    // embedded 15
    assert!(
        missing.contains(r#"namespaces "other" not found"#),
        "{missing}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn fields_have_managers_under_server_side_apply() {
    let alone = Box::start().await;
    let config = |data: &str| {
        format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: c}}\ndata: {{{data}}}\n")
    };
    let apply = ["apply", "--server-side", "-f", "-"];
    alone.kubectl_with(&apply, &config("a: '1', b: '2'"));
    alone.kubectl(&["patch", "configmap", "c", "-p", r#"{"data": {"b": "3"}}"#]);
    let refused = alone.output(&apply, &config("a: '1', b: '4'"));
    let refused = String::from_utf8_lossy(&refused.stderr).into_owned();
    // embedded 25
    assert!(
        refused.contains("conflict") && refused.contains(".data.b"),
        "{refused}"
    );
    alone.kubectl_with(
        &["apply", "--server-side", "--force-conflicts", "-f", "-"],
        &config("b: '4'"),
    );
    // embedded 24
    assert_eq!(
        alone.object(&["configmap", "c"])["data"],
        serde_json::json!({"b": "4"})
    );
    // What was applied in the older way is taken over.
    alone.kubectl_with(&STDIN, &config("x: '1'").replace("name: c", "name: d"));
    alone.kubectl_with(&apply, &config("x: '2'").replace("name: c", "name: d"));
    assert_eq!(alone.object(&["configmap", "d"])["data"]["x"], "2");
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_are_done_and_waited_for_by_kubectl() {
    let alone = Box::start().await;
    let document = |kind: &str, name: &str, spec: &str| {
        format!("apiVersion: batch/v1\nkind: {kind}\nmetadata: {{name: {name}}}\nspec: {spec}\n")
    };
    let pods = format!(
        "{{template: {{spec: {{restartPolicy: Never, containers: [{{name: c, image: {IMAGE}, command: ['true']}}]}}}}}}"
    );
    alone.kubectl_with(&STDIN, &document("Job", "work", &pods));
    let complete = "--for=condition=complete";
    alone.kubectl(&["wait", complete, "job/work", "--timeout=240s"]);
    let row = alone.kubectl(&["get", "job", "work", "--no-headers"]);
    let columns: Vec<_> = row.split_whitespace().collect();
    // embedded 27
    assert_eq!(columns[..3], ["work", "Complete", "1/1"]);
    // With other pods beside it.
    alone.kubectl_with(&STDIN, &pod("beside", IMAGE));
    alone.kubectl(&[
        "wait",
        "--for=condition=Ready",
        "pod/beside",
        "--timeout=240s",
    ]);
    let logs = alone.output(&["logs", "job/work"], "");
    // embedded 58
    assert!(logs.stdout.is_empty() && logs.status.success(), "{logs:?}");
    alone.kubectl(&["delete", "pod", "beside", "--grace-period=1"]);
    alone.kubectl(&["delete", "job", "work"]);
    eventually("no container", || {
        alone.bed.containers().is_empty().then_some(())
    })
    .await;
    let spec = format!("{{schedule: '0 3 * * *', jobTemplate: {{spec: {pods}}}}}");
    alone.kubectl_with(&STDIN, &document("CronJob", "nightly", &spec));
    let nightly = alone.kubectl(&["get", "cronjob", "nightly", "--no-headers"]);
    assert!(nightly.contains("0 3 * * *"), "{nightly}");

    // A run of a CronJob ends by its deletion, and does not come back.
    let sleeps = "{template: {spec: {restartPolicy: Never, terminationGracePeriodSeconds: 1, containers: [{name: c, image: \"mirrorlet.test/busybox:1\", command: [sleep, '1000']}]}}}";
    let spec = format!("{{schedule: '0 0 1 1 *', jobTemplate: {{spec: {sleeps}}}}}");
    alone.kubectl_with(&STDIN, &document("CronJob", "yearly", &spec));
    for run in ["yearly-run-0", "yearly-run-1"] {
        alone.run_job("yearly");
        eventually("the run to have a container", || {
            (alone.bed.containers().len() == 2).then_some(())
        })
        .await;
        alone.kubectl(&["delete", "job", run, "--timeout=240s"]);
        eventually("no container of the run", || {
            alone.bed.containers().is_empty().then_some(())
        })
        .await;
        let left = alone.kubectl(&["get", "jobs,pods", "-o", "name"]);
        // embedded 57
        assert!(!left.contains(run), "{left}");
    }
    let yearly = alone.object(&["cronjob", "yearly"]);
    assert!(yearly["status"].get("active").is_none(), "{yearly}");
}
