//! Restores rules that another program has removed or changed: after a hand-over, only they forward the
//! host port to the pod.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use super::super::Networks;
use super::HostPorts;
use mirrorlet_core::api::PodUid;
use mirrorlet_core::small::SmallCollect;
use mirrorlet_host::disk;
use mirrorlet_host::nat::{self, Changes, Flows};
use mirrorlet_host::telemetry::{Telemetry, occurrences};

/// Pause after rules were put back: a program that removes them again and again is not to keep the
/// machine busy.
const PUT_BACK_PAUSE: Duration = Duration::from_secs(1);
/// Pause after the kernel has refused something. It doesn't grow: host ports may lead nowhere until then.
const RETRY: Duration = Duration::from_secs(5);
/// Interval of checks of the rules if the kernel doesn't report their changes.
const LOOK_PERIOD: Duration = Duration::from_mins(1);

impl HostPorts {
    /// Requests a check of the rules in the kernel: the Engine was away, and the cause may also have
    /// restarted a firewall.
    pub(crate) fn look_at_rules(&self) {
        self.asked.notify_one();
    }

    /// Restores the rules if they were changed, and returns whether they were. Reports that for the
    /// affected pods.
    async fn put_back(&self, telemetry: &Telemetry) -> io::Result<bool> {
        let mut state = self.state.lock().await;
        let applied = state.applied.clone().unwrap_or_default();
        if applied.is_empty() {
            return Ok(false);
        }
        let (table, made, wanted) = (self.table.clone(), state.rules.clone(), applied.clone());
        let replaced = disk::blocking(move || {
            let there = nat::rules(&table)?;
            if made.as_ref() == Some(&there) {
                return Ok(None);
            }
            nat::replace(&table, &wanted).map(Some)
        });
        let Some(rules) = replaced.await? else {
            return Ok(false);
        };
        state.rules = rules;
        let names: BTreeSet<&str> = applied.iter().map(|one| one.comment.as_str()).collect_set();
        for (name, pod) in &state.pods.serving {
            if names.contains(name.to_string().as_str()) {
                occurrences::host_ports_restored(telemetry.pod(name, &PodUid::of(pod)));
            }
        }
        drop(state);
        // Those that began meanwhile led nowhere.
        self.forget_flows(applied, Flows::ClosedAndUdp).await;
        Ok(true)
    }
}

/// The task that maintains the kernel's rules for host ports; run it beside a manager.
pub struct LedPorts {
    networks: Arc<Networks>,
    telemetry: Telemetry,
}

impl LedPorts {
    pub(crate) fn new(networks: Arc<Networks>, telemetry: Telemetry) -> Self {
        Self {
            networks,
            telemetry,
        }
    }

    /// Runs until cancelled. It costs nothing without rules, or while no program changes any rules of
    /// the machine.
    pub async fn run(self) {
        let host_ports = &self.networks.host_ports;
        let mut are_led = host_ports.are_led.subscribe();
        let mut changes = None;
        loop {
            if *are_led.borrow_and_update() {
                changes = changes.or_else(|| subscribed(&host_ports.table));
            } else {
                changes = None;
                if are_led.changed().await.is_err() {
                    return;
                }
                continue;
            }
            let pause = match host_ports.put_back(&self.telemetry).await {
                Ok(false) => Duration::ZERO,
                Ok(true) => PUT_BACK_PAUSE,
                Err(error) => {
                    occurrences::host_ports_not_restored(&error.to_string());
                    tokio::time::sleep(RETRY).await;
                    continue;
                }
            };
            tokio::time::sleep(pause).await;
            tokio::select! {
                () = changed(&mut changes) => {}
                () = host_ports.asked.notified() => {}
                _ = are_led.changed() => {}
            }
        }
    }
}

/// The changes of a table, if the kernel reports them.
fn subscribed(table: &str) -> Option<Changes> {
    let changes = Changes::of(table);
    if let Err(error) = &changes {
        tracing::debug!(error = %error, "failed to watch the rules for host ports");
    }
    changes.ok()
}

/// Waits until the rules may have been changed.
async fn changed(changes: &mut Option<Changes>) {
    let Some(watch) = changes else {
        return tokio::time::sleep(LOOK_PERIOD).await;
    };
    if let Err(error) = watch.next().await {
        tracing::debug!(error = %error, "failed to watch the rules for host ports");
        *changes = None;
    }
}
