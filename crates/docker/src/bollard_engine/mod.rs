//! The real [`Engine`]: bollard's calls over our own connections.
//!
//! Created without contacting the Engine, so that the agent can start first. Every call has a deadline
//! that covers the whole answer, including the body; bollard's own covers the headers only.
//!
//! The calls are in one file because they are one `impl` of the trait; their parts are in the modules
//! below.

mod answers;
mod archive;
mod errors;
mod exec;
#[cfg(any(test, feature = "testing"))]
pub mod fuzzing;
mod lines;
mod pruner;
mod streams;
mod transport;

use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bollard::errors::Error;
use bollard::models::{
    ContainerCreateBody, ContainerInspectResponse, ContainerSummary, EventMessage, ImageInspect,
    ImageSummary, NetworkInspect, SystemInfo, Volume, VolumeCreateRequest,
};
use bollard::query_parameters::{
    CreateContainerOptions, ImportImageOptions, ListVolumesOptions, RemoveContainerOptions,
    RemoveImageOptions, RemoveVolumeOptions, StartContainerOptions, StopContainerOptions,
};
use bollard::{API_DEFAULT_VERSION, BollardRequest, Docker};
use bytes::Bytes;
use futures::TryStreamExt;
use futures::stream::BoxStream;

use super::engine::{
    CALL_DEADLINE, Engine, EngineError, EngineTar, EngineVersion, ExecState, HostSide, LogFrames,
    OtherEvent, PullProgress, READ_DEADLINE, RegistryAuth, Result, STOP_SLACK,
};
use super::meter::CallMeter;
use super::operation::Operation;
use answers::containers_path;
use mirrorlet_core::api::{Timestamp, keys};
use mirrorlet_core::small::SmallCollect;
use mirrorlet_runtime::copy::{PathStat, TarInput};
use mirrorlet_runtime::exec::DuplexStream;
use mirrorlet_runtime::{ExecOptions, LogOptions, StreamOptions, TerminalSize};
use transport::{Address, ApiVersion, Transport};

/// The newest API the models of this client were written for.
const NEWEST_API: ApiVersion = ApiVersion {
    major: 1,
    minor: 53,
};

/// The oldest API this program asks anything of.
const OLDEST_API: ApiVersion = ApiVersion {
    major: 1,
    minor: 41,
};

/// Option of a bridge network: the name of its interface.
const BRIDGE_NAME: &str = "com.docker.network.bridge.name";

/// Length of a network's id in the default name of its interface.
const BRIDGE_ID_LEN: usize = 12;

/// The beginning of an Engine's error if it is older than the API version in the path.
const TOO_NEW: &str = "client version ";

/// bollard's own timeout, in seconds: so long that it never applies, because every call here has its
/// own deadline and the stop of a container with a long grace period must not be interrupted.
const BOLLARD_TIMEOUT_SECONDS: u64 = 7 * 24 * 3600;

/// A Docker Engine reached through bollard.
#[derive(Debug)]
pub struct BollardEngine {
    endpoint: String,
    docker: Docker,
    transport: Arc<Transport>,
    meter: CallMeter,
}

impl BollardEngine {
    /// Returns an Engine at `unix://PATH`, `tcp://HOST:PORT` or `http://HOST:PORT`. Does not connect:
    /// while it is down, every call fails.
    ///
    /// # Errors
    /// The address is invalid.
    pub fn connect(endpoint: &str) -> Result<Self> {
        let unusable = |cause: String| EngineError::Unavailable {
            endpoint: endpoint.to_owned(),
            cause,
            is_shortage: false,
        };
        let address = Address::parse(endpoint).map_err(unusable)?;
        let transport = Arc::new(Transport::new(address));
        let below = transport.clone();
        let docker = Docker::connect_with_custom_transport(
            move |request: BollardRequest| {
                let transport = below.clone();
                async move { transport.send(request).await }
            },
            Some("http://docker"),
            BOLLARD_TIMEOUT_SECONDS,
            API_DEFAULT_VERSION,
        )
        .map_err(|e| unusable(e.to_string()))?;
        Ok(Self {
            endpoint: endpoint.to_owned(),
            docker,
            transport,
            meter: CallMeter::default(),
        })
    }

    /// Makes one call within its deadline, negotiating an API version first if that is due.
    fn call<T>(
        &self,
        operation: Operation,
        target: &str,
        after: Duration,
        work: impl Future<Output = Result<T, Error>> + Send,
    ) -> impl Future<Output = Result<T>> + Send {
        // On the heap: bollard's futures are large.
        let whole = Box::pin(async {
            if self.transport.agreed().is_none() {
                self.negotiate().await?;
            }
            work.await
        });
        let call = self.in_time(operation, after, whole);
        self.meter.call(operation, target, call)
    }

    async fn in_time<T>(
        &self,
        operation: Operation,
        after: Duration,
        work: impl Future<Output = Result<T, Error>> + Send,
    ) -> Result<T> {
        match tokio::time::timeout(after, work).await {
            Ok(answer) => answer.map_err(|error| self.failed(operation, after, error)),
            Err(_) => Err(EngineError::Timeout {
                operation: operation.as_str(),
                after,
            }),
        }
    }

    /// Converts an error to the seam's; forgets the API version if the Engine has gone away, or came
    /// back older.
    fn failed(&self, operation: Operation, after: Duration, error: Error) -> EngineError {
        let error = errors::translate(&self.endpoint, operation.as_str(), after, error);
        let changed = match &error {
            EngineError::Unavailable { is_shortage, .. } => !is_shortage,
            EngineError::Api { status, message } => *status == 400 && message.contains(TOO_NEW),
            EngineError::Timeout { .. }
            | EngineError::Decode { .. }
            | EngineError::TooLarge { .. } => false,
        };
        if changed {
            self.transport.disagree();
        }
        error
    }

    /// Agrees on an API version before another call; counts that as a call of its own.
    async fn negotiate(&self) -> Result<EngineVersion, Error> {
        let call = Box::pin(self.agree());
        self.meter.call(Operation::Version, "", call).await
    }

    /// Asks for the Engine's version and agrees on the newest API both sides know.
    async fn agree(&self) -> Result<EngineVersion, Error> {
        let answer = self.docker.version().await?;
        let theirs = answer
            .api_version
            .as_deref()
            .and_then(ApiVersion::parse)
            .ok_or(Error::APIVersionParseError {})?;
        if theirs < OLDEST_API {
            return Err(Error::DockerResponseServerError {
                status_code: http::StatusCode::BAD_REQUEST.as_u16(),
                message: format!(
                    "the Docker Engine supports API {theirs} at most; {OLDEST_API} is required: upgrade it to 20.10 or later"
                ),
            });
        }
        let agreed = theirs.min(NEWEST_API);
        self.transport.agree(agreed);
        Ok(EngineVersion {
            version: answer.version.unwrap_or_default(),
            api_version: (agreed.major, agreed.minor),
        })
    }
}

/// A name or id as part of a request's path. What no container or image can be called is refused
/// here, in the Engine's words, so that it can't address something else.
fn path_part(name: &str) -> Result<&str> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_.-:@/".contains(c);
    let climbs = || {
        name.split('/')
            .any(|p| p.is_empty() || p == "." || p == "..")
    };
    if name.is_empty() || !name.chars().all(plain) || climbs() {
        return Err(EngineError::api(
            http::StatusCode::BAD_REQUEST,
            format!("invalid name or id: {name:?}"),
        ));
    }
    Ok(name)
}

/// The Engine host's address in a network.
fn host_side(network: NetworkInspect) -> HostSide {
    let is_bridge = network.driver.as_deref() == Some("bridge");
    let named = network.options.unwrap_or_default().remove(BRIDGE_NAME);
    let by_id = || Some(format!("br-{}", network.id?.get(..BRIDGE_ID_LEN)?));
    let configs = network.ipam.and_then(|ipam| ipam.config);
    let subnets = configs.iter().flatten();
    let subnets = subnets.filter_map(|config| config.subnet.clone()).collect();
    HostSide {
        subnets,
        bridge: named.or_else(by_id).filter(|_| is_bridge),
        gateways: configs
            .into_iter()
            .flatten()
            .filter_map(|config| match config.gateway {
                Some(gateway) => gateway.parse().ok(),
                None if is_bridge => first_address(&config.subnet?),
                None => None,
            })
            .collect(),
    }
}

/// The first address of an IPv4 subnet, which the Engine takes for the host.
fn first_address(subnet: &str) -> Option<IpAddr> {
    let network: Ipv4Addr = subnet.split_once('/')?.0.parse().ok()?;
    Some(Ipv4Addr::from_bits(network.to_bits().checked_add(1)?).into())
}

/// The filters that select what is ours.
fn owned(owner: &str) -> HashMap<String, Vec<String>> {
    HashMap::from([("label".to_owned(), vec![format!("{}={owner}", keys::OWNER)])])
}

/// A grace in the whole seconds that the Engine counts in, rounded up.
fn grace_seconds(grace: Duration) -> i32 {
    let seconds = grace
        .as_secs()
        .saturating_add(u64::from(grace.subsec_nanos() > 0));
    i32::try_from(seconds).unwrap_or(i32::MAX)
}

/// A stop answers only when the container has ended.
fn stop_deadline(grace: Duration) -> Duration {
    grace.saturating_add(STOP_SLACK).max(CALL_DEADLINE)
}

#[async_trait]
impl Engine for BollardEngine {
    fn endpoint(&self) -> &str {
        &self.endpoint
    }

    fn meter(&self) -> &CallMeter {
        &self.meter
    }

    async fn version(&self) -> Result<EngineVersion> {
        let call = self.in_time(Operation::Version, READ_DEADLINE, Box::pin(self.agree()));
        self.meter.call(Operation::Version, "", call).await
    }

    async fn info(&self) -> Result<SystemInfo> {
        self.call(Operation::Info, "", READ_DEADLINE, self.docker.info())
            .await
    }

    async fn list_containers(&self, owner: &str) -> Result<Vec<ContainerSummary>> {
        let label = format!("{}={owner}", keys::OWNER);
        let path = containers_path(true, &[("label", &[label][..])]);
        self.fetch(Operation::ListContainers, "", path, &answers::CONTAINERS)
            .await
    }

    async fn list_agents_containers(&self) -> Result<Vec<ContainerSummary>> {
        let path = containers_path(true, &[("label", &[keys::OWNER.to_owned()][..])]);
        self.fetch(Operation::ListContainers, "", path, &answers::CONTAINERS)
            .await
    }

    async fn list_publishers(&self, port: u16) -> Result<Vec<ContainerSummary>> {
        // Without a protocol the Engine takes it for one of TCP.
        let ports = ["tcp", "udp", "sctp"].map(|protocol| format!("{port}/{protocol}"));
        let path = containers_path(false, &[("publish", &ports[..])]);
        self.fetch(Operation::ListContainers, "", path, &answers::PUBLISHERS)
            .await
    }

    async fn network_driver(&self, name: &str) -> Result<String> {
        let name = path_part(name)?;
        let work = self.docker.inspect_network(name, None);
        let found = self
            .call(Operation::InspectNetwork, name, READ_DEADLINE, work)
            .await?;
        Ok(found.driver.unwrap_or_default())
    }

    async fn network_host_side(&self, name: &str) -> Result<HostSide> {
        let name = path_part(name)?;
        let work = self.docker.inspect_network(name, None);
        Ok(host_side(
            self.call(Operation::InspectNetwork, name, READ_DEADLINE, work)
                .await?,
        ))
    }

    async fn inspect_container(&self, id: &str) -> Result<ContainerInspectResponse> {
        let path = format!("/containers/{}/json", path_part(id)?);
        self.fetch(Operation::InspectContainer, id, path, &answers::CONTAINER)
            .await
    }

    async fn create_container(&self, name: &str, body: ContainerCreateBody) -> Result<String> {
        let options = CreateContainerOptions {
            name: Some(name.to_owned()),
            ..CreateContainerOptions::default()
        };
        let work = self.docker.create_container(Some(options), body);
        Ok(self
            .call(Operation::CreateContainer, name, CALL_DEADLINE, work)
            .await?
            .id)
    }

    async fn start_container(&self, id: &str) -> Result<()> {
        let work = self
            .docker
            .start_container(path_part(id)?, None::<StartContainerOptions>);
        self.call(Operation::StartContainer, id, CALL_DEADLINE, work)
            .await
    }

    async fn stop_container(&self, id: &str, grace: Duration) -> Result<()> {
        let options = StopContainerOptions {
            t: Some(grace_seconds(grace)),
            ..StopContainerOptions::default()
        };
        let work = self.docker.stop_container(path_part(id)?, Some(options));
        self.call(Operation::StopContainer, id, stop_deadline(grace), work)
            .await
    }

    async fn remove_container(&self, id: &str, force: bool) -> Result<()> {
        let options = RemoveContainerOptions {
            v: true,
            force,
            ..RemoveContainerOptions::default()
        };
        let work = self.docker.remove_container(path_part(id)?, Some(options));
        self.call(Operation::RemoveContainer, id, CALL_DEADLINE, work)
            .await
    }

    async fn create_exec(&self, id: &str, options: &ExecOptions) -> Result<String> {
        self.make_exec(path_part(id)?, options).await
    }

    async fn start_exec(&self, exec: &str, tty: bool) -> Result<DuplexStream> {
        self.open_exec(path_part(exec)?, tty).await
    }

    async fn inspect_exec(&self, exec: &str) -> Result<ExecState> {
        self.look_at_exec(path_part(exec)?).await
    }

    async fn resize_exec(&self, exec: &str, size: TerminalSize) -> Result<()> {
        let path = format!("/exec/{}/resize", path_part(exec)?);
        self.resize(Operation::ResizeExec, exec, &path, size).await
    }

    async fn attach_container(&self, id: &str, streams: StreamOptions) -> Result<DuplexStream> {
        self.open_attach(path_part(id)?, streams).await
    }

    async fn resize_container(&self, id: &str, size: TerminalSize) -> Result<()> {
        let path = format!("/containers/{}/resize", path_part(id)?);
        self.resize(Operation::ResizeContainer, id, &path, size)
            .await
    }

    async fn stat_path(&self, id: &str, path: &str) -> Result<PathStat> {
        self.look_at_path(path_part(id)?, path).await
    }

    async fn download(&self, id: &str, path: &str) -> Result<EngineTar> {
        self.open_download(path_part(id)?, path).await
    }

    async fn upload(&self, id: &str, dir: &str, tar: TarInput) -> Result<()> {
        self.send_upload(path_part(id)?, dir, tar).await
    }

    async fn inspect_image(&self, name: &str) -> Result<ImageInspect> {
        let path = format!("/images/{}/json", path_part(name)?);
        self.fetch(Operation::InspectImage, name, path, &answers::IMAGE)
            .await
    }

    async fn list_images(&self, all: bool) -> Result<Vec<ImageSummary>> {
        let path = format!("/images/json?digests=1&all={}", u8::from(all));
        self.fetch(Operation::ListImages, "", path, &answers::IMAGES)
            .await
    }

    async fn images_in_use(&self) -> Result<BTreeSet<String>> {
        let path = containers_path(true, &[]);
        let containers: Vec<ContainerSummary> = self
            .fetch(Operation::ImagesInUse, "", path, &answers::USERS)
            .await?;
        // The name of a mounted image is what its container was created with: of ours, the id.
        let mounted = containers.iter().flat_map(|c| c.mounts.iter().flatten());
        let mounted = mounted
            .filter(|mount| mount.typ.as_deref() == Some("image"))
            .filter_map(|mount| mount.name.clone());
        let own = containers.iter().filter_map(|c| c.image_id.clone());
        Ok(own.chain(mounted).collect_set())
    }

    async fn remove_image(&self, name: &str) -> Result<()> {
        let options = RemoveImageOptions::default();
        let work = self
            .docker
            .remove_image(path_part(name)?, Some(options), None);
        self.call(Operation::RemoveImage, name, CALL_DEADLINE, work)
            .await?;
        Ok(())
    }

    async fn create_volume(&self, request: VolumeCreateRequest) -> Result<Volume> {
        let name = request.name.clone().unwrap_or_default();
        let work = self.docker.create_volume(request);
        self.call(Operation::CreateVolume, &name, CALL_DEADLINE, work)
            .await
    }

    async fn inspect_volume(&self, name: &str) -> Result<Volume> {
        let work = self.docker.inspect_volume(path_part(name)?);
        self.call(Operation::InspectVolume, name, CALL_DEADLINE, work)
            .await
    }

    async fn list_volumes(&self, owner: &str) -> Result<Vec<Volume>> {
        let options = ListVolumesOptions {
            filters: Some(owned(owner)),
        };
        let work = self.docker.list_volumes(Some(options));
        let listed = self
            .call(Operation::ListVolumes, "", CALL_DEADLINE, work)
            .await?;
        Ok(listed.volumes.unwrap_or_default())
    }

    async fn remove_volume(&self, name: &str) -> Result<()> {
        let work = self
            .docker
            .remove_volume(path_part(name)?, None::<RemoveVolumeOptions>);
        self.call(Operation::RemoveVolume, name, CALL_DEADLINE, work)
            .await
    }

    async fn pull_image(
        &self,
        image: &str,
        auth: Option<&RegistryAuth>,
    ) -> Result<BoxStream<'static, Result<PullProgress>>> {
        self.open_pull(image, auth).await
    }

    async fn load_image(&self, tar: Bytes) -> Result<()> {
        let options = ImportImageOptions {
            quiet: true,
            ..ImportImageOptions::default()
        };
        let messages = self
            .docker
            .import_image(options, bollard::body_full(tar), None);
        let work = messages.try_for_each(|_| std::future::ready(Ok(())));
        self.call(Operation::LoadImage, "", CALL_DEADLINE, work)
            .await
    }

    async fn events(
        &self,
        owner: &str,
        since: Option<Timestamp>,
    ) -> Result<BoxStream<'static, Result<EventMessage>>> {
        self.open_events(owner, since).await
    }

    async fn other_events(&self) -> Result<BoxStream<'static, Result<OtherEvent>>> {
        self.open_other_events().await
    }

    async fn logs(&self, id: &str, options: &LogOptions, tty: bool) -> Result<LogFrames> {
        self.open_logs(path_part(id)?, options, tty).await
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    #[test]
    fn names_that_would_address_something_else_are_refused() {
        for good in ["k8s_a_b_c_d_0", "4f1c", "host.x:5000/a/b:v1", "a@sha256:00"] {
            assert_eq!(path_part(good), Ok(good));
        }
        for bad in [
            "", ".", "..", "a/../b", "/a", "a//b", "a?b", "a b", "a%2e", "ä",
        ] {
            assert!(path_part(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_hosts_side_of_a_network_is_its_bridge_and_its_gateways() {
        let id = "55a166bf6e2302f9";
        let seen = |driver: &str, options: serde_json::Value, config: serde_json::Value| {
            let network = serde_json::json!({
                "Id": id, "Driver": driver, "Options": options, "IPAM": {"Config": config},
            });
            host_side(serde_json::from_value(network).unwrap())
        };
        let named = serde_json::json!({BRIDGE_NAME: "docker0"});
        let subnet_alone = serde_json::json!([{"Subnet": "172.17.0.0/16"}]);
        let both = serde_json::json!([
            {"Subnet": "172.17.0.0/16", "Gateway": "172.17.0.1"},
            {"Subnet": "fd00::/64", "Gateway": "fd00::1"},
        ]);
        let addresses: [IpAddr; 2] = ["172.17.0.1", "fd00::1"].map(|ip| ip.parse().unwrap());

        let first_start = seen("bridge", named.clone(), subnet_alone.clone());
        assert_eq!(first_start.bridge.as_deref(), Some("docker0"));
        assert_eq!(first_start.gateways, addresses[..1]);
        assert_eq!(
            seen("bridge", named.clone(), both.clone()).gateways,
            addresses
        );
        // The Engine names the interface of other networks by their id.
        let created = seen("bridge", serde_json::json!({}), subnet_alone.clone());
        assert_eq!(created.bridge.as_deref(), Some("br-55a166bf6e23"));
        assert_eq!(
            created,
            seen("bridge", serde_json::Value::Null, subnet_alone.clone())
        );
        // No interface of a macvlan network is the host's.
        assert_eq!(seen("macvlan", named.clone(), both).bridge, None);
        let apart = HostSide {
            subnets: vec!["172.17.0.0/16".to_owned()],
            ..HostSide::default()
        };
        assert_eq!(seen("macvlan", named, subnet_alone), apart);
    }

    #[test]
    fn a_grace_is_never_cut_short() {
        assert_eq!(grace_seconds(Duration::ZERO), 0);
        assert_eq!(grace_seconds(Duration::from_millis(1)), 1);
        // docker 32
        assert_eq!(grace_seconds(Duration::from_mins(5)), 300);
        assert_eq!(grace_seconds(Duration::MAX), i32::MAX);
        for grace in [
            Duration::ZERO,
            Duration::from_mins(5),
            Duration::from_hours(24),
        ] {
            // docker 63
            assert!(stop_deadline(grace) >= grace + STOP_SLACK);
        }
        assert!(Duration::from_secs(BOLLARD_TIMEOUT_SECONDS) > Duration::from_hours(24));
    }

    #[test]
    fn the_models_are_of_the_version_we_offer() {
        let models = API_DEFAULT_VERSION;
        assert_eq!(models.to_string(), NEWEST_API.to_string());
    }
}
