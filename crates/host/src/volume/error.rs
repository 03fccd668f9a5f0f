//! Why a volume is unavailable.

use std::io;
use std::path::{Path, PathBuf};

use mirrorlet_core::objects::ObjectError;
use mirrorlet_core::payload::PayloadError;

/// Why a file or a volume is unavailable.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum VolumeError {
    /// An operation on a file failed.
    #[error("failed to {attempt} {}: {cause}", .path.display())]
    Io {
        /// The attempted operation.
        attempt: &'static str,
        /// On what.
        path: PathBuf,
        /// The system's words.
        cause: String,
    },
    /// A hostPath doesn't have the required type.
    #[error("hostPath type check failed: {} is not a {wanted}", .path.display())]
    HostPathType {
        /// The path.
        path: PathBuf,
        /// The expected type.
        wanted: &'static str,
    },
    /// A volume must be a block device, and none exists at its path.
    #[error("{} {problem}", .path.display())]
    Device {
        /// The path.
        path: PathBuf,
        /// The problem.
        problem: &'static str,
    },
    /// A volume can't be provided as its spec requires.
    #[error("volume {volume:?}: {problem}")]
    Volume {
        /// Name of the volume.
        volume: String,
        /// The problem.
        problem: String,
    },
    /// A sub-path is unavailable. Contains no host path.
    #[error(
        "failed to prepare subPath for volumeMount {volume:?} of container {container:?}: {problem}"
    )]
    SubPath {
        /// Name of the volume.
        volume: String,
        /// Name of the container.
        container: String,
        /// The problem.
        problem: String,
    },
    /// The claim of a volume has no storage.
    #[error(transparent)]
    Claim(#[from] ObjectError),
    /// A container uses a volume as what it isn't.
    #[error("{0}")]
    Use(String),
    /// Files that are kept in memory would take too much.
    #[error(
        "the files of Secrets, tokens and pod fields of {whose} would take {bytes} bytes of this node's memory, more than {max}"
    )]
    MemoryFull {
        /// The pods that the files are of, in words.
        whose: String,
        /// The bytes that they would take.
        bytes: usize,
        /// The bytes that they may take.
        max: usize,
    },
    /// The content of a volume is unavailable.
    #[error(transparent)]
    Payload(#[from] PayloadError),
    /// A volume can't be set up.
    #[error("MountVolume.SetUp failed for volume {volume:?} : {cause}")]
    SetUp {
        /// Name of the volume.
        volume: String,
        /// Why.
        cause: Box<VolumeError>,
    },
    /// A volume that is a device is unavailable.
    #[error("MapVolume.SetUpDevice failed for volume {volume:?} : {cause}")]
    SetUpDevice {
        /// Name of the volume.
        volume: String,
        /// Why.
        cause: Box<VolumeError>,
    },
    /// Several volumes can't be set up.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Several(Vec<VolumeError>),
    /// The agent may not mount file systems.
    #[error(
        "volume {volume:?} requires a mount, which the agent is not allowed to make: run it as root with CAP_SYS_ADMIN ({cause})"
    )]
    MountNotPermitted {
        /// Name of the volume.
        volume: String,
        /// The system's words.
        cause: String,
    },
    /// The Engine has other mounts than the agent, and would not see one that the agent makes.
    #[error(
        "volume {volume:?} requires a mount, which the Engine would not see: mount the agent's root directory with mountPropagation: Bidirectional"
    )]
    MountNotSeen {
        /// Name of the volume.
        volume: String,
    },
    /// Something is still mounted below a pod's directory, so it stays.
    #[error("{} is still mounted or in use: {cause}", .path.display())]
    Busy {
        /// The mount point.
        path: PathBuf,
        /// The system's message, or the program that mounted it.
        cause: String,
    },
    /// The pod's sandbox is not in the cgroup that was limited for the pod.
    #[error(
        "spec.resources: the pod's sandbox is not in the cgroup {} that this agent sees, so its limits would have no effect; an agent in a container needs the host's /sys/fs/cgroup, writable",
        .path.display()
    )]
    NotInCgroup {
        /// The cgroup.
        path: PathBuf,
    },
    /// A limit of the pod's cgroup is not in force.
    #[error("spec.resources: {} does not have the pod's limit after it was set", .path.display())]
    NotLimited {
        /// The file of the cgroup.
        path: PathBuf,
    },
    /// A name that can't be part of a path.
    #[error("{0:?} is not a valid file name")]
    InvalidName(String),
}

impl VolumeError {
    /// Combines all these failures into one.
    ///
    /// # Errors
    /// There is at least one.
    pub(super) fn all(mut failures: Vec<Self>) -> Result<(), Self> {
        match failures.len() {
            0 => Ok(()),
            1 => failures.pop().map_or(Ok(()), Err),
            _ => Err(Self::Several(failures)),
        }
    }

    /// Name of the affected volume, if there is one; the first of several.
    pub fn volume(&self) -> Option<&str> {
        match self {
            Self::Several(failures) => failures.first().and_then(Self::volume),
            Self::Volume { volume, .. }
            | Self::SubPath { volume, .. }
            | Self::SetUp { volume, .. }
            | Self::SetUpDevice { volume, .. }
            | Self::MountNotPermitted { volume, .. }
            | Self::MountNotSeen { volume } => Some(volume),
            Self::Io { .. }
            | Self::HostPathType { .. }
            | Self::Device { .. }
            | Self::Claim(_)
            | Self::Use(_)
            | Self::Payload(_)
            | Self::MemoryFull { .. }
            | Self::Busy { .. }
            | Self::NotInCgroup { .. }
            | Self::NotLimited { .. }
            | Self::InvalidName(_) => None,
        }
    }

    /// Whether it is only about volumes that are devices.
    pub fn is_of_device(&self) -> bool {
        if let Self::Several(failures) = self {
            return failures.iter().all(Self::is_of_device);
        }
        matches!(self, Self::SetUpDevice { .. })
    }

    pub(super) fn io(attempt: &'static str, path: &Path, cause: impl Into<io::Error>) -> Self {
        Self::Io {
            attempt,
            path: path.to_owned(),
            cause: cause.into().to_string(),
        }
    }
}

/// Result of a volume operation.
pub type Result<T, E = VolumeError> = std::result::Result<T, E>;
