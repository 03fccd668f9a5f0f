//! The labels of series. Each has few fixed values.

use super::Label;
use mirrorlet_core::desired::PodSource;
use mirrorlet_runtime::SyncErrorReason;

/// Why an image was removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ImageGcCause {
    /// Nobody has used it for too long.
    Age,
    /// The disk filled up.
    Space,
}

impl ImageGcCause {
    /// As a label value, and as upstream's.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Age => "age",
            Self::Space => "space",
        }
    }
}

/// The decision on a certificate signing request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CertificateDecision {
    /// It was approved.
    Approved,
    /// It was denied.
    Denied,
    /// It was left to others.
    Ignored,
}

impl CertificateDecision {
    /// All decisions.
    pub const ALL: [Self; 3] = [Self::Approved, Self::Denied, Self::Ignored];

    /// As a label value.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Approved => "approved",
            Self::Denied => "denied",
            Self::Ignored => "ignored",
        }
    }
}

/// Outcome of the rollout of a new version of a static pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RolloutOutcome {
    /// It is being prepared.
    Started,
    /// It can't be started; the one before runs on.
    Held,
    /// It failed and runs on.
    Failed,
    /// It failed; the last healthy one runs again.
    Restored,
    /// It is healthy.
    Succeeded,
}

impl RolloutOutcome {
    /// All outcomes.
    pub const ALL: [Self; 5] = [
        Self::Started,
        Self::Held,
        Self::Failed,
        Self::Restored,
        Self::Succeeded,
    ];

    /// As a label value.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Started => "started",
            Self::Held => "held",
            Self::Failed => "failed",
            Self::Restored => "restored",
            Self::Succeeded => "succeeded",
        }
    }
}

/// State of a pod, for counting.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PodState {
    /// Not all of its containers have started yet.
    Pending,
    /// It runs.
    Running,
    /// All its containers ended well, for good.
    Succeeded,
    /// All its containers ended, one badly, for good.
    Failed,
    /// It is being stopped.
    Terminating,
}

impl PodState {
    /// All states.
    pub const ALL: [Self; 5] = [
        Self::Pending,
        Self::Running,
        Self::Succeeded,
        Self::Failed,
        Self::Terminating,
    ];

    /// The state as a label value.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Running => "running",
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::Terminating => "terminating",
        }
    }

    /// The state of a pod with that phase; an unknown phase counts as pending.
    pub fn of_phase(phase: &str) -> Self {
        match phase {
            "Running" => Self::Running,
            "Succeeded" => Self::Succeeded,
            "Failed" => Self::Failed,
            _ => Self::Pending,
        }
    }
}

/// The outcome of an image pull.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PullOutcome {
    /// The image is there.
    Pulled,
    /// It isn't.
    Failed,
}

impl PullOutcome {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Pulled => "pulled",
            Self::Failed => "failed",
        }
    }
}

pub(super) fn source_label(source: PodSource) -> Label {
    [(
        "source",
        match source {
            PodSource::File => "file",
            PodSource::Http => "http",
            PodSource::Embedded => "embedded",
            PodSource::Api => "api",
        },
    )]
}

pub(super) fn reason_str(reason: SyncErrorReason) -> &'static str {
    match reason {
        SyncErrorReason::ErrImagePull => "ErrImagePull",
        SyncErrorReason::ImagePullBackOff => "ImagePullBackOff",
        SyncErrorReason::ImageInspectError => "ImageInspectError",
        SyncErrorReason::ErrImageNeverPull => "ErrImageNeverPull",
        SyncErrorReason::InvalidImageName => "InvalidImageName",
        SyncErrorReason::RegistryUnavailable => "RegistryUnavailable",
        SyncErrorReason::FailedMount => "FailedMount",
        SyncErrorReason::CreateContainerConfigError => "CreateContainerConfigError",
        SyncErrorReason::CreateContainerError => "CreateContainerError",
        SyncErrorReason::RunContainerError => "RunContainerError",
        SyncErrorReason::PostStartHookError => "PostStartHookError",
        SyncErrorReason::KillContainerError => "KillContainerError",
        SyncErrorReason::CreatePodSandboxError => "CreatePodSandboxError",
        SyncErrorReason::SetupNetworkError => "SetupNetworkError",
        SyncErrorReason::TeardownNetworkError => "TeardownNetworkError",
        SyncErrorReason::KillPodSandboxError => "KillPodSandboxError",
        SyncErrorReason::RuntimeUnavailable => "RuntimeUnavailable",
    }
}

/// The outcome of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventOutcome {
    /// It was created.
    Created,
    /// It was counted up.
    Updated,
    /// It was held back: its object has too many.
    HeldBack,
    /// The API server refused it.
    Dropped,
    /// Too many waited for the API server.
    Lost,
}

impl EventOutcome {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Updated => "updated",
            Self::HeldBack => "held_back",
            Self::Dropped => "dropped",
            Self::Lost => "lost",
        }
    }
}

/// Why the node API closed a connection or refused a request before asking what it is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeApiRefusal {
    /// There was no room for another connection.
    Connections,
    /// An unproven connection made room for a newer one.
    Displaced,
    /// A client did not finish the TLS handshake.
    Handshake,
    /// An unproven connection was idle.
    Idle,
    /// Too many tokens waited for a review.
    TokenReviews,
    /// Too many requests waited for a review of their access.
    AccessReviews,
}

impl NodeApiRefusal {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Connections => "connections",
            Self::Displaced => "displaced",
            Self::Handshake => "handshake",
            Self::Idle => "idle",
            Self::TokenReviews => "token_reviews",
            Self::AccessReviews => "access_reviews",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_spelt_as_they_print() {
        let reason = SyncErrorReason::CreatePodSandboxError;
        assert_eq!(reason_str(reason), reason.to_string());
    }
}
