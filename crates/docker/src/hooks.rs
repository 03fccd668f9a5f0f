//! Lifecycle hooks: `postStart` right after a container's start, `preStop` before its stop.
//!
//! A `preStop` hook runs at least once: if the agent dies meanwhile, or a stop is retried, it runs
//! again. A `postStart` hook runs at most once: if the agent ends before the hook does, or the Engine's
//! answer to the start is lost, the container continues without it, as with a kubelet. The output and
//! the answer of a hook are discarded. A `preStop` hook that outlives the grace period of its container
//! continues beside SIGTERM, and ends with the container. An attempt that fails because this machine
//! lacks files, threads, ports or memory is retried within the hook's time: that is not the container's
//! fault. If a server redirected the request, only the redirected one is retried: that server has
//! received its own.
//!
//! Upstream: `pkg/kubelet/lifecycle/handlers.go`, and `executePreStopHook` of
//! `pkg/kubelet/kuberuntime/kuberuntime_container.go`.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use super::containers::Containers;
use super::exec::Execs;
use super::files::PodFiles;
use super::persist::Pauses;
use super::translate::Kind;
use mirrorlet_core::api::core::{Container, LifecycleHandler};
use mirrorlet_core::api::{ContainerId, FullName, Pod, PodUid};
use mirrorlet_core::handler::{self, Handler, HandlerError, HttpGet, Scheme};
use mirrorlet_core::observed::ContainerState;
use mirrorlet_core::spec;
use mirrorlet_host::probe::{Client, HttpAnswer, ProbeError};
use mirrorlet_host::telemetry::{Telemetry, occurrences};
use mirrorlet_runtime::RuntimeError;

/// Maximum duration of a `postStart` hook. Upstream has none: a hanging hook blocks its pod forever. No
/// caller waits that long for a hook; a pod that is being stopped does not wait for it.
const POST_START_MAX: Duration = Duration::from_hours(1);
/// Time that a `preStop` hook has beyond the grace: longer than any stop takes. The stop ends it.
const BEYOND_GRACE: Duration = Duration::from_hours(1);
/// Maximum wait for the end of a hook's command after its container has stopped.
const COMMAND_END_WAIT: Duration = Duration::from_secs(10);

/// The time of a hook.
#[derive(Debug, Clone, Copy)]
pub(super) struct HookTime {
    /// Longest time that it may take.
    pub(super) max: Duration,
    /// How long attempts are retried that fail because this machine lacks a resource.
    pub(super) retries: Duration,
}

impl HookTime {
    /// The time of a `postStart` hook.
    const POST_START: Self = Self {
        max: POST_START_MAX,
        retries: POST_START_MAX,
    };

    /// The time of a `preStop` hook of a container with that grace.
    fn pre_stop(grace: Duration) -> Self {
        let grace = grace.min(spec::GRACE_MAX);
        Self {
            max: grace + BEYOND_GRACE,
            retries: grace,
        }
    }
}

/// Why a hook did not succeed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum HookError {
    /// The handler is invalid.
    #[error(transparent)]
    Handler(#[from] HandlerError),
    /// Its command ended badly.
    #[error("its command exited with {0}")]
    Exited(i32),
    /// Its command could not be run.
    #[error(transparent)]
    Runtime(RuntimeError),
    /// Its server did not answer.
    #[error("Get \"{url}\": {error}")]
    Http {
        /// Where to.
        url: String,
        /// Why.
        error: ProbeError,
    },
    /// Its time was over.
    #[error("timed out after {} s", .0.as_secs())]
    Timeout(Duration),
    /// Its container stopped first.
    #[error("its container stopped before the hook had ended")]
    Stopped,
}

/// The hooks of containers.
pub(super) struct Hooks {
    pub(super) containers: Arc<Containers>,
    pub(super) execs: Arc<Execs>,
    /// Sends their requests.
    pub(super) probe: Client,
    /// Knows the addresses of the node.
    pub(super) files: Arc<PodFiles>,
    pub(super) telemetry: Telemetry,
}

/// Runs the hooks of one container.
///
/// Upstream: `HandlerRunner` of `pkg/kubelet/container/helpers.go`.
pub(super) struct HandlerRunner<'a> {
    pub(super) hooks: &'a Hooks,
    pub(super) full_name: &'a FullName,
    pub(super) uid: &'a PodUid,
    /// The container from its spec, or as far as its labels describe it.
    pub(super) container: &'a Container,
    /// Id of its instance.
    pub(super) id: &'a str,
}

impl HandlerRunner<'_> {
    /// Runs one hook to its end, or until its time is over. If dropped before that, its command is
    /// killed.
    pub(super) async fn run(
        &self,
        hook: &LifecycleHandler,
        time: HookTime,
    ) -> Result<(), HookError> {
        let pod_ip = match &hook.http_get {
            Some(get) if get.host.as_deref().unwrap_or_default().is_empty() => {
                self.hooks.pod_ip(self.uid).await
            }
            Some(_) | None => None,
        };
        match handler::of_hook(hook, self.container, pod_ip)? {
            Handler::Exec(command) => self.exec(command, time).await,
            Handler::HttpGet(get) => self.http_get(&get, time).await,
            Handler::Sleep(pause) => timeout(time.max, tokio::time::sleep(pause))
                .await
                .map_err(|_| HookError::Timeout(time.max)),
            Handler::TcpSocket { .. } | Handler::Grpc(_) => Err(HandlerError::Missing.into()),
        }
    }

    async fn exec(&self, command: Vec<String>, time: HookTime) -> Result<(), HookError> {
        let id = ContainerId::docker(self.id);
        let HookTime { max, retries } = time;
        // On the heap: it is large, and most containers have no hooks.
        let run = Box::pin(self.hooks.execs.run_command(&id, command, max, retries));
        match run.await {
            Ok(output) if output.exit_code == 0 => Ok(()),
            Ok(output) => Err(HookError::Exited(output.exit_code)),
            Err(RuntimeError::Timeout { after, .. }) => Err(HookError::Timeout(after)),
            Err(error) => Err(HookError::Runtime(error)),
        }
    }

    /// Any answer is success. If the answer to HTTPS came in plain text, the request is repeated over
    /// HTTP, without the author's credentials.
    async fn http_get(&self, get: &HttpGet, time: HookTime) -> Result<(), HookError> {
        let began = Instant::now();
        let mut asked = self.ask(get, began, time).await;
        if asked == Err(ProbeError::PlainAnswer) {
            let mut plain = get.clone();
            plain.scheme = Scheme::Http;
            plain
                .headers
                .retain(|(name, _)| !name.eq_ignore_ascii_case("Authorization"));
            let again = self.ask(&plain, began, time).await;
            if again.is_ok() {
                let host = handler::authority(&get.host, get.port);
                let telemetry = &self.hooks.telemetry;
                let (name, uid) = (self.full_name, self.uid);
                occurrences::hook_fell_back(telemetry.pod(name, uid), &self.container.name, &host);
                asked = again;
            }
        }
        match asked {
            // So many redirects are answers, too.
            Ok(_) | Err(ProbeError::TooManyRedirects(_)) => Ok(()),
            Err(ProbeError::Timeout(_)) => Err(HookError::Timeout(time.max)),
            Err(error) => Err(HookError::Http {
                url: get.to_string(),
                error,
            }),
        }
    }

    /// Sends a request of the hook that began then.
    async fn ask(
        &self,
        get: &HttpGet,
        began: Instant,
        time: HookTime,
    ) -> Result<HttpAnswer, ProbeError> {
        let client = self.hooks.probe.of_namespace(&self.full_name.namespace);
        let left = time.max.saturating_sub(began.elapsed());
        let mut pauses = Pauses::until(began + time.retries);
        client.http_get_again(get, left, || pauses.pause()).await
    }
}

impl Hooks {
    /// Runs a container's `postStart` hook, if it has one.
    pub(super) async fn post_start(
        &self,
        pod: &Pod,
        container: &Container,
        id: &str,
    ) -> Result<(), HookError> {
        let hook = container.lifecycle.as_ref();
        let Some(hook) = hook.and_then(|lifecycle| lifecycle.post_start.as_ref()) else {
            return Ok(());
        };
        let (full_name, uid) = (FullName::of(pod), PodUid::of(pod));
        let runner = HandlerRunner {
            hooks: self,
            full_name: &full_name,
            uid: &uid,
            container,
            id,
        };
        let ran = runner.run(hook, HookTime::POST_START).await;
        if let Err(error) = &ran {
            let (telemetry, name) = (&self.telemetry, &container.name);
            let why = error.to_string();
            occurrences::hook_failed(telemetry.pod(&full_name, &uid), name, "PostStart", &why);
        }
        ran
    }

    /// Runs a container's `preStop` hook, if it has one, to its end, or until the container has
    /// `stopped`. If the pod is no longer known, the hook is the one in the container's labels.
    pub(super) async fn pre_stop(
        &self,
        pod: Option<&Arc<Pod>>,
        name: &str,
        id: &str,
        grace: Duration,
        stopped: &CancellationToken,
    ) {
        let Some(record) = self.containers.index.get(id) else {
            return;
        };
        let of_spec = pod.and_then(|pod| spec::find_container(pod, name));
        let container = match (of_spec, &record.ours.kind) {
            (Some((_, container)), _) => container.clone(),
            (None, Kind::Container { hooks, .. }) => hooks.container(name),
            (None, Kind::Sandbox { .. }) => return,
        };
        let hook = container.lifecycle.as_ref();
        let Some(hook) = hook.and_then(|lifecycle| lifecycle.pre_stop.as_ref()) else {
            return;
        };
        let runner = HandlerRunner {
            hooks: self,
            full_name: &record.ours.full_name,
            uid: &record.ours.uid,
            container: &container,
            id,
        };
        let run = runner.run(hook, HookTime::pre_stop(grace));
        let ran = tokio::select! {
            biased;
            ran = run => ran,
            over = outlived(hook, stopped) => over,
        };
        if let Err(error) = ran {
            let (full_name, uid) = (&record.ours.full_name, &record.ours.uid);
            let (telemetry, why) = (&self.telemetry, error.to_string());
            occurrences::hook_failed(telemetry.pod(full_name, uid), name, "PreStop", &why);
        }
    }

    /// The pod's primary address; the node's for a pod in the host's network. After a restart of the
    /// agent it may have to be read from the Engine.
    async fn pod_ip(&self, uid: &PodUid) -> Option<IpAddr> {
        let sandbox = || {
            let mut records = self.containers.index.of_pod(uid).into_iter();
            records.find(|record| {
                matches!(record.ours.kind, Kind::Sandbox { .. })
                    && record.state == ContainerState::Running
            })
        };
        let found = sandbox()?;
        if let Kind::Sandbox {
            host_network: true, ..
        } = found.ours.kind
        {
            return self.files.node_ips().first().copied();
        }
        if found.ips().is_empty() {
            // Without an address the hook fails, with an error.
            let _ = self.containers.freshen(&found.id).await;
        }
        sandbox()?.ips().first().copied()
    }
}

/// Waits until a `preStop` hook can be abandoned, and returns its result then. A command ends with its
/// container, and reports that itself.
async fn outlived(hook: &LifecycleHandler, stopped: &CancellationToken) -> Result<(), HookError> {
    stopped.cancelled().await;
    if hook.sleep.is_some() {
        return Ok(());
    }
    if hook.exec.is_some() {
        tokio::time::sleep(COMMAND_END_WAIT).await;
    }
    Err(HookError::Stopped)
}
