use std::time::Duration;

use serde_json::{Value, json};

use super::*;
use crate::api::Timestamp;
use crate::api::core::{Node, NodeStatus};
use crate::pressure::{Pressure, Pressures};

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + second).unwrap()
}

fn facts() -> NodeFacts {
    NodeFacts {
        name: "box-docker".into(),
        owner: "me".to_owned(),
        hostname: "box".to_owned(),
        arch: "amd64".to_owned(),
        addresses: vec!["10.0.0.1".parse().unwrap(), "fd00::1".parse().unwrap()],
        taints: vec![],
        capacity: Amounts {
            cpu_milli: 2000,
            memory_bytes: 8 << 30,
            ephemeral_storage_bytes: 1000,
        },
        reserved: Amounts {
            cpu_milli: 500,
            memory_bytes: 9 << 30,
            ephemeral_storage_bytes: 1,
        },
        max_pods: 110,
        boot_id: "b1".to_owned(),
        engine_version: Some("27.1.0".to_owned()),
        ..NodeFacts::default()
    }
}

fn up() -> Readings {
    Readings {
        engine: RuntimeReach::Up,
        ..Readings::default()
    }
}

fn status_of(facts: &NodeFacts, readings: &Readings, before: &NodeStatus, now: i64) -> NodeStatus {
    let before = before.conditions.clone().unwrap_or_default();
    compute_node_status(facts, readings, &PodProblems::default(), &before, at(now))
}

fn first() -> NodeStatus {
    status_of(&facts(), &up(), &NodeStatus::default(), 0)
}

fn condition<'a>(status: &'a NodeStatus, kind: &str) -> &'a crate::api::core::NodeCondition {
    let mut conditions = status.conditions.iter().flatten();
    conditions.find(|c| c.type_ == kind).unwrap()
}

#[test]
fn a_node_says_what_the_machine_is() {
    let mut facts = facts();
    facts.labels = BTreeMap::from([("disk".to_owned(), "ssd".to_owned())]);
    let node = compute_node(&facts, first());
    let labels = node.metadata.labels.unwrap();
    assert_eq!(labels["kubernetes.io/hostname"], "box-docker");
    assert_eq!(labels["kubernetes.io/os"], "linux");
    assert_eq!(labels["kubernetes.io/arch"], "amd64");
    assert_eq!(labels["mirrorlet.dev/node"], "true");
    assert_eq!(labels["disk"], "ssd");
    let status = serde_json::to_value(node.status).unwrap();
    assert_eq!(
        status["addresses"],
        json!([
            { "type": "InternalIP", "address": "10.0.0.1" },
            { "type": "InternalIP", "address": "fd00::1" },
            { "type": "Hostname", "address": "box" },
        ])
    );
    assert_eq!(
        status["capacity"],
        json!({ "cpu": "2", "memory": "8388608Ki", "ephemeral-storage": "1000", "pods": "110" })
    );
    // More reserved than there is leaves nothing, not less.
    // node 6g
    assert_eq!(
        status["allocatable"],
        json!({ "cpu": "1500m", "memory": "0", "ephemeral-storage": "999", "pods": "110" })
    );
    let info = &status["nodeInfo"];
    assert_eq!(info["containerRuntimeVersion"], "docker://27.1.0");
    assert_eq!(status.get("daemonEndpoints"), None);
}

#[test]
fn the_version_is_semantic_and_marked() {
    let version = kubelet_version();
    let rest = version.strip_prefix('v').unwrap();
    let (core, suffix) = rest.split_once('-').unwrap();
    let numbers: Vec<u32> = core.split('.').map(|part| part.parse().unwrap()).collect();
    assert_eq!(numbers.len(), 3);
    assert!(suffix.starts_with(VERSION_MARK));
    let fine = |c: char| c.is_ascii_alphanumeric() || c == '.' || c == '-';
    assert!(suffix.chars().all(fine), "{version}");
}

#[test]
fn long_names_have_no_hostname_label() {
    let mut facts = facts();
    facts.name = "n".repeat(64).as_str().into();
    let node = compute_node(&facts, first());
    assert!(
        !node
            .metadata
            .labels
            .unwrap()
            .contains_key("kubernetes.io/hostname")
    );
}

#[test]
fn images_are_capped_largest_first() {
    let mut facts = facts();
    facts.images = (0..60)
        .map(|n| ImageSeen {
            names: (0..7).map(|name| format!("image-{n:02}:{name}")).collect(),
            size_bytes: 1000 + n / 2,
        })
        .chain([ImageSeen {
            names: vec![],
            size_bytes: 1 << 40,
        }])
        .collect();
    let images = status_of(&facts, &up(), &NodeStatus::default(), 0)
        .images
        .unwrap();
    assert_eq!(images.len(), 50);
    assert_eq!(images[0].names.as_ref().unwrap()[0], "image-58:0");
    assert_eq!(images[0].names.as_ref().unwrap().len(), 5);
    // node 6g
    assert!(images.is_sorted_by_key(|image| std::cmp::Reverse(image.size_bytes)));
    facts.images.reverse();
    let again = status_of(&facts, &up(), &NodeStatus::default(), 0)
        .images
        .unwrap();
    assert_eq!(images, again);
}

#[test]
fn conditions_follow_the_readings() {
    let under = |pressure| Readings {
        pressures: Pressures::from([pressure]),
        ..up()
    };
    for (readings, kind, status, reason) in [
        (
            up(),
            "MemoryPressure",
            "False",
            "KubeletHasSufficientMemory",
        ),
        (
            under(Pressure::Memory),
            "MemoryPressure",
            "True",
            "KubeletHasInsufficientMemory",
        ),
        (up(), "DiskPressure", "False", "KubeletHasNoDiskPressure"),
        (
            under(Pressure::Disk),
            "DiskPressure",
            "True",
            "KubeletHasDiskPressure",
        ),
        (up(), "PIDPressure", "False", "KubeletHasSufficientPID"),
        (
            under(Pressure::Pid),
            "PIDPressure",
            "True",
            "KubeletHasInsufficientPID",
        ),
        (up(), "Ready", "True", "KubeletReady"),
        (Readings::default(), "Ready", "False", "KubeletNotReady"),
        (
            Readings {
                engine: RuntimeReach::Down("gone".to_owned()),
                ..Readings::default()
            },
            "Ready",
            "False",
            "KubeletNotReady",
        ),
    ] {
        let computed = status_of(&facts(), &readings, &NodeStatus::default(), 0);
        let told = condition(&computed, kind);
        // node 6g
        assert_eq!(
            (told.status.as_str(), told.reason.as_deref().unwrap()),
            (status, reason),
            "{kind} of {readings:?}"
        );
        // Upstream's controllers want it last.
        assert_eq!(computed.conditions.unwrap().last().unwrap().type_, "Ready");
    }
}

#[test]
fn the_cause_of_not_ready_is_told() {
    let down = Readings {
        engine: RuntimeReach::Down("connection refused".to_owned()),
        ..Readings::default()
    };
    let status = status_of(&facts(), &down, &first(), 10);
    let message = condition(&status, "Ready").message.clone().unwrap();
    assert_eq!(message, "the Docker Engine is down: connection refused");
}

#[test]
fn problems_of_pods_are_named_within_bounds() {
    let problems: Vec<String> = (0..8)
        .map(|n| format!("{n}: {}", "x".repeat(300)))
        .collect();
    let problems = PodProblems {
        mirrors: problems.clone(),
        rollouts: problems,
    };
    let conditions = compute_conditions(&up(), &problems, &[], at(0));
    for kind in ["MirrorPodsHealthy", "RolloutsHealthy"] {
        let told = conditions.iter().find(|c| c.type_ == kind).unwrap();
        assert_eq!(told.status, "False");
        let message = told.message.as_ref().unwrap();
        assert!(
            message.starts_with("0: x") && message.ends_with("and 3 more"),
            "{message}"
        );
        assert!(message.len() < 1100);
    }
}

#[test]
fn transition_times_move_only_with_the_status() {
    let later = status_of(&facts(), &up(), &first(), 60);
    let ready = condition(&later, "Ready");
    assert_eq!(ready.last_transition_time.as_ref().unwrap().0, at(0));
    assert_eq!(ready.last_heartbeat_time.as_ref().unwrap().0, at(60));
    let down = Readings {
        engine: RuntimeReach::Down(String::new()),
        ..Readings::default()
    };
    let lost = status_of(&facts(), &down, &later, 70);
    assert_eq!(
        condition(&lost, "Ready")
            .last_transition_time
            .as_ref()
            .unwrap()
            .0,
        at(70)
    );
    assert_eq!(
        condition(&lost, "DiskPressure")
            .last_transition_time
            .as_ref()
            .unwrap()
            .0,
        at(0)
    );
}

fn write(base: &NodeStatus, desired: &NodeStatus, written: Option<i64>, now: i64) -> Option<Value> {
    decide_write("u1", base, desired, written.map(at), at(now))
}

#[test]
fn heartbeats_alone_are_written_seldom() {
    let base = first();
    for (written, now, is_written) in [
        (Some(0), 10, false),
        (Some(0), 299, false),
        (Some(0), 300, true),
        (None, 10, true),
    ] {
        let desired = status_of(&facts(), &up(), &base, now);
        let patch = write(&base, &desired, written, now);
        // node 2, node 3
        assert_eq!(patch.is_some(), is_written, "{written:?} {now}");
        if let Some(patch) = patch {
            assert_eq!(patch["metadata"]["uid"], "u1");
            let mut fields: Vec<_> = patch["status"].as_object().unwrap().keys().collect();
            fields.sort();
            assert_eq!(fields, ["$setElementOrder/conditions", "conditions"]);
        }
    }
}

#[test]
fn the_node_api_is_told_and_what_it_speaks_too() {
    let mut facts = facts();
    facts.node_api_port = Some(10350);
    let desired = status_of(&facts, &up(), &first(), 10);
    let features = json!([
        "ExtendWebSocketsToKubelet",
        "RestartAllContainersOnContainerExits"
    ]);
    let status = serde_json::to_value(&desired).unwrap();
    assert_eq!(status["declaredFeatures"], features);
    // A Node that was there before knows neither, and is told at once.
    let patch = write(&first(), &desired, Some(9), 10).unwrap();
    let endpoint = json!({ "kubeletEndpoint": { "Port": 10350 } });
    // streams 11
    assert_eq!(patch["status"]["daemonEndpoints"], endpoint);
    assert_eq!(patch["status"]["declaredFeatures"], features);
    // An API server that drops the features is not told again for their sake alone.
    let mut kept = desired.clone();
    kept.declared_features = None;
    kept.features = None;
    assert_eq!(write(&kept, &desired, Some(9), 10), None);
    let patch = write(&kept, &desired, Some(0), 300).unwrap();
    assert_eq!(patch["status"]["declaredFeatures"], features);
    let features = json!({"supplementalGroupsPolicy": false});
    assert_eq!(patch["status"]["features"], features);
    // Without the node API nothing is said of it.
    let features = first().declared_features.unwrap();
    assert_eq!(features, ["RestartAllContainersOnContainerExits"]);
}

#[test]
fn a_change_is_written_at_once_and_alone() {
    let base = first();
    let mut facts = facts();
    facts.addresses.pop();
    let desired = status_of(&facts, &up(), &base, 10);
    let patch = write(&base, &desired, Some(9), 10).unwrap();
    // node 6
    assert_eq!(
        patch["status"]["addresses"],
        json!([
            { "type": "InternalIP", "address": "10.0.0.1" },
            { "type": "Hostname", "address": "box" },
            { "$patch": "replace" },
        ])
    );
    assert_eq!(patch["status"].get("capacity"), None);

    let mut more = self::facts();
    more.capacity.cpu_milli = 4000;
    let desired = status_of(&more, &up(), &base, 10);
    let patch = write(&base, &desired, Some(9), 10).unwrap();
    assert_eq!(patch["status"]["capacity"], json!({ "cpu": "4" }));
    // node 3
    assert_eq!(patch["status"]["allocatable"], json!({ "cpu": "3500m" }));

    let down = Readings {
        engine: RuntimeReach::Down("x".to_owned()),
        ..Readings::default()
    };
    let desired = status_of(&self::facts(), &down, &base, 10);
    assert!(write(&base, &desired, Some(9), 10).is_some());
}

#[test]
fn what_others_added_is_no_change() {
    let mut base = first();
    let capacity = base.capacity.as_mut().unwrap();
    let quantity = |text: &str| serde_json::from_value(json!(text)).unwrap();
    capacity.insert("example.com/gpu".to_owned(), quantity("2"));
    // The same amount, spelled as the server spells it.
    capacity.insert("memory".to_owned(), quantity("8Gi"));
    let mut foreign = condition(&base, "Ready").clone();
    foreign.type_ = "NetworkUnavailable".to_owned();
    base.conditions.as_mut().unwrap().insert(0, foreign);
    let desired = status_of(&facts(), &up(), &base, 10);
    assert_eq!(write(&base, &desired, Some(9), 10), None);
}

#[test]
fn what_the_lifecycle_controller_wrote_is_put_right() {
    let mut base = first();
    for condition in base.conditions.as_mut().unwrap() {
        condition.status = "Unknown".to_owned();
        condition.reason = Some("NodeStatusUnknown".to_owned());
    }
    let desired = status_of(&facts(), &up(), &base, 10);
    assert!(write(&base, &desired, Some(9), 10).is_some());
    assert_eq!(
        condition(&desired, "Ready")
            .last_transition_time
            .as_ref()
            .unwrap()
            .0,
        at(10)
    );
}

#[test]
fn flips_are_events() {
    let reasons = |before: &NodeStatus, after: &NodeStatus| -> Vec<&'static str> {
        let events = transitions("box-docker", before, after);
        events.into_iter().map(|event| event.reason).collect()
    };
    assert_eq!(
        reasons(&NodeStatus::default(), &first()),
        [
            "NodeHasSufficientMemory",
            "NodeHasNoDiskPressure",
            "NodeHasSufficientPID"
        ]
    );
    let down = Readings {
        engine: RuntimeReach::Down("x".to_owned()),
        ..Readings::default()
    };
    let lost = status_of(&facts(), &down, &first(), 10);
    assert_eq!(reasons(&first(), &lost), ["NodeNotReady"]);
    assert_eq!(reasons(&lost, &first()), ["NodeReady"]);
    assert_eq!(reasons(&lost, &lost), Vec::<&str>::new());
    let mut booted = facts();
    booted.boot_id = "b2".to_owned();
    let after = status_of(&booted, &up(), &first(), 10);
    let events = transitions("box-docker", &first(), &after);
    assert_eq!(events[0].reason, "Rebooted");
    assert_eq!(events[0].kind, NodeEventKind::Warning);
}

#[test]
fn an_older_node_gets_our_labels_and_keeps_the_rest() {
    let facts = facts();
    let mut existing = compute_node(&facts, first());
    existing.metadata.uid = Some("u1".to_owned());
    assert_eq!(decide_metadata(&existing, &facts), None);
    let labels = existing.metadata.labels.as_mut().unwrap();
    labels.insert("theirs".to_owned(), "1".to_owned());
    labels.insert("kubernetes.io/arch".to_owned(), "s390x".to_owned());
    existing.metadata.annotations = None;
    existing.metadata.resource_version = Some("7".to_owned());
    let patch = decide_metadata(&existing, &facts).unwrap();
    assert_eq!(patch["metadata"]["uid"], "u1");
    assert_eq!(patch["metadata"]["resourceVersion"], "7");
    // node 1
    assert_eq!(
        patch["metadata"]["labels"],
        json!({ "kubernetes.io/arch": "amd64" })
    );
    assert_eq!(
        patch["metadata"]["annotations"]["mirrorlet.dev/owner"],
        "me"
    );
}

#[test]
fn only_our_node_is_claimed() {
    let ours = compute_node(&facts(), first());
    let mut other = ours.clone();
    other
        .metadata
        .annotations
        .as_mut()
        .unwrap()
        .insert("mirrorlet.dev/owner".to_owned(), "another".to_owned());
    let mut kubelet = Node::default();
    let info = first().node_info.map(|mut info| {
        info.kubelet_version = "v1.35.4".to_owned();
        info
    });
    kubelet.status = Some(NodeStatus {
        node_info: info,
        ..NodeStatus::default()
    });
    let mut unmarked = ours.clone();
    let annotations = unmarked.metadata.annotations.as_mut().unwrap();
    annotations.remove("mirrorlet.dev/owner");
    // Whether it may be taken while its Lease holds, and when it doesn't; whether it stays ours.
    for (node, held, free, stays) in [
        (&ours, true, true, true),
        (&other, false, true, false),
        (&unmarked, false, true, true),
        (&Node::default(), false, true, true),
        // A kubelet that is off for a while still owns its Node.
        (&kubelet, false, false, false),
    ] {
        let is_ours = |claim: Claim| match claim {
            Claim::Ours => true,
            Claim::Foreign(words) => {
                assert!(words.contains("--node-name"), "{words}");
                false
            }
        };
        // node 6b
        assert_eq!(is_ours(claim(node, &facts(), true)), held, "{node:?}");
        assert_eq!(is_ours(claim(node, &facts(), false)), free, "{node:?}");
        // node 6l
        assert_eq!(is_ours(still_claimed(node, &facts())), stays, "{node:?}");
    }
}

#[test]
fn a_lease_holds_while_it_changes_whatever_the_clocks_say() {
    let lease = |renewed: i64| {
        Some(LeaseSeen {
            renewed: at(renewed),
            duration: Duration::from_secs(40),
        })
    };
    // When it was read, by our clock, and how it was; whether it holds.
    for (case, reads) in [
        ("there is none", vec![(0, None, false), (9, None, false)]),
        (
            "it is renewed by a clock that is behind",
            vec![
                (100, lease(0), true),
                (110, lease(10), true),
                (150, lease(20), true),
                (190, lease(20), true),
                (191, lease(20), false),
            ],
        ),
        (
            "a clock that is ahead doesn't make it hold for longer",
            vec![
                (100, lease(9_000), true),
                (140, lease(9_000), true),
                (141, lease(9_000), false),
                // It lives after all.
                (150, lease(9_050), true),
            ],
        ),
        (
            "made anew",
            vec![(0, lease(0), true), (50, None, false), (60, lease(0), true)],
        ),
    ] {
        let mut watch = LeaseWatch::default();
        for (now, lease, expected) in reads {
            let holds = watch.holds(lease, Duration::from_secs(now));
            // node 6b
            assert_eq!(holds, expected, "{case}: {now}");
        }
    }
}

#[test]
fn a_status_that_could_not_be_written_is_still_the_last_one() {
    let base = first().conditions.unwrap();
    let down = Readings {
        engine: RuntimeReach::Down("x".to_owned()),
        ..Readings::default()
    };
    let told = status_of(&facts(), &down, &first(), 10).conditions.unwrap();
    let ready = |conditions: &[crate::api::core::NodeCondition]| {
        conditions.last().map(|ready| ready.status.clone()).unwrap()
    };
    assert_eq!(ready(&believed_conditions(&told, &base)), "False");
    assert_eq!(believed_conditions(&[], &base), base);
    let mut unknown = base.clone();
    unknown.last_mut().unwrap().status = "Unknown".to_owned();
    assert_eq!(ready(&believed_conditions(&told, &unknown)), "Unknown");
}

/// Without an API server a static pod is asked for, too, as by a kubelet.
#[test]
fn a_machine_alone_takes_the_static_pods_it_has_room_and_labels_for() {
    use crate::admit::{AdmitInput, AdmitNode, Verdict, admit};
    let mut facts = facts();
    facts.labels = BTreeMap::from([("disk".to_owned(), "ssd".to_owned())]);
    let node = AdmitNode::of(&initial_node(&facts));
    for (spec, expected) in [
        (json!({}), None),
        (
            json!({"nodeSelector": {"disk": "ssd", "kubernetes.io/os": "linux"}}),
            None,
        ),
        (
            json!({"nodeSelector": {"disk": "hdd"}}),
            Some("NodeAffinity"),
        ),
        (
            json!({"os": {"name": "windows"}}),
            Some("PodOSNotSupported"),
        ),
        (
            json!({"containers": [{"name": "c", "resources": {"requests": {"cpu": "100"}}}]}),
            Some("OutOfcpu"),
        ),
        (
            json!({"containers": [{"name": "c", "resources": {"limits": {"memory": "1000Gi"}}}]}),
            Some("OutOfmemory"),
        ),
    ] {
        let pod = json!({
            "metadata": {
                "name": "web", "annotations": {"kubernetes.io/config.source": "file"},
            },
            "spec": spec,
        });
        let mut pod: crate::api::Pod = serde_json::from_value(pod).unwrap();
        pod.spec.as_mut().unwrap().node_name = Some(facts.name.to_string());
        let verdict = admit(&AdmitInput {
            pod: &pod,
            others: &[],
            node: &node,
        });
        let reason = match &verdict {
            Verdict::Admitted { .. } => None,
            Verdict::Refused(failure) => Some(&*failure.reason),
        };
        // tenants A3, tenants A4
        assert_eq!(reason, expected, "{spec}");
    }
}
