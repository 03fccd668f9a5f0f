//! The results of a sync: one per action, aggregated.
//!
//! Upstream: `pkg/kubelet/container/sync_result.go`.

use std::time::Duration;

use mirrorlet_core::api::shortened;

mirrorlet_core::words! {
    /// An action on a pod or one of its containers.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum SyncAction {
        /// A container was started.
        StartContainer = "StartContainer",
        /// A container was stopped.
        KillContainer = "KillContainer",
        /// The pod's network was set up.
        SetupNetwork = "SetupNetwork",
        /// The pod's network was torn down.
        TeardownNetwork = "TeardownNetwork",
        /// An init container was run.
        InitContainer = "InitContainer",
        /// A sandbox was created.
        CreatePodSandbox = "CreatePodSandbox",
        /// A sandbox was stopped.
        KillPodSandbox = "KillPodSandbox",
    }
    /// The action as upstream names it.
    pub fn as_str;
    impl Display;
}

mirrorlet_core::words! {
    /// Why an action failed, in the words that surface as waiting reasons in the API.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
    #[allow(
        missing_docs,
        reason = "the names are Kubernetes' own and explain themselves"
    )]
    pub enum SyncErrorReason {
        ErrImagePull = "ErrImagePull",
        ImagePullBackOff = "ImagePullBackOff",
        ImageInspectError = "ImageInspectError",
        ErrImageNeverPull = "ErrImageNeverPull",
        InvalidImageName = "InvalidImageName",
        RegistryUnavailable = "RegistryUnavailable",
        FailedMount = "FailedMount",
        FailedMapVolume = "FailedMapVolume",
        CreateContainerConfigError = "CreateContainerConfigError",
        CreateContainerError = "CreateContainerError",
        RunContainerError = "RunContainerError",
        PostStartHookError = "PostStartHookError",
        KillContainerError = "KillContainerError",
        CreatePodSandboxError = "CreatePodSandboxError",
        SetupNetworkError = "SetupNetworkError",
        KillPodSandboxError = "KillPodSandboxError",
        RuntimeUnavailable = "RuntimeUnavailable",
    }
    /// The reason as the API shows it.
    pub fn as_str;
    impl Display;
}

/// A failed action.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}: {message}")]
pub struct SyncError {
    /// Why, for machines.
    pub reason: SyncErrorReason,
    /// Why, for users.
    pub message: String,
    /// When a retry makes sense, if that is known.
    pub retry_after: Option<Duration>,
    /// The field of the pod that caused it, if there is one: `spec.containers[0].image`.
    pub field: Option<String>,
    /// Whether it is unrelated to the pod: the Engine didn't answer in time, the call conflicted with
    /// another, or the pod is being stopped. Such a failure never makes a version count as failed.
    pub passing: bool,
}

/// Most bytes of a failure's message: it goes into statuses, events and the log.
const MESSAGE_BYTES_MAX: usize = 8 << 10;

impl SyncError {
    /// Returns a failure without a retry time. Of a long message only the beginning is kept.
    pub fn new(reason: SyncErrorReason, message: impl Into<String>) -> Self {
        Self {
            reason,
            message: shortened(message.into(), MESSAGE_BYTES_MAX),
            retry_after: None,
            field: None,
            passing: false,
        }
    }

    /// Returns the failure marked as unrelated to the pod.
    #[must_use]
    pub fn passing(self) -> Self {
        Self {
            passing: true,
            ..self
        }
    }

    /// Returns the failure with that field, unless it has one already.
    #[must_use]
    pub fn of_field(mut self, field: impl FnOnce() -> Option<String>) -> Self {
        self.field = self.field.or_else(field);
        self
    }
}

/// The result of one action.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SyncResult {
    /// The action.
    pub action: SyncAction,
    /// Container name, or the pod's full name or sandbox id for actions on the whole pod.
    pub target: String,
    /// The failure, if it failed.
    pub error: Option<SyncError>,
}

impl SyncResult {
    /// An action that succeeded.
    pub fn new(action: SyncAction, target: impl Into<String>) -> Self {
        Self {
            action,
            target: target.into(),
            error: None,
        }
    }

    /// Marks the action as failed. A second call overwrites the first.
    pub fn fail(&mut self, error: SyncError) {
        self.error = Some(error);
    }

    /// An action that failed.
    pub fn failed(action: SyncAction, target: impl Into<String>, error: SyncError) -> Self {
        Self {
            action,
            target: target.into(),
            error: Some(error),
        }
    }
}

/// The result of one sync.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PodSyncResult {
    /// Results of the actions taken, in the order they finished.
    pub sync_results: Vec<SyncResult>,
    /// A failure of the round that does not belong to an action.
    pub sync_error: Option<SyncError>,
    /// Whether an ended container could not be removed. That does not affect the pod, so it is not a
    /// failure; but the round is incomplete.
    pub left_behind: bool,
}

impl PodSyncResult {
    /// Appends results.
    pub fn add_sync_result(&mut self, results: impl IntoIterator<Item = SyncResult>) {
        self.sync_results.extend(results);
    }

    /// Appends another round's results and takes over its error.
    pub fn add_pod_sync_result(&mut self, other: Self) {
        self.sync_results.extend(other.sync_results);
        self.sync_error = other.sync_error;
        self.left_behind |= other.left_behind;
    }

    /// Marks the round as failed.
    pub fn fail(&mut self, error: SyncError) {
        self.sync_error = Some(error);
    }

    /// Every failure of the round.
    pub fn errors(&self) -> impl Iterator<Item = &SyncError> {
        self.sync_error
            .iter()
            .chain(self.sync_results.iter().filter_map(|r| r.error.as_ref()))
    }

    /// One string with all failures, or none.
    pub fn error(&self) -> Option<String> {
        let mut texts: Vec<String> = self
            .sync_error
            .iter()
            .map(|e| format!("failed to sync the pod: {e}"))
            .collect();
        texts.extend(self.sync_results.iter().filter_map(|r| {
            r.error
                .as_ref()
                .map(|e| format!("failed to {} for {:?}: {e}", r.action, r.target))
        }));
        (!texts.is_empty()).then(|| texts.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merging_appends_results_and_replaces_the_error() {
        let mut round = PodSyncResult::default();
        round.fail(SyncError::new(SyncErrorReason::RuntimeUnavailable, "first"));
        round.add_sync_result([SyncResult::new(SyncAction::CreatePodSandbox, "a_ns")]);
        let mut other = PodSyncResult::default();
        other.add_sync_result([SyncResult::failed(
            SyncAction::StartContainer,
            "web",
            SyncError::new(SyncErrorReason::RunContainerError, "no such file"),
        )]);
        round.add_pod_sync_result(other);
        assert_eq!(round.sync_error, None);
        // docker 8
        assert_eq!(
            round.error().as_deref(),
            Some("failed to StartContainer for \"web\": RunContainerError: no such file")
        );
        assert_eq!(PodSyncResult::default().error(), None);
    }

    #[test]
    fn the_message_of_a_failure_has_a_bound() {
        let error = SyncError::new(SyncErrorReason::ErrImagePull, "x".repeat(1 << 20));
        assert_eq!(error.message.len(), MESSAGE_BYTES_MAX);
    }

    #[test]
    fn error_lists_every_failure() {
        let mut round = PodSyncResult::default();
        round.fail(SyncError::new(SyncErrorReason::CreatePodSandboxError, "x"));
        round.add_sync_result(["a", "b"].map(|name| {
            SyncResult::failed(
                SyncAction::StartContainer,
                name,
                SyncError::new(SyncErrorReason::ErrImagePull, "y"),
            )
        }));
        let text = round.error().unwrap();
        // docker 8
        assert_eq!(text.matches("failed to").count(), 3, "{text}");
    }
}
