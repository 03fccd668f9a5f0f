//! kubectl's STATUS column.

use super::*;

fn with(phase: &str, inits: Vec<ApiContainer>, apps: Vec<ApiContainer>) -> core::PodStatus {
    core::PodStatus {
        phase: Some(phase.into()),
        init_container_statuses: non_empty(inits),
        container_statuses: non_empty(apps),
        ..core::PodStatus::default()
    }
}

fn word(pod: &Pod, status: &core::PodStatus) -> String {
    printed_status(pod, status).0
}

#[test]
fn regular_containers_overrule_the_phase() {
    let pod = pod("Always", Vec::new(), &["a", "b"]);
    let run = |name| api(name, api_running());
    let bare_exit = |code| {
        let mut state = api_ended(code);
        state.terminated.as_mut().unwrap().reason = None;
        state
    };
    for (phase, apps, expect) in [
        ("Pending", vec![], "Pending"),
        ("Running", vec![run("a"), run("b")], "Running"),
        (
            "Running",
            vec![run("a"), api_restarting("b", 1)],
            "CrashLoopBackOff",
        ),
        (
            "Pending",
            vec![api("a", api_waiting("ImagePullBackOff")), run("b")],
            "ImagePullBackOff",
        ),
        (
            "Pending",
            vec![
                api("a", api_waiting("ErrImagePull")),
                api("b", api_waiting("ContainerCreating")),
            ],
            "ErrImagePull",
        ),
        ("Running", vec![run("a"), api("b", api_ended(1))], "Error"),
        (
            "Running",
            vec![run("a"), api("b", bare_exit(3))],
            "ExitCode:3",
        ),
        (
            "Succeeded",
            vec![api("a", api_ended(0)), api("b", api_ended(0))],
            "Completed",
        ),
        (
            "Running",
            vec![run("a"), api("b", api_ended(0))],
            "NotReady",
        ),
    ] {
        assert_eq!(word(&pod, &with(phase, vec![], apps)), expect);
    }
    let mut ready = with("Running", vec![], vec![run("a"), api("b", api_ended(0))]);
    ready.conditions = Some(vec![core::PodCondition {
        type_: "Ready".into(),
        status: "True".into(),
        ..core::PodCondition::default()
    }]);
    assert_eq!(word(&pod, &ready), "Running");
}

#[test]
fn init_containers_show_how_far_they_got() {
    let inits = vec![container("i1"), sidecar("s2"), container("i3")];
    let pod = pod("Always", inits, &["app"]);
    let side = || api("s2", api_running());
    let done = || api("i1", api_ended(0));
    let app = || api("app", api_waiting("PodInitializing"));
    for (inits, expect) in [
        (vec![api("i1", api_waiting("PodInitializing"))], "Init:0/3"),
        (vec![api("i1", api_running())], "Init:0/3"),
        (
            vec![done(), api("s2", api_waiting("PodInitializing"))],
            "Init:1/3",
        ),
        (vec![done(), side(), api("i3", api_running())], "Init:2/3"),
        (vec![done(), side(), api("i3", api_ended(1))], "Init:Error"),
        (
            vec![done(), side(), api_restarting("i3", 1)],
            "Init:CrashLoopBackOff",
        ),
        (
            vec![api("i1", api_waiting("ErrImagePull"))],
            "Init:ErrImagePull",
        ),
        (
            vec![done(), side(), api("i3", api_ended(0))],
            "PodInitializing",
        ),
    ] {
        let status = with("Pending", inits, vec![app()]);
        assert_eq!(word(&pod, &status), expect);
    }
    // A sidecar that fails later doesn't hide the pod.
    let mut status = with(
        "Running",
        vec![done(), api_restarting("s2", 1), api("i3", api_ended(0))],
        vec![api("app", api_running())],
    );
    assert_eq!(word(&pod, &status), "Init:CrashLoopBackOff");
    status.init_container_statuses.as_mut().unwrap()[1] = side();
    assert_eq!(word(&pod, &status), "Running");
}

#[test]
fn reasons_and_deletion_overrule_the_phase() {
    let mut pod = pod("Always", Vec::new(), &["a"]);
    let mut status = with("Failed", vec![], vec![]);
    status.reason = Some("DeadlineExceeded".into());
    status.message = Some("too long".into());
    let printed = printed_status(&pod, &status);
    assert_eq!(printed, ("DeadlineExceeded".into(), "too long".into()));
    pod.metadata.deletion_timestamp = Some(meta::Time(at(0)));
    assert_eq!(word(&pod, &status), "DeadlineExceeded", "terminal");
    let running = with("Running", vec![], vec![api("a", api_running())]);
    assert_eq!(word(&pod, &running), "Terminating");
}

#[test]
fn the_message_belongs_to_the_word() {
    let pod = pod("Always", Vec::new(), &["a", "b"]);
    let seen = observed(vec![running(&pod, "a"), exited(&pod, "b", 2)]);
    let waiting = waits(
        "b",
        "CrashLoopBackOff",
        "back-off 10s restarting failed container=b",
    );
    let status = compute_pod_status(&StatusInput {
        waiting: &waiting,
        ..input(&pod, &seen)
    });
    let (word, message) = printed_status(&pod, &status);
    assert_eq!(word, "CrashLoopBackOff");
    // tenants A8
    assert_eq!(
        message,
        "back-off 10s restarting failed container=b; last exit code 2 (Error)"
    );
    // With the last line that it left, where it left one.
    let mut told = exited(&pod, "b", 2);
    told.message = "starting\nno route to db\n\n".into();
    let told = observed(vec![running(&pod, "a"), told]);
    let status = compute_pod_status(&StatusInput {
        waiting: &waiting,
        ..input(&pod, &told)
    });
    // tenants A8
    assert_eq!(
        printed_status(&pod, &status).1,
        "back-off 10s restarting failed container=b; last exit code 2 (Error): no route to db"
    );
    let status = compute_pod_status(&input(&pod, &seen));
    let printed = printed_status(&pod, &status);
    assert_eq!(
        printed,
        ("Error".into(), "container b exited with 2".into())
    );
    let fine = observed(vec![running(&pod, "a"), running(&pod, "b")]);
    let status = compute_pod_status(&input(&pod, &fine));
    assert_eq!(
        printed_status(&pod, &status),
        ("Running".into(), String::new())
    );
}
