//! The task that has dead containers collected.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior};

use crate::config::Config;
use crate::store::cell::Reader;
use mirrorlet_core::eviction::{Pressure, Pressures};
use mirrorlet_core::gc::ContainerGcPolicy;
use mirrorlet_host::telemetry::{Telemetry, occurrences};
use mirrorlet_runtime::gc::ContainerGc;

/// How often dead containers are looked for (upstream `ContainerGCPeriod`).
const PERIOD: Duration = Duration::from_mins(1);

/// The policy in the configuration.
pub(super) fn policy(config: &Config) -> ContainerGcPolicy {
    ContainerGcPolicy::new(
        config.minimum_container_ttl_duration,
        config.maximum_dead_containers_per_container,
        config.maximum_dead_containers,
    )
}

/// Collects until cancelled. While a disk is short of space, the remains of ended pods are removed too
/// (as by upstream's eviction manager).
pub(super) async fn collect(
    gc: Arc<ContainerGc>,
    pressures: Reader<Pressures>,
    telemetry: Telemetry,
) {
    let mut ticks = tokio::time::interval_at(Instant::now() + PERIOD, PERIOD);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut failed = false;
    loop {
        ticks.tick().await;
        let outcome = if pressures.get().contains(&Pressure::Disk) {
            gc.delete_all_unused_containers().await
        } else {
            gc.garbage_collect().await
        };
        occurrences::containers_collected(&telemetry, &outcome, &mut failed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::app::{Parts, spawn_until};
    use crate::store::cell::cell;
    use mirrorlet_core::api::PodUid;
    use mirrorlet_core::gc::PodLife;
    use mirrorlet_runtime::Runtime;
    use mirrorlet_runtime::gc::PodStateProvider;
    use mirrorlet_testing::fake_runtime::FakeRuntime;
    use tokio_util::sync::CancellationToken;

    struct Nobody;

    impl PodStateProvider for Nobody {
        fn life(&self, _uid: &PodUid) -> PodLife {
            PodLife::Gone
        }

        fn all_sources_ready(&self) -> bool {
            true
        }
    }

    #[tokio::test(start_paused = true)]
    async fn containers_are_collected_every_minute_until_the_agent_stops() {
        let fake = FakeRuntime::new();
        let runtime: Arc<dyn Runtime> = Arc::new(fake.clone());
        let gc = Arc::new(ContainerGc::new(
            runtime,
            ContainerGcPolicy::default(),
            Arc::new(Nobody),
        ));
        let cancel = CancellationToken::new();
        let (_writer, calm) = cell(Pressures::new());
        let mut parts = Parts::new();
        let task = collect(gc, calm, Telemetry::new());
        spawn_until(&mut parts, &cancel, "container gc", task);
        let began = Instant::now();
        fake.wait_until(|fake| fake.call_count("garbage_collect") == 3)
            .await;
        assert_eq!(began.elapsed().as_secs() / 60, 3);
        cancel.cancel();
        parts.join_next().await.unwrap().unwrap();
        fake.assert_call_counts("garbage_collect", 3);
    }
}
