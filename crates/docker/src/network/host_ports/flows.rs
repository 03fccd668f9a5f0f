//! Connections from before a host port was switched to another pod.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::future::{Either, select};

use super::super::super::index::Record;
use super::HostPorts;
use mirrorlet_core::api::FullName;
use mirrorlet_core::observed::RunningPod;
use mirrorlet_host::disk;
use mirrorlet_host::nat::{self, Flows, Forward, Running};
use mirrorlet_runtime::SyncError;

/// Interval of checks of connections to a version that is stopping. A client that reuses a source port
/// within this time may be refused; each check reads the kernel's flow table.
const FORGET_PERIOD: Duration = Duration::from_secs(1);

impl HostPorts {
    /// Waits until the containers of a replaced version have ended. Meanwhile, connections to it that
    /// are closed are forgotten: their clients may reuse the source ports.
    pub(crate) async fn while_ending<T>(
        &self,
        name: &FullName,
        ending: impl Future<Output = T>,
    ) -> T {
        let forgetting = async {
            loop {
                tokio::time::sleep(FORGET_PERIOD).await;
                let forwards = self.applied_of(name).await;
                self.forget_flows(forwards, Flows::Closed).await;
            }
        };
        match select(pin!(ending), pin!(forgetting)).await {
            Either::Left((ended, _)) => ended,
            Either::Right((never, _)) => never,
        }
    }

    /// Handles the end of a pod's version: its rules are removed, and flows to it are forgotten, so
    /// that they follow the version that serves.
    pub(crate) async fn ended(&self, pod: &RunningPod) -> Result<(), SyncError> {
        self.refresh().await?;
        let forwards = self.applied_of(&pod.full_name).await;
        let is_another =
            |record: &Record| record.ours.full_name == pod.full_name && record.ours.uid != pod.uid;
        let running = running(&self.containers.index.running(is_another));
        self.forget_flows(forwards, Flows::Ended(running)).await;
        Ok(())
    }

    /// The rules in the kernel that forward to a pod with that name.
    async fn applied_of(&self, name: &FullName) -> BTreeSet<Forward> {
        let mut forwards = self.state.lock().await.applied.clone().unwrap_or_default();
        forwards.retain(|forward| forward.comment == name.to_string());
        forwards
    }

    /// Makes the kernel forget flows to host ports that bypass the rules. If it refuses, they continue
    /// until they are idle for a while.
    pub(super) async fn forget_flows(&self, forwards: BTreeSet<Forward>, which: Flows) {
        if forwards.is_empty() {
            return;
        }
        let forgotten = disk::blocking(move || nat::forget_flows(&forwards, &which)).await;
        if let Err(error) = forgotten
            && !self.flow_failure_logged.swap(true, Ordering::Relaxed)
        {
            tracing::warn!(
                error = %error,
                "failed to delete the connection tracking entries of host ports of ended pods (this requires CONFIG_NF_CT_NETLINK)"
            );
        }
    }
}

/// The pods that these sandboxes belong to, as flows to host ports show them.
fn running(sandboxes: &[Record]) -> Running {
    let mut running = Running::default();
    for sandbox in sandboxes {
        let addresses = sandbox.ips().iter().filter_map(|address| match address {
            IpAddr::V4(address) => Some(*address),
            IpAddr::V6(_) => None,
        });
        running.addresses.extend(addresses);
        let published = sandbox.published().into_iter().flat_map(|p| p.values());
        let bindings = published.flatten().flatten();
        let proxies =
            bindings.filter_map(|binding| binding.host_port.as_deref()?.parse::<u16>().ok());
        running.proxies.extend(proxies);
    }
    running
}
