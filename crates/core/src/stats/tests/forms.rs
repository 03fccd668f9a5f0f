//! The served documents, made from one look.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::super::cgroup::{Cpu, Memory, Version, cpu, detail, memory};
use super::super::summary::summary;
use super::super::{
    ContainerReading, Disk, Network, NodeReading, PodReading, Reading, Scope, SystemReading, Usage,
    VolumeReading, cadvisor, proc, resource,
};
use super::{NET_DEV, v1, v2};
use crate::api::Timestamp;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_763_700_000 + second).unwrap()
}

fn container(name: &str, version: Version) -> ContainerReading {
    let mut files = match version {
        Version::V1 => v1(),
        Version::V2 => v2(),
    };
    let disk = Disk {
        time: at(50),
        available_bytes: Some(70),
        capacity_bytes: Some(100),
        used_bytes: Some(4096),
        inodes_free: Some(7),
        inodes: Some(10),
        inodes_used: Some(2),
    };
    ContainerReading {
        name: name.into(),
        engine_name: format!("k8s_{name}_web_shop_u_0"),
        image: "registry:5000/web:1".into(),
        started_at: at(10),
        cgroup: format!("/docker/{name}"),
        usage: Usage {
            time: at(60),
            cpu: cpu(version, &mut files, true),
            nano_cores: Some(250_000_000),
            memory: memory(version, &mut files),
            processes: Some(2),
            detail: Some(detail(version, &mut files, None)),
        },
        rootfs: Some(disk),
        logs: Some(Disk {
            used_bytes: Some(512),
            inodes_used: Some(1),
            ..disk
        }),
    }
}

fn reading() -> Reading {
    let network = Network {
        time: at(60),
        interfaces: proc::interfaces(NET_DEV),
    };
    let new = ContainerReading {
        name: "new\"".into(),
        started_at: at(60),
        usage: Usage {
            time: at(60),
            cpu: Some(Cpu::default()),
            memory: Some(Memory::default()),
            ..Usage::default()
        },
        ..ContainerReading::default()
    };
    let web = container("web", Version::V1);
    let side = container("side", Version::V2);
    let volume = VolumeReading {
        name: "data".to_owned(),
        disk: Disk {
            used_bytes: Some(8192),
            inodes_used: Some(3),
            ..web.rootfs.unwrap()
        },
        is_ephemeral: true,
    };
    let keys = VolumeReading {
        name: "keys".to_owned(),
        is_ephemeral: false,
        ..volume.clone()
    };
    let pod = PodReading {
        name: "web".into(),
        namespace: "shop".into(),
        uid: "u".into(),
        started_at: Some(at(5)),
        usage: web.usage.clone(),
        containers: vec![web, side, new],
        sandbox: Some(container("POD", Version::V1)),
        cgroup: Some("/kubepods/podu".to_owned()),
        network: Some(network.clone()),
        volumes: vec![volume, keys],
    };
    let young = PodReading {
        name: "young".into(),
        namespace: "shop".into(),
        uid: "y".into(),
        ..PodReading::default()
    };
    Reading {
        time: at(61),
        node: NodeReading {
            name: "box".to_owned(),
            booted_at: at(-1000),
            usage: container("", Version::V1).usage,
            cpus: 2,
            memory_bytes: 1 << 34,
            swap_bytes: 0,
            network: Some(network),
            fs: Some(Disk {
                time: at(60),
                available_bytes: Some(1000),
                ..Disk::default()
            }),
            image_fs: Some(Disk {
                time: at(60),
                used_bytes: Some(77),
                ..Disk::default()
            }),
            threads: Some((345, 1000)),
            systems: vec![SystemReading {
                name: "runtime",
                cgroup: "/system.slice/docker.service".to_owned(),
                started_at: None,
                usage: container("", Version::V1).usage,
            }],
            devices: BTreeMap::from([((254, 0), "vda".to_owned())]),
        },
        pods: vec![pod, young],
    }
}

#[test]
fn the_summary_is_upstreams() {
    insta::assert_json_snapshot!("summary", summary(&reading(), Scope::Everything));
    insta::assert_json_snapshot!("summary_less", summary(&reading(), Scope::CpuAndMemory));
}

#[test]
fn resource_metrics_are_upstreams() {
    // usage 37
    insta::assert_snapshot!("resource", resource::render(Some(&reading())));
    insta::assert_snapshot!("resource_failed", resource::render(None));
}

#[test]
fn cadvisors_metrics_are_cadvisors() {
    insta::assert_snapshot!("cadvisor", cadvisor::render(Some(&reading())));
    let failed = cadvisor::render(None);
    assert!(failed.contains("container_scrape_error 1\n"), "{failed}");
}

/// Samples of a page: name, labels, whether there is a time.
fn samples(page: &str) -> Vec<(&str, &str, bool)> {
    let lines = page.lines().filter(|line| !line.starts_with('#'));
    lines
        .map(|line| {
            let (series, rest) = match line.rsplit_once("} ") {
                Some((series, rest)) => (series, rest),
                None => line.split_once(' ').unwrap(),
            };
            let (name, labels) = series.split_once('{').unwrap_or((series, ""));
            let words: Vec<&str> = rest.split(' ').collect();
            let value: f64 = words[0].parse().unwrap();
            assert!(value >= 0.0, "{line}");
            if let Some(time) = words.get(1) {
                // Milliseconds, as metrics-server takes them.
                assert_eq!(time.len(), 13, "{line}");
            }
            (name, labels, words.len() == 2)
        })
        .collect()
}

#[test]
fn a_family_stands_together_and_a_series_once() {
    for page in [
        resource::render(Some(&reading())),
        cadvisor::render(Some(&reading())),
    ] {
        let all = samples(&page);
        let mut seen = std::collections::HashSet::new();
        // usage 37
        assert!(
            all.iter()
                .all(|(name, labels, _)| seen.insert((name, labels)))
        );
        let mut families = Vec::new();
        for (name, _, _) in &all {
            if families.last() != Some(name) {
                assert!(!families.contains(name), "{name} stands in two places");
                families.push(name);
            }
            assert!(
                page.contains(&format!("# TYPE {name} ")),
                "{name} has no type"
            );
        }
    }
}

/// `metrics-server` drops a pod of which a container has no CPU or memory yet.
#[test]
fn a_container_that_has_only_begun_is_left_out() {
    let page = resource::render(Some(&reading()));
    // usage 36
    assert!(!page.contains("new"), "{page}");
    let of_web = |(_, labels, _): &&(&str, &str, bool)| labels.contains("container=\"web\"");
    let all = samples(&page);
    assert_eq!(all.iter().filter(of_web).count(), 5);
    for (name, labels, has_time) in all {
        let is_of_container = name.starts_with("container_");
        let has_all = ["container=\"", "pod=\"", "namespace=\""];
        assert!(!is_of_container || has_all.iter().all(|label| labels.contains(label)));
        let is_timeless = name.ends_with("start_time_seconds") || name.ends_with("error");
        assert_eq!(has_time, !is_timeless, "{name}");
    }
}

#[test]
fn hostile_names_stay_within_their_label() {
    let mut reading = reading();
    reading.pods[0].containers[0].image = Arc::from("a\"} 1\nup{x=\"\\");
    let page = cadvisor::render(Some(&reading));
    assert!(page.contains(r#"image="a\"} 1\nup{x=\"\\""#), "{page}");
    assert!(!page.contains("\nup{"));
}
