//! Phases by container statuses.

use super::*;
use crate::api::{ContainerId, keys};

fn of(policy: &str, terminating: bool, is_static: bool, apps: &[ApiContainer]) -> &'static str {
    let pod = pod(policy, Vec::new(), &["a", "b"]);
    let seen = observed(Vec::new());
    let input = StatusInput {
        terminating,
        is_static,
        ..input(&pod, &seen)
    };
    phase::phase(&input, &[], apps)
}

#[test]
fn regular_containers_give_the_phase() {
    let run = |name| api(name, api_running());
    let end = |name, code| api(name, api_ended(code));
    let wait = |name| api(name, api_waiting("ContainerCreating"));
    let again = api_restarting;
    // Containers a and b; the phase with Always, OnFailure, Never.
    let cases: Vec<(&str, Vec<ApiContainer>, [&str; 3])> = vec![
        ("none known", vec![], ["Pending"; 3]),
        ("both run", vec![run("a"), run("b")], ["Running"; 3]),
        (
            "both succeeded",
            vec![end("a", 0), end("b", 0)],
            ["Running", "Succeeded", "Succeeded"],
        ),
        (
            "both failed",
            vec![end("a", 1), end("b", 1)],
            ["Running", "Running", "Failed"],
        ),
        (
            "one failed",
            vec![end("a", 0), end("b", 1)],
            ["Running", "Running", "Failed"],
        ),
        (
            "one runs, one succeeded",
            vec![run("a"), end("b", 0)],
            ["Running"; 3],
        ),
        (
            "one runs, one failed",
            vec![run("a"), end("b", 1)],
            ["Running"; 3],
        ),
        ("one unknown", vec![run("a")], ["Pending"; 3]),
        ("one waits", vec![run("a"), wait("b")], ["Pending"; 3]),
        (
            "one failed, one waits",
            vec![end("a", 1), wait("b")],
            ["Pending"; 3],
        ),
        (
            "one restarts",
            vec![run("a"), again("b", 1)],
            ["Running"; 3],
        ),
        (
            "both restart",
            vec![again("a", 1), again("b", 0)],
            ["Running", "Running", "Failed"],
        ),
    ];
    for (what, apps, expect) in cases {
        for (policy, expect) in ["Always", "OnFailure", "Never"].into_iter().zip(expect) {
            assert_eq!(of(policy, false, true, &apps), expect, "{what}, {policy}");
        }
    }
}

#[test]
fn termination_forces_a_phase_on_all_but_static_pods() {
    let ended = |a, b| [api("a", api_ended(a)), api("b", api_ended(b))];
    for (policy, codes, is_static, expect) in [
        ("Always", (0, 0), false, "Succeeded"),
        ("Always", (0, 1), false, "Failed"),
        ("OnFailure", (0, 1), false, "Failed"),
        ("Always", (0, 0), true, "Running"),
        ("Always", (0, 1), true, "Running"),
        ("OnFailure", (0, 1), true, "Running"),
        ("OnFailure", (0, 0), true, "Succeeded"),
        ("Never", (0, 1), true, "Failed"),
    ] {
        let phase = of(policy, true, is_static, &ended(codes.0, codes.1));
        assert_eq!(phase, expect, "{policy} {codes:?} static: {is_static}");
    }
    let still_runs = [api("a", api_running()), api("b", api_ended(0))];
    assert_eq!(of("Always", true, false, &still_runs), "Running");
}

#[test]
fn init_containers_come_first() {
    let app_waits = || api("app", api_waiting("PodInitializing"));
    let app_runs = || api("app", api_running());
    for (what, init, app, always, never) in [
        ("missing", None, app_waits(), "Pending", "Pending"),
        (
            "runs",
            Some(api("init", api_running())),
            app_waits(),
            "Pending",
            "Pending",
        ),
        (
            "waits",
            Some(api("init", api_waiting("PodInitializing"))),
            app_waits(),
            "Pending",
            "Pending",
        ),
        (
            "failed",
            Some(api("init", api_ended(1))),
            app_waits(),
            "Pending",
            "Failed",
        ),
        (
            "restarts after a failure",
            Some(api_restarting("init", 1)),
            app_waits(),
            "Pending",
            "Failed",
        ),
        (
            "succeeded",
            Some(api("init", api_ended(0))),
            app_runs(),
            "Running",
            "Running",
        ),
    ] {
        let init: Vec<ApiContainer> = init.into_iter().collect();
        for (policy, expect) in [("Always", always), ("Never", never)] {
            let pod = pod(policy, vec![container("init")], &["app"]);
            let seen = observed(Vec::new());
            let phase = phase::phase(&input(&pod, &seen), &init, std::slice::from_ref(&app));
            assert_eq!(phase, expect, "init {what}, {policy}");
        }
    }
}

#[test]
fn an_init_killed_for_its_memory_failed_in_the_status_too() {
    for (policy, code, reason, phase, ready, word) in [
        ("Never", 0, "Completed", "Pending", true, "PodInitializing"),
        ("Never", 0, "OOMKilled", "Failed", false, "Init:OOMKilled"),
        ("Never", 137, "OOMKilled", "Failed", false, "Init:OOMKilled"),
        (
            "OnFailure",
            0,
            "OOMKilled",
            "Pending",
            false,
            "Init:OOMKilled",
        ),
        ("Always", 0, "OOMKilled", "Pending", false, "Init:OOMKilled"),
    ] {
        let pod = pod(policy, vec![container("init")], &["app"]);
        let mut init = exited(&pod, "init", code);
        init.reason = reason.into();
        let again =
            crate::restart::should_restart(&pod, &container("init"), init.judged_exit_code());
        let seen = observed(vec![init]);
        let status = compute_pod_status(&input(&pod, &seen));
        let (printed, _) = printed_status(&pod, &status);
        let inits = status.init_container_statuses.as_deref().unwrap();
        let shown = (status.phase.as_deref(), inits[0].ready, printed.as_str());
        let case = format!("{policy} {code} {reason}");
        // pods 58, docker 62
        assert_eq!(shown, (Some(phase), ready, word), "{case}");
        let is_initialized = if ready { "True" } else { "False" };
        let initialized = condition(&status, "Initialized");
        assert_eq!(initialized.status, is_initialized, "{case}");
        // The planner goes by the same code.
        assert_eq!(again, !ready && phase != "Failed", "{case}");
        // One that is started again says what it waits for.
        let waiting = waits("init", "CrashLoopBackOff", "back-off");
        let status = compute_pod_status(&StatusInput {
            waiting: &waiting,
            ..input(&pod, &seen)
        });
        let inits = status.init_container_statuses.as_deref().unwrap();
        let state = inits[0].state.as_ref().unwrap();
        assert_eq!(state.waiting.is_some(), again, "{case}");
        assert_eq!(status.phase.as_deref(), Some(phase), "{case}");
    }
}

#[test]
fn sidecars_count_as_running_only() {
    let starting = ApiContainer {
        started: Some(false),
        ..api("side", api_running())
    };
    for (what, side, app, expect) in [
        (
            "not started, app never ran",
            starting.clone(),
            api("app", api_waiting("PodInitializing")),
            "Pending",
        ),
        (
            "not started, app runs",
            starting,
            api("app", api_running()),
            "Running",
        ),
        (
            "waits",
            api("side", api_waiting("")),
            api("app", api_running()),
            "Pending",
        ),
        (
            "restarts",
            api_restarting("side", 1),
            api("app", api_running()),
            "Running",
        ),
        (
            "runs, app done",
            api("side", api_running()),
            api("app", api_ended(0)),
            "Running",
        ),
        (
            "failed, app succeeded",
            api("side", api_ended(137)),
            api("app", api_ended(0)),
            "Succeeded",
        ),
        (
            "succeeded, app failed",
            api("side", api_ended(0)),
            api("app", api_ended(1)),
            "Failed",
        ),
    ] {
        let pod = pod("Never", vec![sidecar("side")], &["app"]);
        let seen = observed(Vec::new());
        assert_eq!(
            phase::phase(&input(&pod, &seen), &[side], &[app]),
            expect,
            "sidecar {what}"
        );
    }
}

#[test]
fn a_containers_own_policy_decides_whether_it_is_over() {
    let end = |name, code| api(name, api_ended(code));
    // The pod's policy, those of containers a and b, what they ended with; the phase.
    for (policy, own, codes, phase) in [
        ("Never", [None, Some("Always")], [0, 0], "Running"),
        (
            "Always",
            [Some("Never"), Some("OnFailure")],
            [0, 0],
            "Succeeded",
        ),
        (
            "Always",
            [Some("Never"), Some("OnFailure")],
            [1, 0],
            "Failed",
        ),
        ("Always", [Some("Never"), None], [1, 0], "Running"),
    ] {
        let mut pod = pod(policy, Vec::new(), &["a", "b"]);
        let containers = &mut pod.spec.as_mut().unwrap().containers;
        for (container, own) in containers.iter_mut().zip(own) {
            container.restart_policy = own.map(str::to_owned);
        }
        let seen = observed(Vec::new());
        let apps = [end("a", codes[0]), end("b", codes[1])];
        let computed = phase::phase(&input(&pod, &seen), &[], &apps);
        assert_eq!(computed, phase, "{policy} {own:?} {codes:?}");
    }
}

#[test]
fn a_pod_that_gets_no_new_sandbox_is_over_though_a_container_of_it_never_ran() {
    let mut pod = pod("Never", Vec::new(), &["a", "b"]);
    let ran = exited(&pod, "a", 0);
    let created = instance(&pod, "b", 0, ContainerState::Created, None);
    let failed = waits("b", "ErrImagePull", "no such image");
    for (what, seen) in [
        ("never created", vec![ran.clone()]),
        ("never started", vec![created, ran]),
    ] {
        let mut seen = observed(seen);
        let with = StatusInput {
            waiting: &failed,
            ..input(&pod, &seen)
        };
        let has_sandbox = compute_pod_status(&with);
        assert_eq!(has_sandbox.phase.as_deref(), Some("Pending"), "{what}");
        seen.sandboxes[0].state = ContainerState::Exited;
        let lost = StatusInput {
            waiting: &failed,
            previous: Some(&has_sandbox),
            ..input(&pod, &seen)
        };
        let status = compute_pod_status(&lost);
        // docker 24
        assert_eq!(status.phase.as_deref(), Some("Failed"), "{what}");
        let of_b = status.container_statuses.as_ref().unwrap().last().unwrap();
        let ended = of_b.state.as_ref().unwrap().terminated.as_ref().unwrap();
        assert_eq!(ended.reason.as_deref(), Some("ContainerStatusUnknown"));
        let again = StatusInput {
            previous: Some(&status),
            ..lost
        };
        assert_eq!(compute_pod_status(&again), status, "{what}");
        // It isn't over while it is being stopped, nor where a user stopped it.
        let goes = StatusInput {
            terminating: true,
            ..lost
        };
        let goes = compute_pod_status(&goes);
        assert_eq!(goes.phase.as_deref(), Some("Pending"), "{what}");
    }
    let stopped = (keys::STOPPED.to_owned(), "true".to_owned());
    pod.metadata.annotations = Some([stopped].into());
    let mut seen = observed(vec![exited(&pod, "a", 0)]);
    seen.sandboxes.clear();
    let status = compute_pod_status(&input(&pod, &seen));
    assert_eq!(status.phase.as_deref(), Some("Pending"));
}

#[test]
fn what_a_person_stopped_or_wants_again_is_not_over() {
    for (key, value, expect) in [
        (keys::STOPPED, "true", "Running"),
        (keys::RESTART, "docker://a", "Running"),
        (keys::RESTART, "docker://other", "Succeeded"),
    ] {
        let mut pod = pod("Never", Vec::new(), &["a"]);
        let order = (key.to_owned(), value.to_owned());
        pod.metadata.annotations = Some([order].into());
        let mut ended = exited(&pod, "a", 0);
        ended.id = ContainerId::docker("a");
        let seen = observed(vec![ended]);
        let status = compute_pod_status(&input(&pod, &seen));
        assert_eq!(status.phase.as_deref(), Some(expect), "{key} {value}");
    }
}
