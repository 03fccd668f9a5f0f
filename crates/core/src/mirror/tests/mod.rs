use super::*;

mod copied;
mod problems;
mod properties;
mod verdicts;

const NODE: &str = "n1";

fn node_name() -> NodeName {
    NODE.into()
}

/// A static pod of that name; its version is its UID and its hash.
fn static_pod(name: &str, version: &str) -> Arc<Pod> {
    let mut pod = Pod::default();
    pod.metadata.name = Some(name.into());
    pod.metadata.namespace = Some("ns".into());
    pod.metadata.uid = Some(version.into());
    pod.metadata.annotations = Some(BTreeMap::from([
        (keys::CONFIG_SOURCE.into(), "file".into()),
        (keys::CONFIG_HASH.into(), version.into()),
        (keys::CONFIG_SEEN.into(), "2026-01-01T00:00:00Z".into()),
    ]));
    pod.spec = Some(core::PodSpec {
        node_name: Some(NODE.into()),
        ..core::PodSpec::default()
    });
    Arc::new(pod)
}

fn node(uid: &str) -> core::Node {
    let mut node = core::Node::default();
    node.metadata.name = Some(NODE.into());
    node.metadata.uid = Some(uid.into());
    node
}

fn reference(uid: &str) -> NodeRef {
    NodeRef {
        name: node_name(),
        uid: uid.into(),
    }
}

/// The mirror of that version as the API server has it.
fn mirror(name: &str, version: &str, uid: &str, node_uid: &str) -> Pod {
    let mut mirror = mirror_copy(&static_pod(name, version), &reference(node_uid));
    mirror.metadata.uid = Some(uid.into());
    mirror
}

fn name(name: &str) -> FullName {
    FullName::new(name, "ns")
}

/// The table of wanted pods and of the mirrors that the API server has.
fn table<'a>(
    wanted: impl IntoIterator<Item = &'a Arc<Pod>>,
    api: &BTreeMap<PodUid, Arc<Pod>>,
) -> PodTable {
    let mut table = PodTable::default();
    table.set_pods(wanted.into_iter().cloned());
    table.set_mirror_pods(api.values().filter(|pod| is_mirror_pod(pod)).cloned());
    table
}
