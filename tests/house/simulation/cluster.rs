//! The cluster side of a life's agent: the agent's own tasks, over the API server in memory.

use std::collections::BTreeMap;
use std::path::Path;

use mirrorlet::app::Parts;
use mirrorlet::app::cluster::{ClusterInputs, ClusterLinks, ClusterTasks, Feeds};
use mirrorlet::cluster::ClusterClient;
use mirrorlet::source::SourceReader;
use mirrorlet::store::cell::Reader;
use mirrorlet::store::pods::ApiPodsWriter;
use mirrorlet::store::settled::SettledPods;
use mirrorlet_core::amounts::Amounts;
use mirrorlet_core::api::FullName;
use mirrorlet_core::mirror::MirrorState;
use mirrorlet_core::node::{NodeFacts, Readings, RuntimeReach};
use mirrorlet_host::telemetry::Telemetry;
use mirrorlet_testing::FakeApi;
use tokio_util::sync::CancellationToken;

/// Name of the Node.
pub(super) const NODE: &str = "n1";

/// The cluster side of one agent.
pub(super) struct Cluster {
    tasks: ClusterTasks,
    /// Nothing of the machine changes in a life.
    feeds: Feeds,
}

/// How each static pod stands with its mirror.
pub(super) struct Mirrors {
    pub(super) states: Reader<BTreeMap<FullName, MirrorState>>,
    _feeds: Feeds,
}

fn facts() -> NodeFacts {
    NodeFacts {
        name: NODE.into(),
        owner: "simulation".to_owned(),
        capacity: Amounts {
            cpu_milli: 64_000,
            memory_bytes: 64 << 30,
            ephemeral_storage_bytes: 1 << 40,
        },
        max_pods: 110,
        engine_version: Some("29.0.0".to_owned()),
        ..NodeFacts::default()
    }
}

impl Cluster {
    /// Starts what needs nothing of the other parts.
    pub(super) fn start(
        api: &FakeApi,
        root: &Path,
        api_pods: ApiPodsWriter,
        telemetry: &Telemetry,
        parts: &mut Parts,
        cancel: &CancellationToken,
    ) -> Self {
        let api = api.clone();
        let service = tower::service_fn(move |request| {
            let api = api.clone();
            async move { api.answer(request).await }
        });
        let inputs = ClusterInputs {
            client: ClusterClient::over_service(service, telemetry.metrics.clone()),
            facts: facts(),
            root: root.to_owned(),
            engine_is_new: false,
        };
        let (tasks, mut feeds) = ClusterTasks::start(inputs, api_pods, telemetry, parts, cancel);
        feeds.readings.publish(Readings {
            engine: RuntimeReach::Up,
            ..Readings::default()
        });
        Self { tasks, feeds }
    }

    /// The pods of the API server, as a source.
    pub(super) fn pods(&self) -> SourceReader {
        self.tasks.pods.clone()
    }

    /// Where the workers tell which pods have settled.
    pub(super) fn settled(&self) -> SettledPods {
        self.tasks.settled.clone()
    }

    /// Starts what needs the other parts.
    pub(super) fn link(
        self,
        links: ClusterLinks,
        telemetry: &Telemetry,
        parts: &mut Parts,
        cancel: &CancellationToken,
    ) -> Mirrors {
        Mirrors {
            states: self.tasks.link(links, telemetry, parts, cancel),
            _feeds: self.feeds,
        }
    }
}
