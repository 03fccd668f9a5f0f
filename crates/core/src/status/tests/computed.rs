//! Whole statuses.

use serde_json::{Value, json};

use super::*;

fn state_of<'a>(status: &'a core::PodStatus, name: &str) -> &'a ApiContainer {
    let all = status.container_statuses.iter().flatten();
    all.chain(status.init_container_statuses.iter().flatten())
        .find(|c| c.name == name)
        .unwrap()
}

fn waiting_reason(status: &core::PodStatus, name: &str) -> Option<String> {
    let state = state_of(status, name).state.as_ref()?;
    state.waiting.as_ref()?.reason.clone()
}

#[test]
fn a_running_pod() {
    let pod = pod(
        "Always",
        vec![container("init"), sidecar("side")],
        &["web", "app"],
    );
    let seen = observed(vec![
        instance(&pod, "web", 2, ContainerState::Running, None),
        instance(&pod, "web", 1, ContainerState::Exited, Some(137)),
        running(&pod, "app"),
        running(&pod, "side"),
        exited(&pod, "init", 0),
    ]);
    let hosts = ["192.168.0.1".parse().unwrap(), "fd00::1".parse().unwrap()];
    let status = compute_pod_status(&StatusInput {
        host_ips: &hosts,
        ..input(&pod, &seen)
    });
    insta::assert_json_snapshot!(status);
}

#[test]
fn a_pod_nothing_is_known_of() {
    for (inits, reason) in [
        (vec![], "ContainerCreating"),
        (vec![container("init")], "PodInitializing"),
    ] {
        let pod = pod("Always", inits, &["web"]);
        let seen = PodStatus::empty("u1".into());
        let status = compute_pod_status(&input(&pod, &seen));
        assert_eq!(status.phase.as_deref(), Some("Pending"));
        assert_eq!(waiting_reason(&status, "web").as_deref(), Some(reason));
        let ready = condition(&status, "Ready");
        assert_eq!(ready.status, "False");
        assert_eq!(ready.reason.as_deref(), Some("ContainersNotReady"));
        assert_eq!(
            ready.message.as_deref(),
            Some("containers with unready status: [web]")
        );
        assert_eq!(
            condition(&status, "PodReadyToStartContainers").status,
            "False"
        );
        assert_eq!(condition(&status, "PodScheduled").status, "True");
        assert_eq!(status.pod_ips, None);
    }
}

#[test]
fn a_crash_loop_shows_why_it_waits_and_how_it_ended() {
    let pod = pod("Always", Vec::new(), &["web"]);
    let seen = observed(vec![exited(&pod, "web", 3)]);
    let plain = compute_pod_status(&input(&pod, &seen));
    let ended = state_of(&plain, "web").state.as_ref().unwrap();
    assert_eq!(ended.terminated.as_ref().unwrap().exit_code, 3);
    let waiting = waits("web", "CrashLoopBackOff", "back-off 10s");
    let looping = compute_pod_status(&StatusInput {
        waiting: &waiting,
        previous: Some(&plain),
        ..input(&pod, &seen)
    });
    let web = state_of(&looping, "web");
    let state = web.state.as_ref().unwrap().waiting.as_ref().unwrap();
    assert_eq!(state.reason.as_deref(), Some("CrashLoopBackOff"));
    assert_eq!(state.message.as_deref(), Some("back-off 10s"));
    assert_eq!(web.last_state, plain.container_statuses.unwrap()[0].state);
    assert_eq!(looping.phase.as_deref(), Some("Running"));
}

#[test]
fn only_containers_to_be_started_wait() {
    type Case<'a> = (
        &'a str,
        &'a str,
        Option<(ContainerState, Option<i32>)>,
        bool,
    );
    let cases: [Case<'_>; 9] = [
        ("Always", "web", None, true),
        (
            "Always",
            "web",
            Some((ContainerState::Running, None)),
            false,
        ),
        (
            "Always",
            "web",
            Some((ContainerState::Exited, Some(0))),
            true,
        ),
        (
            "OnFailure",
            "web",
            Some((ContainerState::Exited, Some(0))),
            false,
        ),
        (
            "OnFailure",
            "web",
            Some((ContainerState::Exited, Some(1))),
            true,
        ),
        (
            "Never",
            "web",
            Some((ContainerState::Exited, Some(1))),
            false,
        ),
        ("Never", "web", Some((ContainerState::Created, None)), true),
        (
            "Always",
            "init",
            Some((ContainerState::Exited, Some(0))),
            false,
        ),
        (
            "Never",
            "side",
            Some((ContainerState::Exited, Some(0))),
            true,
        ),
    ];
    for (policy, name, seen, expect) in cases {
        let pod = pod(policy, vec![container("init"), sidecar("side")], &["web"]);
        let instances = seen.map(|(state, code)| instance(&pod, name, 0, state, code));
        let seen = observed(instances.into_iter().collect());
        let waiting = waits(name, "ErrImagePull", "no such image");
        let base = StatusInput {
            waiting: &waiting,
            ..input(&pod, &seen)
        };
        let is_waiting = |input: &StatusInput<'_>| {
            waiting_reason(&compute_pod_status(input), name).as_deref() == Some("ErrImagePull")
        };
        assert_eq!(is_waiting(&base), expect, "{policy} {name} {seen:?}");
        let terminating = StatusInput {
            terminating: true,
            ..base
        };
        assert!(!is_waiting(&terminating));
    }
}

#[test]
fn a_container_that_vanished_counts_as_ended_and_restarted() {
    let pod = pod("Always", Vec::new(), &["web"]);
    let before = compute_pod_status(&input(&pod, &observed(vec![running(&pod, "web")])));
    let nothing = observed(Vec::new());
    let after = compute_pod_status(&StatusInput {
        previous: Some(&before),
        ..input(&pod, &nothing)
    });
    let web = state_of(&after, "web");
    assert_eq!(
        waiting_reason(&after, "web").as_deref(),
        Some("ContainerCreating")
    );
    let last = web
        .last_state
        .as_ref()
        .unwrap()
        .terminated
        .as_ref()
        .unwrap();
    assert_eq!((last.exit_code, web.restart_count), (137, 1));
    assert_eq!(last.reason.as_deref(), Some("ContainerStatusUnknown"));
    assert_eq!(after.phase.as_deref(), Some("Running"));
    // Not being seen a second time is not another restart.
    let again = compute_pod_status(&StatusInput {
        previous: Some(&after),
        ..input(&pod, &nothing)
    });
    assert_eq!(again, after);
    // In an unknown state, it is taken for ended.
    let unknown = observed(vec![instance(
        &pod,
        "web",
        0,
        ContainerState::Unknown,
        None,
    )]);
    let vanished = compute_pod_status(&StatusInput {
        previous: Some(&before),
        ..input(&pod, &unknown)
    });
    let state = state_of(&vanished, "web").state.as_ref().unwrap();
    assert_eq!(state.terminated.as_ref().unwrap().exit_code, 137);
    // An end that was seen is kept whole.
    let ended = compute_pod_status(&input(&pod, &observed(vec![exited(&pod, "web", 5)])));
    let kept = compute_pod_status(&StatusInput {
        previous: Some(&ended),
        ..input(&pod, &nothing)
    });
    assert_eq!(kept.container_statuses, ended.container_statuses);
}

#[test]
fn terminal_phases_stick() {
    let mut pod = pod("Never", Vec::new(), &["web"]);
    let failed = compute_pod_status(&input(&pod, &observed(vec![exited(&pod, "web", 1)])));
    assert_eq!(failed.phase.as_deref(), Some("Failed"));
    assert_eq!(
        condition(&failed, "Ready").reason.as_deref(),
        Some("PodFailed")
    );
    let seen = observed(vec![running(&pod, "web")]);
    let later = compute_pod_status(&StatusInput {
        previous: Some(&failed),
        ..input(&pod, &seen)
    });
    assert_eq!(later.phase.as_deref(), Some("Failed"));
    // Also when only the API server knows it.
    pod.status = Some(core::PodStatus {
        phase: Some("Failed".into()),
        reason: Some("Evicted".into()),
        message: Some("no room".into()),
        ..core::PodStatus::default()
    });
    let api = compute_pod_status(&input(&pod, &seen));
    assert_eq!(api.phase.as_deref(), Some("Failed"));
    assert_eq!(api.reason.as_deref(), Some("Evicted"));
    assert_eq!(api.message.as_deref(), Some("no room"));
}

#[test]
fn a_start_time_is_kept_and_outlives_the_agent() {
    let pod = pod("Always", Vec::new(), &["web"]);
    let start = |observed: &PodStatus, previous: Option<&core::PodStatus>| {
        let status = compute_pod_status(&StatusInput {
            previous,
            ..input(&pod, observed)
        });
        (status.start_time.clone().unwrap().0, status)
    };
    let (new, first) = start(&PodStatus::empty("u1".into()), None);
    assert_eq!(new, at(0));
    let mut seen = observed(vec![running(&pod, "web")]);
    // After a restart of the agent, the oldest sandbox tells; and where the first look failed.
    assert_eq!(start(&seen, None).0, at(-100));
    assert_eq!(start(&seen, Some(&first)).0, at(-100));
    seen.sandboxes[0].created_at = at(7);
    assert_eq!(start(&seen, Some(&first)).0, at(0));
    // The later sandbox keeps that time.
    seen.sandboxes[0].pod_started_at = Some(at(-3));
    assert_eq!(start(&seen, None).0, at(-3));
}

#[test]
fn a_passed_deadline_fails_the_pod() {
    let mut pod = pod("Always", Vec::new(), &["web"]);
    pod.spec.as_mut().unwrap().active_deadline_seconds = Some(60);
    let mut seen = observed(vec![running(&pod, "web")]);
    seen.sandboxes[0].created_at = at(0);
    let first = compute_pod_status(&input(&pod, &seen));
    assert_eq!(first.phase.as_deref(), Some("Running"));
    let late = compute_pod_status(&StatusInput {
        previous: Some(&first),
        now: at(60),
        ..input(&pod, &seen)
    });
    assert_eq!(late.phase.as_deref(), Some("Failed"));
    assert_eq!(late.reason.as_deref(), Some("DeadlineExceeded"));
    assert_eq!(late.message.as_deref(), Some(DEADLINE_MESSAGE));
    assert_eq!(late.start_time, first.start_time);
    let later = compute_pod_status(&StatusInput {
        previous: Some(&late),
        now: at(61),
        ..input(&pod, &seen)
    });
    assert_eq!(later, late);
}

#[test]
fn a_container_made_by_its_images_id_has_the_name_of_the_spec() {
    let pod = pod("Always", vec![], &["web"]);
    let (_, container) = spec::find_container(&pod, "web").unwrap();
    let hash = spec::container_hash(container);
    let shown = |image: &str, hash| {
        let seen = observed(vec![ContainerStatus {
            image: image.into(),
            hash,
            ..running(&pod, "web")
        }]);
        let status = compute_pod_status(&input(&pod, &seen));
        state_of(&status, "web").image.clone()
    };
    assert_eq!(Some(shown("sha256:12", hash)), container.image);
    assert_eq!(shown("web:0", hash), "web:0");
    // One that is still to be replaced.
    assert_eq!(shown("sha256:12", ContainerHash(1)), "sha256:12");
}

#[test]
fn a_done_pod_is_completed() {
    let pod = pod("Never", vec![container("init")], &["web"]);
    let seen = observed(vec![exited(&pod, "web", 0), exited(&pod, "init", 0)]);
    let status = compute_pod_status(&input(&pod, &seen));
    assert_eq!(status.phase.as_deref(), Some("Succeeded"));
    for (kind, value) in [
        ("Initialized", "True"),
        ("Ready", "False"),
        ("ContainersReady", "False"),
    ] {
        let condition = condition(&status, kind);
        assert_eq!(condition.status, value, "{kind}");
        assert_eq!(condition.reason.as_deref(), Some("PodCompleted"), "{kind}");
    }
}

#[test]
fn an_init_container_is_started_while_it_runs_and_ready_once_it_succeeded() {
    let pod = pod("Always", vec![container("init")], &["web"]);
    let init = |seen| {
        let status = compute_pod_status(&input(&pod, &observed(seen)));
        let init = status.init_container_statuses.unwrap().remove(0);
        (init.started, init.ready)
    };
    assert_eq!(init(vec![]), (Some(false), false));
    assert_eq!(init(vec![running(&pod, "init")]), (Some(true), false));
    assert_eq!(init(vec![exited(&pod, "init", 0)]), (Some(false), true));
    assert_eq!(init(vec![exited(&pod, "init", 1)]), (Some(false), false));
}

#[test]
fn an_initialising_pod_says_what_is_incomplete() {
    let pod = pod(
        "Always",
        vec![container("i1"), sidecar("s2"), container("i3")],
        &["web"],
    );
    let seen = observed(vec![running(&pod, "s2"), exited(&pod, "i1", 0)]);
    let status = compute_pod_status(&input(&pod, &seen));
    let initialized = condition(&status, "Initialized");
    assert_eq!(initialized.status, "False");
    assert_eq!(
        initialized.reason.as_deref(),
        Some("ContainersNotInitialized")
    );
    assert_eq!(
        initialized.message.as_deref(),
        Some("containers with incomplete status: [i3]")
    );
    let order: Vec<&str> = status
        .init_container_statuses
        .iter()
        .flatten()
        .map(|c| c.name.as_str())
        .collect();
    assert_eq!(order, ["i1", "s2", "i3"]);
    // A regular container that runs proves it, though old init containers are gone.
    let seen = observed(vec![running(&pod, "web"), running(&pod, "s2")]);
    let status = compute_pod_status(&input(&pod, &seen));
    assert_eq!(condition(&status, "Initialized").status, "True");
}

#[test]
fn conditions_change_their_time_only_with_their_value() {
    let pod = pod("Always", Vec::new(), &["web"]);
    let seen = observed(vec![running(&pod, "web")]);
    let nanos = Timestamp::new(at(0).as_second(), 123_456_789).unwrap();
    let first = compute_pod_status(&StatusInput {
        now: nanos,
        ..input(&pod, &seen)
    });
    let time = |status: &core::PodStatus, kind: &str| {
        let time = condition(status, kind).last_transition_time.clone();
        time.unwrap().0
    };
    assert_eq!(time(&first, "Ready"), at(0), "in whole seconds");
    let same = compute_pod_status(&StatusInput {
        previous: Some(&first),
        now: at(30),
        ..input(&pod, &seen)
    });
    assert_eq!(same, first);
    let seen = observed(vec![exited(&pod, "web", 1)]);
    let down = compute_pod_status(&StatusInput {
        previous: Some(&first),
        now: at(40),
        ..input(&pod, &seen)
    });
    assert_eq!(time(&down, "Ready"), at(40));
    assert_eq!(time(&down, "PodScheduled"), at(0));
}

#[test]
fn foreign_conditions_and_readiness_gates() {
    let mut pod = pod("Always", Vec::new(), &["web"]);
    pod.spec.as_mut().unwrap().readiness_gates = Some(vec![core::PodReadinessGate {
        condition_type: "gate".into(),
    }]);
    let seen = observed(vec![running(&pod, "web")]);
    let closed = compute_pod_status(&input(&pod, &seen));
    let ready = condition(&closed, "Ready");
    assert_eq!(ready.reason.as_deref(), Some("ReadinessGatesNotReady"));
    assert_eq!(
        ready.message.as_deref(),
        Some("corresponding condition of pod readiness gate \"gate\" does not exist.")
    );
    assert_eq!(condition(&closed, "ContainersReady").status, "True");
    let foreign = core::PodCondition {
        type_: "gate".into(),
        status: "True".into(),
        ..core::PodCondition::default()
    };
    pod.status = Some(core::PodStatus {
        conditions: Some(vec![foreign.clone()]),
        ..core::PodStatus::default()
    });
    let open = compute_pod_status(&input(&pod, &seen));
    assert_eq!(*condition(&open, "gate"), foreign);
    assert_eq!(condition(&open, "Ready").status, "True");
}

#[test]
fn addresses_are_remembered_and_ordered_by_the_nodes_primary_family() {
    let mut pod = pod("Always", Vec::new(), &["web"]);
    let mut seen = observed(vec![running(&pod, "web")]);
    seen.ips = ["10.0.0.2", "10.0.0.3", "fd00::2"]
        .map(|ip| ip.parse().unwrap())
        .to_vec();
    let v6_node = ["fd00::1".parse().unwrap(), "192.168.0.1".parse().unwrap()];
    let base = StatusInput {
        host_ips: &v6_node,
        ..input(&pod, &seen)
    };
    let status = compute_pod_status(&base);
    let ips = |status: &core::PodStatus| -> Vec<String> {
        let ips = status.pod_ips.iter().flatten();
        ips.map(|ip| ip.ip.clone()).collect()
    };
    assert_eq!(ips(&status), ["fd00::2", "10.0.0.2"]);
    assert_eq!(status.pod_ip.as_deref(), Some("fd00::2"));
    assert_eq!(status.host_ip.as_deref(), Some("fd00::1"));
    let gone = observed(Vec::new());
    let gone = PodStatus {
        ips: Vec::new(),
        ..gone
    };
    let later = compute_pod_status(&StatusInput {
        observed: &gone,
        previous: Some(&status),
        ..base
    });
    assert_eq!(ips(&later), ["fd00::2", "10.0.0.2"]);
    pod.spec.as_mut().unwrap().host_network = Some(true);
    let host = StatusInput {
        host_ips: &v6_node,
        ..input(&pod, &gone)
    };
    let first = compute_pod_status(&host);
    assert_eq!(ips(&first), ["fd00::1", "192.168.0.1"]);
    let moved = ["fd00::9".parse().unwrap()];
    let later = compute_pod_status(&StatusInput {
        host_ips: &moved,
        previous: Some(&first),
        ..host
    });
    assert_eq!(ips(&later), ["fd00::1", "192.168.0.1"]);
}

#[test]
fn qos_classes() {
    let resources = |requests: &[(&str, &str)], limits: &[(&str, &str)]| {
        let list = |of: &[(&str, &str)]| {
            let quantity =
                |text: &str| k8s_openapi::apimachinery::pkg::api::resource::Quantity(text.into());
            let map: BTreeMap<String, _> = of
                .iter()
                .map(|(name, amount)| ((*name).to_owned(), quantity(amount)))
                .collect();
            (!map.is_empty()).then_some(map)
        };
        core::ResourceRequirements {
            requests: list(requests),
            limits: list(limits),
            claims: None,
        }
    };
    let both = [("cpu", "100m"), ("memory", "1Gi")];
    let same = [("cpu", "0.1"), ("memory", "1024Mi")];
    for (what, containers, expect) in [
        ("nothing", vec![resources(&[], &[])], "BestEffort"),
        ("zero", vec![resources(&[("cpu", "0")], &[])], "BestEffort"),
        (
            "other resources",
            vec![resources(&[("example.com/gpu", "1")], &[])],
            "BestEffort",
        ),
        ("equal", vec![resources(&both, &same)], "Guaranteed"),
        (
            "equal twice",
            vec![resources(&both, &both), resources(&same, &same)],
            "Guaranteed",
        ),
        (
            "one without",
            vec![resources(&both, &both), resources(&[], &[])],
            "Burstable",
        ),
        ("no limits", vec![resources(&both, &[])], "Burstable"),
        (
            "less than the limit",
            vec![resources(&[("cpu", "50m"), ("memory", "1Gi")], &both)],
            "Burstable",
        ),
        (
            "memory only",
            vec![resources(&[("memory", "1Gi")], &[("memory", "1Gi")])],
            "Burstable",
        ),
    ] {
        let mut pod = pod("Always", vec![container("init")], &["web"]);
        let spec = pod.spec.as_mut().unwrap();
        // The first belongs to the only regular container, a second one to the init container.
        let mut resources = containers.into_iter();
        spec.containers[0].resources = resources.next();
        match resources.next() {
            Some(second) => spec.init_containers.as_mut().unwrap()[0].resources = Some(second),
            None => spec.init_containers = None,
        }
        assert_eq!(qos_class(&pod).as_str(), expect, "{what}");
    }
}

#[test]
fn addresses_are_one_a_family_and_the_nodes_primary_family_comes_first() {
    let ips = |texts: &[&str]| -> Vec<IpAddr> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    };
    let seen = ips(&["10.0.0.2", "10.0.0.3", "fd00::2", "fd00::3"]);
    for (node, expected) in [
        (&["192.0.2.1"][..], &["10.0.0.2", "fd00::2"][..]),
        (&["2001:db8::1", "192.0.2.1"], &["fd00::2", "10.0.0.2"]),
        (&[], &["10.0.0.2", "fd00::2"]),
    ] {
        // docker 22
        assert_eq!(one_per_family(&seen, &ips(node)), ips(expected), "{node:?}");
    }
    let v4 = ips(&["10.0.0.2"]);
    assert_eq!(one_per_family(&v4, &ips(&["2001:db8::1"])), v4);
    assert!(one_per_family(&[], &v4).is_empty());
}

#[test]
fn a_container_has_the_resources_it_was_started_with_and_its_mounts() {
    let with = |cpu: &str| {
        let mut pod = pod("Always", vec![], &["web"]);
        let resources = json!({"limits": {"cpu": cpu, "memory": "64Mi"}, "requests": {"cpu": cpu}});
        let mounts = json!([
            {"name": "v", "mountPath": "/rw"},
            {"name": "v", "mountPath": "/ro", "readOnly": true},
            {"name": "v", "mountPath": "/no", "readOnly": false, "subPath": "s"},
        ]);
        let container = &mut pod.spec.as_mut().unwrap().containers[0];
        container.resources = serde_json::from_value(resources).unwrap();
        container.volume_mounts = serde_json::from_value(mounts).unwrap();
        pod
    };
    let before = with("0.5");
    let previous = compute_pod_status(&input(&before, &observed(vec![running(&before, "web")])));
    let bare = pod("Always", vec![], &["web"]);
    let anew = |pod: &Pod| instance(pod, "web", 1, ContainerState::Running, None);
    let now = with("2");
    let exited = |pod: &Pod| exited(pod, "web", 1);
    let amounts = |cpu: &str| Some((cpu.to_owned(), cpu.to_owned()));
    for (pod, seen, previous, cpu) in [
        (&before, vec![running(&before, "web")], None, amounts("0.5")),
        // Changed in the spec: the instance that runs has what it had.
        (
            &now,
            vec![running(&now, "web")],
            Some(&previous),
            amounts("0.5"),
        ),
        (&now, vec![anew(&now)], Some(&previous), amounts("2")),
        (&now, vec![exited(&now)], Some(&previous), amounts("2")),
        (&now, vec![], None, None),
        (
            &bare,
            vec![running(&bare, "web")],
            None,
            Some((String::new(), String::new())),
        ),
    ] {
        let seen = observed(seen);
        let status = compute_pod_status(&StatusInput {
            previous,
            ..input(pod, &seen)
        });
        let web = serde_json::to_value(state_of(&status, "web")).unwrap();
        let text = |at: &str| {
            let value = web.pointer(at).map(|value| value.as_str().unwrap());
            value.unwrap_or_default().to_owned()
        };
        let found = web.get("resources").map(|_| {
            (
                text("/resources/limits/cpu"),
                text("/allocatedResources/cpu"),
            )
        });
        // pods 49a
        assert_eq!(found, cpu, "{web}");
        let mounts = if std::ptr::eq(pod, &raw const bare) {
            Value::Null
        } else {
            json!([
                {"name": "v", "mountPath": "/rw"},
                {"name": "v", "mountPath": "/ro", "readOnly": true, "recursiveReadOnly": "Disabled"},
                {"name": "v", "mountPath": "/no"},
            ])
        };
        // pods 49a
        assert_eq!(web["volumeMounts"], mounts);
    }
}

#[test]
fn a_resize_of_a_running_container_is_told_to_be_infeasible() {
    let with = |cpu: &str| {
        let mut pod = pod("Always", vec![sidecar("s")], &["web", "db"]);
        let spec = pod.spec.as_mut().unwrap();
        let resources = json!({"limits": {"cpu": cpu}, "requests": {"cpu": cpu}});
        spec.containers[0].resources = serde_json::from_value(resources).unwrap();
        pod
    };
    let all = |pod: &Pod| observed(["web", "db", "s"].map(|name| running(pod, name)).to_vec());
    let before = with("500m");
    let previous = compute_pod_status(&StatusInput {
        is_static: false,
        ..input(&before, &all(&before))
    });
    let told = |pod: &Pod, seen: PodStatus, is_static: bool, previous: &core::PodStatus| {
        let status = compute_pod_status(&StatusInput {
            previous: Some(previous),
            is_static,
            ..input(pod, &seen)
        });
        let mut conditions = status.conditions.iter().flatten();
        let found = conditions.find(|c| c.type_ == "PodResizePending").cloned();
        (status, found)
    };
    assert_eq!(told(&before, all(&before), false, &previous).1, None);
    assert_eq!(told(&with("0.5"), all(&before), false, &previous).1, None);
    let mut now = with("2");
    let (resized, pending) = told(&now, all(&now), false, &previous);
    let pending = pending.unwrap();
    // pods 49c
    assert_eq!(pending.status, "True");
    assert_eq!(pending.reason.as_deref(), Some("Infeasible"));
    assert_eq!(
        pending.message.as_deref(),
        Some(
            "this node doesn't resize containers; [web] keep their resources, even after restarts; the new resources apply to a new pod"
        )
    );
    // A manifest's pod has no such subresource.
    assert_eq!(told(&now, all(&now), true, &previous).1, None);
    // Restarted, or gone with its sandbox: it keeps what it has, whatever the API server has.
    now.status = Some(resized.clone());
    let mut ended = all(&now);
    ended.containers[0] = exited(&now, "web", 1);
    let mut anew = all(&now);
    anew.containers[0] = instance(&now, "web", 1, ContainerState::Running, None);
    for seen in [ended, PodStatus::empty(PodUid::from("u1")), anew] {
        let (status, pending) = told(&now, seen, false, &resized);
        // pods 49c
        assert!(pending.is_some(), "{status:?}");
        let web = serde_json::to_value(state_of(&status, "web")).unwrap();
        assert_eq!(web["resources"]["limits"]["cpu"], "500m", "{web}");
        assert_eq!(web["allocatedResources"]["cpu"], "500m", "{web}");
    }
    // Resized before it was started: the node has admitted it with less.
    let nothing = PodStatus::empty(PodUid::from("u1"));
    let admitted = compute_pod_status(&StatusInput {
        is_static: false,
        ..input(&before, &nothing)
    });
    let (status, pending) = told(&with("2"), nothing, false, &admitted);
    let web = serde_json::to_value(state_of(&status, "web")).unwrap();
    // pods 49c
    assert!(pending.is_some(), "{status:?}");
    assert_eq!(web["resources"]["limits"]["cpu"], "500m", "{web}");
    // The pod's own resources are not those of a container.
    let mut of_pod = before.clone();
    of_pod.spec.as_mut().unwrap().resources =
        serde_json::from_value(json!({"limits": {"cpu": "4"}})).unwrap();
    assert_eq!(told(&of_pod, all(&of_pod), false, &previous).1, None);
    // Taken back: nothing is pending.
    let mut back = before.clone();
    back.status = Some(resized.clone());
    assert_eq!(told(&back, all(&back), false, &resized).1, None);
}

#[test]
fn a_resize_of_a_pod_as_a_whole_is_told_to_be_infeasible() {
    let with = |cpu: &str| {
        let mut pod = pod("Always", vec![], &["web"]);
        let resources = json!({"limits": {"cpu": cpu}, "requests": {"cpu": cpu}});
        pod.spec.as_mut().unwrap().resources = serde_json::from_value(resources).unwrap();
        pod
    };
    let told = |pod: &Pod, is_static: bool, previous: Option<&core::PodStatus>| {
        let seen = observed(vec![running(pod, "web")]);
        let status = compute_pod_status(&StatusInput {
            previous,
            is_static,
            ..input(pod, &seen)
        });
        let mut conditions = status.conditions.iter().flatten();
        let found = conditions.find(|c| c.type_ == "PodResizePending");
        let reason = found.and_then(|c| c.reason.clone());
        let held = serde_json::to_value(&status.resources).unwrap();
        (status, held["limits"]["cpu"].clone(), reason)
    };
    let infeasible = Some("Infeasible".to_owned());
    let (first, cpu, reason) = told(&with("500m"), false, None);
    assert_eq!((cpu, reason), (json!("500m"), None));
    let (resized, cpu, reason) = told(&with("2"), false, Some(&first));
    // pods 49c
    assert_eq!((cpu, &reason), (json!("500m"), &infeasible));
    // The next agent has it from the API server.
    let mut known = with("2");
    known.status = Some(resized);
    let (_, cpu, reason) = told(&known, false, None);
    // pods 49c
    assert_eq!((cpu, &reason), (json!("500m"), &infeasible));
    // In other words, and taken back.
    for cpu in ["0.5", "500m"] {
        let (_, held, reason) = told(&with(cpu), false, Some(&first));
        assert_eq!((held, reason), (json!("500m"), None), "{cpu}");
    }
    let (_, cpu, reason) = told(&with("2"), true, None);
    assert_eq!((cpu, reason), (Value::Null, None), "a manifest's");
}

#[test]
fn a_container_has_the_user_it_was_started_with_where_the_spec_decides_it() {
    let with = |of_pod: Value, own: Value| {
        let mut pod = pod("Always", vec![], &["web"]);
        let spec = pod.spec.as_mut().unwrap();
        spec.security_context = serde_json::from_value(of_pod).unwrap();
        spec.containers[0].security_context = serde_json::from_value(own).unwrap();
        pod
    };
    let user = |pod: &Pod, previous: Option<&core::PodStatus>| {
        let seen = observed(vec![running(pod, "web")]);
        let status = compute_pod_status(&StatusInput {
            previous,
            ..input(pod, &seen)
        });
        serde_json::to_value(state_of(&status, "web")).unwrap()["user"].take()
    };
    let linux = |uid: i64, gid: i64, groups: &[i64]| json!({"linux": {"uid": uid, "gid": gid, "supplementalGroups": groups}});
    for (of_pod, own, expected) in [
        (json!(null), json!(null), Value::Null),
        // The image's /etc/passwd and /etc/group say the rest.
        (json!({"runAsUser": 1000}), json!(null), Value::Null),
        (json!({"runAsGroup": 3000}), json!(null), Value::Null),
        (
            json!({"runAsUser": 1000, "runAsGroup": 3000}),
            json!(null),
            linux(1000, 3000, &[3000]),
        ),
        (
            json!({"runAsUser": 1000, "runAsGroup": 3000, "supplementalGroups": [4000, 3000], "fsGroup": 5}),
            json!({"runAsUser": 0}),
            linux(0, 3000, &[3000, 4000, 5]),
        ),
        (
            json!({"fsGroup": 5}),
            json!({"runAsUser": 7, "runAsGroup": 8}),
            linux(7, 8, &[8, 5]),
        ),
    ] {
        // pods 49b
        assert_eq!(user(&with(of_pod, own), None), expected);
    }
    // Changed in the spec: the instance that runs has what it had.
    let before = with(json!({"runAsUser": 1, "runAsGroup": 2}), json!(null));
    let previous = compute_pod_status(&input(&before, &observed(vec![running(&before, "web")])));
    let now = with(json!({"runAsUser": 3, "runAsGroup": 4}), json!(null));
    // pods 49b
    assert_eq!(user(&now, Some(&previous)), linux(1, 2, &[2]));
}
