//! The interface between `DockerManager` and an Engine.
//!
//! Every call the crate makes to an Engine goes through [`Engine`]: the real one wraps bollard,
//! and tests inject faults before and after any call.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bollard::models::{
    ContainerCreateBody, ContainerInspectResponse, ContainerSummary, EventMessage, ImageInspect,
    ImageSummary, SystemInfo, Volume, VolumeCreateRequest,
};
use bytes::Bytes;
use futures::StreamExt as _;
use futures::stream::BoxStream;

use super::meter::CallMeter;
use mirrorlet_core::api::{Timestamp, shortened};
pub use mirrorlet_core::credentials::RegistryAuth;
use mirrorlet_runtime::copy::{PathStat, TarInput};
use mirrorlet_runtime::exec::DuplexStream;
use mirrorlet_runtime::{
    ExecOptions, LogChunk, LogOptions, RuntimeError, StreamOptions, TerminalSize,
};

/// Deadline of every call that only reads or changes records. Start is among them: it includes the
/// runtime's own start of the process, which is slow only if storage is.
pub const CALL_DEADLINE: Duration = Duration::from_mins(2);

/// Deadline of a list or an inspect: short, because a hanging one must not delay its pod for long, and
/// the next event or sweep repeats it.
pub const READ_DEADLINE: Duration = Duration::from_secs(20);

/// Time added to a container's grace period for the deadline of its stop call: the Engine answers only
/// when the container has ended, after the grace period and a kill.
pub const STOP_SLACK: Duration = Duration::from_secs(30);

/// The host's side of a network: the parts that exist only in the network namespace of the Engine's
/// host.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HostSide {
    /// Name of the bridge interface; none if the network is not a bridge.
    pub bridge: Option<String>,
    /// The host's addresses in the network. An Engine that chose a bridge's subnet, or was given one
    /// without a gateway, reports none: then the first of the subnet, which it may have taken.
    pub gateways: Vec<IpAddr>,
    /// Its subnets, as `10.0.0.0/8`.
    pub subnets: Vec<String>,
}

impl HostSide {
    /// The host's IPv4 addresses in a bridge network, as far as they currently belong to this
    /// namespace.
    pub fn own_addresses(&self) -> impl Iterator<Item = Ipv4Addr> {
        let all = self.gateways.iter().filter_map(|address| match address {
            IpAddr::V4(address) => Some(*address),
            IpAddr::V6(_) => None,
        });
        all.filter(|address| self.bridge.is_some() && is_own(IpAddr::V4(*address)))
    }
}

/// Whether an address belongs to this network namespace: only then can it be bound.
pub fn is_own(address: IpAddr) -> bool {
    UdpSocket::bind((address, 0)).is_ok()
}

/// Why an Engine call failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EngineError {
    /// No connection, or it broke before an answer came.
    #[error("the Docker Engine at {endpoint} is not reachable: {cause}")]
    Unavailable {
        /// The Engine's address.
        endpoint: String,
        /// The transport's words.
        cause: String,
        /// Whether this machine was short of something to connect with: the Engine was not asked.
        is_shortage: bool,
    },
    /// There was no answer within the deadline. The Engine may still complete the call.
    #[error("the Docker Engine did not answer {operation} within {} s", .after.as_secs())]
    Timeout {
        /// The call.
        operation: &'static str,
        /// Its deadline.
        after: Duration,
    },
    /// The Engine answered with an error.
    #[error("{message}")]
    Api {
        /// HTTP status.
        status: u16,
        /// The Engine's words.
        message: String,
    },
    /// The answer can't be decoded: most likely the Engine is newer than this program.
    #[error("failed to decode the Docker Engine's response to {operation}: {cause}")]
    Decode {
        /// The call.
        operation: &'static str,
        /// The decoding error.
        cause: String,
    },
    /// The answer is larger than what is read.
    #[error("{what} is larger than {} MiB", .max >> 20)]
    TooLarge {
        /// The object that it describes.
        what: &'static str,
        /// Most bytes read.
        max: usize,
    },
}

/// Maximum number of bytes that are kept of an error message. The Engine passes on those of registries,
/// which may have megabytes, and an error is held for each image that can't be pulled.
const WORDS_BYTES_MAX: usize = 4 << 10;

impl EngineError {
    /// An answer with that status and these words.
    pub(crate) fn api(status: impl Into<u16>, message: impl Into<String>) -> Self {
        Self::Api {
            status: status.into(),
            message: shortened(message.into(), WORDS_BYTES_MAX),
        }
    }

    /// HTTP status of the answer, if there was one.
    pub fn status(&self) -> Option<u16> {
        match self {
            Self::Api { status, .. } => Some(*status),
            Self::Unavailable { .. }
            | Self::Timeout { .. }
            | Self::Decode { .. }
            | Self::TooLarge { .. } => None,
        }
    }

    /// Whether the thing named does not exist.
    pub fn is_not_found(&self) -> bool {
        self.status() == Some(404)
    }

    /// Whether the call was not made because this machine lacked a resource for the connection.
    pub fn is_shortage(&self) -> bool {
        matches!(
            self,
            Self::Unavailable {
                is_shortage: true,
                ..
            }
        )
    }

    /// Whether the call conflicts with the state of the named object.
    pub fn is_conflict(&self) -> bool {
        self.status() == Some(409)
    }
}

impl From<EngineError> for RuntimeError {
    fn from(error: EngineError) -> Self {
        match error {
            EngineError::Unavailable { .. } => Self::Unavailable(error.to_string()),
            EngineError::Timeout { operation, after } => Self::Timeout { operation, after },
            EngineError::Api {
                status: 404,
                message,
            } => Self::NotFound(message),
            EngineError::Api {
                status: 409,
                message,
            } => Self::Conflict(message),
            EngineError::Api { status, message } => Self::Refused { status, message },
            EngineError::Decode { .. } | EngineError::TooLarge { .. } => Self::Refused {
                status: 0,
                message: error.to_string(),
            },
        }
    }
}

/// Result of an Engine call.
pub type Result<T, E = EngineError> = std::result::Result<T, E>;

/// The response of `GET /version`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineVersion {
    /// Version of the Engine, for example `20.10.24+dfsg1`.
    pub version: String,
    /// API agreed on with this client.
    pub api_version: (u16, u16),
}

/// One message of a pull.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PullProgress {
    /// Layer concerned; empty for messages about the whole image.
    pub layer: String,
    /// For example `Downloading`, `Extracting`, `Pull complete`.
    pub status: String,
    /// Bytes done of the layer, where known.
    pub current: Option<u64>,
    /// Bytes of the layer, where known.
    pub total: Option<u64>,
}

/// The response of `GET /exec/{id}/json`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ExecState {
    /// Whether the command runs.
    pub running: bool,
    /// Its exit code; none before its end, or if it was never started.
    pub exit_code: Option<i32>,
    /// Its process id in the PID namespace of the Engine's host; none before the start.
    pub pid: Option<i32>,
}

/// Output of a container in the Engine's frames, one per item.
pub type LogFrames = BoxStream<'static, Result<LogChunk>>;

/// A tar archive as the Engine sends it.
pub type EngineTar = BoxStream<'static, Result<Bytes>>;

/// The calls to a Docker Engine.
///
/// Every method ends within its own deadline. Streams have no time limit; dropping one closes its
/// connection.
#[async_trait]
pub trait Engine: Send + Sync + 'static {
    /// Address of the Engine, for messages.
    fn endpoint(&self) -> &str;

    /// Counts the calls.
    fn meter(&self) -> &CallMeter;

    /// `GET /version`, negotiating the API version on the way.
    async fn version(&self) -> Result<EngineVersion>;

    /// `GET /info`.
    async fn info(&self) -> Result<SystemInfo>;

    /// `GET /containers/json?all=1`, filtered by our ownership label.
    async fn list_containers(&self, owner: &str) -> Result<Vec<ContainerSummary>>;

    /// `GET /containers/json`, of all agents.
    async fn list_agents_containers(&self) -> Result<Vec<ContainerSummary>> {
        Ok(Vec::new())
    }

    /// `GET /containers/json`, filtered by a port that is published on the host, for any owner.
    async fn list_publishers(&self, port: u16) -> Result<Vec<ContainerSummary>>;

    /// `GET /networks/{name}`: its driver.
    async fn network_driver(&self, name: &str) -> Result<String>;

    /// `GET /networks/{name}`: where the Engine's host is attached to it. Nowhere, where the Engine
    /// doesn't say.
    async fn network_host_side(&self, _name: &str) -> Result<HostSide> {
        Ok(HostSide::default())
    }

    /// `GET /containers/{id}/json`.
    async fn inspect_container(&self, id: &str) -> Result<ContainerInspectResponse>;

    /// `POST /containers/create`; returns the id.
    async fn create_container(&self, name: &str, body: ContainerCreateBody) -> Result<String>;

    /// `POST /containers/{id}/start`. One that runs already is success.
    async fn start_container(&self, id: &str) -> Result<()>;

    /// `POST /containers/{id}/stop?t=`: the image's stop signal, then SIGKILL after `grace`. Success if
    /// the container has ended already. Returns when it has ended.
    async fn stop_container(&self, id: &str, grace: Duration) -> Result<()>;

    /// `DELETE /containers/{id}?v=1`.
    async fn remove_container(&self, id: &str, force: bool) -> Result<()>;

    /// `POST /containers/{id}/exec`; returns the exec's id. 409 where the container does not run
    /// or is paused.
    async fn create_exec(&self, id: &str, options: &ExecOptions) -> Result<String>;

    /// `POST /exec/{id}/start` over a connection of its own, which is handed out raw: with `tty`
    /// the terminal's bytes, else frames (`logs::FrameDecoder`). An exec starts once; a second
    /// start is 409.
    async fn start_exec(&self, exec: &str, tty: bool) -> Result<DuplexStream>;

    /// `GET /exec/{id}/json`. Known for some minutes after the end.
    async fn inspect_exec(&self, exec: &str) -> Result<ExecState>;

    /// `POST /exec/{id}/resize`. Fails before the command runs and after it ended.
    async fn resize_exec(&self, exec: &str, size: TerminalSize) -> Result<()>;

    /// `POST /containers/{id}/attach?stream=1` over a connection of its own, which is handed out as
    /// by [`start_exec`](Self::start_exec).
    async fn attach_container(&self, id: &str, streams: StreamOptions) -> Result<DuplexStream>;

    /// `POST /containers/{id}/resize`.
    async fn resize_container(&self, id: &str, size: TerminalSize) -> Result<()>;

    /// `HEAD /containers/{id}/archive`.
    async fn stat_path(&self, id: &str, path: &str) -> Result<PathStat>;

    /// `GET /containers/{id}/archive`.
    async fn download(&self, id: &str, path: &str) -> Result<EngineTar>;

    /// `PUT /containers/{id}/archive`. Takes as long as the archive comes.
    async fn upload(&self, id: &str, dir: &str, tar: TarInput) -> Result<()>;

    /// `GET /images/{name}/json`.
    async fn inspect_image(&self, name: &str) -> Result<ImageInspect>;

    /// `GET /images/json`: all images with a name or a digest; with `all` also intermediate images of
    /// builds. The default implementation returns none.
    async fn list_images(&self, _all: bool) -> Result<Vec<ImageSummary>> {
        Ok(Vec::new())
    }

    /// `GET /containers/json?all=1`: ids of the images of all containers, for any owner.
    async fn images_in_use(&self) -> Result<BTreeSet<String>>;

    /// `DELETE /images/{name}`: removes a name or a digest; with the last one, or by id, the image
    /// itself and its otherwise unused parents. Never forced.
    async fn remove_image(&self, name: &str) -> Result<()>;

    /// `POST /volumes/create`. An existing one is returned unchanged.
    async fn create_volume(&self, request: VolumeCreateRequest) -> Result<Volume>;

    /// `GET /volumes/{name}`.
    async fn inspect_volume(&self, name: &str) -> Result<Volume>;

    /// `GET /volumes`, filtered by our ownership label.
    async fn list_volumes(&self, owner: &str) -> Result<Vec<Volume>>;

    /// `DELETE /volumes/{name}`. 409 while a container uses it, running or not. Never forced.
    async fn remove_volume(&self, name: &str) -> Result<()>;

    /// `POST /images/create`: progress until the stream ends. An error within the stream is an
    /// item, though the Engine said 200.
    async fn pull_image(
        &self,
        image: &str,
        auth: Option<&RegistryAuth>,
    ) -> Result<BoxStream<'static, Result<PullProgress>>>;

    /// `POST /images/load` of a tar.
    async fn load_image(&self, tar: Bytes) -> Result<()>;

    /// `GET /events` of containers with our ownership label, from `since` on where given.
    /// Returns once the Engine has accepted the subscription.
    async fn events(
        &self,
        owner: &str,
        since: Option<Timestamp>,
    ) -> Result<BoxStream<'static, Result<EventMessage>>>;

    /// `GET /events` of images and networks. An Engine that doesn't report them has no items.
    async fn other_events(&self) -> Result<BoxStream<'static, Result<OtherEvent>>> {
        Ok(futures::stream::pending().boxed())
    }

    /// `GET /containers/{id}/logs`. With `tty` the output is raw and all of it counts as stdout.
    async fn logs(&self, id: &str, options: &LogOptions, tty: bool) -> Result<LogFrames>;
}

/// An event of something that bears no ownership label.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OtherEvent {
    /// An image came, went or changed its name.
    Image,
    /// The container of that id was disconnected from a network.
    Disconnected(String),
}

/// An Engine handed around.
pub type SharedEngine = Arc<dyn Engine>;
