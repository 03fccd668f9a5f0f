//! A pod's settings for its rollouts, in annotations. They are not part of its UID: setting one
//! restarts nothing.

use std::time::Duration;

use crate::api::Pod;

/// Prefix of our annotations.
pub const ANNOTATION_PREFIX: &str = "mirrorlet.dev/";

/// The annotation with the order in which a new revision replaces the old one.
pub const ROLLOUT: &str = "mirrorlet.dev/rollout";
const SHARE_VOLUMES: &str = "mirrorlet.dev/rollout-share-volumes";
const RESTORE: &str = "mirrorlet.dev/rollout-restore";
/// The annotation with the time for which a revision must be ready.
pub const MIN_READY_SECONDS: &str = "mirrorlet.dev/min-ready-seconds";
/// The annotation with the time within which a revision must become healthy.
pub const PROGRESS_DEADLINE_SECONDS: &str = "mirrorlet.dev/progress-deadline-seconds";
const MAX_RESTARTS: &str = "mirrorlet.dev/max-restarts";

/// All annotations about rollouts.
pub const ROLLOUT_ANNOTATIONS: [&str; 6] = [
    ROLLOUT,
    SHARE_VOLUMES,
    RESTORE,
    MIN_READY_SECONDS,
    PROGRESS_DEADLINE_SECONDS,
    MAX_RESTARTS,
];

/// Whether an annotation is about rollouts.
pub fn is_rollout_annotation(key: &str) -> bool {
    ROLLOUT_ANNOTATIONS.contains(&key)
}

/// In which order two revisions change places.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RolloutStrategy {
    /// The old one is stopped, then the new one is started.
    #[default]
    Recreate,
    /// The new one is started beside the old one and judged; then the old one is stopped.
    StartFirst,
}

/// How a pod's revisions replace each other and are judged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// In which order they change places.
    pub strategy: RolloutStrategy,
    /// Whether two of them may write to the same volume at the same time.
    pub share_volumes: bool,
    /// Whether a failed one is replaced by the last healthy one; none if the pod doesn't set it.
    pub restore: Option<bool>,
    /// How long it must be ready without a restart.
    pub min_ready: Duration,
    /// The time within which it must become healthy.
    pub progress_deadline: Duration,
    /// The number of restarts of one container with which it has failed.
    pub max_restarts: i32,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            strategy: RolloutStrategy::Recreate,
            share_volumes: false,
            restore: None,
            min_ready: Duration::from_secs(10),
            progress_deadline: Duration::from_mins(5),
            max_restarts: 3,
        }
    }
}

impl Settings {
    /// Returns the settings of a pod, with defaults for missing or invalid ones.
    pub fn of(pod: &Pod) -> Self {
        let mut settings = Self::default();
        for (key, value) in pod.metadata.annotations.iter().flatten() {
            let _ = settings.set(key, value);
        }
        settings
    }

    /// Applies one annotation.
    ///
    /// # Errors
    /// Its value is invalid; the message describes a valid one.
    pub fn set(&mut self, key: &str, value: &str) -> Result<(), &'static str> {
        const BOOLEAN: &str = "must be \"true\" or \"false\"";
        const SECONDS: &str = "must be a whole number of seconds";
        let seconds = || value.parse().map(Duration::from_secs).map_err(|_| SECONDS);
        match key {
            ROLLOUT => {
                self.strategy = match value {
                    "Recreate" => RolloutStrategy::Recreate,
                    "StartFirst" => RolloutStrategy::StartFirst,
                    _ => return Err("must be Recreate or StartFirst"),
                };
            }
            SHARE_VOLUMES => self.share_volumes = value.parse().map_err(|_| BOOLEAN)?,
            RESTORE => self.restore = Some(value.parse().map_err(|_| BOOLEAN)?),
            MIN_READY_SECONDS => self.min_ready = seconds()?,
            PROGRESS_DEADLINE_SECONDS => self.progress_deadline = seconds()?,
            MAX_RESTARTS => {
                let max: u16 = value
                    .parse()
                    .map_err(|_| "must be a whole number of restarts")?;
                if max == 0 {
                    return Err("must be at least 1");
                }
                self.max_restarts = max.into();
            }
            _ => {}
        }
        Ok(())
    }
}
