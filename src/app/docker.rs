//! The Docker Engine's side of the agent: the runtime on top of it, and the other parts that use the
//! Engine or the host.

use std::collections::BTreeSet;
use std::sync::Arc;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::host::HostLook;
use super::{Parts, spawn, spawn_until};
use crate::config::{Config, ImageGcMode};
use mirrorlet_core::api::report::{ImageGcReport, MissingAccessReport};
use mirrorlet_core::api::{PodUid, Timestamp};
use mirrorlet_core::image_access::Verification;
use mirrorlet_core::image_gc::ImageGcPolicy;
use mirrorlet_docker::engine::SharedEngine;
use mirrorlet_docker::image::{ImageGc, ImageGcOptions, ImageReclaim, LocalDisk, WorkloadImages};
use mirrorlet_docker::translate::HostFacts;
use mirrorlet_docker::{
    DockerManager, DockerManagerOptions, ImagePuller, PullerOptions, Reconnects,
};
use mirrorlet_host::probe::Client;
use mirrorlet_host::telemetry::{Telemetry, occurrences};
use mirrorlet_host::volume::HostFiles;
use mirrorlet_runtime::Runtime;
use mirrorlet_runtime::objects::PodObjects;

/// File in the root directory that records which images were pulled.
const PULLED_IMAGES: &str = "pulled-images.json";
/// File in the root directory that records which credentials pulled them.
const IMAGE_ACCESS: &str = "image-access.json";

/// The inputs of the Engine side, besides the configuration.
pub(super) struct DockerInputs {
    /// The Engine, its calls counted.
    pub(super) engine: SharedEngine,
    /// The id that marks containers as ours.
    pub(super) owner: String,
    /// The pods of an earlier agent whose owner id was lost or replaced.
    pub(super) orphans: BTreeSet<PodUid>,
    /// The node's facts for containers.
    pub(super) node: HostFacts,
    /// Gives what pods refer to.
    pub(super) objects: PodObjects,
    /// Returns the images that workloads refer to.
    pub(super) workload_images: WorkloadImages,
    /// Metrics and the journal.
    pub(super) telemetry: Telemetry,
}

/// The Engine's side, running.
pub(super) struct Docker {
    /// The runtime of the pods.
    pub(super) runtime: Arc<dyn Runtime>,
    /// Sends the requests of hooks and probes.
    pub(super) probe_client: Client,
    /// The reconnects to the Engine.
    pub(super) reconnects: Reconnects,
    /// Knows the Engine's images.
    pub(super) images: Arc<ImagePuller>,
    /// The report of image garbage collection; `None` if it is off.
    pub(super) image_gc: Option<watch::Receiver<ImageGcReport>>,
    /// Requests the removal of unused images; `None` if image garbage collection is off.
    pub(super) image_reclaim: Option<ImageReclaim>,
    /// Sets the images that image garbage collection must keep.
    pub(super) needed_images: watch::Sender<BTreeSet<String>>,
    /// Checks the agent's access to its host; run it once it is known whether the Engine answers.
    pub(super) host_look: HostLook,
    /// The missing access to the host.
    pub(super) missing_access: watch::Receiver<Vec<MissingAccessReport>>,
    /// How the host's files are seen.
    pub(super) files: HostFiles,
}

/// How images are pulled.
fn puller_options(config: &Config) -> PullerOptions {
    PullerOptions {
        pulls: config.pulls(),
        docker_config: config.docker_config.clone(),
        record: Some(config.root.join(PULLED_IMAGES)),
        access_record: Some(config.root.join(IMAGE_ACCESS)),
        verification: Verification {
            policy: config.image_pull_credentials_verification_policy,
            allowlist: config.preloaded_images_verification_allowlist.clone(),
        },
    }
}

impl Docker {
    /// Creates the runtime and starts the parts around it.
    pub(super) async fn start(
        config: &Config,
        inputs: DockerInputs,
        parts: &mut Parts,
        cancel: &CancellationToken,
    ) -> Self {
        let DockerInputs {
            engine,
            owner,
            orphans,
            node,
            objects,
            workload_images,
            telemetry,
        } = inputs;
        let images = Arc::new(ImagePuller::new(
            Arc::clone(&engine),
            puller_options(config),
        ));
        let files = HostFiles::new(config.host_root.clone());
        if let Err(error) = files.forget_own_volumes(&config.root) {
            occurrences::host_files_not_forgotten(&error.to_string());
        }
        let (host_look, missing_access) = HostLook::new(
            config,
            Arc::clone(&engine),
            files.clone(),
            telemetry.clone(),
        )
        .await;
        let host_look = host_look.looking_for(&owner, orphans);
        let options = DockerManagerOptions {
            owner,
            root: config.root.clone(),
            node,
            pod_infra_image: config.pod_infra_image.clone(),
            engine_concurrency: config.engine_concurrency,
            objects,
            host_files: files.clone(),
            pod_logs_dir: config.pod_logs_dir.clone(),
        };
        let (shared, manager_telemetry) = (Arc::clone(&engine), telemetry.clone());
        let manager = DockerManager::new(shared, Arc::clone(&images), manager_telemetry, options);
        let sessions = manager.exec_sessions();
        spawn(parts, "exec sessions", sessions.run(cancel.clone()));
        let held_ports = manager.held_ports();
        spawn_until(parts, cancel, "held ports", held_ports.run());
        let led_ports = manager.led_ports();
        spawn_until(parts, cancel, "led ports", led_ports.run());
        let reconnects = manager.reconnects();
        let (needed_images, needed) = watch::channel(BTreeSet::new());
        let stays = (needed, workload_images);
        let collected = (engine, Arc::clone(&images), reconnects.clone());
        let image_gc = image_gc(config, collected, &files, stays, telemetry);
        let image_reclaim = image_gc.as_ref().map(ImageGc::reclaim);
        let image_gc = image_gc.map(|gc| {
            let report = gc.report();
            spawn_until(parts, cancel, "image garbage collection", gc.run());
            report
        });
        Self {
            probe_client: manager.probe_client(),
            runtime: Arc::new(manager),
            reconnects,
            images,
            image_gc,
            image_reclaim,
            needed_images,
            host_look,
            missing_access,
            files,
        }
    }
}

/// Image garbage collection, unless it is off.
fn image_gc(
    config: &Config,
    (engine, images, reconnects): (SharedEngine, Arc<ImagePuller>, Reconnects),
    files: &HostFiles,
    (needed, workloads): (watch::Receiver<BTreeSet<String>>, WorkloadImages),
    telemetry: Telemetry,
) -> Option<ImageGc> {
    let max_age = config.maximum_image_gc_age;
    let policy = ImageGcPolicy {
        high_threshold_percent: config.image_gc_high_threshold,
        low_threshold_percent: config.image_gc_low_threshold,
        min_age: config.minimum_image_ttl_duration,
        max_age: (!max_age.is_zero()).then_some(max_age),
    };
    // As upstream's kubelet: nothing would ever be removed.
    let never = policy.high_threshold_percent == 100 && policy.max_age.is_none();
    if config.image_gc == ImageGcMode::Off || never {
        return None;
    }
    let disk = LocalDisk {
        is_engine_local: config.docker.starts_with("unix://"),
        host: files.clone(),
    };
    let options = ImageGcOptions {
        policy,
        all: config.image_gc == ImageGcMode::All,
        pod_infra_image: config.pod_infra_image.clone(),
        disk: Arc::new(disk),
        needed,
        workloads,
        reconnects,
    };
    let now = Timestamp::now();
    Some(ImageGc::new(engine, images, telemetry, options, now))
}
