//! `ConfigMap`s and Secrets of manifests, under a whole agent.

use crate::common::registry::{PASSWORD, Registry};
use crate::common::{Bed, IMAGE, eventually, tell};
use mirrorlet_core::api::report::StatusReport;
use mirrorlet_core::api::{Code, Diagnostic};

/// A `ConfigMap` with one value.
fn config_map(name: &str, key: &str, value: &str) -> String {
    format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}}}\ndata: {{{key}: \"{value}\"}}\n"
    )
}

/// A pod of one container, with more of the container and of the pod's spec.
fn pod(name: &str, container: &str, spec: &str) -> String {
    format!(
        r#"apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec:
  terminationGracePeriodSeconds: 5
  {spec}
  containers:
  - name: {name}
    image: {IMAGE}
    command: ["sh", "-c", "trap 'exit 0' TERM; while :; do sleep 1 & wait $!; done"]
    {container}
"#
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn a_document_feeds_the_variables_of_a_pod_beside_it() {
    let bed = Bed::new();
    let agent = bed.agent().await;
    bed.write(
        "web.yaml",
        &pod("web", "envFrom: [{configMapRef: {name: settings}}]", ""),
    );
    let waiting = agent
        .until_container("web", "web", |container| {
            container.reason == "CreateContainerConfigError"
        })
        .await;
    // box 3
    assert_eq!(
        waiting.message,
        "configmap \"settings\" not found: no manifest defines ConfigMap default/settings"
    );
    bed.write("settings.yaml", &config_map("settings", "COLOUR", "green"));
    agent.until_running("web").await;
    // box 1
    assert_eq!(bed.exec("web", "echo $COLOUR"), "green");
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_variable_comes_from_a_file_that_another_container_wrote() {
    let bed = Bed::new();
    let agent = bed.agent().await;
    let file = |key: &str, optional: bool| {
        format!("{{fileKeyRef: {{volumeName: v, path: a.env, key: {key}, optional: {optional}}}}}")
    };
    let container = format!(
        "env: [{{name: COLOUR, valueFrom: {}}}, {{name: NONE, valueFrom: {}}}]",
        file("COLOUR", false),
        file("NONE", true)
    );
    let writes = |content: &str| {
        format!(
            "volumes: [{{name: v, emptyDir: {{}}}}]\n  initContainers:\n  - name: first\n    image: {IMAGE}\n    \
             command: [\"sh\", \"-c\", \"echo \\\"{content}\\\" >/v/a.env\"]\n    \
             volumeMounts: [{{name: v, mountPath: /v}}]"
        )
    };
    bed.write(
        "web.yaml",
        &pod("web", &container, &writes("COLOUR='green'")),
    );
    bed.write("bad.yaml", &pod("bad", &container, &writes("COLOUR=green")));
    agent.until_running("web").await;
    // docker 4a
    assert_eq!(bed.exec("web", "echo $COLOUR ${NONE-none}"), "green none");
    let refused = agent
        .until_container("bad", "bad", |container| {
            container.reason == "CreateContainerConfigError"
        })
        .await;
    assert_eq!(
        refused.message,
        "env \"COLOUR\": file \"a.env\" of volume \"v\": line 1: the value must be in single quotes"
    );
    agent.stop().await;
}

/// A value that no output may contain.
pub(crate) const CANARY: &str = "canary-3f9d1c";

/// A Secret, a `ConfigMap` of everything that one can hold, and a pod that takes them in every way.
pub(crate) fn everything() -> String {
    let objects = format!(
        r#"apiVersion: v1
kind: List
items:
- apiVersion: v1
  kind: ConfigMap
  metadata: {{name: settings}}
  data: {{COLOUR: green, app.conf: "listen 80\n"}}
  binaryData: {{logo: iVBORw==}}
- apiVersion: v1
  kind: Secret
  metadata: {{name: login}}
  data: {{user: cm9vdA==, PASSWORD: b3ZlcndyaXR0ZW4=}}
  stringData: {{PASSWORD: {CANARY}}}
---
"#
    );
    let container = r"env:
    - {name: COLOUR, valueFrom: {configMapKeyRef: {name: settings, key: COLOUR}}}
    - {name: PASSWORD, valueFrom: {secretKeyRef: {name: login, key: PASSWORD}}}
    - {name: ABSENT, valueFrom: {secretKeyRef: {name: none, key: k, optional: true}}}
    - {name: NO_KEY, valueFrom: {configMapKeyRef: {name: settings, key: none, optional: true}}}
    envFrom:
    - {prefix: CM_, configMapRef: {name: settings}}
    - {prefix: S_, secretRef: {name: login}}
    - {prefix: NO_, configMapRef: {name: none, optional: true}}
    volumeMounts:
    - {name: settings, mountPath: /settings}
    - {name: some, mountPath: /some}
    - {name: login, mountPath: /login}
    - {name: all, mountPath: /all}
    - {name: none, mountPath: /none}
    - {name: settings, mountPath: /sub/app.conf, subPath: app.conf}";
    let spec = r"volumes:
  - {name: settings, configMap: {name: settings}}
  - {name: some, configMap: {name: settings, defaultMode: 0400, items: [{key: app.conf, path: d/a.conf, mode: 0444}, {key: logo, path: logo}]}}
  - {name: login, secret: {secretName: login, defaultMode: 0440}}
  - {name: all, projected: {sources: [{configMap: {name: settings, items: [{key: COLOUR, path: colour}]}}, {secret: {name: login, items: [{key: user, path: user}]}}]}}
  - {name: none, secret: {secretName: none, optional: true}}";
    objects + &pod("web", container, spec)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_takes_objects_in_every_way() {
    let bed = Bed::new();
    let agent = bed.agent().await;
    bed.write("all.yaml", &everything());
    agent.until_running("web").await;
    let variables = bed.exec(
        "web",
        "echo $COLOUR $PASSWORD $CM_COLOUR $S_user $S_PASSWORD ${ABSENT-none} ${NO_KEY-none}; env | grep -c ^NO_ || true",
    );
    // box 1
    assert_eq!(
        variables,
        format!("green {CANARY} green root {CANARY} none none\n0")
    );
    let files = bed.exec(
        "web",
        "cd /; for f in settings/* some/d/a.conf some/logo login/* all/* sub/app.conf none/*; do \
         test -e $f && echo $f $(stat -L -c %a $f) $(tr -d '\\n' <$f | od -An -c | tr -d ' '); done; \
         stat -f -c %T /login /all",
    );
    let canary = CANARY;
    // box 1
    assert_eq!(
        files,
        format!(
            "settings/COLOUR 644 green\n\
             settings/app.conf 644 listen80\n\
             settings/logo 644 211PNG\n\
             some/d/a.conf 444 listen80\n\
             some/logo 400 211PNG\n\
             login/PASSWORD 440 {canary}\n\
             login/user 440 root\n\
             all/colour 644 green\n\
             all/user 644 root\n\
             sub/app.conf 644 listen80\n\
             tmpfs\ntmpfs"
        )
    );
    assert_eq!(
        agent
            .status()
            .problems
            .iter()
            .filter(|p| p.is_error())
            .count(),
        0
    );
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_edited_document_reaches_mounted_files_and_no_variable() {
    let bed = Bed::new();
    let agent = bed.agent().await;
    let container =
        "envFrom: [{configMapRef: {name: settings}}]\n    volumeMounts: [{name: v, mountPath: /v}]";
    let spec = "volumes: [{name: v, configMap: {name: settings}}]";
    bed.write("web.yaml", &pod("web", container, spec));
    bed.write("settings.yaml", &config_map("settings", "COLOUR", "green"));
    let running = agent.until_running("web").await;
    // The container itself says when it sees the new file.
    let path = bed.path().join(format!(
        "pods/{}/volumes/kubernetes.io~configmap/v/COLOUR",
        running.uid
    ));
    let mut slowest = std::time::Duration::ZERO;
    for colour in ["red", "blue", "white", "black"] {
        let edited = std::time::Instant::now();
        bed.write("settings.yaml", &config_map("settings", "COLOUR", colour));
        eventually("the edit in the volume", || {
            (std::fs::read_to_string(&path).ok()? == colour).then_some(())
        })
        .await;
        slowest = slowest.max(edited.elapsed());
        // box 2
        assert_eq!(
            bed.exec("web", "cat /v/COLOUR; echo; echo $COLOUR"),
            format!("{colour}\ngreen")
        );
    }
    tell(&format!(
        "edit of a ConfigMap → its file: at most {slowest:?}"
    ));
    let same = agent.until_running("web").await;
    assert_eq!((same.uid, same.restarts), (running.uid, 0));
    // An agent that was away catches up.
    agent.stop().await;
    bed.write("settings.yaml", &config_map("settings", "COLOUR", "grey"));
    let agent = bed.agent().await;
    eventually("the edit that the agent missed", || {
        (std::fs::read_to_string(&path).ok()? == "grey").then_some(())
    })
    .await;
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn removing_an_object_in_use_stops_nothing_and_is_told() {
    let bed = Bed::new();
    let agent = bed.agent().await;
    let container =
        "envFrom: [{configMapRef: {name: settings}}]\n    volumeMounts: [{name: v, mountPath: /v}]";
    let spec = "volumes: [{name: v, configMap: {name: settings}}]";
    bed.write("web.yaml", &pod("web", container, spec));
    bed.write("settings.yaml", &config_map("settings", "COLOUR", "green"));
    let running = agent.until_running("web").await;
    let id = bed.running_id("web");
    bed.remove("settings.yaml");
    let told = |problem: &Diagnostic| {
        problem.code == Code::MissingObject
            && problem.message == "no manifest defines ConfigMap default/settings"
            && problem.field.as_deref() == Some("spec.containers[0].envFrom[0].configMapRef.name")
    };
    agent
        .until("the missing object to be told", |report| {
            report.problems.iter().any(told)
        })
        .await;
    // box 3
    assert_eq!(bed.exec("web", "cat /v/COLOUR; echo $COLOUR"), "greengreen");
    assert_eq!(bed.running_id("web"), id);
    // A new instance waits for it.
    bed.docker(&["kill", &id]);
    let waiting = agent
        .until_container("web", "web", |container| {
            container.reason == "CreateContainerConfigError"
        })
        .await;
    assert!(
        waiting
            .message
            .contains("no manifest defines ConfigMap default/settings")
    );
    bed.write("renamed.yaml", &config_map("settings", "COLOUR", "red"));
    let again = agent
        .until_pod("web", |pod| pod.status == "Running" && pod.ready == 1)
        .await;
    assert_eq!(again.uid, running.uid);
    // box 3
    assert_eq!(bed.exec("web", "cat /v/COLOUR; echo $COLOUR"), "redred");
    agent
        .until("nothing to be missing", |report| {
            !report.problems.iter().any(told)
        })
        .await;
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broken_edit_of_an_object_holds_its_last_good_version() {
    let bed = Bed::new();
    let mut agent = bed.agent().await;
    let good = config_map("settings", "COLOUR", "green");
    bed.write("settings.yaml", &good);
    agent
        .until("the directory to be read", |report| {
            report.sources[0].objects == 1
        })
        .await;
    let immutable = good.replace("metadata", "immutable: true\nmetadata");
    let edited = immutable.replace("green", "red");
    for (name, before, text, code) in [
        (
            "type",
            &good,
            good.replace("\"green\"", "80"),
            Code::InvalidType,
        ),
        (
            "name",
            &good,
            good.replace("settings", "Settings"),
            Code::InvalidValue,
        ),
        ("text", &good, "{".to_owned(), Code::HalfWritten),
        ("fixed", &immutable, edited, Code::Immutable),
    ] {
        bed.write("settings.yaml", before);
        agent
            .until("no problem", |report| report.problems.is_empty())
            .await;
        bed.write("settings.yaml", &text);
        let is_held = |report: &StatusReport| {
            let codes: Vec<Code> = report.problems.iter().map(|p| p.code).collect();
            codes == [code]
        };
        agent.until("the edit to be held", is_held).await;
        agent.stop().await;
        agent = bed.agent().await;
        bed.write(
            &format!("{name}.yaml"),
            &pod(name, "envFrom: [{configMapRef: {name: settings}}]", ""),
        );
        agent.until_running(name).await;
        // box 1
        assert_eq!(bed.exec(name, "echo $COLOUR"), "green", "{code}");
        agent.until("the edit to be held still", is_held).await;
    }
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pull_secret_of_a_manifest_pulls() {
    let registry = Registry::private().await;
    let image = registry.push("team/app:1");
    let bed = Bed::new();
    let agent = bed.agent().await;
    let manifest = pod("web", "", "imagePullSecrets: [{name: regcred}]").replace(IMAGE, &image);
    bed.write("web.yaml", &manifest);
    agent
        .until_container("web", "web", |container| {
            container.reason == "ErrImagePull" || container.reason == "ImagePullBackOff"
        })
        .await;
    bed.write(
        "regcred.json",
        &registry.secret("default", "regcred", PASSWORD),
    );
    let pod = agent.until_running("web").await;
    // box 1
    assert_eq!(pod.ready, 1);
    agent.stop().await;
}
