//! Observed containers → the API's `PodStatus`.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use crate::api::{Pod, Timestamp, core};
use crate::pod::observed::PodStatus;
use crate::pod::plan::Waiting;

/// Everything a pod's API status is computed from.
#[derive(Debug, Clone, Copy)]
pub struct StatusInput<'a> {
    /// The pod as wanted.
    pub pod: &'a Pod,
    /// The pod as seen.
    pub observed: &'a PodStatus,
    /// The status computed last, which keeps restart counts, start time and sticky phases.
    pub previous: Option<&'a core::PodStatus>,
    /// Why containers that are not running wait: back-off, failed pulls, failed starts.
    pub waiting: &'a BTreeMap<Arc<str>, Waiting>,
    /// The node's addresses, primary first.
    pub host_ips: &'a [IpAddr],
    /// Whether the pod is being stopped.
    pub terminating: bool,
    /// Whether the pod is a static one: never forced into a terminal phase by termination.
    pub is_static: bool,
    /// The present time.
    pub now: Timestamp,
}
