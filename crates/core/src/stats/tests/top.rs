use std::collections::BTreeMap;
use std::sync::Arc;

use crate::api::report::UsageReport;
use crate::api::{Pod, PodUid};
use crate::stats::cgroup::Memory;
use crate::stats::top::top;
use crate::stats::{ContainerReading, NodeReading, PodReading, Reading, Usage};

fn usage(nano_cores: u64, working_set: u64) -> Usage {
    Usage {
        nano_cores: Some(nano_cores),
        memory: Some(Memory {
            working_set,
            ..Memory::default()
        }),
        ..Usage::default()
    }
}

fn reading(containers: &[&str]) -> Reading {
    let container = |name: &&str| ContainerReading {
        name: Arc::from(*name),
        usage: usage(1, 2),
        ..ContainerReading::default()
    };
    Reading {
        node: NodeReading {
            name: "box".to_owned(),
            usage: usage(5, 6),
            cpus: 2,
            memory_bytes: 1 << 30,
            ..NodeReading::default()
        },
        pods: vec![PodReading {
            uid: "u".into(),
            name: "web".into(),
            namespace: "default".into(),
            usage: usage(3, 4),
            containers: containers.iter().map(container).collect(),
            ..PodReading::default()
        }],
        ..Reading::default()
    }
}

#[test]
fn limits_are_the_specs_and_a_pods_their_sum() {
    let pod: Pod = serde_json::from_value(serde_json::json!({
        "metadata": {"name": "web", "namespace": "default", "uid": "u"},
        "spec": {"containers": [
            {"name": "a", "resources": {"limits": {"cpu": "1500m", "memory": "64Mi"}}},
            {"name": "b", "resources": {"limits": {"cpu": "100m"}}},
        ]},
    }))
    .unwrap();
    let pods: BTreeMap<PodUid, Arc<Pod>> = [("u".into(), Arc::new(pod))].into();
    let both = top(&reading(&["a", "b"]), &pods, |_| true);
    assert_eq!(
        both.node_usage,
        UsageReport {
            cpu_nanos: Some(5),
            cpu_limit_nanos: Some(2_000_000_000),
            memory_bytes: Some(6),
            memory_limit_bytes: Some(1 << 30),
        }
    );
    let expected = |cpu_nanos, memory_bytes, cpu_limit_nanos, memory_limit_bytes| UsageReport {
        cpu_nanos: Some(cpu_nanos),
        memory_bytes: Some(memory_bytes),
        cpu_limit_nanos,
        memory_limit_bytes,
    };
    let [pod] = &both.pods[..] else {
        panic!("{both:?}")
    };
    let limit = Some(64 << 20);
    assert_eq!(pod.usage, expected(3, 4, Some(1_600_000_000), None));
    assert_eq!(
        pod.containers[0].usage,
        expected(1, 2, Some(1_500_000_000), limit)
    );
    let one = top(&reading(&["a"]), &pods, |_| true);
    assert_eq!(
        one.pods[0].usage,
        expected(3, 4, Some(1_500_000_000), limit)
    );
    let unknown = top(&reading(&["a"]), &BTreeMap::new(), |_| true);
    assert_eq!(unknown.pods[0].usage, expected(3, 4, None, None));
}

#[test]
fn of_several_versions_of_a_pod_the_one_that_serves_is_told() {
    let mut both = reading(&["a"]);
    let mut newer = both.pods[0].clone();
    newer.uid = "v".into();
    newer.usage = usage(7, 8);
    both.pods.push(newer);
    for (serving, memory) in [("u", 4), ("v", 8), ("other", 4)] {
        let told = top(&both, &BTreeMap::new(), |uid| *uid == serving.into());
        let told: Vec<_> = told.pods.iter().map(|p| p.usage.memory_bytes).collect();
        // embedded 56
        assert_eq!(told, [Some(memory)], "{serving}");
    }
}
