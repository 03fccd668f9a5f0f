use serde_json::{Value, json};

use super::*;
use crate::api::Watched;

/// A pod of the API server with this spec.
fn pod(spec: Value) -> Pod {
    named("a", "api", spec)
}

fn named(uid: &str, source: &str, mut spec: Value) -> Pod {
    if spec["containers"].is_null() {
        spec["containers"] = json!([]);
    }
    let annotations = json!({"kubernetes.io/config.source": source});
    let metadata = json!({"name": uid, "uid": uid, "annotations": annotations});
    serde_json::from_value(json!({"metadata": metadata, "spec": spec})).unwrap()
}

fn requests(requests: &Value) -> Value {
    json!({"containers": [{"name": "c", "resources": {"requests": requests}}]})
}

fn node() -> AdmitNode {
    let node: core::Node = serde_json::from_value(json!({
        "metadata": {"name": "n1", "labels": {"disk": "ssd", "cores": "8", "kubernetes.io/os": "linux"}},
        "spec": {"taints": [
            {"key": "mirrorlet.dev/docker", "effect": "NoSchedule"},
            {"key": "gone", "value": "yes", "effect": "NoExecute"},
        ]},
        "status": {"allocatable": {
            "cpu": "2", "memory": "1Gi", "ephemeral-storage": "10Gi", "pods": "3", "example.com/gpu": "1",
        }},
    }))
    .unwrap();
    AdmitNode::of(&node)
}

fn tolerates() -> Value {
    json!([{"key": "gone", "operator": "Exists"}])
}

/// The reason of a refusal, or `ok`, and who is preempted.
fn verdict(pod: &Pod, others: &[Pod], node: &AdmitNode) -> String {
    let others: Vec<_> = others.iter().cloned().map(Arc::new).collect();
    match admit(&AdmitInput {
        pod,
        others: &others,
        node,
    }) {
        Verdict::Admitted { preempt } if preempt.is_empty() => "ok".to_owned(),
        Verdict::Admitted { preempt } => {
            let uids: Vec<_> = preempt.iter().map(PodUid::as_str).collect();
            format!("ok without {}", uids.join(" "))
        }
        Verdict::Refused(failure) => failure.reason.to_string(),
    }
}

/// Upstream: `TestAdmitUnderNodeConditions`.
#[test]
fn a_node_under_pressure_takes_critical_pods_and_short_of_memory_alone_those_that_request_some() {
    let (memory, disk) = (Pressure::Memory, Pressure::Disk);
    let tolerating = |key: &str| json!({"tolerations": [{"key": key, "operator": "Exists"}]});
    for (spec, source, pressures, expected) in [
        (json!({}), "api", vec![], "ok"),
        (json!({}), "api", vec![memory], "Evicted"),
        (requests(&json!({"memory": "1"})), "api", vec![memory], "ok"),
        (
            tolerating("node.kubernetes.io/memory-pressure"),
            "api",
            vec![memory],
            "ok",
        ),
        (
            tolerating("node.kubernetes.io/disk-pressure"),
            "api",
            vec![memory],
            "Evicted",
        ),
        (
            requests(&json!({"memory": "1"})),
            "api",
            vec![disk],
            "Evicted",
        ),
        (
            requests(&json!({"memory": "1"})),
            "api",
            vec![memory, disk],
            "Evicted",
        ),
        (
            requests(&json!({"memory": "1"})),
            "api",
            vec![Pressure::Pid],
            "Evicted",
        ),
        (
            json!({"priority": 2_000_000_000}),
            "api",
            vec![memory, disk],
            "ok",
        ),
        (json!({}), "file", vec![memory, disk], "ok"),
    ] {
        let pod = named("a", source, spec);
        let node = AdmitNode::default().under(pressures.into_iter().collect());
        // eviction 10
        assert_eq!(
            verdict(&pod, &[], &node),
            expected,
            "{pod:?} {:?}",
            node.pressures
        );
    }
}

#[test]
fn each_check_has_the_reason_that_users_know() {
    let affinity = |terms: Value| {
        json!({"affinity": {"nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms},
        }}})
    };
    let expression = |key: &str, operator: &str, values: Value| {
        affinity(json!([{"matchExpressions": [
            {"key": key, "operator": operator, "values": values},
        ]}]))
    };
    for (spec, expected) in [
        (json!({}), "ok"),
        (json!({"nodeName": "n1"}), "ok"),
        (json!({"nodeName": "n2"}), "NodeName"),
        (json!({"os": {"name": "linux"}}), "ok"),
        (json!({"os": {"name": "windows"}}), "PodOSNotSupported"),
        (json!({"nodeSelector": {"disk": "ssd"}}), "ok"),
        (json!({"nodeSelector": {"disk": "hdd"}}), "NodeAffinity"),
        (
            json!({"nodeSelector": {"disk": "ssd", "zone": "a"}}),
            "NodeAffinity",
        ),
        (expression("disk", "In", json!(["hdd", "ssd"])), "ok"),
        (expression("disk", "In", json!(["hdd"])), "NodeAffinity"),
        (expression("disk", "NotIn", json!(["hdd"])), "ok"),
        (expression("disk", "NotIn", json!(["ssd"])), "NodeAffinity"),
        (expression("zone", "NotIn", json!(["a"])), "ok"),
        (expression("disk", "Exists", json!([])), "ok"),
        (expression("zone", "Exists", json!([])), "NodeAffinity"),
        (expression("zone", "DoesNotExist", json!([])), "ok"),
        (
            expression("disk", "DoesNotExist", json!([])),
            "NodeAffinity",
        ),
        (expression("cores", "Gt", json!(["4"])), "ok"),
        (expression("cores", "Gt", json!(["8"])), "NodeAffinity"),
        (expression("cores", "Lt", json!(["16"])), "ok"),
        (expression("disk", "Lt", json!(["16"])), "NodeAffinity"),
        (expression("zone", "Gt", json!(["1"])), "NodeAffinity"),
        (expression("disk", "Likes", json!(["ssd"])), "NodeAffinity"),
        // Terms are alternatives; one without requirements matches nothing.
        (affinity(json!([])), "NodeAffinity"),
        (affinity(json!([{}])), "NodeAffinity"),
        (
            affinity(json!([{}, {"matchFields": [
                {"key": "metadata.name", "operator": "In", "values": ["n1"]},
            ]}])),
            "ok",
        ),
        (
            affinity(json!([{"matchFields": [
                {"key": "metadata.name", "operator": "In", "values": ["n2"]},
            ]}])),
            "NodeAffinity",
        ),
        (requests(&json!({"cpu": "2"})), "ok"),
        (requests(&json!({"cpu": "2001m"})), "OutOfcpu"),
        (requests(&json!({"memory": "2Gi"})), "OutOfmemory"),
        (
            requests(&json!({"ephemeral-storage": "11Gi"})),
            "OutOfephemeral-storage",
        ),
        (
            requests(&json!({"example.com/gpu": "2"})),
            "OutOfexample.com/gpu",
        ),
        // Nobody's on this node, so nobody's business here.
        (requests(&json!({"example.com/fpga": "2"})), "ok"),
        (
            requests(&json!({"hugepages-2Mi": "2Mi"})),
            "OutOfhugepages-2Mi",
        ),
        // The first of several is told.
        (requests(&json!({"memory": "2Gi", "cpu": "3"})), "OutOfcpu"),
    ] {
        let mut spec = spec;
        spec["tolerations"] = tolerates();
        // pods 61
        assert_eq!(
            verdict(&pod(spec.clone()), &[], &node()),
            expected,
            "{spec}"
        );
    }
}

#[test]
fn a_pod_with_too_many_values_is_refused() {
    let read = |count: usize| {
        let variables = vec![json!({"name": "a"}); count];
        let pod = json!({
            "metadata": {"name": "a", "annotations": {"kubernetes.io/config.source": "api"}},
            "spec": {"containers": [{"name": "a", "env": variables}]},
        });
        let Watched(pod): Watched<Pod> = serde_json::from_value(pod).unwrap();
        verdict(&pod, &[], &node())
    };
    // tenants M8
    assert!(read(6_000).starts_with("PodTooLarge"), "{}", read(6_000));
    assert!(!read(4_000).contains("PodTooLarge"), "{}", read(4_000));
}

#[test]
fn a_profile_is_refused_on_a_host_without_app_armor() {
    let profile = |kind: &str| json!({"securityContext": {"appArmorProfile": {"type": kind}}});
    for (source, spec, phase, disabled, expected) in [
        ("file", json!({}), "Pending", true, "ok"),
        ("file", profile("Unconfined"), "Pending", true, "ok"),
        (
            "file",
            profile("RuntimeDefault"),
            "Pending",
            true,
            "AppArmor",
        ),
        ("file", profile("RuntimeDefault"), "Pending", false, "ok"),
        (
            "api",
            profile("RuntimeDefault"),
            "Pending",
            true,
            "AppArmor",
        ),
        ("api", profile("RuntimeDefault"), "Running", true, "ok"),
    ] {
        let mut spec = spec;
        spec["tolerations"] = tolerates();
        let mut pod = named("a", source, spec);
        pod.status = serde_json::from_value(json!({"phase": phase})).unwrap();
        let node = AdmitNode {
            app_armor_disabled: disabled,
            ..node()
        };
        // tenants A1
        assert_eq!(
            verdict(&pod, &[], &node),
            expected,
            "{source} {phase} {disabled}"
        );
    }
}

#[test]
fn the_label_of_an_operating_system_is_compared_with_ours() {
    for (os, expected) in [
        ("linux", "ok"),
        ("windows", "PodOSSelectorNodeLabelDoesNotMatch"),
    ] {
        let mut pod = pod(json!({}));
        pod.metadata.labels = Some([(OS_LABEL.to_owned(), os.to_owned())].into());
        assert_eq!(verdict(&pod, &[], &AdmitNode::default()), expected);
    }
}

#[test]
fn taints_that_evict_are_for_pods_of_the_api_server() {
    for (tolerations, expected) in [
        (json!([]), "TaintToleration"),
        (json!([{"operator": "Exists"}]), "ok"),
        (json!([{"key": "gone", "operator": "Exists"}]), "ok"),
        (json!([{"key": "gone", "value": "yes"}]), "ok"),
        (
            json!([{"key": "gone", "value": "yes", "effect": "NoExecute"}]),
            "ok",
        ),
        (json!([{"key": "gone", "value": "no"}]), "TaintToleration"),
        (
            json!([{"key": "gone", "operator": "Exists", "effect": "NoSchedule"}]),
            "TaintToleration",
        ),
        (
            json!([{"key": "other", "operator": "Exists"}]),
            "TaintToleration",
        ),
    ] {
        let spec = json!({"tolerations": tolerations});
        assert_eq!(
            verdict(&pod(spec.clone()), &[], &node()),
            expected,
            "{spec}"
        );
        let manifests = named("a", "file", spec);
        assert_eq!(verdict(&manifests, &[], &node()), "ok");
    }
}

#[test]
fn host_ports_collide_by_protocol_port_and_address() {
    let with = |ports: Value| json!({"containers": [{"name": "c", "ports": ports}]});
    let taken = [pod(with(json!([
        {"containerPort": 1, "hostPort": 80},
        {"containerPort": 2, "hostPort": 53, "protocol": "UDP", "hostIP": "10.0.0.1"},
    ])))];
    for (port, expected) in [
        (json!({"containerPort": 80}), "ok"),
        (json!({"containerPort": 9, "hostPort": 80}), "NodePorts"),
        (
            json!({"containerPort": 9, "hostPort": 80, "hostIP": "10.0.0.1"}),
            "NodePorts",
        ),
        (
            json!({"containerPort": 9, "hostPort": 80, "protocol": "UDP"}),
            "ok",
        ),
        (
            json!({"containerPort": 9, "hostPort": 53, "protocol": "UDP"}),
            "NodePorts",
        ),
        (
            json!({"containerPort": 9, "hostPort": 53, "protocol": "UDP", "hostIP": "10.0.0.2"}),
            "ok",
        ),
        (
            json!({"containerPort": 9, "hostPort": 53, "protocol": "UDP", "hostIP": "10.0.0.1"}),
            "NodePorts",
        ),
        (json!({"containerPort": 9, "hostPort": 53}), "ok"),
    ] {
        // Without an API server too.
        let pod = named("a", "file", with(json!([port])));
        assert_eq!(
            verdict(&pod, &taken, &AdmitNode::default()),
            expected,
            "{port}"
        );
    }
    // The author of a manifest learns whose it is; a pod of the API server has the words of upstream.
    let wants = || with(json!([{"containerPort": 9, "hostPort": 53, "protocol": "UDP"}]));
    let mut dns = named("dns", "file", json!(taken[0].spec));
    dns.metadata.namespace = Some("default".to_owned());
    let others = vec![Arc::new(dns)];
    for (pod, words) in [
        (
            named("a", "file", wants()),
            "host port 53/udp is in use by pod default/dns",
        ),
        (
            pod(wants()),
            "Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports",
        ),
    ] {
        let (others, node) = (&others, &AdmitNode::default());
        let verdict = admit(&AdmitInput {
            pod: &pod,
            others,
            node,
        });
        let Verdict::Refused(failure) = verdict else {
            panic!("{verdict:?}");
        };
        assert_eq!(&*failure.message, words);
        let field = (!is_api_pod(&pod)).then_some("spec.containers[0].ports[0].hostPort");
        assert_eq!(failure.field.as_deref(), field);
    }
    let init =
        json!({"initContainers": [{"name": "i", "ports": [{"containerPort": 9, "hostPort": 80}]}]});
    // pods 61
    assert_eq!(
        verdict(&pod(init), &taken, &AdmitNode::default()),
        "ok",
        "never open"
    );
}

#[test]
fn what_others_use_counts() {
    let of = |resources: Value| {
        let mut spec = requests(&resources);
        spec["tolerations"] = tolerates();
        pod(spec)
    };
    let others = [of(json!({"cpu": "1"})), of(json!({"memory": "512Mi"}))];
    assert_eq!(verdict(&of(json!({"cpu": "1"})), &others, &node()), "ok");
    assert_eq!(
        verdict(&of(json!({"cpu": "1100m"})), &others, &node()),
        "OutOfcpu"
    );
    assert_eq!(
        verdict(&of(json!({"memory": "513Mi"})), &others, &node()),
        "OutOfmemory"
    );
    let three = [of(json!({})), of(json!({})), of(json!({}))];
    assert_eq!(
        verdict(&of(json!({"cpu": "9"})), &three, &node()),
        "OutOfpods"
    );
    // Nobody keeps count without an API server.
    assert_eq!(
        verdict(&of(json!({"cpu": "99"})), &three, &AdmitNode::default()),
        "ok"
    );
    let short = admit(&AdmitInput {
        pod: &of(json!({"cpu": "1500m"})),
        others: &others.map(Arc::new),
        node: &node(),
    });
    let Verdict::Refused(failure) = short else {
        panic!()
    };
    assert_eq!(
        &*failure.message,
        "Node didn't have enough resource: cpu, requested: 1500, used: 1000, capacity: 2000"
    );
}

#[test]
fn a_pod_requests_what_it_takes_at_its_peak() {
    let container = |cpu: &str| json!({"name": "c", "resources": {"requests": {"cpu": cpu}}});
    let sidecar = |cpu: &str| {
        let mut container = container(cpu);
        container["restartPolicy"] = json!("Always");
        container
    };
    for (spec, expected) in [
        (
            json!({"containers": [container("1"), container("2")]}),
            3000,
        ),
        (
            json!({"initContainers": [container("5")], "containers": [container("1")]}),
            5000,
        ),
        (
            json!({"initContainers": [sidecar("1"), container("2")], "containers": [container("1")]}),
            3000,
        ),
        (
            json!({"initContainers": [container("2"), sidecar("1")], "containers": [container("3")]}),
            4000,
        ),
        (
            json!({"containers": [container("1")], "overhead": {"cpu": "250m"}}),
            1250,
        ),
        (
            json!({"containers": [container("1")], "resources": {"requests": {"cpu": "4"}}}),
            4000,
        ),
        (
            json!({"containers": [{"name": "c", "resources": {"limits": {"cpu": "2"}}}]}),
            2000,
        ),
    ] {
        let requests = pod_requests(&pod(spec.clone()));
        assert_eq!(requests["cpu"].milli_ceil(), expected, "{spec}");
    }
    assert!(pod_requests(&pod(requests(&json!({"cpu": "0"})))).is_empty());
}

#[test]
fn a_resized_container_requests_what_it_was_started_with() {
    let milli_cpu = |pod: &Pod| {
        let requests = pod_requests(pod);
        requests.get("cpu").map_or(0, |cpu| cpu.milli_ceil())
    };
    let (running, waiting) = (json!({"running": {}}), json!({"waiting": {}}));
    let (cpu, none) = (json!({"cpu": "100m"}), Value::Null);
    let limits = json!({"limits": {"cpu": "200m"}});
    let started = json!({ "requests": cpu });
    for (source, state, resources, allocated, expected) in [
        ("api", &running, &started, &cpu, 100),
        ("api", &running, &started, &none, 100),
        ("api", &running, &none, &cpu, 100),
        ("api", &running, &limits, &none, 200),
        ("api", &running, &json!({}), &none, 0),
        // The API server keeps neither.
        ("api", &running, &none, &none, 3900),
        // It starts again with the same.
        ("api", &waiting, &started, &cpu, 100),
        // It was not reported yet.
        ("api", &waiting, &none, &none, 3900),
        // A manifest's pod is replaced, not resized.
        ("file", &running, &started, &cpu, 3900),
    ] {
        let mut pod = named("a", source, requests(&json!({"cpu": "3900m"})));
        let status = json!({
            "name": "c", "image": "", "imageID": "", "ready": true, "restartCount": 0,
            "state": state, "resources": resources, "allocatedResources": allocated,
        });
        pod.status = serde_json::from_value(json!({"containerStatuses": [status]})).unwrap();
        // pods 61a
        assert_eq!(milli_cpu(&pod), expected, "{source} {status}");
    }
    let container =
        |name: &str, cpu: &str| json!({"name": name, "resources": {"requests": {"cpu": cpu}}});
    let mut sidecar = container("s", "2");
    sidecar["restartPolicy"] = json!("Always");
    let mut pod = pod(json!({
        "initContainers": [sidecar, container("i", "3")],
        "containers": [container("c", "1")],
    }));
    assert_eq!(milli_cpu(&pod), 5000);
    let status = |name: &str| {
        json!({
            "name": name, "image": "", "imageID": "", "ready": true, "restartCount": 0,
            "state": running, "resources": started,
        })
    };
    let statuses = json!({"initContainerStatuses": [status("s"), status("i")]});
    pod.status = serde_json::from_value(statuses).unwrap();
    // pods 61a
    assert_eq!(milli_cpu(&pod), 1100, "the sidecar, and the container");
}

#[test]
fn a_resized_container_is_started_again_with_what_it_holds() {
    let container =
        |name: &str, cpu: &str| json!({"name": name, "resources": {"limits": {"cpu": cpu}}});
    let status = |name: &str, cpu: &Value| {
        json!({
            "name": name, "image": "", "imageID": "", "ready": false, "restartCount": 0,
            "state": {"terminated": {"exitCode": 1}}, "resources": {"limits": cpu},
        })
    };
    let with = |source: &str, cpu: &str| {
        let containers = json!([container("resized", cpu), container("new", "3")]);
        let spec = json!({"initContainers": [container("init", cpu)], "containers": containers});
        Arc::new(named("a", source, spec))
    };
    let of = |cpu: &Value| -> core::PodStatus {
        serde_json::from_value(json!({
            "initContainerStatuses": [status("init", cpu)],
            "containerStatuses": [status("resized", cpu)],
        }))
        .unwrap()
    };
    let started = of(&json!({"cpu": "500m"}));
    let limits = |pod: &Pod| -> Vec<Option<i64>> {
        let limit = |c: &core::Container| resources::limit(c, "cpu").map(Quantity::milli_ceil);
        spec::containers(pod).map(|(_, c)| limit(c)).collect()
    };
    let resized = with("api", "64");
    let held = with_held_resources(&resized, Some(&started));
    // pods 61b
    assert_eq!(limits(&held), [Some(500), Some(500), Some(3000)]);
    // Where nothing had a limit, nothing has one.
    let unlimited = with_held_resources(&resized, Some(&of(&Value::Null)));
    assert_eq!(limits(&unlimited), [None, None, Some(3000)]);
    // The same in other words, a manifest's, and one that was never started.
    for (pod, status) in [
        (with("api", "0.5"), Some(&started)),
        (with("file", "64"), Some(&started)),
        (with("api", "64"), None),
    ] {
        let held = with_held_resources(&pod, status);
        // pods 61b
        assert!(Arc::ptr_eq(&held, &pod), "{held:?}");
    }
}

#[test]
fn a_resized_pod_keeps_the_resources_that_it_was_admitted_with() {
    let of = |cpu: &str| json!({"requests": {"cpu": cpu}, "limits": {"cpu": cpu}});
    let with = |source: &str, held: &Value| {
        let mut spec = requests(&json!({"cpu": "50m"}));
        spec["resources"] = of("4");
        let mut pod = named("a", source, spec);
        pod.status = serde_json::from_value(json!({ "resources": held })).unwrap();
        Arc::new(pod)
    };
    for (source, held, expected) in [
        ("api", of("100m"), 100),
        ("api", of("4000m"), 4000),
        // It was not reported yet, or the API server doesn't keep it.
        ("api", Value::Null, 4000),
        // A manifest's pod is replaced, not resized.
        ("file", of("100m"), 4000),
    ] {
        let pod = with(source, &held);
        // pods 61a
        assert_eq!(
            pod_requests(&pod)["cpu"].milli_ceil(),
            expected,
            "{source} {held}"
        );
        let started = with_held_resources(&pod, pod.status.as_ref());
        let own = resources::of_pod(&started).unwrap();
        let limit = resources::limit_in(own, "cpu").map(Quantity::milli_ceil);
        // pods 61b
        assert_eq!(limit, Some(expected), "{source} {held}");
        // pods 61b
        assert_eq!(Arc::ptr_eq(&started, &pod), expected == 4000);
    }
}

#[expect(clippy::large_stack_arrays, reason = "a table of cases")]
#[test]
fn critical_pods_make_others_go_and_no_more_than_needed() {
    let best_effort = |uid: &str| named(uid, "api", json!({}));
    let burstable = |uid: &str, cpu: &str| named(uid, "api", requests(&json!({"cpu": cpu})));
    let guaranteed = |uid: &str, cpu: &str| {
        let limits = json!({"limits": {"cpu": cpu, "memory": "1Mi"}});
        named(
            uid,
            "api",
            json!({"containers": [{"name": "c", "resources": limits}]}),
        )
    };
    let manifest = |cpu: &str| named("static", "file", requests(&json!({"cpu": cpu})));
    let mut important = named("system", "api", requests(&json!({"cpu": "1"})));
    important.spec.as_mut().unwrap().priority = Some(CRITICAL_PRIORITY);
    important.spec.as_mut().unwrap().tolerations = serde_json::from_value(tolerates()).unwrap();
    let mut huge = named("huge", "api", requests(&json!({"cpu": "3"})));
    huge.spec.as_mut().unwrap().priority = Some(CRITICAL_PRIORITY);
    huge.spec.as_mut().unwrap().tolerations = serde_json::from_value(tolerates()).unwrap();
    for (pod, others, expected) in [
        // Too many pods: the least worthy one goes.
        (
            manifest("0"),
            vec![best_effort("b"), burstable("u", "1"), guaranteed("g", "1")],
            "ok without b",
        ),
        // One that is large enough rather than two.
        (
            manifest("1"),
            vec![burstable("u", "500m"), burstable("v", "1500m")],
            "ok without v",
        ),
        // The smaller of two that are.
        (
            manifest("500m"),
            vec![burstable("u", "500m"), burstable("v", "1500m")],
            "ok without u",
        ),
        // Guaranteed ones only for what the others can't free.
        (
            manifest("1"),
            vec![burstable("u", "200m"), guaranteed("g", "1800m")],
            "ok without g",
        ),
        (
            manifest("2"),
            vec![burstable("u", "200m"), guaranteed("g", "900m")],
            "ok without u g",
        ),
        (manifest("3"), vec![burstable("u", "2")], "OutOfcpu"),
        (huge, vec![burstable("u", "2")], "UnexpectedAdmissionError"),
        // Nobody goes for one that is refused anyway, or for one that isn't critical.
        (
            named("static", "file", json!({"os": {"name": "windows"}})),
            vec![best_effort("b"), best_effort("c"), best_effort("d")],
            "PodOSNotSupported",
        ),
        (
            named("x", "api", {
                let mut spec = requests(&json!({"cpu": "1"}));
                spec["tolerations"] = tolerates();
                spec
            }),
            vec![burstable("u", "2")],
            "OutOfcpu",
        ),
        (important, vec![burstable("u", "2")], "ok without u"),
        // A manifest's pod never goes.
        (
            manifest("1"),
            vec![named("other", "file", requests(&json!({"cpu": "2"})))],
            "OutOfcpu",
        ),
    ] {
        let uid = PodUid::of(&pod);
        // pods 61, tenants A3
        assert_eq!(
            verdict(&pod, &others, &node()),
            expected,
            "{uid} {others:?}"
        );
    }
}

#[expect(clippy::large_stack_arrays, reason = "a table of cases")]
#[test]
fn a_critical_pod_waits_for_preempted_pods_that_it_does_not_fit_beside() {
    let of =
        |uid: &str, source: &str, cpu: &str| named(uid, source, requests(&json!({"cpu": cpu})));
    let critical = |cpu: &str| of("static", "file", cpu);
    let idle = || named("idle", "api", json!({}));
    // The node has 2 CPUs and takes 3 pods.
    for (pod, others, stopping, expected) in [
        (critical("1"), vec![], vec![], ""),
        (critical("1"), vec![], vec![of("v", "api", "1")], ""),
        (critical("1"), vec![], vec![of("v", "api", "1500m")], "v"),
        (
            critical("1"),
            vec![of("o", "api", "500m")],
            vec![of("v", "api", "1")],
            "v",
        ),
        // One that has none of what is short is not waited for.
        (
            critical("1"),
            vec![],
            vec![of("v", "api", "1500m"), idle()],
            "v",
        ),
        // The number of pods counts as well.
        (
            critical("0"),
            vec![of("o", "api", "0"), of("p", "api", "0")],
            vec![idle()],
            "idle",
        ),
        // Others than preempted pods keep nobody waiting.
        (critical("1"), vec![of("o", "file", "4")], vec![], ""),
        // The pod itself, and a pod that is admitted again, count once.
        (
            critical("1"),
            vec![critical("1")],
            vec![of("v", "api", "1")],
            "",
        ),
        (
            critical("1"),
            vec![of("v", "api", "1")],
            vec![of("v", "api", "1")],
            "",
        ),
        (
            critical("1"),
            vec![],
            vec![of("v", "api", "1500m"), of("w", "api", "500m")],
            "v w",
        ),
        // One that isn't critical has not preempted anything.
        (of("x", "api", "1"), vec![], vec![of("v", "api", "2")], ""),
    ] {
        let arcs = |pods: Vec<Pod>| -> Vec<Arc<Pod>> { pods.into_iter().map(Arc::new).collect() };
        let (others, stopping) = (arcs(others), arcs(stopping));
        let input = AdmitInput {
            pod: &pod,
            others: &others,
            node: &node(),
        };
        let uids = awaited(&input, &stopping);
        let uids: Vec<&str> = uids.iter().map(PodUid::as_str).collect();
        // pods 61c
        assert_eq!(uids.join(" "), expected, "{pod:?} {others:?} {stopping:?}");
    }
}

#[test]
fn pods_are_asked_in_an_order_that_disturbs_nobody() {
    let aged = |uid: &str, source: &str, second: i64| {
        let mut pod = named(uid, source, json!({}));
        let at = Timestamp::from_second(second).unwrap();
        pod.metadata.creation_timestamp = Some(meta::Time(at));
        pod
    };
    let mut pods = [
        (aged("young", "api", 9), false),
        (aged("old", "api", 1), false),
        (aged("manifest", "file", 20), false),
        (aged("running", "api", 30), true),
        (aged("running manifest", "file", 30), true),
    ];
    pods.sort_by_cached_key(|(pod, runs)| turn(pod, *runs));
    let order: Vec<_> = pods
        .iter()
        .map(|(pod, _)| PodUid::of(pod).to_string())
        .collect();
    assert_eq!(
        order,
        ["running manifest", "running", "manifest", "old", "young"]
    );
}

#[test]
fn only_safe_sysctls_are_set_for_others() {
    let spec = |name: &str, host: &str| {
        json!({
            "hostNetwork": host == "net",
            "hostIPC": host == "ipc",
            "tolerations": tolerates(),
            "securityContext": {"sysctls": [
                {"name": "net.ipv4.tcp_syncookies", "value": "1"},
                {"name": name, "value": "1"},
            ]},
        })
    };
    let own = |name| spec(name, "");
    for (spec, expected) in [
        (own("kernel.shm_rmid_forced"), None),
        (own("kernel/shm_rmid_forced"), None),
        (own("net/ipv4/ping_group_range"), None),
        (
            own("kernel.msgmax"),
            Some("forbidden sysctl: \"kernel.msgmax\" not allowlisted"),
        ),
        (
            own("fs.mount-max"),
            Some("forbidden sysctl: \"fs.mount-max\" not allowlisted"),
        ),
        (
            spec("kernel.shm_rmid_forced", "ipc"),
            Some("forbidden sysctl: \"kernel.shm_rmid_forced\" not allowed with host IPC enabled"),
        ),
        (
            spec("net.ipv4.tcp_wmem", "net"),
            Some("forbidden sysctl: \"net.ipv4.tcp_syncookies\" not allowed with host Net enabled"),
        ),
    ] {
        let verdict = |source| {
            admit(&AdmitInput {
                pod: &named("a", source, spec.clone()),
                others: &[],
                node: &AdmitNode::default(),
            })
        };
        let told = match verdict("api") {
            Verdict::Admitted { .. } => None,
            Verdict::Refused(failure) => {
                assert_eq!(&*failure.reason, "SysctlForbidden");
                Some(failure.message.to_string())
            }
        };
        // api 6
        assert_eq!(told.as_deref(), expected, "{spec}");
        // The author of a manifest has root on the machine anyway.
        assert!(matches!(verdict("file"), Verdict::Admitted { .. }));
    }
}
