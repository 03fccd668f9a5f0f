//! Volumes and variables made from values, in containers on a real Docker Engine. The API
//! server's objects come from memory, so that every answer of it can be played.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::{Bed, IMAGE, eventually};
use async_trait::async_trait;
use mirrorlet::observe::Observer;
use mirrorlet::store::board::{Board, PodView, board};
use mirrorlet::store::cache::cache;
use mirrorlet::store::cell::cell;
use mirrorlet::store::looks::look_requests;
use mirrorlet::store::probes::probe_results;
use mirrorlet::worker::{Clock, Context, PodWorkers, Wanted};
use mirrorlet_core::admit::AdmitNode;
use mirrorlet_core::amounts::Amounts;
use mirrorlet_core::api::core::{ConfigMap, Secret};
use mirrorlet_core::api::{FullName, Pod, PodUid, Timestamp};
use mirrorlet_core::desired::Delivered;
use mirrorlet_core::gc::ContainerGcPolicy;
use mirrorlet_core::manifest::unsupported_fields;
use mirrorlet_core::objects::claims::Storage;
use mirrorlet_core::objects::{
    ObjectError, ObjectKey, ObjectKind, References, ServiceFacts, ServicePortFacts, Token, TokenKey,
};
use mirrorlet_docker::translate::HostFacts;
use mirrorlet_docker::{
    BollardEngine, DockerManager, DockerManagerOptions, ImagePuller, PullerOptions,
};
use mirrorlet_host::telemetry::Telemetry;
use mirrorlet_runtime::Runtime;
use mirrorlet_runtime::objects::{Holders, Objects, PodObjects};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// The API server's objects, in memory.
#[derive(Default)]
struct Played {
    holders: Holders,
    objects: Mutex<BTreeMap<ObjectKey, Value>>,
    away: Mutex<bool>,
    /// How often a token was asked for, and how long until one is to be renewed.
    tokens: Mutex<(u32, Duration)>,
}

impl Played {
    fn set(&self, kind: ObjectKind, name: &str, object: Value) {
        self.change(kind, name, Some(object));
    }

    fn remove(&self, kind: ObjectKind, name: &str) {
        self.change(kind, name, None);
    }

    fn change(&self, kind: ObjectKind, name: &str, object: Option<Value>) {
        let key = ObjectKey {
            kind,
            namespace: "default".to_owned(),
            name: name.to_owned(),
        };
        match object {
            Some(object) => self.objects.lock().unwrap().insert(key.clone(), object),
            None => self.objects.lock().unwrap().remove(&key),
        };
        self.holders
            .notify(|references| references.objects.contains(&key));
    }

    fn get(&self, key: &ObjectKey) -> Result<Value, ObjectError> {
        if *self.away.lock().unwrap() {
            return Err(ObjectError::Away {
                what: key.to_string(),
                cause: "no answer".to_owned(),
            });
        }
        let objects = self.objects.lock().unwrap();
        let object = objects.get(key).cloned();
        object.ok_or_else(|| ObjectError::not_found(key))
    }
}

#[async_trait]
impl Objects for Played {
    fn hold(&self, pod: &PodUid, references: &References) {
        self.holders.hold(pod, references);
    }

    fn release(&self, pod: &PodUid) {
        self.holders.release(pod);
    }

    fn subscribe(&self, pod: &PodUid) -> watch::Receiver<u64> {
        self.holders.subscribe(pod)
    }

    async fn config_map(&self, key: &ObjectKey) -> Result<Arc<ConfigMap>, ObjectError> {
        let found = serde_json::from_value(self.get(key)?).unwrap();
        Ok(Arc::new(found))
    }

    async fn secret(&self, key: &ObjectKey) -> Result<Arc<Secret>, ObjectError> {
        let found = serde_json::from_value(self.get(key)?).unwrap();
        Ok(Arc::new(found))
    }

    async fn storage(&self, key: &ObjectKey) -> Result<Arc<Storage>, ObjectError> {
        Err(ObjectError::not_found(key))
    }

    async fn token(&self, key: &TokenKey) -> Result<Token, ObjectError> {
        let mut tokens = self.tokens.lock().unwrap();
        tokens.0 += 1;
        let audience = key.audience.as_deref().unwrap_or("api");
        let refresh_at = Timestamp::now().checked_add(tokens.1).unwrap();
        Ok(Token {
            secret: format!("{}/{audience}/{}", key.service_account, tokens.0),
            expires_at: refresh_at,
            refresh_at,
        })
    }

    async fn services(&self) -> Result<Arc<[ServiceFacts]>, ObjectError> {
        Ok(Arc::new([ServiceFacts {
            namespace: "default".to_owned(),
            name: "kubernetes".to_owned(),
            cluster_ip: "10.0.0.1".to_owned(),
            ports: vec![ServicePortFacts {
                name: "https".to_owned(),
                protocol: "TCP".to_owned(),
                port: 443,
            }],
        }]))
    }
}

/// Workers over the real Engine, and the objects they see.
struct Stack {
    bed: Bed,
    objects: Arc<Played>,
    wanted: watch::Sender<Arc<Wanted>>,
    board: Board,
    cancel: CancellationToken,
    parts: JoinSet<()>,
}

impl Stack {
    fn new() -> Self {
        let bed = Bed::new();
        let name = bed.path().file_name().unwrap().to_str().unwrap().to_owned();
        std::fs::write(bed.path().join("owner"), &name).unwrap();
        let objects = Arc::new(Played::default());
        objects.tokens.lock().unwrap().1 = Duration::from_hours(1);
        Self::over(bed, objects)
    }

    /// Begins to look after the pods of that bed.
    fn over(bed: Bed, objects: Arc<Played>) -> Self {
        let engine = Arc::new(BollardEngine::connect(&bed.docker).unwrap());
        let telemetry = Telemetry::new();
        let runtime: Arc<dyn Runtime> = Arc::new(DockerManager::new(
            engine.clone(),
            Arc::new(ImagePuller::new(engine, PullerOptions::default())),
            telemetry.clone(),
            DockerManagerOptions {
                owner: bed.owner().unwrap(),
                root: bed.path().to_owned(),
                node: HostFacts {
                    memory_bytes: 1 << 30,
                    allocatable: Amounts {
                        cpu_milli: 4000,
                        ..Amounts::default()
                    },
                    ..HostFacts::default()
                },
                pod_infra_image: None,
                engine_concurrency: 4,
                objects: PodObjects::new(objects.clone()),
                host_files: mirrorlet_host::volume::HostFiles::default(),
                pod_logs_dir: None,
            },
        ));
        let (writer, reader) = cache();
        let (looks, requests) = look_requests();
        let sweep = Duration::from_mins(1);
        let (observer, _reach, listed) = Observer::new(
            Arc::clone(&runtime),
            writer,
            requests,
            sweep,
            telemetry.clone(),
        );
        let (wanted, wanted_reader) = watch::channel(Arc::default());
        let (board_writer, board) = board();
        let context = Arc::new(Context {
            runtime,
            cache: reader,
            looks,
            probes: probe_results().1,
            board: board_writer,
            telemetry,
            node_ips: cell(Vec::new()).1,
            backoff_max: Duration::from_mins(5),
            gc: ContainerGcPolicy::default(),
            clock: Clock::default(),
            graces: mirrorlet::store::graces::Graces::default(),
            settled: mirrorlet::store::settled::SettledPods::default(),
            node: cell(AdmitNode::default()).1,
            unsupported: unsupported_fields,
            versions: Arc::new(|_, _| None),
        });
        let workers = PodWorkers::new(context, wanted_reader, listed);
        let cancel = CancellationToken::new();
        let mut parts = JoinSet::new();
        let observing = cancel.clone().run_until_cancelled_owned(observer.run());
        parts.spawn(async move { observing.await.unwrap_or_default() });
        parts.spawn(workers.run(cancel.clone()));
        Self {
            bed,
            objects,
            wanted,
            board,
            cancel,
            parts,
        }
    }

    /// Ends all tasks; containers run on.
    async fn stop(mut self) -> (Bed, Arc<Played>) {
        self.cancel.cancel();
        while let Some(ended) = self.parts.join_next().await {
            ended.unwrap();
        }
        (self.bed, self.objects)
    }

    fn want(&self, pods: &[&Arc<Pod>]) {
        let pods = pods.iter().map(|pod| (PodUid::of(pod), Arc::clone(pod)));
        self.wanted.send_replace(Arc::new(Wanted {
            pods: pods.collect(),
            delivered: Delivered::ALL,
            ..Wanted::default()
        }));
    }

    fn view(&self, pod: &Pod) -> Option<PodView> {
        self.board.get(&PodUid::of(pod))
    }

    async fn run(&self, pod: &Arc<Pod>) {
        self.want(&[pod]);
        let running = || {
            let status = self.view(pod)?.status?;
            let containers = status.container_statuses.clone().unwrap_or_default();
            let all = containers.iter().all(|c| {
                c.state
                    .as_ref()
                    .is_some_and(|state| state.running.is_some())
            });
            (!containers.is_empty() && all).then_some(())
        };
        eventually(&format!("{} to run", FullName::of(pod)), running).await;
    }

    async fn until_error(&self, pod: &Pod, words: &str) {
        eventually(&format!("an error that says {words:?}"), || {
            let error = self.view(pod)?.error;
            error.contains(words).then_some(())
        })
        .await;
    }

    /// Reason and message of why the first container waits.
    async fn waiting(&self, pod: &Pod, reason: &str) -> String {
        eventually(&format!("a container that waits: {reason}"), || {
            let status = self.view(pod)?.status?;
            let state = status.container_statuses.as_ref()?.first()?.state.clone()?;
            let waiting = state
                .waiting
                .filter(|w| w.reason.as_deref() == Some(reason))?;
            Some(waiting.message.unwrap_or_default())
        })
        .await
    }

    async fn until_output(&self, container: &str, command: &str, expected: &str) {
        let what = format!("{command} to print {expected:?}");
        // A file that isn't there yet, or no more, is no failure.
        let command = format!("{{ {command}; }} || true");
        eventually(&what, || {
            (self.bed.exec(container, &command) == expected).then_some(())
        })
        .await;
    }
}

/// A pod of the API server with a container `c` of those fields and those of the spec.
fn pod(container: &Value, more: &Value) -> Arc<Pod> {
    let mut c = json!({
        "name": "c", "image": IMAGE, "imagePullPolicy": "Never",
        "command": ["sh", "-c", "trap 'exit 0' TERM; while true; do sleep 0.1; done"],
    });
    for (key, value) in container.as_object().unwrap() {
        c[key] = value.clone();
    }
    let mut spec = json!({
        "containers": [c], "terminationGracePeriodSeconds": 1, "serviceAccountName": "robot",
        "dnsPolicy": "Default",
    });
    for (key, value) in more.as_object().unwrap() {
        spec[key] = value.clone();
    }
    Arc::new(
        serde_json::from_value(json!({
            "metadata": {
                "name": "web", "namespace": "default",
                "uid": "0b7e7ab1-6f0e-4d5f-9c53-7c1e3f6f7a10",
                "labels": {"app": "shop"},
            },
            "spec": spec,
        }))
        .unwrap(),
    )
}

fn mounts(of: &[(&str, &str)]) -> Value {
    let mounts = of
        .iter()
        .map(|(name, path)| json!({"name": name, "mountPath": path}));
    Value::Array(mounts.collect())
}

fn config_map(key: &str, value: &str) -> Value {
    json!({"data": {key: value}})
}

/// A secret that holds `geheim` or `anders`.
fn secret(key: &str, other: bool) -> Value {
    json!({"data": {key: if other { "YW5kZXJz" } else { "Z2VoZWlt" }}})
}

const CONFIG_MAP: ObjectKind = ObjectKind::ConfigMap;
const SECRET: ObjectKind = ObjectKind::Secret;

#[tokio::test(flavor = "multi_thread")]
async fn volumes_of_all_kinds_are_seen_in_containers_and_leave_nothing() {
    let stack = Stack::new();
    stack
        .objects
        .set(CONFIG_MAP, "conf", config_map("color", "blue"));
    stack
        .objects
        .set(CONFIG_MAP, "kube-root-ca.crt", config_map("ca.crt", "root"));
    stack.objects.set(SECRET, "keys", secret("pass", false));
    let pod = pod(
        &json!({"volumeMounts": mounts(&[
            ("conf", "/conf"), ("keys", "/keys"), ("about", "/about"), ("none", "/none"),
            ("api", "/var/run/secrets/kubernetes.io/serviceaccount"),
        ])}),
        &json!({
            "securityContext": {"runAsUser": 1000, "runAsGroup": 1000, "fsGroup": 2000},
            "volumes": [
                {"name": "conf", "configMap": {"name": "conf", "items": [{"key": "color", "path": "deep/color", "mode": 0o440}]}},
                {"name": "keys", "secret": {"secretName": "keys", "defaultMode": 0o400}},
                {"name": "about", "downwardAPI": {"items": [
                    {"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}},
                    {"path": "cpu", "resourceFieldRef": {"containerName": "c", "resource": "limits.cpu"}},
                ]}},
                {"name": "none", "secret": {"secretName": "nowhere", "optional": true}},
                {"name": "api", "projected": {"sources": [
                    {"serviceAccountToken": {"path": "token", "expirationSeconds": 3607}},
                    {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
                    {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}]}},
                ]}},
            ],
        }),
    );
    stack.run(&pod).await;
    let exec = |command: &str| stack.bed.exec("c", command);
    assert_eq!(exec("cat /conf/deep/color"), "blue");
    assert_eq!(exec("cat /keys/pass"), "geheim");
    assert_eq!(exec("cat /about/labels"), "app=\"shop\"");
    assert_eq!(exec("cat /about/cpu"), "4");
    assert_eq!(exec("ls /none"), "");
    let account = "cd /var/run/secrets/kubernetes.io/serviceaccount";
    let token = exec(&format!("{account}; cat token"));
    assert!(token.starts_with("robot/api/"), "{token}");

    assert_eq!(
        exec(&format!("{account}; cat ca.crt namespace")),
        "rootdefault"
    );
    // Modes and owners, as the user of the container sees them.
    assert_eq!(
        exec(&format!("{account}; stat -Lc '%a %u %g' token")),
        "640 1000 2000"
    );
    assert_eq!(
        exec("stat -Lc '%a %g' /keys/pass /conf/deep/color"),
        "440 2000\n440 2000"
    );
    assert_eq!(
        exec("readlink /keys/pass; readlink /conf/deep"),
        "..data/pass\n..data/deep"
    );
    for (path, kind) in [
        ("/keys", "tmpfs"),
        ("/about", "tmpfs"),
        ("/var/run/secrets/kubernetes.io/serviceaccount", "tmpfs"),
    ] {
        // docker 44
        assert_eq!(
            exec(&format!("awk '$2 == \"{path}\" {{print $3}}' /proc/mounts")),
            kind,
            "{path}"
        );
    }
    // Nobody writes to them.
    for path in ["/conf", "/keys", "/about"] {
        let written = exec(&format!("echo x > {path}/x 2>&1 || echo refused"));
        assert!(written.ends_with("refused"), "{path}: {written}");
    }
    let secret = std::process::Command::new("grep")
        .args(["-rl", "--exclude-dir=kubernetes.io~secret", "geheim"])
        .arg(stack.bed.path())
        .output()
        .unwrap();
    assert!(
        secret.stdout.is_empty(),
        "{}",
        String::from_utf8_lossy(&secret.stdout)
    );

    stack.want(&[]);
    let dir = stack.bed.path().join("pods");
    eventually("nothing to be left", || {
        let empty = std::fs::read_dir(&dir).unwrap().next().is_none();
        (empty && stack.bed.containers().is_empty()).then_some(())
    })
    .await;
    let mounted = std::fs::read_to_string("/proc/self/mounts").unwrap();
    assert!(!mounted.contains(stack.bed.path().to_str().unwrap()));
    eventually("nothing to be held", || {
        stack.objects.holders.held().is_empty().then_some(())
    })
    .await;
    stack.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_running_container_sees_what_changes() {
    let stack = Stack::new();
    stack
        .objects
        .set(CONFIG_MAP, "conf", config_map("color", "blue"));
    stack.objects.set(SECRET, "keys", secret("pass", false));
    let pod = pod(
        &json!({
            "volumeMounts": [
                {"name": "conf", "mountPath": "/conf"},
                {"name": "conf", "mountPath": "/one", "subPath": "color"},
                {"name": "keys", "mountPath": "/keys"},
                {"name": "about", "mountPath": "/about"},
            ],
            "env": [{"name": "COLOR", "valueFrom": {"configMapKeyRef": {"name": "conf", "key": "color"}}}],
        }),
        &json!({"volumes": [
            {"name": "conf", "configMap": {"name": "conf"}},
            {"name": "keys", "secret": {"secretName": "keys"}},
            {"name": "about", "downwardAPI": {"items": [{"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]}},
        ]}),
    );
    stack.run(&pod).await;
    let before = stack.bed.running_id("c");
    stack.objects.set(
        CONFIG_MAP,
        "conf",
        json!({"data": {"color": "red", "shape": "round"}}),
    );
    // docker 44
    stack
        .until_output("c", "cat /conf/color /conf/shape", "redround")
        .await;
    stack.objects.set(SECRET, "keys", secret("other", true));
    stack
        .until_output("c", "ls /keys; cat /keys/*", "other\nanders")
        .await;
    assert_eq!(stack.bed.exec("c", "cat /one; echo $COLOR"), "blueblue");

    let mut relabelled = Pod::clone(&pod);
    relabelled.metadata.labels = Some([("app".to_owned(), "till".to_owned())].into());
    stack.want(&[&Arc::new(relabelled)]);
    stack
        .until_output("c", "cat /about/labels", "app=\"till\"")
        .await;

    // Objects that are gone stay as they were in the volume, and the pod runs on.
    stack.objects.remove(CONFIG_MAP, "conf");
    *stack.objects.away.lock().unwrap() = true;
    stack.objects.set(SECRET, "keys", secret("lost", true));
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(stack.bed.exec("c", "cat /conf/color; ls /keys"), "redother");
    assert_eq!(stack.bed.running_id("c"), before);

    // An agent that starts anew brings up to date what changed meanwhile.
    let (bed, objects) = stack.stop().await;
    *objects.away.lock().unwrap() = false;
    objects.set(CONFIG_MAP, "conf", config_map("color", "green"));
    let stack = Stack::over(bed, objects);
    stack.want(&[&pod]);
    stack
        .until_output(
            "c",
            "ls /conf; cat /conf/color; ls /keys",
            "color\ngreenlost",
        )
        .await;
    assert_eq!(stack.bed.running_id("c"), before);
    stack.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_waits_for_what_is_missing_and_starts_when_it_comes() {
    let stack = Stack::new();
    let pod = pod(
        &json!({
            "volumeMounts": mounts(&[("conf", "/conf")]),
            "envFrom": [{"prefix": "S_", "secretRef": {"name": "keys"}}],
            "env": [{"name": "PASS", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "pass"}}}],
        }),
        &json!({"volumes": [{"name": "conf", "configMap": {"name": "conf"}}]}),
    );
    stack.want(&[&pod]);
    let words = "MountVolume.SetUp failed for volume \"conf\" : configmap \"conf\" not found";
    stack.until_error(&pod, words).await;
    stack.waiting(&pod, "ContainerCreating").await;
    assert!(
        stack.bed.containers().is_empty(),
        "no sandbox is made in vain"
    );

    stack
        .objects
        .set(CONFIG_MAP, "conf", config_map("color", "blue"));
    let message = stack.waiting(&pod, "CreateContainerConfigError").await;
    assert_eq!(message, "secret \"keys\" not found");
    stack.objects.set(SECRET, "keys", secret("user", false));
    let missing_key = "couldn't find key pass in Secret default/keys";
    stack.until_error(&pod, missing_key).await;
    stack.objects.set(SECRET, "keys", secret("pass", false));
    stack.run(&pod).await;
    // docker 39
    assert_eq!(
        stack.bed.exec("c", "cat /conf/color; echo; echo $PASS $S_pass $KUBERNETES_SERVICE_HOST $KUBERNETES_SERVICE_PORT_HTTPS"),
        "blue\ngeheim geheim 10.0.0.1 443"
    );
    stack.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_is_renewed_before_it_ends() {
    let stack = Stack::new();
    // The agent looks after a token every ten seconds at most.
    stack.objects.tokens.lock().unwrap().1 = Duration::from_millis(1);
    let pod = pod(
        &json!({"volumeMounts": mounts(&[("api", "/api")])}),
        &json!({"volumes": [{"name": "api", "projected": {"sources": [
            {"serviceAccountToken": {"path": "token", "audience": "vault"}},
        ]}}]}),
    );
    stack.run(&pod).await;
    let first = stack.bed.exec("c", "cat /api/token");
    // docker 44
    assert!(first.starts_with("robot/vault/"), "{first}");
    eventually("another token", || {
        let token = stack.bed.file("c", "/api/token")?;
        let number: u32 = token.rsplit('/').next()?.parse().ok()?;
        (number >= 3).then_some(())
    })
    .await;
    stack.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_is_done_gives_back_its_volumes_and_keeps_its_log() {
    let bed = Bed::new();
    let uid = bed.uid("job");
    bed.write(
        "job.yaml",
        &format!(
            r#"apiVersion: v1
kind: Pod
metadata: {{name: job, uid: {uid}, labels: {{app: shop}}}}
spec:
  restartPolicy: Never
  terminationGracePeriodSeconds: 1
  containers:
  - name: c
    image: {IMAGE}
    command: ["sh", "-c", "cat /about/labels; echo kept > /disk/f; echo kept > /mem/f; echo last > /dev/termination-log"]
    volumeMounts: [{{name: about, mountPath: /about}}, {{name: disk, mountPath: /disk}}, {{name: mem, mountPath: /mem}}]
  volumes:
  - name: about
    downwardAPI: {{items: [{{path: labels, fieldRef: {{fieldPath: metadata.labels}}}}]}}
  - {{name: disk, emptyDir: {{}}}}
  - {{name: mem, emptyDir: {{medium: Memory}}}}
"#
        ),
    );
    let agent = bed.agent().await;
    let done = |pod: &mirrorlet_core::api::report::PodReport| pod.phase == "Succeeded";
    agent.until_pod("job", done).await;
    let dir = bed.path().join("pods").join(&uid);
    let volumes = dir.join("volumes");
    eventually("the volumes to go", || (!volumes.exists()).then_some(())).await;
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    // docker 44
    assert!(!mounts.contains(dir.to_str().unwrap()), "{mounts}");
    // The record of the pod stays, also for the next agent.
    agent.stop().await;
    let agent = bed.agent().await;
    let pod = agent.until_pod("job", done).await;
    assert_eq!(pod.containers[0].message.trim(), "last");
    let id = bed.instances("c")[&0].clone();
    assert_eq!(bed.docker(&["logs", &id]).trim(), "app=\"shop\"");
    bed.remove("job.yaml");
    agent.until_gone("job").await;
    assert!(!dir.exists());
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_static_pod_has_downward_volumes() {
    let bed = Bed::new();
    bed.write(
        "about.yaml",
        &format!(
            r#"apiVersion: v1
kind: Pod
metadata: {{name: about, labels: {{app: shop}}}}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: c
    image: {IMAGE}
    command: ["sh", "-c", "trap 'exit 0' TERM; while true; do sleep 0.1; done"]
    volumeMounts: [{{name: about, mountPath: /about}}, {{name: all, mountPath: /all}}]
    resources: {{limits: {{cpu: 1500m}}}}
  volumes:
  - name: about
    downwardAPI:
      items:
      - {{path: labels, fieldRef: {{fieldPath: metadata.labels}}}}
      - {{path: deep/cpu, mode: 0400, resourceFieldRef: {{containerName: c, resource: limits.cpu, divisor: 1m}}}}
  - name: all
    projected:
      sources:
      - downwardAPI: {{items: [{{path: name, fieldRef: {{fieldPath: metadata.name}}}}]}}
"#
        ),
    );
    let agent = bed.agent().await;
    agent.until_running("about").await;
    // docker 44
    assert_eq!(
        bed.exec("c", "cat /about/labels /about/deep/cpu /all/name"),
        "app=\"shop\"1500about-box"
    );
    assert_eq!(bed.exec("c", "stat -Lc %a /about/deep/cpu"), "400");
    bed.remove("about.yaml");
    agent.until_gone("about").await;
    let pods = bed.path().join("pods");
    assert!(std::fs::read_dir(pods).unwrap().next().is_none());
    agent.stop().await;
}
