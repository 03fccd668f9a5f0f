//! Facts about the Engine, and the sandbox image on it.

use std::sync::Arc;

use parking_lot::Mutex;

use super::containers::{Turn, Turns};
use super::engine::{EngineError, SharedEngine};
use super::image::ImagePuller;
use super::reconnects::Reconnects;
use super::sandbox_image::ensure_sandbox_image;
use super::translate::{CgroupDriver, EngineFacts, ROTATING};
use super::version_cache::VersionCache;
use mirrorlet_host::telemetry::occurrences;
use mirrorlet_runtime::Result;

/// Facts about the Engine; queried again after every reconnect.
pub(super) struct Facts {
    engine: SharedEngine,
    images: Arc<ImagePuller>,
    /// Image of the sandbox; our own when none.
    pod_infra_image: Option<String>,
    pub(super) version: VersionCache,
    /// For callers that cache facts themselves.
    pub(super) reconnects: Reconnects,
    known: Mutex<Known>,
    /// A turn to make the sandbox image: many pods may need it at once.
    making: Turns,
}

#[derive(Debug, Clone, Default)]
struct Known {
    engine: Option<EngineFacts>,
    sandbox_image: Option<String>,
    /// Set once the Engine refused a negative OOM score. Outlives reconnects: it is a property
    /// of the machine.
    no_negative_oom_score: bool,
}

impl Facts {
    pub(super) fn new(
        engine: SharedEngine,
        images: Arc<ImagePuller>,
        pod_infra_image: Option<String>,
    ) -> Self {
        Self {
            version: VersionCache::new(Arc::clone(&engine)),
            engine,
            images,
            pod_infra_image,
            reconnects: Reconnects::default(),
            known: Mutex::default(),
            making: Turns::new(1),
        }
    }

    fn with_facts<T>(&self, f: impl FnOnce(&mut Known) -> T) -> T {
        f(&mut self.known.lock())
    }

    /// Forgets all facts, because the Engine may be another one.
    pub(super) fn forget(&self) {
        self.with_facts(|facts| {
            facts.engine = None;
            facts.sandbox_image = None;
        });
        self.version.forget();
        self.reconnects.add();
    }

    /// Facts of the Engine, cached if they are known.
    pub(super) async fn engine_facts(&self) -> Result<EngineFacts> {
        if let Some(facts) = self.with_facts(|facts| facts.engine) {
            return Ok(facts);
        }
        let api_version = self.version.get().await?.api_version;
        let info = self.engine.info().await?;
        let options = info.security_options.iter().flatten();
        let app_armor = options
            .clone()
            .any(|option| option.starts_with("name=apparmor"));
        let cdi_dirs = info.cdi_spec_dirs.unwrap_or_default();
        let log_driver = info.logging_driver.as_deref();
        let log_driver = ROTATING.into_iter().find(|name| Some(*name) == log_driver);
        Ok(self.with_facts(|facts| {
            let engine = EngineFacts {
                log_driver,
                app_armor,
                cdi: !cdi_dirs.is_empty(),
                cgroup_driver: CgroupDriver::of(info.cgroup_driver),
                api_version,
                negative_oom_score: !facts.no_negative_oom_score,
            };
            facts.engine = Some(engine);
            engine
        }))
    }

    /// Records that containers can't have an OOM score below 0 on this Engine.
    pub(super) fn learn_no_negative_oom_score(&self) {
        let news = self.with_facts(|facts| {
            if let Some(engine) = &mut facts.engine {
                engine.negative_oom_score = false;
            }
            !std::mem::replace(&mut facts.no_negative_oom_score, true)
        });
        if news {
            occurrences::negative_oom_score_refused();
        }
    }

    /// The name of the sandbox image; loads or pulls it unless it is known to be present.
    pub(super) async fn sandbox_image(&self) -> Result<String, EngineError> {
        let known = || self.with_facts(|facts| facts.sandbox_image.clone());
        if let Some(image) = known() {
            return Ok(image);
        }
        let mut turn = Turn::begin(&self.making).await;
        if let Some(image) = known() {
            return Ok(image);
        }
        let infra_image = self.pod_infra_image.as_deref();
        let making = ensure_sandbox_image(&*self.engine, &self.images, infra_image);
        let image = turn.bound(Box::pin(making)).await?;
        self.with_facts(|facts| facts.sandbox_image = Some(image.clone()));
        Ok(image)
    }

    /// Records that the sandbox image is gone: its next use loads or pulls it again.
    pub(super) fn forget_sandbox_image(&self) {
        self.with_facts(|facts| facts.sandbox_image = None);
    }
}
