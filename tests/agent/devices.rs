//! Devices of pods, under a whole agent: claims for block devices, and devices by CDI.

use std::os::unix::fs::symlink;

use crate::common::disk::{CONTENT, Disk};
use crate::common::{Bed, IMAGE, sleeper, tempdir};
use mirrorlet_core::api::report::{ContainerReport, PodReport};

/// A claim with the volume that it names.
fn claim(name: &str, mode: &str, source: &str) -> String {
    let common = "accessModes: [ReadWriteOnce], volumeMode: MODE".replace("MODE", mode);
    format!(
        "{{apiVersion: v1, kind: PersistentVolume, metadata: {{name: {name}}}, spec: {{{common}, capacity: {{storage: 1Mi}}, {source}}}}}\n---\n\
         {{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {{name: {name}}}, spec: {{{common}, resources: {{requests: {{storage: 1Mi}}}}, volumeName: {name}}}}}\n---\n"
    )
}

/// A pod whose container uses that claim, in these words.
fn pod(name: &str, claim: &str, uses: &str, more: &str) -> String {
    format!(
        r#"apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec:
  terminationGracePeriodSeconds: 1
  volumes: [{{name: data, persistentVolumeClaim: {{{claim}}}}}]
  {more}
  containers:
  - name: {name}
    image: {IMAGE}
    command: ["sh", "-c", "trap 'exit 0' TERM; while :; do sleep 1 & wait $!; done"]
    {uses}
"#
    )
}

const DEVICES: &str = "volumeDevices: [{name: data, devicePath: /dev/raw}]";
const MOUNTS: &str = "volumeMounts: [{name: data, mountPath: /data}]";

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_for_a_block_device_is_a_device_of_the_container() {
    let (bed, disk) = (Bed::new(), Disk::new());
    let agent = bed.agent().await;
    let by_name = disk.directory.path().join("by-name");
    let local = format!("local: {{path: {}}}", by_name.display());
    bed.write("disk.yaml", &claim("disk", "Block", &local));
    // It waits for its device, which is a symlink as those that udev makes.
    let init = format!(
        "initContainers: [{{name: init, image: {IMAGE}, {DEVICES}, command: [sh, -c, \"printf by-init | dd of=/dev/raw bs=512 seek=1 conv=notrunc,fsync\"]}}]"
    );
    bed.write("raw.yaml", &pod("raw", "claimName: disk", DEVICES, &init));
    let missing = format!(
        "FailedMapVolume MapVolume.SetUpDevice failed for volume \"data\" : {} doesn't exist",
        by_name.display()
    );
    // box 18
    agent.until_event("raw-box", &missing).await;
    symlink(&disk.device, &by_name).unwrap();
    agent.until_running("raw").await;
    let read = format!("head -c {} /dev/raw", CONTENT.len());
    // box 18
    assert_eq!(bed.exec("raw", &read), CONTENT);
    bed.exec(
        "raw",
        "printf by-pod | dd of=/dev/raw bs=512 seek=2 conv=notrunc,fsync",
    );
    // box 18
    assert_eq!(
        (disk.text(512, 7), disk.text(1024, 6)),
        ("by-init".into(), "by-pod".into())
    );

    // One that may only read.
    let source = "claimName: disk, readOnly: true";
    bed.write("reader.yaml", &pod("reader", source, DEVICES, ""));
    agent.until_running("reader").await;
    assert_eq!(bed.exec("reader", &read), CONTENT);
    let refused = bed.exec(
        "reader",
        "printf no | dd of=/dev/raw conv=notrunc 2>&1 || echo refused",
    );
    // box 18
    assert!(
        refused.contains("Operation not permitted") && refused.ends_with("refused"),
        "{refused}"
    );
    assert_eq!(disk.text(0, CONTENT.len()), CONTENT);

    // An edit to a claim without a device stops nothing.
    let before = bed.running_id("raw");
    let gone = disk.directory.path().join("gone");
    let host_path = format!("hostPath: {{path: {}, type: BlockDevice}}", gone.display());
    bed.write("gone.yaml", &claim("gone", "Block", &host_path));
    bed.write("raw.yaml", &pod("raw", "claimName: gone", DEVICES, &init));
    let is_held = |pod: &PodReport| {
        let problem = pod.problems.first();
        pod.held && problem.is_some_and(|p| p.message.contains("doesn't exist"))
    };
    let held = agent.until_pod("raw", is_held).await;
    // box 18
    assert_eq!((bed.running_id("raw"), held.ready), (before, 1));
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_uses_a_device_for_files_or_files_as_a_device_waits() {
    let (bed, directory) = (Bed::new(), tempdir());
    let agent = bed.agent().await;
    let local = format!("local: {{path: {}}}", directory.path().display());
    bed.write("files.yaml", &claim("files", "Filesystem", &local));
    bed.write("block.yaml", &claim("block", "Block", &local));
    let unbound = claim("none", "Block", &local);
    let (_, unbound) = unbound.split_once("---\n").unwrap();
    bed.write("none.yaml", &unbound.replace(", volumeName: none", ""));
    let set_up = "FailedMount MountVolume.SetUp failed for volume \"data\" : ";
    for (name, claim, uses, expected) in [
        (
            "files",
            "files",
            DEVICES,
            format!(
                "{set_up}volume data has volumeMode Filesystem, but is specified in volumeDevices"
            ),
        ),
        (
            "mounts",
            "block",
            MOUNTS,
            format!("{set_up}volume data has volumeMode Block, but is specified in volumeMounts"),
        ),
        (
            "directory",
            "block",
            DEVICES,
            format!(
                "FailedMapVolume MapVolume.SetUpDevice failed for volume \"data\" : {} is not a block device",
                directory.path().display()
            ),
        ),
        (
            "none",
            "none",
            DEVICES,
            format!(
                "{set_up}persistentvolumeclaim \"none\" is not bound: no PersistentVolume with volumeMode Block matches, and a volume of the Engine can't be a block device"
            ),
        ),
    ] {
        let claim = format!("claimName: {claim}");
        bed.write(&format!("{name}-pod.yaml"), &pod(name, &claim, uses, ""));
        // box 18
        agent.until_event(&format!("{name}-box"), &expected).await;
    }
    // box 18
    assert_eq!(bed.running().len(), 0, "{:?}", bed.running());
    agent.stop().await;
}

/// A pod that asks for a device that no machine has, by CDI.
fn cdi_pod(name: &str) -> String {
    let annotated =
        "metadata: {name: NAME, annotations: {cdi.k8s.io/test: mirrorlet.test/device=none}}";
    let plain = format!("metadata:\n  name: {name}\n");
    let annotated = format!("{}\n", annotated.replace("NAME", name));
    let pod = sleeper(name).replace(&plain, &annotated);
    assert!(pod.contains("cdi.k8s.io"), "{pod}");
    pod
}

#[tokio::test(flavor = "multi_thread")]
async fn a_device_by_cdi_is_asked_of_the_engine_or_refused_with_the_version_that_has_them() {
    let bed = Bed::new();
    let agent = bed.agent().await;
    let directories = bed.docker(&["info", "--format", "{{json .CDISpecDirs}}"]);
    let has_cdi = !["null", "[]"].contains(&directories.trim());
    let cause = if has_cdi {
        "unresolvable CDI devices mirrorlet.test/device=none"
    } else {
        "CDI device \"mirrorlet.test/device=none\": CDI devices need Docker Engine 28.2 or newer, or 25 or newer with \"features\": {\"cdi\": true} in the Engine's daemon.json"
    };
    bed.write("gpu.yaml", &cdi_pod("gpu"));
    let waits = |container: &ContainerReport| container.message.contains(cause);
    let waiting = agent.until_container("gpu", "gpu", waits).await;
    // box 19
    assert_eq!((waiting.ready, waiting.state.as_str()), (false, "waiting"));
    if has_cdi {
        agent.stop().await;
        return;
    }
    assert_eq!(waiting.reason, "CreateContainerConfigError");
    // An edit stops nothing.
    bed.write("web.yaml", &sleeper("web"));
    let before = agent.until_running("web").await;
    bed.write("web.yaml", &cdi_pod("web"));
    let is_held = |pod: &PodReport| pod.held && pod.problems[0].message.contains(cause);
    let held = agent.until_pod("web", is_held).await;
    // box 19
    assert_eq!((held.uid, held.ready), (before.uid, 1));
    agent.stop().await;
}
