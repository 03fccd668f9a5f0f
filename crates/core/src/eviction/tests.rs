use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::api::{Pod, PodUid};
use crate::stats::cgroup::Memory;
use crate::stats::{ContainerReading, Disk, PodReading, Usage, VolumeReading};

const MIB: u64 = 1 << 20;

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + seconds).unwrap()
}

fn seen(signal: Signal, available: u64, capacity: u64) -> Observations {
    let seen = Observation {
        available,
        capacity,
    };
    Observations::from([(signal, seen)])
}

fn threshold(signal: Signal, value: &str) -> Threshold {
    Threshold {
        signal,
        value: Amount::parse(value).unwrap(),
        grace: Duration::ZERO,
        min_reclaim: None,
    }
}

fn policy(thresholds: &[Threshold]) -> EvictionPolicy {
    EvictionPolicy {
        thresholds: thresholds.to_vec(),
        max_pod_grace: Duration::ZERO,
        transition: Duration::from_mins(5),
    }
}

#[test]
fn amounts_are_quantities_or_percentages() {
    for (text, amount) in [
        ("100Mi", Some(Amount::Units(100 * MIB))),
        ("1500", Some(Amount::Units(1500))),
        ("10%", Some(Amount::Share(10_000))),
        ("12.5%", Some(Amount::Share(12_500))),
        ("0.001%", Some(Amount::Share(1))),
        ("100%", Some(Amount::Share(WHOLE))),
        ("101%", None),
        ("-1%", None),
        ("1k%", None),
        ("%", None),
        ("-1Mi", None),
        ("a lot", None),
        ("", None),
    ] {
        let parsed = Amount::parse(text).ok();
        assert_eq!(parsed, amount, "{text}");
        if let Some(amount) = amount {
            assert_eq!(amount.to_string(), text);
        }
    }
    assert_eq!(Amount::Share(12_500).of(1000), 125);
    assert_eq!(Amount::Share(WHOLE).of(u64::MAX), u64::MAX);
    assert!(Amount::parse("0%").unwrap().is_trivial());
    assert!(
        Signal::parse("memory.free")
            .unwrap_err()
            .contains("nodefs.inodesFree")
    );
    for signal in Signal::ALL {
        assert_eq!(Signal::parse(signal.as_str()), Ok(signal));
    }
}

#[test]
fn a_threshold_is_met_below_its_value() {
    let disk = threshold(Signal::NodeFsAvailable, "10%");
    let memory = threshold(Signal::MemoryAvailable, "100Mi");
    for (threshold, observations, is_met) in [
        (disk, seen(Signal::NodeFsAvailable, 100, 1000), false),
        (disk, seen(Signal::NodeFsAvailable, 99, 1000), true),
        (
            memory,
            seen(Signal::MemoryAvailable, 100 * MIB, 1 << 34),
            false,
        ),
        (
            memory,
            seen(Signal::MemoryAvailable, 100 * MIB - 1, 1 << 34),
            true,
        ),
        // A signal that can't be read meets no threshold.
        (disk, seen(Signal::MemoryAvailable, 0, 1000), false),
        (disk, Observations::new(), false),
    ] {
        let mut eviction = Eviction::default();
        let look = eviction.observe(&policy(&[threshold]), &observations, at(0));
        // eviction 1, node 6g
        assert_eq!(look.starved.is_some(), is_met, "{observations:?}");
        assert_eq!(!look.pressures.is_empty(), is_met, "{observations:?}");
    }
    let all = EvictionPolicy {
        thresholds: Signal::ALL.map(|signal| threshold(signal, "10%")).to_vec(),
        ..policy(&[])
    };
    for (signal, pressure) in [
        (Signal::MemoryAvailable, "MemoryPressure"),
        (Signal::NodeFsAvailable, "DiskPressure"),
        (Signal::NodeFsInodesFree, "DiskPressure"),
        (Signal::ImageFsAvailable, "DiskPressure"),
        (Signal::ImageFsInodesFree, "DiskPressure"),
        (Signal::PidAvailable, "PIDPressure"),
    ] {
        let observations = seen(signal, 9, 100);
        let look = Eviction::default().observe(&all, &observations, at(0));
        // eviction 1
        assert_eq!(listed(&look.pressures), format!("[{pressure}]"));
        let words = format!("{} is 9, below 10%", signal.as_str());
        assert_eq!(
            shortages(&all, &observations).into_values().next(),
            Some(words)
        );
    }
}

/// One policy, readings of one signal over time, and what follows of each.
#[test]
fn a_soft_threshold_waits_and_a_minimum_is_reclaimed() {
    let signal = Signal::NodeFsAvailable;
    let soft = Threshold {
        grace: Duration::from_secs(30),
        min_reclaim: Some(Amount::Units(50)),
        ..threshold(signal, "100")
    };
    let mut eviction = Eviction::default();
    for (second, available, is_starved, next) in [
        (0, 200, false, 10),
        (10, 99, false, 10),
        (20, 150, false, 10),
        (30, 99, false, 10),
        (40, 99, false, 10),
        (55, 99, false, 5),
        (60, 99, true, 10),
        // It was starved: 150 are wanted now.
        (70, 149, true, 10),
        (80, 150, false, 10),
        (90, 149, false, 10),
    ] {
        let look = eviction.observe(&policy(&[soft]), &seen(signal, available, 1000), at(second));
        // eviction 2
        assert_eq!(look.starved.is_some(), is_starved, "{second}");
        assert_eq!(look.look_again, Duration::from_secs(next), "{second}");
    }
    assert!(is_reclaimed(&policy(&[soft]), &seen(signal, 150, 1000)));
    assert!(!is_reclaimed(&policy(&[soft]), &seen(signal, 149, 1000)));
}

#[test]
fn a_pressure_is_told_until_it_was_gone_for_a_while() {
    let policy = policy(&[threshold(Signal::MemoryAvailable, "100")]);
    let mut eviction = Eviction::default();
    for (second, available, pressures, next) in [
        (0, 500, "[]", 10),
        (10, 99, "[MemoryPressure]", 1),
        // Memory that is nearly short is looked at more often.
        (20, 199, "[MemoryPressure]", 1),
        (309, 200, "[MemoryPressure]", 10),
        (310, 200, "[]", 10),
        (320, 99, "[MemoryPressure]", 1),
        // The clock was set back: as if no time had passed.
        (-5000, 200, "[MemoryPressure]", 10),
        (-4701, 200, "[MemoryPressure]", 10),
        (-4700, 200, "[]", 10),
    ] {
        let observations = seen(Signal::MemoryAvailable, available, 10_000);
        let look = eviction.observe(&policy, &observations, at(second));
        // eviction 3, node 6g
        assert_eq!(listed(&look.pressures), pressures, "{second}");
        assert_eq!(look.look_again, Duration::from_secs(next), "{second}");
    }
}

#[test]
fn memory_is_reclaimed_before_all_else() {
    let policy = policy(&[
        threshold(Signal::PidAvailable, "10%"),
        threshold(Signal::NodeFsInodesFree, "10%"),
        threshold(Signal::MemoryAvailable, "10%"),
    ]);
    let mut all = Observations::new();
    for signal in Signal::ALL {
        all.extend(seen(signal, 1, 100));
    }
    let look = Eviction::default().observe(&policy, &all, at(0));
    // eviction 1
    assert_eq!(look.starved.unwrap().signal, Signal::MemoryAvailable);
    assert_eq!(
        listed(&look.pressures),
        "[MemoryPressure DiskPressure PIDPressure]"
    );
}

/// A pod of the API server, or a static one.
fn pod(name: &str, source: &str, spec: &Value) -> Pod {
    let mut spec = spec.clone();
    if spec["containers"].is_null() {
        spec["containers"] = json!([{"name": "c"}]);
    }
    let annotations = json!({"kubernetes.io/config.source": source});
    let metadata = json!({"name": name, "uid": name, "annotations": annotations});
    serde_json::from_value(json!({"metadata": metadata, "spec": spec})).unwrap()
}

fn requests(resource: &str, quantity: &str) -> Value {
    json!({"containers": [{"name": "c", "resources": {"requests": {resource: quantity}}}]})
}

fn disk(bytes: u64, inodes: u64) -> Disk {
    Disk {
        used_bytes: Some(bytes),
        inodes_used: Some(inodes),
        ..Disk::default()
    }
}

/// A pod with one container that uses this much of everything: memory and processes; disks by its
/// root file system, its log and the volume `v`, a hundredth as many inodes.
fn uses(name: &str, memory: u64, [rootfs, logs, volume]: [u64; 3]) -> PodReading {
    let usage = Usage {
        memory: Some(Memory {
            working_set: memory,
            ..Memory::default()
        }),
        processes: Some(memory),
        ..Usage::default()
    };
    let of = |bytes: u64| disk(bytes, bytes / 100);
    PodReading {
        name: name.into(),
        uid: PodUid::from(name),
        containers: vec![ContainerReading {
            name: "c".into(),
            usage: usage.clone(),
            rootfs: Some(of(rootfs)),
            logs: Some(of(logs)),
            ..ContainerReading::default()
        }],
        usage,
        volumes: vec![VolumeReading {
            name: "v".to_owned(),
            disk: of(volume),
            is_ephemeral: true,
        }],
        ..PodReading::default()
    }
}

/// The names of pods in the order in which they go.
fn order(signal: Signal, has_image_fs: bool, pods: &[(Pod, Option<PodReading>)]) -> String {
    let candidates: Vec<Candidate<'_>> = pods
        .iter()
        .map(|(pod, reading)| Candidate {
            pod,
            reading: reading.as_ref(),
        })
        .collect();
    let ranked = rank(signal, has_image_fs, 10_000, &candidates);
    let names = ranked.iter().map(|c| c.pod.metadata.name.clone().unwrap());
    names.collect::<Vec<_>>().join(" ")
}

#[test]
fn pods_go_by_use_over_request_then_priority_then_use() {
    let api = |name: &str, spec: Value, memory| {
        let reading = uses(name, memory, [0; 3]);
        (pod(name, "api", &spec), Some(reading))
    };
    let mut important = requests("memory", "1");
    important["priority"] = json!(10);
    let mut critical = requests("memory", "1");
    critical["priority"] = json!(2_000_000_000);
    let pods = vec![
        api("within", requests("memory", "1000"), 1000),
        api("over-by-9", requests("memory", "991"), 1000),
        api("over-by-900", requests("memory", "100"), 1000),
        api("important", important, 9000),
        api("critical", critical, 9000),
        api("best-effort", json!({}), 950),
        (pod("unknown", "api", &json!({})), None),
    ];
    // eviction 4
    assert_eq!(
        order(Signal::MemoryAvailable, false, &pods),
        "unknown best-effort over-by-900 over-by-9 important within"
    );
    // Process numbers can't be requested: priority, then how many there are.
    // eviction 4
    assert_eq!(
        order(Signal::PidAvailable, false, &pods),
        "unknown within over-by-9 over-by-900 best-effort important"
    );
}

#[test]
fn a_resize_that_is_not_done_saves_no_pod() {
    let mut resized = pod("resized", "api", &requests("memory", "5000"));
    let status = json!({
        "name": "c", "image": "", "imageID": "", "ready": true, "restartCount": 0,
        "state": {"running": {}}, "resources": {"requests": {"memory": "100"}},
    });
    resized.status = serde_json::from_value(json!({"containerStatuses": [status]})).unwrap();
    let reading = uses("resized", 4000, [0; 3]);
    let honest = pod("honest", "api", &requests("memory", "100"));
    let pods = [
        (honest, Some(uses("honest", 200, [0; 3]))),
        (resized, Some(reading)),
    ];
    // eviction 4
    assert_eq!(
        order(Signal::MemoryAvailable, false, &pods),
        "resized honest"
    );
    let candidate = Candidate {
        pod: &pods[1].0,
        reading: pods[1].1.as_ref(),
    };
    let observations = seen(Signal::MemoryAvailable, 0, 10_000);
    let hard = threshold(Signal::MemoryAvailable, "100");
    let message = evicted_message(&hard, &observations, &candidate);
    // eviction 6
    assert!(message.contains("using 4000, request is 100,"), "{message}");
}

#[test]
fn disks_count_what_is_on_them() {
    let pods = [
        ("rootfs", [30, 0, 0]),
        ("logs", [1, 20, 0]),
        ("volume", [2, 0, 10]),
    ];
    let pods = pods.map(|(name, used)| {
        let reading = uses(name, 0, used.map(|used| used * 100));
        (pod(name, "api", &json!({})), Some(reading))
    });
    for (signal, has_image_fs, expected) in [
        (Signal::NodeFsAvailable, false, "rootfs logs volume"),
        (Signal::ImageFsAvailable, false, "rootfs logs volume"),
        (Signal::NodeFsAvailable, true, "logs volume rootfs"),
        (Signal::ImageFsAvailable, true, "rootfs volume logs"),
        (Signal::NodeFsInodesFree, true, "logs volume rootfs"),
        (Signal::ImageFsInodesFree, true, "rootfs volume logs"),
    ] {
        // eviction 4
        assert_eq!(
            order(signal, has_image_fs, &pods),
            expected,
            "{signal:?} {has_image_fs}"
        );
    }
    // A tmpfs is no disk.
    let mut tmpfs = uses("tmpfs", 0, [5, 0, 900]);
    tmpfs.volumes[0].is_ephemeral = false;
    let in_memory = (pod("tmpfs", "api", &json!({})), Some(tmpfs));
    let both = [
        in_memory,
        (
            pod("disk", "api", &json!({})),
            Some(uses("disk", 0, [6, 0, 0])),
        ),
    ];
    // eviction 4
    assert_eq!(order(Signal::NodeFsAvailable, false, &both), "disk tmpfs");
    assert!(Signal::NodeFsAvailable.frees_by_collection(false));
    assert!(!Signal::NodeFsAvailable.frees_by_collection(true));
    assert!(Signal::ImageFsInodesFree.frees_by_collection(true));
    assert!(!Signal::MemoryAvailable.frees_by_collection(false));
}

#[test]
fn static_pods_go_last_only_if_they_hold_enough_and_never_if_the_system_needs_them() {
    let of = |name: &str, source: &str, spec: Value, memory| {
        (pod(name, source, &spec), Some(uses(name, memory, [0; 3])))
    };
    let pods = vec![
        // 1 % of 10,000 is the least.
        of("small", "file", json!({}), 99),
        of("large", "file", json!({}), 100),
        of("larger", "http", json!({}), 101),
        of(
            "node",
            "file",
            json!({"priorityClassName": "system-node-critical"}),
            9000,
        ),
        of(
            "number",
            "file",
            json!({"priority": 2_000_000_001_i64}),
            9000,
        ),
        of("ordinary", "api", requests("memory", "5000"), 5),
        (pod("unread", "file", &json!({})), None),
    ];
    // eviction 5
    assert_eq!(
        order(Signal::MemoryAvailable, false, &pods),
        "ordinary larger large"
    );
}

#[test]
fn the_message_has_the_figures() {
    let pod = pod("p", "api", &requests("memory", "10Mi"));
    let reading = uses("p", 12 * MIB, [2 * MIB, MIB, 0]);
    let candidate = Candidate {
        pod: &pod,
        reading: Some(&reading),
    };
    let words = |signal, value, available| {
        let observations = seen(signal, available, 1000 * MIB);
        evicted_message(&threshold(signal, value), &observations, &candidate)
    };
    // eviction 6
    assert_eq!(
        words(Signal::MemoryAvailable, "100Mi", 50 * MIB),
        "The node was low on resource: memory. Threshold quantity: 100Mi, available: 50Mi. \
         Container c was using 12Mi, request is 10Mi, has larger consumption of memory. "
    );
    // eviction 6
    assert_eq!(
        words(Signal::NodeFsAvailable, "10%", 3 * MIB + 1),
        "The node was low on resource: ephemeral-storage. Threshold quantity: 100Mi, available: \
         3145729. Container c was using 3Mi, request is 0, has larger consumption of \
         ephemeral-storage. "
    );
    // eviction 6
    assert_eq!(
        words(Signal::NodeFsInodesFree, "10", 0),
        "The node was low on resource: inodes. Threshold quantity: 10, available: 0. "
    );
}

#[test]
fn limits_of_local_storage_hold() {
    let limited = |limit: &str| json!({"containers": [{"name": "c", "resources": {"limits": {"ephemeral-storage": limit}}}]});
    let volume = |size: &str| json!({"volumes": [{"name": "v", "emptyDir": {"sizeLimit": size}}]});
    let two = json!({"containers": [
        {"name": "c", "resources": {"limits": {"ephemeral-storage": "1Ki"}}},
        {"name": "d", "resources": {"limits": {"ephemeral-storage": "4Ki"}}},
    ]});
    let init = json!({
        "initContainers": [{"name": "i", "resources": {"limits": {"ephemeral-storage": "9Ki"}}}],
        "containers": [{"name": "c"}],
    });
    let system = |mut spec: Value| {
        spec["priorityClassName"] = json!("system-cluster-critical");
        spec
    };
    for (spec, used, has_image_fs, expected) in [
        (volume("1Ki"), [0, 0, 1024], false, None),
        (
            volume("1Ki"),
            [0, 0, 1025],
            false,
            Some("Usage of EmptyDir volume \"v\" exceeds the limit \"1Ki\". "),
        ),
        (volume("0"), [0, 0, 1025], false, None),
        (limited("2Ki"), [1024, 1024, 0], false, None),
        (
            limited("2Ki"),
            [1024, 512, 513],
            false,
            Some("Pod ephemeral local storage usage exceeds the total limit of containers 2Ki. "),
        ),
        (
            two.clone(),
            [1000, 25, 0],
            false,
            Some("Container c exceeded its local ephemeral storage limit \"1Ki\". "),
        ),
        // A container's own file system is on the other disk.
        (two, [1000, 25, 0], true, None),
        (init.clone(), [9000, 216, 0], false, None),
        (
            init,
            [9000, 217, 0],
            false,
            Some("Pod ephemeral local storage usage exceeds the total limit of containers 9Ki. "),
        ),
        (system(volume("1Ki")), [0, 0, 9999], false, None),
        (json!({}), [9999, 9999, 9999], false, None),
    ] {
        for source in ["api", "file"] {
            // Only a manifest's class stands for its number.
            if source == "api" && spec["priorityClassName"] != Value::Null {
                continue;
            }
            let pod = pod("p", source, &spec);
            let over = local_storage(&pod, &uses("p", 0, used), has_image_fs);
            // eviction 7
            assert_eq!(
                over.map(|over| over.message).as_deref(),
                expected,
                "{spec} {used:?}"
            );
            assert!(expected.is_none() || has_local_limits(&pod), "{spec}");
        }
    }
    assert!(!has_local_limits(&pod("p", "api", &json!({}))));
    // Files of a Secret are in memory.
    let mut reading = uses("p", 0, [1024, 1024, 9999]);
    reading.volumes[0].is_ephemeral = false;
    let pod = pod("p", "api", &limited("2Ki"));
    assert_eq!(local_storage(&pod, &reading, false), None);
}

proptest! {
    /// No pod of system priority is evicted, the order depends on the input's values and not on
    /// their places, and a pod that exceeds its request goes first.
    #[test]
    fn the_order_is_total_and_spares_the_system(
        pods in prop::collection::vec(
            (any::<bool>(), 0_u64..3, 0_u64..400, 0_i32..3, prop::option::of(0_u64..400)), 0..8
        ),
        signal in prop::sample::select(Signal::ALL.to_vec()),
        has_image_fs: bool,
    ) {
        let pods: Vec<(Pod, Option<PodReading>)> = pods.iter().enumerate().map(|(index, pod_of)| {
            let (is_api, class, requested, priority, used) = pod_of;
            let name = format!("p{index}");
            let mut spec = requests(signal.resource(), &requested.to_string());
            spec["priority"] = json!(if *class == 0 { 2_000_000_000 } else { *priority });
            let source = if *is_api { "api" } else { "file" };
            let reading = used.map(|used| uses(&name, used, [used; 3]));
            (pod(&name, source, &spec), reading)
        }).collect();
        let ranked = order(signal, has_image_fs, &pods);
        let mut backwards = pods.clone();
        backwards.reverse();
        let names = |text: &str| -> BTreeSet<String> { text.split_whitespace().map(str::to_owned).collect() };
        prop_assert_eq!(names(&ranked), names(&order(signal, has_image_fs, &backwards)));
        let find = |name: &str| pods.iter().find(|(pod, _)| pod.metadata.name.as_deref() == Some(name)).unwrap();
        let ranked: Vec<&(Pod, Option<PodReading>)> = ranked.split_whitespace().map(find).collect();
        for (pod, _) in &ranked {
            // eviction 5
            prop_assert!(!is_spared(pod));
        }
        let is_static = |pod: &Pod| !crate::ending::is_api_pod(pod);
        prop_assert!(ranked.is_sorted_by_key(|(pod, _)| is_static(pod)));
    }

    /// A node whose readings are fine for the transition period is under no pressure, one that is
    /// short is, and the next look is never far nor at once.
    #[test]
    fn pressures_follow_the_readings(readings in prop::collection::vec((0_u64..200, 0_i64..400), 1..40)) {
        let policy = policy(&[threshold(Signal::NodeFsAvailable, "100")]);
        let (mut eviction, mut now, mut last) = (Eviction::default(), 0, None);
        for (available, wait) in readings {
            now += wait;
            let look = eviction.observe(&policy, &seen(Signal::NodeFsAvailable, available, 1000), at(now));
            if available < 100 {
                last = Some(now);
            }
            let is_under = last.is_some_and(|last| now - last < 300);
            prop_assert_eq!(look.pressures.contains(&Pressure::Disk), is_under);
            prop_assert_eq!(look.starved.is_some(), available < 100);
            prop_assert!(look.look_again >= Duration::from_secs(1) && look.look_again <= Duration::from_secs(10));
        }
    }
}
