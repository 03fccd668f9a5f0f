use super::*;
use crate::telemetry::journal::Kind;
use mirrorlet_core::api::{ContainerId, PodUid};
use mirrorlet_core::observed::Role;
use mirrorlet_core::plan::{Plan, Reason, Step};
use mirrorlet_runtime::{PodSyncResult, SyncAction, SyncError, SyncErrorReason, SyncResult};

#[test]
fn every_occurrence_moves_its_series() {
    let telemetry = Telemetry::new();
    let (pod, uid) = (FullName::new("web", "default"), PodUid::from("u"));
    let id = ContainerId::docker("abc");
    let took = Duration::from_millis(5);
    container_started(telemetry.pod(&pod, &uid), "c", &id, 0, "NeverStarted");
    container_started(telemetry.pod(&pod, &uid), "c", &id, 1, "Exited");
    container_died(telemetry.pod(&pod, &uid), "c", &id, 1, "Error");
    container_killed(telemetry.pod(&pod, &uid), "c", &id, "removed", took);
    image_pulled(telemetry.pod(&pod, &uid), "c", "i", 3, took);
    let error = SyncError::new(SyncErrorReason::ErrImagePull, "no");
    image_failed(telemetry.pod(&pod, &uid), "c", "i", took, &error);
    engine_back(&telemetry, "27", None);
    gap(&telemetry, "start", true);
    let mut result = PodSyncResult::default();
    result.add_sync_result([SyncResult::failed(
        SyncAction::StartContainer,
        "c",
        SyncError::new(SyncErrorReason::RunContainerError, "x"),
    )]);
    sync_done(telemetry.pod(&pod, &uid), 1, &result, took);
    let text = telemetry.metrics.encode();
    for line in [
        "mirrorlet_container_starts_total 2",
        "mirrorlet_container_restarts_total 1",
        "mirrorlet_container_deaths_total 1",
        "mirrorlet_container_kills_total 1",
        "mirrorlet_image_pulls_total{outcome=\"pulled\"} 1",
        "mirrorlet_image_pulls_total{outcome=\"failed\"} 1",
        "mirrorlet_engine_up 1",
        "mirrorlet_event_gaps_total 1",
        "mirrorlet_pod_sync_duration_seconds_count 1",
        "mirrorlet_pod_sync_errors_total{reason=\"RunContainerError\"} 1",
    ] {
        assert!(text.lines().any(|l| l == line), "{line} is not in\n{text}");
    }
}

/// The events that users see of a pod, as `Type Reason container: message`.
fn events(telemetry: &Telemetry, pod: &FullName) -> Vec<String> {
    let story = telemetry.journal.story(pod);
    let told = story.iter().filter(|entry| entry.kind != Kind::Trace);
    told.map(|entry| {
        let container = match &*entry.subject {
            crate::telemetry::journal::Subject::Pod {
                container: Some(name),
                ..
            } => format!(" {name}"),
            _ => String::new(),
        };
        let (kind, reason, message) = (entry.kind, &entry.reason, &entry.message);
        format!("{kind:?} {reason}{container}: {message}")
    })
    .collect()
}

fn failed(action: SyncAction, target: &str, reason: SyncErrorReason, words: &str) -> SyncResult {
    SyncResult::failed(action, target, SyncError::new(reason, words))
}

#[test]
fn failures_are_told_in_upstreams_words() {
    let id = "0123456789abcdef".repeat(4);
    let away = SyncErrorReason::RuntimeUnavailable;
    for (action, reason, words, expected) in [
        (
            SyncAction::StartContainer,
            SyncErrorReason::CreateContainerConfigError,
            "configmap \"x\" not found",
            &["Warning Failed c: Error: configmap \"x\" not found"][..],
        ),
        (
            SyncAction::InitContainer,
            SyncErrorReason::RunContainerError,
            &format!("container {id}: no such file"),
            &["Warning Failed c: Error: container c: no such file"],
        ),
        (
            SyncAction::StartContainer,
            SyncErrorReason::ImagePullBackOff,
            "Back-off pulling image \"i\": no",
            &[],
        ),
        (
            SyncAction::CreatePodSandbox,
            SyncErrorReason::CreatePodSandboxError,
            &format!("network of {id}"),
            &[
                "Warning FailedCreatePodSandBox: Failed to create pod sandbox: network of the pod's sandbox",
            ],
        ),
        (
            SyncAction::KillContainer,
            SyncErrorReason::KillContainerError,
            "no answer",
            &["Warning FailedKillPod: error killing pod: no answer"],
        ),
        (SyncAction::StartContainer, away, "gone", &[]),
        (SyncAction::KillPodSandbox, away, "gone", &[]),
    ] {
        let telemetry = Telemetry::new();
        let (pod, uid) = (FullName::new("web", "default"), PodUid::from("u"));
        let mut result = PodSyncResult::default();
        result.add_sync_result([failed(action, "c", reason, words)]);
        sync_done(telemetry.pod(&pod, &uid), 1, &result, Duration::ZERO);
        // docker 66
        assert_eq!(events(&telemetry, &pod), expected, "{action} {reason}");
    }
}

#[test]
fn images_are_told_of_in_upstreams_words() {
    let telemetry = Telemetry::new();
    let (pod, uid) = (FullName::new("web", "default"), PodUid::from("u"));
    let took = Duration::from_millis(1500);
    image_awaited(telemetry.pod(&pod, &uid), "c", "web:1");
    image_pulled(telemetry.pod(&pod, &uid), "c", "web:1", 42, took);
    image_present(telemetry.pod(&pod, &uid), "c", "web:1");
    for (reason, words) in [
        (
            SyncErrorReason::ErrImagePull,
            "Failed to pull image \"web:1\": no",
        ),
        (SyncErrorReason::ErrImageNeverPull, "not present"),
        (SyncErrorReason::InvalidImageName, "bad name"),
        (SyncErrorReason::ImagePullBackOff, "waits"),
        (SyncErrorReason::RuntimeUnavailable, "away"),
    ] {
        let error = SyncError {
            retry_after: Some(Duration::from_secs(10)),
            ..SyncError::new(reason, words)
        };
        image_failed(telemetry.pod(&pod, &uid), "c", "web:1", took, &error);
    }
    // docker 66
    assert_eq!(
        events(&telemetry, &pod),
        [
            "Normal Pulling c: Pulling image \"web:1\"",
            "Normal Pulled c: Successfully pulled image \"web:1\" in 1.5s (including waiting). Image size: 42 bytes.",
            "Normal Pulled c: Container image \"web:1\" already present on machine",
            "Warning Failed c: Failed to pull image \"web:1\": no",
            "Warning Failed c: Error: ErrImagePull",
            "Normal BackOff c: Back-off pulling image \"web:1\"",
            "Warning ErrImageNeverPull c: not present",
            "Warning Failed c: Error: ErrImageNeverPull",
            "Warning InspectFailed c: bad name",
            "Warning Failed c: Error: InvalidImageName",
            "Normal BackOff c: Back-off pulling image \"web:1\"",
            "Warning Failed c: Error: ImagePullBackOff",
        ]
    );
}

#[test]
fn decisions_are_told_with_their_reasons() {
    let telemetry = Telemetry::new();
    let (pod, uid) = (FullName::new("web", "default"), PodUid::from("u"));
    let start = |reason| Step::StartContainer {
        name: "c".into(),
        role: Role::App,
        restart_count: 0,
        pod_restarts: 0,
        reason,
    };
    let plan = Plan {
        steps: vec![
            Step::KillPod {
                reason: Reason::SandboxDead,
            },
            Step::CreateSandbox {
                attempt: 1,
                reason: Reason::SandboxDead,
            },
            start(Reason::SandboxRecreated {
                container: "c".into(),
            }),
        ],
        ..Plan::default()
    };
    plan_decided(telemetry.pod(&pod, &uid), &plan);
    let story = telemetry.journal.story(&pod);
    assert_eq!(
        &*story[0].message,
        "stop its containers (the sandbox is not running), then create a sandbox (the sandbox is not running), then start container c (container c restarts with its sandbox)"
    );
    // docker 66
    assert_eq!(
        events(&telemetry, &pod),
        ["Normal SandboxChanged: Pod sandbox changed, it will be killed and re-created."]
    );
    for (reason, message) in [
        (None, "Stopping container c"),
        (
            Some(Reason::DefinitionChanged {
                container: "c".into(),
            }),
            "Container c definition changed, will be restarted",
        ),
    ] {
        container_stopping(telemetry.pod(&pod, &uid), "c", reason.as_ref());
        let told = events(&telemetry, &pod);
        assert_eq!(told.last(), Some(&format!("Normal Killing c: {message}")));
    }
    pod_killed(telemetry.pod(&pod, &uid), &Reason::DeadlineExceeded);
    assert_eq!(
        events(&telemetry, &pod).last().map(String::as_str),
        Some(
            "Normal DeadlineExceeded: Pod was active on the node longer than the specified deadline"
        )
    );
}

#[test]
fn old_credentials_are_kept_only_where_there_are_some() {
    for (fault, words) in [
        (
            CredentialsFault::Missing,
            "no credentials for the API server; retrying",
        ),
        (
            CredentialsFault::Replaced,
            "new credentials for the API server are unusable; keeping the old ones",
        ),
        (
            CredentialsFault::Plugin,
            "no new credentials for the API server; the credential plug-in is run again",
        ),
    ] {
        // node 6d
        assert_eq!(consequence(fault), words);
    }
}
