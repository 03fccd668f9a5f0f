//! Claims and volumes of manifests, under a whole agent.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::binary::{ask, run, said, until_running};
use crate::common::{Bed, IMAGE, docker_client, eventually, tempdir};
use mirrorlet_core::api::report::{VolumeReport, VolumeState, VolumesReport};

/// A bed whose claims have names of their own: all agents of an Engine share the names of its volumes.
struct Claims {
    bed: Bed,
    suffix: String,
}

impl Claims {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        Self {
            bed: Bed::new(),
            suffix: format!("{}.{number}", std::process::id()),
        }
    }

    /// A claim with that access mode, and more of its spec.
    fn claim(&self, name: &str, access: &str, more: &str) -> String {
        format!(
            r"apiVersion: v1
kind: PersistentVolumeClaim
metadata: {{name: {name}-{suffix}}}
spec:
  accessModes: [{access}]
  resources: {{requests: {{storage: 1Gi}}}}
  {more}
---
",
            suffix = self.suffix
        )
    }

    /// A claim with an annotation.
    fn annotated(&self, name: &str, annotation: &str) -> String {
        let named = format!("{{name: {name}-{}}}", self.suffix);
        let annotated = format!(
            "{{name: {name}-{}, annotations: {{{annotation}}}}}",
            self.suffix
        );
        let claim = self.claim(name, "ReadWriteOnce", "");
        claim.replace(&named, &annotated)
    }

    /// A pod that waits for its volume says why.
    fn not_mounted(&self, problem: &str) -> String {
        let why = problem.replace("CLAIM", &self.suffix);
        format!("FailedMount MountVolume.SetUp failed for volume \"data\" : {why}")
    }

    /// A pod that mounts the claim at `/data`, with a variable that edits change.
    fn pod(&self, name: &str, claim: &str, version: &str, more: &str) -> String {
        format!(
            r#"apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec:
  terminationGracePeriodSeconds: 5
  {more}
  volumes: [{{name: data, persistentVolumeClaim: {{claimName: {claim}-{suffix}}}}}]
  containers:
  - name: {name}
    image: {IMAGE}
    command: ["sh", "-c", "trap 'exit 0' TERM; while :; do sleep 1 & wait $!; done"]
    env: [{{name: VERSION, value: "{version}"}}]
    volumeMounts: [{{name: data, mountPath: /data}}]
"#,
            suffix = self.suffix
        )
    }

    fn volume(&self, claim: &str) -> String {
        format!("mirrorlet_default_{claim}-{}", self.suffix)
    }

    /// Id of the running instance of a container, if there is one.
    fn running(&self, container: &str) -> Option<String> {
        let prefix = format!("k8s_{container}_");
        let mut running = self.bed.running().into_iter();
        let found = running.find(|(name, _)| name.starts_with(&prefix));
        found.map(|(_, id)| id)
    }

    /// Waits for a version of a pod's container.
    async fn until_version(&self, pod: &str, version: &str) {
        eventually("the edited pod", || {
            let id = self.running(pod)?;
            // It may have been replaced meanwhile: then nothing is printed of it.
            let inspected = docker_client()
                .args(["-H", &self.bed.docker, "inspect", &id])
                .output()
                .unwrap();
            String::from_utf8_lossy(&inspected.stdout)
                .contains(&format!("VERSION={version}"))
                .then_some(())
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claims_data_outlives_edits_agents_and_its_document() {
    let here = Claims::new();
    let bed = &here.bed;
    let agent = bed.agent().await;
    bed.write(
        "db.yaml",
        &here.pod("db", "data", "1", "securityContext: {fsGroup: 2000}"),
    );
    let missing = here.not_mounted(
        "persistentvolumeclaim \"data-CLAIM\" not found: no manifest defines PersistentVolumeClaim default/data-CLAIM",
    );
    // box 3
    agent.until_event("db-box", &missing).await;
    bed.write("data.yaml", &here.claim("data", "ReadWriteOnce", ""));
    agent.until_running("db").await;
    let seen = bed.exec("db", "stat -c '%a %g' /data; echo one >/data/file; id -G");
    // box 7
    assert_eq!(seen, "2777 2000\n0 2000");
    let volume = bed.docker(&[
        "volume",
        "inspect",
        "--format",
        "{{json .Labels}}",
        &here.volume("data"),
    ]);
    assert!(volume.contains(&bed.owner().unwrap()), "{volume}");

    bed.write("db.yaml", &here.pod("db", "data", "2", ""));
    here.until_version("db", "2").await;
    // box 7
    assert_eq!(bed.exec("db", "cat /data/file"), "one");
    agent.kill();

    // Without the claim's document, its pod runs on and restarts its containers; other pods wait.
    let document = std::fs::read_to_string(bed.manifest("data.yaml")).unwrap();
    bed.remove("data.yaml");
    let agent = bed.agent().await;
    agent.until_running("db").await;
    let before = bed.running_id("db");
    bed.docker(&["kill", &before]);
    eventually("a new instance", || {
        here.running("db").filter(|id| *id != before)
    })
    .await;
    // box 7
    assert_eq!(bed.exec("db", "cat /data/file"), "one");
    bed.write("reader.yaml", &here.pod("reader", "data", "1", ""));
    agent.until_event("reader-box", &missing).await;

    // The document is back: the claim has its data, and two pods share it.
    bed.write("data.yaml", &document);
    agent.until_running("reader").await;
    // box 7
    assert_eq!(bed.exec("reader", "cat /data/file"), "one");
    for file in ["db.yaml", "reader.yaml", "data.yaml"] {
        bed.remove(file);
    }
    agent.until_gone("db").await;
    agent.until_gone("reader").await;
    // box 7
    bed.docker(&["volume", "inspect", &here.volume("data")]);
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_for_one_pod_waits_until_that_pod_is_gone() {
    let here = Claims::new();
    let bed = &here.bed;
    let agent = bed.agent().await;
    bed.write("data.yaml", &here.claim("data", "ReadWriteOncePod", ""));
    bed.write("first.yaml", &here.pod("first", "data", "1", ""));
    agent.until_running("first").await;
    bed.write("second.yaml", &here.pod("second", "data", "1", ""));
    let taken = here.not_mounted(
        "volume \"data\": claim default/data-CLAIM uses the ReadWriteOncePod access mode and is already in use by pod default/first-box",
    );
    // box 7
    agent.until_event("second-box", &taken).await;
    assert_eq!(here.running("second"), None);
    bed.remove("first.yaml");
    agent.until_running("second").await;
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_is_the_directory_of_the_volume_that_it_names_or_matches() {
    let here = Claims::new();
    let (bed, host) = (&here.bed, tempdir());
    let agent = bed.agent().await;
    let volume = |name: &str, source: &str, more: &str| {
        let path = host.path().join(name).display().to_string();
        let source = source.replace("PATH", &path);
        format!(
            "{{apiVersion: v1, kind: PersistentVolume, metadata: {{name: {name}}}, spec: {{accessModes: [ReadWriteOnce], capacity: {{storage: 2Gi}}, {source}{more}}}}}\n---\n"
        )
    };
    bed.write(
        "volumes.yaml",
        &[
            volume("ssd", "local: {path: PATH}", ", storageClassName: fast"),
            volume("srv", "hostPath: {path: PATH, type: DirectoryOrCreate}", ""),
        ]
        .concat(),
    );
    let fast = here.claim("fast", "ReadWriteOnce", "storageClassName: fast");
    let named = here.claim("named", "ReadWriteOnce", "volumeName: srv");
    bed.write("claims.yaml", &[fast, named].concat());
    let (ssd, srv) = (host.path().join("ssd"), host.path().join("srv"));
    bed.write("a.yaml", &here.pod("a", "fast", "1", ""));
    let missing = here.not_mounted(&format!(
        "hostPath type check failed: {} is not a directory",
        ssd.display()
    ));
    // A local volume must exist.
    agent.until_event("a-box", &missing).await;
    std::fs::create_dir(&ssd).unwrap();
    bed.write("b.yaml", &here.pod("b", "named", "1", ""));
    for (pod, dir) in [("a", &ssd), ("b", &srv)] {
        agent.until_running(pod).await;
        bed.exec(pod, "echo here >/data/file");
        // box 7
        assert_eq!(std::fs::read_to_string(dir.join("file")).unwrap(), "here\n");
    }
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn annotations_of_a_claim_choose_its_volume() {
    let here = Claims::new();
    let bed = &here.bed;
    let agent = bed.agent().await;
    let old = format!("old-{}", here.suffix);
    bed.docker(&["volume", "create", &old]);
    let mount = format!("{old}:/data");
    let script = "echo before >/data/file";
    bed.docker(&["run", "--rm", "-v", &mount, IMAGE, "sh", "-c", script]);
    let name = format!("mirrorlet.dev/volume-name: {old}");
    bed.write("old.yaml", &here.annotated("old", &name));
    let options = r#"mirrorlet.dev/volume-options: "type=tmpfs device=tmpfs o=size=1m""#;
    bed.write("memory.yaml", &here.annotated("memory", options));
    for pod in ["old", "memory"] {
        bed.write(&format!("{pod}-pod.yaml"), &here.pod(pod, pod, "1", ""));
        agent.until_running(pod).await;
    }
    // box 7
    assert_eq!(bed.exec("old", "cat /data/file"), "before");
    let mounted = bed.exec("memory", "grep ' /data ' /proc/mounts");
    assert!(
        mounted.contains("tmpfs") && mounted.contains("size=1024k"),
        "{mounted}"
    );

    // Only a directory of the Engine has sub-paths.
    let below = here.pod("below", "memory", "1", "");
    let below = below.replace("mountPath: /data", "mountPath: /data, subPath: a");
    bed.write("below.yaml", &below);
    let refused = "has a driver other than local, or driver options, which do not support subPath";
    agent
        .until_pod("below", |pod| pod.containers[0].message.contains(refused))
        .await;
    let below = below.replace("claimName: memory", "claimName: old");
    bed.write("below.yaml", &below);
    agent.until_running("below").await;
    bed.exec("below", "echo below >/data/file");
    assert_eq!(bed.exec("old", "cat /data/a/file"), "below");

    // A volume that somebody else created is used only by its name.
    let volume = here.volume("taken");
    bed.docker(&["volume", "create", &volume]);
    bed.write("taken.yaml", &here.claim("taken", "ReadWriteOnce", ""));
    bed.write("taken-pod.yaml", &here.pod("taken", "taken", "1", ""));
    let refused = format!(
        "FailedMount volume {volume} of the Engine was not created by this agent; to use it anyway, annotate claim default/taken-{} with mirrorlet.dev/volume-name: {volume}",
        here.suffix
    );
    agent.until_event("taken-box", &refused).await;

    // One that has to exist is not created.
    let volume = format!("absent-{}", here.suffix);
    let existing =
        format!(r#"mirrorlet.dev/volume-name: {volume}, mirrorlet.dev/volume-must-exist: "true""#);
    bed.write("absent.yaml", &here.annotated("absent", &existing));
    bed.write("absent-pod.yaml", &here.pod("absent", "absent", "1", ""));
    let missing = format!(
        "FailedMount volume {volume} of the Engine doesn't exist, and claim default/absent-{} has mirrorlet.dev/volume-must-exist: \"true\"; create it: docker volume create {volume}",
        here.suffix
    );
    agent.until_event("absent-box", &missing).await;
    let listed = bed.docker(&[
        "volume",
        "ls",
        "--quiet",
        "--filter",
        &format!("name={volume}"),
    ]);
    // box 7
    assert_eq!(listed.trim(), "");
    bed.docker(&["volume", "create", &volume]);
    agent.until_running("absent").await;
    agent.stop().await;
}

/// The volumes as the program lists them.
fn listed(bed: &Bed) -> Vec<VolumeReport> {
    let report = said(&ask(bed, &["volumes", "-o", "json"]));
    serde_json::from_str::<VolumesReport>(&report)
        .unwrap()
        .volumes
}

#[tokio::test(flavor = "multi_thread")]
async fn volumes_are_listed_and_removed_once_no_pod_uses_them() {
    let here = Claims::new();
    let bed = &here.bed;
    let srv = bed.path().join("srv");
    let program = run(bed);
    let disk = format!(
        "{{apiVersion: v1, kind: PersistentVolume, metadata: {{name: disk}}, spec: {{accessModes: [ReadWriteOnce], capacity: {{storage: 2Gi}}, storageClassName: own, hostPath: {{path: {}}}}}}}\n---\n",
        srv.display()
    );
    let own = disk + &here.claim("own", "ReadWriteOnce", "storageClassName: own");
    let data = here.claim("data", "ReadWriteOnce", "");
    let pods = [("db", "data"), ("web", "own")];
    for (pod, claim) in pods {
        bed.write(&format!("{pod}.yaml"), &here.pod(pod, claim, "1", ""));
    }
    bed.write("data.yaml", &data);
    bed.write("own.yaml", &own);
    for (pod, _) in pods {
        until_running(bed, pod).await;
        bed.exec(pod, "echo here >/data/file");
    }
    let volume = here.volume("data");
    let mut expected = [
        VolumeReport {
            name: volume.clone(),
            namespace: "default".to_owned(),
            claim: format!("data-{}", here.suffix),
            state: VolumeState::Bound,
            driver: Some("local".to_owned()),
            path: None,
            created: true,
            pods: vec!["default/db-box".to_owned()],
            workloads: vec![],
        },
        VolumeReport {
            name: "disk".to_owned(),
            namespace: "default".to_owned(),
            claim: format!("own-{}", here.suffix),
            state: VolumeState::Bound,
            driver: None,
            path: Some(srv.display().to_string()),
            created: false,
            pods: vec!["default/web-box".to_owned()],
            workloads: vec![],
        },
    ];
    // box 7
    assert_eq!(listed(bed), expected);
    let refused = |args: &[&str], why: &str| {
        let refused = ask(bed, &[&["volumes", "rm"], args].concat());
        let error = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(error.contains(why), "{args:?}: {error}");
        assert_eq!(refused.status.code(), Some(1));
    };
    let used = format!("volume {volume} is used by pod default/db-box");
    refused(&["--yes", &volume], &used);
    refused(&["--yes", "none"], "no claim has a volume none");

    // Without documents of the claims they are released, but still used.
    bed.remove("data.yaml");
    bed.remove("own.yaml");
    for report in &mut expected {
        report.state = VolumeState::Released;
        report.path = None;
    }
    eventually("released volumes", || {
        (listed(bed) == expected).then_some(())
    })
    .await;
    let removed = ask(bed, &["volumes", "rm", "--released", "--yes"]);
    assert_eq!(said(&removed), "no volume is released\n");
    refused(&["--yes", &volume], &used);
    for (pod, _) in pods {
        bed.remove(&format!("{pod}.yaml"));
    }
    for report in &mut expected {
        report.pods.clear();
    }
    eventually("unused volumes", || (listed(bed) == expected).then_some(())).await;
    // Nobody answers the question.
    let unanswered = "nothing was removed: the question got no answer; pass --yes";
    refused(&["--released"], unanswered);
    assert_eq!(listed(bed), expected);
    drop(program);
    let program = run(bed);
    eventually("the next agent", || {
        ask(bed, &["volumes"]).status.success().then_some(())
    })
    .await;
    let removed = said(&ask(bed, &["volumes", "rm", "--released", "--yes"]));
    // box 7
    assert_eq!(
        removed,
        format!("volume {volume}: removed\nvolume disk: released, its data was kept\n")
    );
    let filter = format!("name={volume}");
    assert_eq!(bed.docker(&["volume", "ls", "-q", "--filter", &filter]), "");
    assert_eq!(listed(bed), []);
    assert_eq!(std::fs::read_to_string(srv.join("file")).unwrap(), "here\n");

    // The claims are bound again: one to a new volume, one to the directory it had.
    bed.write("data.yaml", &data);
    bed.write("own.yaml", &own);
    for (pod, claim) in pods {
        bed.write(&format!("{pod}.yaml"), &here.pod(pod, claim, "2", ""));
        until_running(bed, pod).await;
    }
    // box 7
    assert_eq!(bed.exec("db", "ls /data"), "");
    assert_eq!(bed.exec("web", "ls /data"), "file");
    drop(program);
}

/// The files of the bindings that record that their volumes exist.
fn seen(bed: &Bed) -> Vec<PathBuf> {
    let files = std::fs::read_dir(bed.path().join("claims"))
        .into_iter()
        .flatten();
    let files = files.map(|file| file.unwrap().path());
    let is_seen = |path: &PathBuf| {
        std::fs::read_to_string(path).is_ok_and(|text| text.contains(r#""presence":"present""#))
    };
    files.filter(is_seen).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_that_is_gone_is_not_made_anew() {
    let here = Claims::new();
    let bed = &here.bed;
    let program = run(bed);
    bed.write("data.yaml", &here.claim("data", "ReadWriteOnce", ""));
    bed.write("db.yaml", &here.pod("db", "data", "1", ""));
    until_running(bed, "db").await;
    let file = eventually("the volume to be recorded", || seen(bed).pop()).await;
    drop(program);

    // The binding of an agent that didn't record it.
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, text.replace(r#","presence":"present""#, "")).unwrap();
    assert_eq!(seen(bed), [] as [PathBuf; 0]);
    let program = run(bed);
    eventually("the volume to be recorded", || seen(bed).pop()).await;

    let volume = here.volume("data");
    let labels = [
        ("owner", bed.owner().unwrap()),
        ("claim-namespace", "default".to_owned()),
        ("claim-name", format!("data-{}", here.suffix)),
    ];
    let labels = labels.map(|(key, value)| format!("--label mirrorlet.dev/{key}={value}"));
    let labels = labels.join(" ");
    let lose = async || {
        until_running(bed, "db").await;
        for args in [&["stop", "db"][..], &["wait", "db", "--for=stopped"]] {
            said(&ask(bed, args));
        }
        for ended in bed.containers().values() {
            bed.docker(&["rm", "-f", ended]);
        }
        bed.docker(&["volume", "rm", &volume]);
        said(&ask(bed, &["start", "db"]));
        let claim = format!("default/data-{}", here.suffix);
        let gone = format!(
            "volume {volume} of the Engine no longer exists, and the data of claim {claim} is lost; to restore a backup, stop the pod, run docker volume create {labels} {volume} and unpack it; to start with an empty volume, run mirrorlet volumes rm {volume}"
        );
        eventually("the lost volume", || {
            let events = said(&ask(bed, &["events"]));
            let lost = listed(bed).iter().any(|v| v.state == VolumeState::Lost);
            (lost && events.contains(&gone)).then_some(())
        })
        .await;
        let filter = format!("name={volume}");
        // box 7
        assert_eq!(bed.docker(&["volume", "ls", "-q", "--filter", &filter]), "");
    };
    lose().await;
    let create = format!("volume create {labels} {volume}");
    bed.docker(&create.split(' ').collect::<Vec<_>>());
    until_running(bed, "db").await;
    eventually("the restored volume", || {
        let bound = listed(bed).iter().all(|v| v.state == VolumeState::Bound);
        bound.then_some(())
    })
    .await;

    lose().await;
    let released = said(&ask(bed, &["volumes", "rm", "--yes", &volume]));
    assert_eq!(
        released,
        format!("volume {volume}: released, an empty one is created when a pod uses its claim\n")
    );
    until_running(bed, "db").await;
    // box 7
    assert_eq!(bed.exec("db", "ls /data"), "");
    drop(program);
}
