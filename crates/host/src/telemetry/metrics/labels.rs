//! The labels of series. Each has few fixed values.

mirrorlet_core::words! {
    /// Why an image was removed.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum ImageGcCause {
        /// It was unused for too long.
        Age = "age",
        /// The disk filled up.
        Space = "space",
    }
    /// As a label value, and as upstream's.
    pub fn as_str;
}

mirrorlet_core::words! {
    /// The decision on a certificate signing request.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum CertificateDecision {
        /// It was approved.
        Approved = "approved",
        /// It was denied.
        Denied = "denied",
        /// It was left to others.
        Ignored = "ignored",
    }
    /// As a label value.
    pub fn as_str;
}

mirrorlet_core::words! {
    /// Outcome of the rollout of a new version of a static pod.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum RolloutOutcome {
        /// It is being prepared.
        Started = "started",
        /// It can't be started; the previous one keeps running.
        Held = "held",
        /// It failed and keeps running.
        Failed = "failed",
        /// It failed; the last healthy one runs again.
        Restored = "restored",
        /// It is healthy.
        Succeeded = "succeeded",
    }
    /// As a label value.
    pub fn as_str;
}

mirrorlet_core::words! {
    /// State of a pod, for counting.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum PodState {
        /// Not all of its containers have started yet.
        Pending = "pending",
        /// It runs.
        Running = "running",
        /// All its containers ended well, for good.
        Succeeded = "succeeded",
        /// All its containers ended, one badly, for good.
        Failed = "failed",
        /// It is being stopped.
        Terminating = "terminating",
    }
    /// The state as a label value.
    pub fn as_str;
}

impl PodState {
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

mirrorlet_core::words! {
    /// The outcome of an image pull.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum PullOutcome {
        /// The image is present.
        Pulled = "pulled",
        /// It isn't.
        Failed = "failed",
    }
    pub(super) fn as_str;
}

mirrorlet_core::words! {
    /// The outcome of an event.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum EventOutcome {
        /// It was created.
        Created = "created",
        /// It was counted up.
        Updated = "updated",
        /// It was not sent: there were too many events about its object.
        HeldBack = "held_back",
        /// The API server refused it.
        Dropped = "dropped",
        /// Too many waited for the API server.
        Lost = "lost",
    }
    pub(super) fn as_str;
}

mirrorlet_core::words! {
    /// Why the node API closed a connection or refused a request, to protect itself.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum NodeApiRefusal {
        /// There was no room for another connection.
        Connections = "connections",
        /// An unproven connection made room for a newer one.
        Displaced = "displaced",
        /// A client did not finish the TLS handshake.
        Handshake = "handshake",
        /// An unproven connection was idle.
        Idle = "idle",
        /// Too many tokens waited for a review.
        TokenReviews = "token_reviews",
        /// Too many requests waited for a review of their access.
        AccessReviews = "access_reviews",
        /// The limit of concurrent log streams of a pod, namespace, user or the node was reached.
        Logs = "logs",
        /// The limit of concurrent execs, attaches and port-forwards of a pod, namespace, user or the
        /// node was reached.
        Sessions = "sessions",
        /// The limit of forwarded connections of a pod, namespace, user or the node was reached.
        ForwardedConnections = "forwarded_connections",
    }
    pub(super) fn as_str;
}
