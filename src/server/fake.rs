//! An [`AgentView`] for tests, with answers set by the test. It is one piece, as the trait is.

use std::collections::BTreeMap;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt, stream};
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::sync::watch;
use tokio_util::io::ReaderStream;

use super::view::{
    AgentView, Check, CommandAnswer, Order, OrderAnswer, PlanFile, PlanRequest, Shown, Verb,
    ViewError, ViewErrorKind,
};
use mirrorlet_core::api::report::{
    AgentReport, EngineReport, EventReport, ExplainReport, HistoryReport, ImagesReport,
    JournalReport, PlanReport, PodUsage, StatusReport, TopReport, VolumeReport, VolumeState,
};
use mirrorlet_core::api::{
    Code, ContainerId, Diagnostic, Pod, PodUid, ResolvedPodUid, Timestamp, core,
};
use mirrorlet_core::events::Happening;
use mirrorlet_core::job::JobName;
use mirrorlet_core::logs::Instance;
use mirrorlet_core::node::NodeEdits;
use mirrorlet_core::rollout::Command;
use mirrorlet_host::telemetry::PodSamples;
use mirrorlet_runtime::copy::{PathKind, PathStat, TarInput, TarStream};
use mirrorlet_runtime::{
    ContainerAccess, DuplexStream, ExecOptions, LogChunk, LogOptions, LogStream, RuntimeError,
    Session, SessionControl, StreamOptions, TerminalSize,
};

/// The arguments of a log request.
pub(crate) type Asked = (PodUid, Option<String>, LogOptions, bool);

pub(crate) struct FakeView {
    changes: watch::Sender<u64>,
    pub(crate) report: Mutex<StatusReport>,
    pub(crate) checks: Mutex<Vec<Check>>,
    pub(crate) samples: Mutex<Option<PodSamples>>,
    pub(crate) asked: Mutex<Vec<Asked>>,
    /// Sizes that terminals were given.
    pub(crate) sizes: Arc<Mutex<Vec<TerminalSize>>>,
    /// The bytes that were sent for containers.
    pub(crate) uploaded: Mutex<Vec<u8>>,
    /// How many sessions were dropped.
    pub(crate) dropped: watch::Sender<u64>,
    /// How many logs without end are read.
    pub(crate) logs_open: watch::Sender<u64>,
    /// The objects that the embedded API serves.
    pub(crate) shown: Mutex<Shown>,
    /// The journal's entries that are events.
    pub(crate) happened: Mutex<Vec<Happening>>,
    /// Changes that users made to the Node.
    pub(crate) edits: Mutex<NodeEdits>,
    /// The graces that pods are given with their deletion.
    pub(crate) graces: Mutex<BTreeMap<PodUid, Duration>>,
    /// The problem of a manifest file.
    pub(crate) problem: Mutex<Option<Diagnostic>>,
    /// Whether stored objects are not loaded in time.
    pub(crate) is_slow: Mutex<bool>,
    /// Count of requests to read the manifests.
    pub(crate) refreshed: Mutex<u64>,
    /// The last lines of those.
    said: watch::Sender<String>,
}

/// Counts a log without end as long as it is read.
struct OpenLog(watch::Sender<u64>);

impl OpenLog {
    fn new(open: &watch::Sender<u64>) -> Self {
        open.send_modify(|open| *open += 1);
        Self(open.clone())
    }
}

impl Drop for OpenLog {
    fn drop(&mut self) {
        self.0.send_modify(|open| *open -= 1);
    }
}

/// Most bytes on their way through an echo.
const ECHO_BYTES: usize = 16;

/// A process that ends with 7.
struct FakeControl {
    sizes: Arc<Mutex<Vec<TerminalSize>>>,
    dropped: watch::Sender<u64>,
}

#[async_trait]
impl SessionControl for FakeControl {
    async fn resize(&self, size: TerminalSize) {
        self.sizes.lock().unwrap().push(size);
    }

    async fn exit_code(&self) -> Result<Option<i32>, RuntimeError> {
        Ok(Some(7))
    }
}

impl Drop for FakeControl {
    fn drop(&mut self) {
        self.dropped.send_modify(|count| *count += 1);
    }
}

impl FakeView {
    pub(crate) fn new() -> Self {
        Self {
            changes: watch::Sender::new(0),
            report: Mutex::new(StatusReport {
                jobs: Vec::new(),
                cron_jobs: Vec::new(),
                workloads: Vec::new(),
                pulls: Vec::new(),
                image_gc: None,
                pressures: std::collections::BTreeMap::default(),
                missing_access: Vec::new(),
                missing_access_alias: Vec::new(),
                agent: AgentReport {
                    version: "0.1.0".to_owned(),
                    pid: 1,
                    started_at: Timestamp::UNIX_EPOCH,
                    node_name: "box".to_owned(),
                    root: "/r".to_owned(),
                    owner: "o".to_owned(),
                },
                engine: EngineReport::default(),
                api: None,
                node: None,
                sources: Vec::new(),
                pods: Vec::new(),
                problems: Vec::new(),
            }),
            checks: Mutex::default(),
            samples: Mutex::default(),
            asked: Mutex::default(),
            sizes: Arc::default(),
            uploaded: Mutex::default(),
            shown: Mutex::default(),
            happened: Mutex::default(),
            edits: Mutex::default(),
            graces: Mutex::default(),
            problem: Mutex::default(),
            is_slow: Mutex::default(),
            refreshed: Mutex::default(),
            dropped: watch::Sender::new(0),
            logs_open: watch::Sender::new(0),
            said: watch::Sender::default(),
        }
    }

    /// Adds that text to all endless logs.
    pub(crate) fn say(&self, words: &str) {
        self.said.send_replace(words.to_owned());
    }

    /// Changes the report, or only notifies if `version` is the current one.
    pub(crate) fn set_version(&self, version: &str) {
        self.report.lock().unwrap().agent.version = version.to_owned();
        self.changes.send_modify(|count| *count += 1);
    }
}

#[async_trait]
impl AgentView for FakeView {
    fn status(&self) -> StatusReport {
        self.report.lock().unwrap().clone()
    }

    async fn refresh(&self) -> bool {
        *self.refreshed.lock().unwrap() += 1;
        true
    }

    async fn refresh_stored(&self) -> bool {
        let is_slow = *self.is_slow.lock().unwrap();
        self.refresh().await && !is_slow
    }

    fn problem_of(&self, location: &str) -> Option<Diagnostic> {
        let problem = self.problem.lock().unwrap();
        problem.clone().filter(|problem| problem.file == location)
    }

    fn changed(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// In namespace `ns` is any pod but `gone`; its UID is its name, its container `c`.
    fn is_settled(&self, namespace: &str, name: &str) -> bool {
        namespace == "ns" && name == "settled"
    }

    fn pod_by_name(&self, namespace: &str, name: &str) -> Option<Arc<Pod>> {
        let pod = serde_json::json!({
            "metadata": {"name": name, "namespace": namespace, "uid": name},
            "spec": {"containers": [{"name": "c"}]},
        });
        let is_there = namespace == "ns" && name != "gone";
        is_there.then(|| Arc::new(serde_json::from_value(pod).unwrap()))
    }

    fn rollout_history(&self, pod: &str) -> Result<HistoryReport, ViewError> {
        match pod {
            "gone" => Err(ViewErrorKind::NotFound.error("pod gone not found")),
            name => Ok(HistoryReport {
                name: name.to_owned(),
                namespace: "ns".to_owned(),
                paused: false,
                revisions: Vec::new(),
            }),
        }
    }

    fn node_edits(&self) -> Arc<NodeEdits> {
        Arc::new(self.edits.lock().unwrap().clone())
    }

    /// Nothing is kept.
    fn edit_node(&self, _: NodeEdits) -> io::Result<()> {
        Ok(())
    }

    /// A pod of the embedded API that is evicted is stopping from then on.
    async fn order(&self, order: &Order) -> Result<OrderAnswer, ViewError> {
        if order.verb == Verb::Evict {
            let named = order.pod.rsplit('/').next();
            for shown in &mut self.shown.lock().unwrap().pods {
                shown.terminating |= shown.pod.metadata.name.as_deref() == named;
            }
        }
        let HistoryReport {
            name, namespace, ..
        } = self.rollout_history(&order.pod)?;
        Ok(OrderAnswer {
            name,
            namespace,
            containers: order.container.iter().cloned().collect(),
            is_job: false,
            is_unchanged: false,
        })
    }

    async fn volumes(&self) -> Result<Vec<VolumeReport>, ViewError> {
        let volume = |claim: &str, state, pods: &[&str]| VolumeReport {
            name: format!("mirrorlet_default_{claim}"),
            namespace: "default".to_owned(),
            claim: claim.to_owned(),
            state,
            driver: Some("local".to_owned()),
            path: None,
            created: true,
            pods: pods.iter().copied().map(str::to_owned).collect(),
            workloads: Vec::new(),
        };
        Ok(vec![
            volume("db", VolumeState::Bound, &["default/db-box"]),
            volume("old", VolumeState::Released, &[]),
        ])
    }

    async fn remove_volume(&self, name: &str) -> Result<VolumeReport, ViewError> {
        let mut volumes = self.volumes().await?.into_iter();
        let found = volumes.find(|volume| volume.name == name && volume.pods.is_empty());
        found.ok_or_else(|| ViewErrorKind::Conflict.error(format!("volume {name} is used")))
    }

    async fn images(&self) -> Result<ImagesReport, ViewError> {
        Ok(ImagesReport::default())
    }

    /// One pod, for each request.
    fn top(&self) -> BoxStream<'static, Result<TopReport, ViewError>> {
        let report = TopReport {
            pods: vec![PodUsage::default()],
            ..TopReport::default()
        };
        stream::repeat(Ok(report)).boxed()
    }

    /// One for each change so far.
    fn events(&self, from: u64) -> Vec<EventReport> {
        let event = |number| EventReport {
            number,
            workload: None,
            namespace: Some("ns".to_owned()),
            name: "web".to_owned(),
            entry: JournalReport {
                at: Timestamp::UNIX_EPOCH,
                kind: "Normal".to_owned(),
                reason: "Changed".to_owned(),
                container: None,
                message: "x".to_owned(),
                uid: "web".into(),
            },
        };
        (from..*self.changes.borrow()).map(event).collect()
    }

    fn events_changed(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// The requested revision; 7 by default.
    async fn command_rollout(
        &self,
        pod: &str,
        command: Command,
    ) -> Result<CommandAnswer, ViewError> {
        self.rollout_history(pod)?;
        let answer = |revision| CommandAnswer {
            revision,
            workload: None,
        };
        match command {
            Command::Undo { to_revision } => Ok(answer(to_revision.unwrap_or(7))),
            Command::Retry | Command::Resume => Ok(answer(7)),
            Command::Pause
            | Command::Stop
            | Command::Start { .. }
            | Command::Evict { .. }
            | Command::Debug(_)
            | Command::Restart { .. } => Err(ViewErrorKind::Conflict.error("already paused")),
        }
    }

    /// Each file is a problem.
    async fn plan(&self, request: &PlanRequest) -> PlanReport {
        let problem = |file: &PlanFile| {
            Diagnostic::error(Code::Empty, file.name.as_str(), file.text.as_str())
        };
        PlanReport {
            orders: Vec::new(),
            runs: Vec::new(),
            pods: Vec::new(),
            problems: request.files.iter().map(problem).collect(),
            objects: Vec::new(),
        }
    }

    fn pods(&self) -> Vec<Pod> {
        let pod = self.pod_by_name("ns", "web");
        pod.into_iter().map(|pod| (*pod).clone()).collect()
    }

    fn running_pods(&self) -> Vec<Pod> {
        self.pods()
    }

    /// The mirror of a pod is `mirror-<name>`.
    fn translate_pod_uid(&self, uid: &PodUid) -> ResolvedPodUid {
        let uid = uid.as_str();
        uid.strip_prefix("mirror-").unwrap_or(uid).into()
    }

    /// Pod `gone` does not exist, the log of pod `broken` is aborted, that of pod `endless` never ends.
    async fn logs(
        &self,
        uid: &PodUid,
        container: Option<&str>,
        options: &LogOptions,
        instance: Instance<'_>,
    ) -> Result<LogStream, ViewError> {
        let asked = (
            uid.clone(),
            container.map(str::to_owned),
            options.clone(),
            instance == Instance::Previous,
        );
        self.asked.lock().unwrap().push(asked);
        let head = vec![
            Ok(LogChunk::Stdout("out\n".into())),
            Ok(LogChunk::Stderr("err\n".into())),
        ];
        match uid.as_str() {
            "gone" => Err(ViewErrorKind::NotFound
                .error("pod gone not found")
                .help("look again")),
            "broken" => {
                let cause = RuntimeError::Unavailable("socket gone".to_owned());
                Ok(stream::iter(head).chain(stream::iter([Err(cause)])).boxed())
            }
            "endless" => {
                let state = (self.said.subscribe(), OpenLog::new(&self.logs_open));
                let more = stream::unfold(state, |(mut said, open)| async move {
                    said.changed().await.ok()?;
                    let words = said.borrow_and_update().clone();
                    Some((Ok(LogChunk::Stdout(words.into())), (said, open)))
                });
                Ok(stream::iter(head).chain(more).boxed())
            }
            _ => Ok(stream::iter(head).boxed()),
        }
    }

    /// Pod `gone` does not exist.
    fn instance(
        &self,
        uid: &PodUid,
        _container: Option<&str>,
        _must_run: bool,
    ) -> Result<ContainerId, ViewError> {
        if uid.as_str() == "gone" {
            return Err(ViewErrorKind::NotFound
                .error("pod gone not found")
                .help("look again"));
        }
        Ok(ContainerId::docker(uid.as_str()))
    }

    fn check_pod(&self, _uid: &PodUid) -> Result<(), ViewError> {
        Ok(())
    }

    fn access(&self) -> &dyn ContainerAccess {
        self
    }

    /// Pod `gone` has a story, and is gone; all others never were.
    fn explain(&self, pod: &str) -> Result<ExplainReport, ViewError> {
        if pod != "ns/gone" {
            return Err(ViewErrorKind::NotFound.error(format!("pod {pod:?} not found")));
        }
        Ok(ExplainReport {
            name: "gone".to_owned(),
            namespace: "ns".to_owned(),
            pod: None,
            rejected: None,
            source_read: None,
            truncated: false,
            next: 0,
            story: Vec::new(),
        })
    }

    fn config(&self) -> serde_json::Value {
        serde_json::json!([{"key": "root"}])
    }

    async fn forget_job_pod(&self, _job: JobName, _pod: &PodUid) -> Result<(), ViewError> {
        Ok(())
    }

    async fn delete_run(&self, _job: JobName) -> Result<(), ViewError> {
        Ok(())
    }

    fn shorten_grace(&self, uid: &PodUid, grace: Duration) {
        self.graces.lock().unwrap().insert(uid.clone(), grace);
    }

    fn forget_grace(&self, uid: &PodUid) {
        self.graces.lock().unwrap().remove(uid);
    }

    fn shown(&self, _before: &[core::NodeCondition]) -> Shown {
        self.shown.lock().unwrap().clone()
    }

    fn happenings(&self, from: u64) -> (Vec<Happening>, u64) {
        let happened = self.happened.lock().unwrap();
        let next = u64::try_from(happened.len()).unwrap();
        let known = usize::try_from(from).unwrap();
        (happened.iter().skip(known).cloned().collect(), next)
    }

    fn checks(&self) -> Vec<Check> {
        self.checks.lock().unwrap().clone()
    }

    fn pod_samples(&self) -> Option<PodSamples> {
        self.samples.lock().unwrap().clone()
    }
}

#[async_trait]
impl ContainerAccess for FakeView {
    /// A command writes its arguments and what it is given, and ends with 7.
    async fn exec_in_container(
        &self,
        _id: &ContainerId,
        options: &ExecOptions,
    ) -> Result<Session, RuntimeError> {
        let args = Bytes::from(options.command.join(" "));
        let (input, echo) = tokio::io::duplex(ECHO_BYTES);
        let echo = ReaderStream::new(echo)
            .map(|read| read.map_err(|e| RuntimeError::Local(e.to_string())))
            .map_ok(LogChunk::Stderr);
        let output = stream::iter([Ok(LogChunk::Stdout(args))]);
        let (stdin, output): (Option<Pin<Box<dyn AsyncWrite + Send>>>, _) = if options.streams.stdin
        {
            (Some(Box::pin(input)), output.chain(echo).boxed())
        } else {
            (None, output.boxed())
        };
        Ok(Session {
            tty: options.streams.tty,
            stdin,
            output,
            control: Box::new(FakeControl {
                sizes: Arc::clone(&self.sizes),
                dropped: self.dropped.clone(),
            }),
        })
    }

    async fn attach_container(
        &self,
        id: &ContainerId,
        streams: StreamOptions,
    ) -> Result<Session, RuntimeError> {
        let options = ExecOptions {
            command: vec!["attached".to_owned()],
            streams,
            size: None,
        };
        self.exec_in_container(id, &options).await
    }

    /// Port 7 echoes, other ports are closed.
    async fn port_forward(&self, _uid: &PodUid, port: u16) -> Result<DuplexStream, RuntimeError> {
        if port != 7 {
            return Err(RuntimeError::Local("connection refused".to_owned()));
        }
        let (ours, theirs) = tokio::io::duplex(ECHO_BYTES);
        tokio::spawn(async move {
            let (mut read, mut write) = tokio::io::split(ours);
            let _ = tokio::io::copy(&mut read, &mut write).await;
            let _ = write.shutdown().await;
        });
        Ok(Box::new(theirs))
    }

    /// `/dir` is a directory, nothing else exists.
    async fn stat_in_container(
        &self,
        _id: &ContainerId,
        path: &str,
    ) -> Result<PathStat, RuntimeError> {
        if path == "/dir" {
            return Ok(PathStat {
                kind: PathKind::Dir,
                link_target: String::new(),
            });
        }
        Err(RuntimeError::NotFound(format!("there is no {path}")))
    }

    async fn copy_from_container(
        &self,
        id: &ContainerId,
        path: &str,
    ) -> Result<TarStream, RuntimeError> {
        self.stat_in_container(id, path).await?;
        Ok(stream::iter([Ok(Bytes::from("a tar"))]).boxed())
    }

    async fn copy_to_container(
        &self,
        id: &ContainerId,
        dir: &str,
        tar: TarInput,
    ) -> Result<(), RuntimeError> {
        self.stat_in_container(id, dir).await?;
        let sent: Result<Vec<Bytes>, _> = tar.try_collect().await;
        let sent = sent.map_err(|error| RuntimeError::Local(error.to_string()))?;
        self.uploaded.lock().unwrap().extend(sent.concat());
        Ok(())
    }
}

/// Statistics that name their form; CPU and memory alone fail.
pub(crate) struct FakeStats;

#[async_trait]
impl super::NodeStats for FakeStats {
    async fn summary(&self, only_cpu_and_memory: bool) -> Result<String, String> {
        if only_cpu_and_memory {
            return Err("no".to_owned());
        }
        Ok("{}".to_owned())
    }

    async fn resource_metrics(&self) -> String {
        "resource".to_owned()
    }

    async fn cadvisor_metrics(&self) -> String {
        "cadvisor".to_owned()
    }

    fn probe_metrics(&self) -> String {
        "probes".to_owned()
    }
}
