use proptest::prelude::*;
use serde_json::json;

use super::apply::apply_patch;
use super::*;
use crate::api::keys;

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_700_000_000 + seconds).unwrap()
}

fn pod(policy: &str) -> Pod {
    serde_json::from_value(json!({
        "metadata": {"name": "web", "namespace": "ns", "uid": "u", "generation": 3},
        "spec": {
            "restartPolicy": policy,
            "initContainers": [{"name": "init"}, {"name": "side", "restartPolicy": "Always"}],
            "containers": [{"name": "web"}, {"name": "once", "restartPolicy": "Never"}],
        },
    }))
    .unwrap()
}

fn with_status(mut pod: Pod, status: Value) -> Pod {
    pod.status = serde_json::from_value(status).unwrap();
    pod
}

fn as_mirror(mut pod: Pod) -> Pod {
    let annotations = pod.metadata.annotations.get_or_insert_default();
    annotations.insert(keys::CONFIG_MIRROR.into(), "h".into());
    pod
}

fn status(value: Value) -> PodStatus {
    serde_json::from_value(value).unwrap()
}

fn merged(api: &Pod, computed: &PodStatus, may_run: bool) -> Merge {
    merge(&MergeInput {
        api,
        pod: &pod(api
            .spec
            .as_ref()
            .unwrap()
            .restart_policy
            .as_deref()
            .unwrap()),
        computed,
        may_run,
        now: at(100),
    })
}

fn patched(api: &Pod, computed: Value, may_run: bool) -> Value {
    match merged(api, &status(computed), may_run) {
        Merge::Patch(mut patch) => {
            assert_eq!(patch["metadata"], json!({"uid": "u"}));
            patch["status"].take()
        }
        Merge::Same => Value::Null,
        Merge::Illegal(why) => json!(why),
    }
}

#[test]
fn a_mirror_says_which_version_is_held() {
    let computed = json!({"phase": "Running", "observedGeneration": 3});
    let annotated = |mut pod: Pod, reason: &str| {
        let annotations = pod.metadata.annotations.get_or_insert_default();
        annotations.insert(keys::HELD_REASON.into(), reason.into());
        pod
    };
    let plain = with_status(pod("Always"), computed.clone());
    let mirror = as_mirror(plain.clone());
    let written = |api: &Pod, pod: &Pod| {
        let computed = status(computed.clone());
        let merge = merge(&MergeInput {
            api,
            pod,
            computed: &computed,
            may_run: false,
            now: at(100),
        });
        match merge {
            Merge::Patch(patch) => patch["metadata"]["annotations"].clone(),
            Merge::Same => Value::Null,
            Merge::Illegal(why) => json!(why),
        }
    };
    let key = keys::HELD_REASON;
    let held = annotated(plain.clone(), "ErrImagePull");
    for (api, pod, annotations) in [
        (&mirror, &plain, Value::Null),
        (&mirror, &held, json!({key: "ErrImagePull"})),
        (
            &annotated(mirror.clone(), "ErrImagePull"),
            &held,
            Value::Null,
        ),
        (
            &annotated(mirror.clone(), "Other"),
            &held,
            json!({key: "ErrImagePull"}),
        ),
        (
            &annotated(mirror.clone(), "Other"),
            &plain,
            json!({key: null}),
        ),
        // Fields that other writers own stay theirs.
        (&annotated(plain.clone(), "Other"), &plain, Value::Null),
    ] {
        // rollouts M1
        assert_eq!(written(api, pod), annotations);
    }
}

#[test]
fn what_the_api_server_writes_out_empty_is_no_change() {
    let ours = |last: Value| {
        let mut container = json!({
            "name": "web", "image": "i", "imageID": "", "ready": true, "restartCount": 0,
            "state": {"running": {"startedAt": "2026-01-01T00:00:01Z"}},
        });
        if !last.is_null() {
            container["lastState"] = last;
        }
        json!({"phase": "Running", "observedGeneration": 3, "containerStatuses": [container]})
    };
    let api = with_status(pod("Always"), ours(json!({})));
    assert_eq!(patched(&api, ours(Value::Null), false), Value::Null);
}

#[test]
fn quantities_in_other_words_and_dropped_fields_are_no_change() {
    let of = |more: Value| {
        let mut container = json!({
            "name": "web", "image": "i", "imageID": "", "ready": true, "restartCount": 0,
            "containerID": "docker://a", "state": {"running": {"startedAt": "2026-01-01T00:00:01Z"}},
        });
        for (key, value) in more.as_object().unwrap() {
            container[key] = value.clone();
        }
        json!({"phase": "Running", "observedGeneration": 3, "containerStatuses": [container]})
    };
    let all = |cpu: &str| {
        json!({
            "resources": {"limits": {"cpu": cpu}, "requests": {"cpu": cpu}},
            "allocatedResources": {"cpu": cpu},
            "volumeMounts": [{"name": "v", "mountPath": "/v"}],
        })
    };
    let mut other = all("1");
    other["containerID"] = json!("docker://b");
    let mut not_ready = all("0.5");
    not_ready["ready"] = json!(false);
    for (api, ours, sent) in [
        (all("500m"), all("0.5"), None),
        (all("500m"), all("1"), Some(all("1"))),
        // As an API server has it that doesn't know these fields.
        (json!({}), all("0.5"), None),
        (json!({}), not_ready.clone(), Some(not_ready.clone())),
        (json!({"resources": {}}), json!({"resources": {}}), None),
        (json!({}), json!({"resources": {}}), None),
        // Of a pod that is over the spec isn't known any more.
        (all("500m"), json!({"resources": {}}), None),
        (all("500m"), json!({}), None),
        (all("500m"), other.clone(), Some(other.clone())),
    ] {
        let pod = with_status(pod("Always"), of(api.clone()));
        let change = patched(&pod, of(ours.clone()), false);
        let expected = sent.map_or(
            Value::Null,
            |sent| json!({"containerStatuses": of(sent)["containerStatuses"]}),
        );
        // pods 49a
        assert_eq!(change, expected, "{api} → {ours}");
    }
}

#[test]
fn the_resources_of_a_pod_as_a_whole_are_written_with_other_news() {
    let of = |phase: &str, cpu: &Value| {
        let mut status = json!({"phase": phase, "observedGeneration": 3});
        if !cpu.is_null() {
            status["resources"] = json!({"limits": {"cpu": cpu}});
        }
        status
    };
    let (none, half, other) = (Value::Null, json!("500m"), json!("0.5"));
    for (api, ours, sent) in [
        (of("Pending", &none), of("Running", &half), Some("500m")),
        // As an API server has it that doesn't know the field.
        (of("Running", &none), of("Running", &half), None),
        (of("Running", &half), of("Running", &other), None),
        // Of a pod that is over the spec isn't known any more.
        (of("Running", &half), of("Running", &none), None),
        (
            of("Running", &json!("1")),
            of("Running", &half),
            Some("500m"),
        ),
    ] {
        let pod = with_status(pod("Always"), api.clone());
        let change = patched(&pod, ours.clone(), false);
        let cpu = change.pointer("/resources/limits/cpu");
        // pods 49a
        assert_eq!(cpu.and_then(Value::as_str), sent, "{api} → {ours}");
        // pods 49a
        assert_eq!(change.is_null(), sent.is_none(), "{api} → {ours}");
    }
}

#[test]
fn a_first_status_is_sent_whole() {
    let api = with_status(
        pod("Always"),
        json!({"phase": "Pending", "qosClass": "Burstable"}),
    );
    let computed = json!({
        "phase": "Running",
        "qosClass": "BestEffort",
        "startTime": "2026-01-01T00:00:00Z",
        "hostIP": "10.0.0.1",
        "hostIPs": [{"ip": "10.0.0.1"}],
        "podIP": "10.1.0.2",
        "podIPs": [{"ip": "10.1.0.2"}],
        "conditions": [
            {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:01Z"},
        ],
        "containerStatuses": [{
            "name": "web", "image": "i", "imageID": "", "ready": true, "restartCount": 0,
            "state": {"running": {"startedAt": "2026-01-01T00:00:01.5Z"}},
        }],
    });
    assert_eq!(
        patched(&api, computed.clone(), false),
        json!({
            "phase": "Running",
            "startTime": "2026-01-01T00:00:00Z",
            "hostIP": "10.0.0.1",
            "hostIPs": [{"$patch": "replace"}, {"ip": "10.0.0.1"}],
            "podIP": "10.1.0.2",
            "podIPs": [{"$patch": "replace"}, {"ip": "10.1.0.2"}],
            "observedGeneration": 3,
            "conditions": [{
                "type": "Ready", "status": "True", "observedGeneration": 3,
                "lastTransitionTime": "2026-01-01T00:00:01Z",
            }],
            "containerStatuses": [{
                "name": "web", "image": "i", "imageID": "", "ready": true, "restartCount": 0,
                "state": {"running": {"startedAt": "2026-01-01T00:00:01Z"}},
            }],
        })
    );
    let mirror = patched(&as_mirror(api), computed, false);
    // pods 36
    assert_eq!(mirror.get("observedGeneration"), None);
    assert_eq!(mirror["conditions"][0].get("observedGeneration"), None);
}

#[test]
fn what_the_api_server_knows_longer_stays() {
    let api = with_status(
        as_mirror(pod("Always")),
        json!({
            "phase": "Running",
            "startTime": "2026-01-01T00:00:00Z",
            "podIP": "10.1.0.2",
            "podIPs": [{"ip": "10.1.0.2"}],
            "resourceClaimStatuses": [{"name": "gpu"}],
            "nominatedNodeName": "n2",
            "conditions": [
                {"type": "example.com/gate", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"},
                {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"},
                {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2025-01-01T00:00:00Z"},
            ],
        }),
    );
    // An agent that has just started remembers nothing.
    let computed = json!({
        "phase": "Running",
        "startTime": "2026-02-01T00:00:00Z",
        "conditions": [
            {"type": "Ready", "status": "True", "lastTransitionTime": "2026-02-01T00:00:00Z"},
            {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-02-01T00:00:00Z"},
        ],
    });
    // pods 50
    assert_eq!(patched(&api, computed, false), Value::Null);
    let computed = json!({
        "phase": "Running",
        "conditions": [
            {"type": "Ready", "status": "False", "reason": "ContainersNotReady",
             "lastTransitionTime": "2026-02-01T00:00:00Z"},
        ],
    });
    assert_eq!(
        patched(&api, computed, false),
        json!({"conditions": [
            {"type": "Ready", "status": "False", "reason": "ContainersNotReady",
             "lastTransitionTime": "2026-02-01T00:00:00Z"},
            {"type": "PodScheduled", "$patch": "delete"},
        ]})
    );
}

#[test]
fn phases_never_go_backwards() {
    let old = |phase: &str| json!({"phase": phase, "reason": "R", "message": "M"});
    for (before, now, may_run, expected) in [
        (
            "Pending",
            "Running",
            true,
            json!({"phase": "Running", "reason": null, "message": null}),
        ),
        (
            "Running",
            "Pending",
            true,
            json!({"phase": "Pending", "reason": null, "message": null}),
        ),
        (
            "Running",
            "Failed",
            false,
            json!({"phase": "Failed", "reason": null, "message": null}),
        ),
        // Something may run yet: the phase waits, with its words.
        ("Running", "Failed", true, Value::Null),
        ("Pending", "Succeeded", true, Value::Null),
        // Finished is finished.
        ("Failed", "Running", true, Value::Null),
        ("Failed", "Succeeded", false, Value::Null),
        ("Succeeded", "Pending", false, Value::Null),
        ("Failed", "Failed", true, Value::Null),
        (
            "Unknown",
            "Running",
            true,
            json!({"phase": "Running", "reason": null, "message": null}),
        ),
    ] {
        let api = as_mirror(with_status(pod("Always"), old(before)));
        let change = patched(&api, json!({"phase": now, "conditions": []}), may_run);
        // pods 52
        assert_eq!(change, expected, "{before} → {now}, may run: {may_run}");
    }
}

#[test]
fn a_finished_pod_is_not_ready() {
    let condition = |kind: &str, value: &str| json!({"type": kind, "status": value, "lastTransitionTime": "2026-01-01T00:00:00Z"});
    let api = with_status(
        as_mirror(pod("Never")),
        json!({"phase": "Running", "conditions": [
            condition("Ready", "True"), condition("ContainersReady", "False"),
        ]}),
    );
    let computed = json!({"phase": "Succeeded", "conditions": [
        condition("Ready", "True"), condition("ContainersReady", "True"),
        condition("DisruptionTarget", "True"),
    ]});
    // pods 52
    assert_eq!(
        patched(&api, computed.clone(), false),
        json!({
            "phase": "Succeeded",
            "conditions": [
                {"type": "Ready", "status": "False", "reason": "PodCompleted",
                 "lastTransitionTime": at(100).to_string()},
                {"type": "ContainersReady", "reason": "PodCompleted"},
                condition("DisruptionTarget", "True"),
            ],
        })
    );
    // With something running, neither the phase nor the shared condition is told yet.
    let change = patched(&api, computed, true);
    assert_eq!(
        change["conditions"],
        json!([condition("ContainersReady", "True")].map(|mut c| {
            c["lastTransitionTime"] = json!("2026-01-01T00:00:00Z");
            c.as_object_mut().unwrap().remove("lastTransitionTime");
            c
        }))
    );
    assert_eq!(change.get("phase"), None);
}

#[test]
fn containers_that_ended_for_good_stay_ended() {
    let list = |name: &str, state: Value| json!([{"name": name, "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": state}]);
    let ended = |code: i32| json!({"terminated": {"exitCode": code}});
    let runs = json!({"running": {}});
    for (policy, field, name, code, legal) in [
        ("Always", "containerStatuses", "web", 0, true),
        ("OnFailure", "containerStatuses", "web", 1, true),
        ("OnFailure", "containerStatuses", "web", 0, false),
        ("Never", "containerStatuses", "web", 1, false),
        ("Always", "containerStatuses", "once", 1, false),
        ("Never", "initContainerStatuses", "init", 0, false),
        ("Never", "initContainerStatuses", "side", 0, true),
        ("Never", "containerStatuses", "nobody", 0, true),
    ] {
        let api = with_status(
            pod(policy),
            json!({"phase": "Running", field: list(name, ended(code))}),
        );
        let new = status(json!({"phase": "Running", field: list(name, runs.clone())}));
        let merge = merged(&api, &new, true);
        let is_illegal = matches!(merge, Merge::Illegal(_));
        // pods 52
        assert_eq!(is_illegal, !legal, "{policy} {name} {code}: {merge:?}");
        // Ending again is always legal.
        let new = status(json!({"phase": "Running", field: list(name, ended(code))}));
        assert!(!matches!(merged(&api, &new, true), Merge::Illegal(_)));
    }
}

#[test]
fn only_a_mirror_of_a_pod_that_runs_again_is_stale() {
    let runs = |phase: &str, state: Value| {
        status(json!({"phase": phase, "containerStatuses": [
            {"name": "web", "image": "", "imageID": "", "ready": true, "restartCount": 0, "state": state},
        ]}))
    };
    let running = || json!({"running": {}});
    for (before, computed, expected) in [
        ("Succeeded", runs("Running", running()), true),
        ("Failed", runs("Pending", running()), true),
        ("Running", runs("Running", running()), false),
        ("Succeeded", runs("Succeeded", running()), false),
        // Not seen yet isn't running.
        ("Succeeded", runs("Pending", json!({"waiting": {}})), false),
    ] {
        let mirror = with_status(pod("Never"), json!({"phase": before}));
        assert_eq!(
            is_revived(&mirror, &computed),
            expected,
            "{before} {computed:?}"
        );
    }
}

#[test]
fn a_mirror_of_a_container_that_runs_again_is_made_anew() {
    let statuses = |state: Value| {
        json!([{"name": "web", "image": "", "imageID": "", "ready": false, "restartCount": 0,
            "state": state}])
    };
    let of = |phase: &str, state: Value| json!({"phase": phase, "conditions": [], "containerStatuses": statuses(state)});
    let ended = json!({"terminated": {"exitCode": 0}});
    let (stopped, runs) = (
        json!({"waiting": {"reason": "Stopped"}}),
        json!({"running": {}}),
    );
    let deed_of = |policy: &str, state: &Value, finished: bool| {
        let plain = pod(policy);
        let api = as_mirror(with_status(plain.clone(), of("Running", ended.clone())));
        let input = MergeInput {
            api: &api,
            pod: &plain,
            computed: &status(of("Running", state.clone())),
            may_run: true,
            now: at(100),
        };
        deed(&input, finished)
    };
    for policy in ["Never", "OnFailure"] {
        for state in [&stopped, &runs] {
            // pods 32a
            assert_eq!(deed_of(policy, state, false), StatusAction::DeleteMirror);
        }
        assert_ne!(deed_of(policy, &ended, false), StatusAction::DeleteMirror);
        assert_ne!(deed_of(policy, &stopped, true), StatusAction::DeleteMirror);
    }
    assert!(matches!(
        deed_of("Always", &runs, false),
        StatusAction::Patch(_)
    ));
}

#[expect(clippy::large_stack_arrays, reason = "a table of cases")]
#[test]
fn an_object_is_deleted_last_and_a_mirror_never() {
    let deleting = |mut pod: Pod| {
        pod.metadata.deletion_timestamp = Some(meta::Time(at(0)));
        pod
    };
    let ended = |phase: &str| {
        with_status(
            pod("Never"),
            json!({"phase": phase, "observedGeneration": 3}),
        )
    };
    for (case, api, computed, may_run, finished, expected) in [
        (
            "all told",
            deleting(ended("Failed")),
            "Failed",
            false,
            true,
            Some(StatusAction::DeleteObject),
        ),
        (
            "not told yet",
            deleting(ended("Running")),
            "Failed",
            false,
            true,
            None,
        ),
        (
            "its worker isn't done",
            deleting(ended("Failed")),
            "Failed",
            false,
            false,
            Some(StatusAction::Nothing),
        ),
        (
            "something runs",
            deleting(ended("Running")),
            "Failed",
            true,
            false,
            Some(StatusAction::Nothing),
        ),
        (
            "nobody deletes it",
            ended("Failed"),
            "Failed",
            false,
            true,
            Some(StatusAction::Nothing),
        ),
        (
            "a mirror",
            as_mirror(deleting(ended("Failed"))),
            "Failed",
            false,
            true,
            Some(StatusAction::Nothing),
        ),
        (
            "a mirror, changed",
            as_mirror(deleting(ended("Running"))),
            "Failed",
            false,
            true,
            Some(StatusAction::Nothing),
        ),
    ] {
        let input = MergeInput {
            pod: &api,
            api: &api,
            computed: &status(json!({"phase": computed, "conditions": []})),
            may_run,
            now: at(100),
        };
        let deed = deed(&input, finished);
        match expected {
            // pods 51
            Some(expected) => assert_eq!(deed, expected, "{case}"),
            None => assert!(matches!(deed, StatusAction::Patch(_)), "{case}: {deed:?}"),
        }
    }
}

#[test]
fn a_finished_pod_whose_containers_cannot_be_told_is_over_all_the_same() {
    let statuses = |state: Value| {
        json!([{"name": "web", "image": "", "imageID": "", "ready": false, "restartCount": 0,
            "state": state, "lastState": {}}])
    };
    let ended = statuses(json!({"terminated": {"exitCode": 1}}));
    let mut api = with_status(
        pod("Never"),
        json!({"phase": "Running", "observedGeneration": 3, "conditions": [],
            "containerStatuses": ended}),
    );
    api.metadata.deletion_timestamp = Some(meta::Time(at(0)));
    let lost = status(json!({"phase": "Failed", "conditions": [],
        "containerStatuses": statuses(json!({"waiting": {}}))}));
    let deed_of = |api: &Pod, finished| {
        let input = MergeInput {
            pod: api,
            api,
            computed: &lost,
            may_run: false,
            now: at(100),
        };
        deed(&input, finished)
    };
    assert!(matches!(deed_of(&api, false), StatusAction::Illegal(_)));
    let StatusAction::Patch(patch) = deed_of(&api, true) else {
        panic!("{:?}", deed_of(&api, true))
    };
    assert_eq!(patch["status"], json!({"phase": "Failed"}));
    api.status.as_mut().unwrap().phase = Some("Failed".into());
    assert_eq!(deed_of(&api, true), StatusAction::DeleteObject);
}

#[test]
fn an_object_may_be_deleted_once_the_api_server_knows_that_its_pod_has_ended() {
    let deleting = |mut pod: Pod| {
        pod.metadata.deletion_timestamp = Some(meta::Time(at(0)));
        pod
    };
    let in_phase = |phase: &str| with_status(pod("Never"), json!({"phase": phase}));
    for (object, finished, expected) in [
        (&deleting(in_phase("Failed")), true, true),
        (&deleting(in_phase("Succeeded")), true, true),
        (&deleting(in_phase("Running")), true, false),
        (&deleting(pod("Never")), true, false),
        (&deleting(in_phase("Failed")), false, false),
        (&in_phase("Failed"), true, false),
        (&as_mirror(deleting(in_phase("Failed"))), true, false),
    ] {
        // pods 51
        assert_eq!(may_delete(object, finished), expected, "{object:?}");
    }
}

#[test]
fn phase_and_readiness_are_urgent() {
    let ready = |value: &str| json!({"conditions": [{"type": "Ready", "status": value}]});
    let not_yet = with_status(pod("Always"), json!({"phase": "Pending"}));
    let is_ready = with_status(pod("Always"), ready("True"));
    for (case, api, status, expected) in [
        ("phase", &not_yet, json!({"phase": "Running"}), true),
        ("becomes ready", &not_yet, ready("True"), true),
        ("never was", &not_yet, ready("False"), false),
        ("no longer is", &is_ready, ready("False"), true),
        (
            "why it isn't",
            &not_yet,
            json!({"conditions": [{"type": "Ready", "reason": "R"}]}),
            false,
        ),
        ("an address", &is_ready, json!({"podIP": "10.0.0.1"}), false),
    ] {
        assert_eq!(
            is_urgent(api, &json!({"status": status})),
            expected,
            "{case}"
        );
    }
}

#[test]
fn long_messages_are_cut_at_a_character() {
    let long = "é".repeat(4096);
    let computed = json!({"phase": "Running", "conditions": [], "containerStatuses": [
        {"name": "web", "image": "", "imageID": "", "ready": true, "restartCount": 1,
         "state": {}, "lastState": {"terminated": {"exitCode": 1, "message": long}}},
    ]});
    let api = with_status(as_mirror(pod("Always")), json!({"phase": "Running"}));
    let change = patched(&api, computed, true);
    let message = &change["containerStatuses"][0]["lastState"]["terminated"]["message"];
    // Four containers share 12 KiB.
    // docker 46
    assert_eq!(message.as_str().unwrap().len(), 3072);
}

fn any_status() -> impl Strategy<Value = PodStatus> {
    let phase = prop_oneof!["Pending", "Running", "Succeeded", "Failed"];
    let condition = |kind: &'static str| {
        (any::<bool>(), any::<bool>(), 0..100i64).prop_map(move |(holds, reason, time)| {
            json!({
                "type": kind,
                "status": if holds { "True" } else { "False" },
                "reason": reason.then_some("R"),
                "lastTransitionTime": at(time).to_string(),
            })
        })
    };
    let state = prop_oneof![
        Just(json!({"waiting": {"reason": "ContainerCreating"}})),
        Just(json!({"running": {"startedAt": at(5).to_string()}})),
        (0..2i32).prop_map(|code| json!({"terminated": {"exitCode": code}})),
    ];
    let ip = prop_oneof![Just(None), Just(Some("10.0.0.1")), Just(Some("10.0.0.2"))];
    (
        phase,
        condition("Ready"),
        condition("Initialized"),
        any::<bool>(),
        state,
        ip,
    )
        .prop_map(|(phase, ready, initialized, both, state, ip)| {
            let mut conditions = vec![ready];
            conditions.extend(both.then_some(initialized));
            status(json!({
                "phase": phase,
                "conditions": conditions,
                "startTime": at(1).to_string(),
                "podIP": ip,
                "podIPs": ip.map(|ip| json!([{"ip": ip}])),
                "containerStatuses": [{
                    "name": "web", "image": "", "imageID": "", "ready": false,
                    "restartCount": 0, "state": state,
                }],
            }))
        })
}

proptest! {
    #[test]
    fn any_story_converges_and_never_revives(
        statuses in prop::collection::vec((any_status(), any::<bool>()), 1..20),
        is_mirror in any::<bool>(),
    ) {
        let gate = json!({"type": "example.com/gate", "status": "True"});
        let api = with_status(pod("Always"), json!({"phase": "Pending", "conditions": [gate]}));
        let mut api = if is_mirror { as_mirror(api) } else { api };
        for (computed, may_run) in statuses {
            let before = api.status.clone().unwrap();
            if let Merge::Patch(patch) = merged(&api, &computed, may_run) {
                let mut status = serde_json::to_value(&before).unwrap();
                assert!(apply_patch(&mut status, &patch["status"]));
                api = with_status(api, status);
                // The status is there as sent: nothing is sent twice.
                // pods 52
                prop_assert_eq!(merged(&api, &computed, may_run), Merge::Same);
            }
            let after = api.status.clone().unwrap();
            let was = phase::terminal(before.phase.as_deref());
            let is = phase::terminal(after.phase.as_deref());
            prop_assert!(was.is_none() || was == is);
            prop_assert!(!(was.is_none() && is.is_some() && may_run));
            let conditions = after.conditions.unwrap();
            prop_assert!(conditions.iter().any(|c| c.type_ == "example.com/gate"));
            let ready = conditions.iter().any(|c| c.type_ == "Ready" && c.status == "True");
            prop_assert!(!(is.is_some() && ready));
        }
    }
}

#[test]
fn what_was_added_to_look_into_a_pod_is_told() {
    let api = with_status(pod("Always"), json!({"phase": "Running"}));
    let added = json!([{
        "name": "debug", "image": "i", "imageID": "", "ready": false, "restartCount": 0,
        "state": {"running": {"startedAt": "2023-11-14T22:13:20Z"}},
    }]);
    let computed = json!({"phase": "Running", "ephemeralContainerStatuses": added});
    let patch = patched(&api, computed, false);
    // node-api 13
    assert_eq!(patch["ephemeralContainerStatuses"][0]["name"], "debug");
    assert!(patch["ephemeralContainerStatuses"][0]["state"]["running"].is_object());
}
