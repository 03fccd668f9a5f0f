//! The status report: combines the state that the components publish.

mod access;
mod adopted;
mod checks;
mod cluster;
mod explain;
mod finished;
mod images;
mod orders;
mod pods;
mod rollouts;
mod shown;
mod volumes;

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::StreamExt;
use futures::stream::BoxStream;
use tokio::sync::watch;
use tokio::time::timeout;

use super::counts::pod_samples;
use super::sources::Directories;
use crate::config::Resolved;
use crate::eviction::Shortages;
use crate::jobs::{self, JobHandle};
use crate::rollout::{RolloutHandle, RolloutTarget};
use crate::server::view::{
    AgentView, Check, CommandAnswer, Order, OrderAnswer, PlanRequest, Shown, ViewError,
    ViewErrorKind,
};
use crate::source::{SourceReader, problems_of};
use crate::stats::StatsProvider;
use crate::store::board::Board;
use crate::store::cache::CacheReader;
use crate::store::cell::Reader;
use crate::store::claims::ClaimHandle;
use crate::store::graces::Graces;
use crate::store::pods::PodManager;
use crate::store::refresh::RefreshHandle;
use mirrorlet_core::api::report::{
    AgentReport, EngineReport, EventReport, ExplainReport, HistoryReport, ImageGcReport,
    ImagesReport, MissingAccessReport, PlanReport, StatusReport, TopReport, VolumeReport,
};
use mirrorlet_core::api::{
    ContainerId, Diagnostic, FullName, Pod, PodUid, ResolvedPodUid, Timestamp, core,
};
use mirrorlet_core::desired::SourceState;
use mirrorlet_core::events::Happening;
use mirrorlet_core::eviction::Pressures;
use mirrorlet_core::job::JobName;
use mirrorlet_core::logs::Instance;
use mirrorlet_core::merge::plan::plan as planned_objects;
use mirrorlet_core::merge::{Merged, merge_sources};
use mirrorlet_core::node::RuntimeReach;
use mirrorlet_core::node::{NodeEdits, NodeFacts};
use mirrorlet_core::rollout::Command;
use mirrorlet_core::select::choose_container;
use mirrorlet_core::small::SmallCollect;
use mirrorlet_core::stats::top::top;
use mirrorlet_docker::ImagePuller;
use mirrorlet_host::telemetry::{Journal, PodSamples};
use mirrorlet_runtime::{ContainerAccess, LogOptions, LogStream, Runtime, RuntimeError};

pub(super) use cluster::ClusterView;

/// Longest time for reading the manifest directory and taking in what is in it.
const REFRESH_DEADLINE: Duration = Duration::from_secs(2);

/// Has tasks take in what changed, one after the other. Returns whether all have.
async fn refresh(tasks: Vec<&RefreshHandle>) -> bool {
    let refreshed = async {
        for task in tasks {
            task.refresh().await;
        }
    };
    // A disk that hangs must not keep anybody from an answer about what runs.
    let done = timeout(REFRESH_DEADLINE, refreshed).await.is_ok();
    if !done {
        tracing::debug!("changes in the manifest directory have not been applied yet");
    }
    done
}

/// The agent as its servers see it.
pub(super) struct View {
    pub(super) resolved: Resolved,
    pub(super) owner: String,
    pub(super) started_at: Timestamp,
    pub(super) sources: Vec<SourceReader>,
    pub(super) merged: Reader<Merged>,
    pub(super) manager: PodManager,
    pub(super) board: Board,
    pub(super) rollouts: RolloutHandle,
    pub(super) jobs: JobHandle,
    pub(super) claims: ClaimHandle,
    /// Have the directories read.
    pub(super) directories: Directories,
    /// Has the merge take in what was read.
    pub(super) merge: RefreshHandle,
    pub(super) cache: CacheReader,
    pub(super) reach: watch::Receiver<RuntimeReach>,
    pub(super) engine: watch::Receiver<EngineReport>,
    /// The address of the Engine that the last agent used, if it was another.
    pub(super) engine_before: Option<String>,
    /// Whether no Engine had answered an agent with that root directory before.
    pub(super) engine_is_new: bool,
    /// Missing access to the host.
    pub(super) missing_access: watch::Receiver<Vec<MissingAccessReport>>,
    pub(super) images: Arc<ImagePuller>,
    /// None where no images are collected.
    pub(super) image_gc: Option<watch::Receiver<ImageGcReport>>,
    /// The resources that the node is short of.
    pub(super) shortages: Reader<Shortages>,
    pub(super) runtime: Arc<dyn Runtime>,
    pub(super) changes: watch::Receiver<u64>,
    pub(super) stats: Arc<StatsProvider>,
    pub(super) journal: Journal,
    /// The facts of this Node, except for those of the Engine and its addresses.
    pub(super) facts: NodeFacts,
    /// The addresses of the machine, primary first.
    pub(super) addresses: Reader<Vec<IpAddr>>,
    /// Graces that pods are given with their deletion.
    pub(super) graces: Graces,
    /// The pressures that the node is under.
    pub(super) pressures: Reader<Pressures>,
    /// None without an API server.
    pub(super) cluster: Option<ClusterView>,
}

impl View {
    fn agent(&self) -> AgentReport {
        let config = &self.resolved.config;
        AgentReport {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            started_at: self.started_at,
            node_name: config.node_name.to_string(),
            root: config.root.display().to_string(),
            owner: self.owner.clone(),
        }
    }

    /// A typed name or UID of a pod, where a mirror's UID has become its static pod's, also while that is
    /// being stopped.
    fn translated(&self, typed: &str) -> String {
        self.translate_pod_uid(&typed.into()).to_string()
    }

    /// Finds by what was typed, a mirror pod's UID translated; if that finds nothing, as it was typed, so
    /// that the error names that.
    fn find_typed<T>(
        &self,
        typed: &str,
        find: impl Fn(&str) -> Result<T, ViewError>,
    ) -> Result<T, ViewError> {
        match find(&self.translated(typed)) {
            Err(error) if error.kind == ViewErrorKind::NotFound => find(typed),
            found => found,
        }
    }

    /// A pod that is wanted, or still being stopped.
    fn pod(&self, uid: &PodUid) -> Result<Arc<Pod>, ViewError> {
        let wanted = self.manager.get().get_pod_by_uid(uid);
        wanted
            .or_else(|| self.pod_view(uid).and_then(|view| view.pod))
            .ok_or_else(|| {
                ViewErrorKind::NotFound
                    .error(format!("no pod with UID {uid}"))
                    .help("list the pods with: mirrorlet status")
            })
    }
}

#[async_trait]
impl AgentView for View {
    fn status(&self) -> StatusReport {
        let merged = self.merged.get();
        let sources: Vec<_> = self.sources.iter().map(SourceReader::report).collect();
        // Problems of files without a running pod, and duplicates; those of held pods are shown
        // with their pod.
        let mut problems: BTreeSet<Diagnostic> = merged.conflicts.iter().cloned().collect_set();
        problems.extend(
            sources
                .iter()
                .flat_map(|source| source.problems.iter().cloned()),
        );
        problems.extend((*self.rollouts.unkept().get()).clone());
        let jobs = self.jobs.states();
        let pods = self.pods(&merged);
        let missing_access = self.missing_access.borrow().clone();
        StatusReport {
            agent: self.agent(),
            missing_access_alias: missing_access.clone(),
            missing_access,
            engine: EngineReport {
                unlisted: !self.cache.knows_all(),
                ..self.engine.borrow().clone()
            },
            api: self.cluster.as_ref().map(ClusterView::api),
            node: self
                .cluster
                .as_ref()
                .map(|cluster| cluster.node(&self.resolved.config.node_name)),
            pulls: self.images.progress(),
            image_gc: self.image_gc.as_ref().map(|gc| gc.borrow().clone()),
            pressures: (*self.shortages.get()).clone(),
            sources,
            workloads: self.workload_reports(&merged, &pods),
            pods,
            jobs: jobs.jobs.clone(),
            cron_jobs: jobs.cron_jobs.clone(),
            problems: problems.into_iter().collect(),
        }
    }

    async fn refresh(&self) -> bool {
        let Directories { manifests, stored } = &self.directories;
        let tasks = [Some(manifests), stored.as_ref(), Some(&self.merge)];
        refresh(tasks.into_iter().flatten().collect()).await
    }

    async fn refresh_stored(&self) -> bool {
        let tasks = [self.directories.stored.as_ref(), Some(&self.merge)];
        refresh(tasks.into_iter().flatten().collect()).await
    }

    fn problem_of(&self, location: &str) -> Option<Diagnostic> {
        self.sources.iter().find_map(|source| {
            let state = source.state.get();
            let mut problems = problems_of(state.set()?);
            let is_its = |problem: &&Diagnostic| problem.is_error() && problem.file == location;
            problems.find(is_its).cloned()
        })
    }

    fn changed(&self) -> watch::Receiver<u64> {
        self.changes.clone()
    }

    fn is_settled(&self, namespace: &str, name: &str) -> bool {
        let api_pods = self.manager.api_pods().get();
        let name = FullName::new(name, namespace);
        (*api_pods)
            .as_ref()
            .is_some_and(|pods| pods.settled.values().any(|settled| *settled == name))
    }

    fn pod_by_name(&self, namespace: &str, name: &str) -> Option<Arc<Pod>> {
        let wanted = self.manager.get().get_pod_by_name(namespace, name);
        // One that is being stopped has a status and logs, too.
        wanted.or_else(|| {
            let name = FullName::new(name, namespace);
            let mut views = self.board.all().into_iter();
            let view = views.find(|view| view.full_name == name);
            let pod = view.and_then(|view| view.pod);
            pod.or_else(|| self.finished_named(&name))
        })
    }

    fn pods(&self) -> Vec<Pod> {
        let (wanted, merged) = (self.manager.get().get_pods(), self.merged.get());
        let others = |pod: &Arc<Pod>| !merged.finished.contains(&PodUid::of(pod));
        let others = wanted.into_iter().filter(others).map(|pod| {
            let view = self.board.get(&PodUid::of(&pod));
            let mut pod = Arc::unwrap_or_clone(pod);
            if let Some(status) = view.and_then(|view| view.status) {
                pod.status = Some((*status).clone());
            }
            pod
        });
        others.chain(merged.finished.pods()).collect()
    }

    fn running_pods(&self) -> Vec<Pod> {
        let entries = self.cache.all();
        let pods = entries
            .iter()
            .map(|entry| access::running_pod(&entry.status));
        pods.flatten().collect()
    }

    fn translate_pod_uid(&self, uid: &PodUid) -> ResolvedPodUid {
        self.manager.get().translate_pod_uid(uid)
    }

    async fn logs(
        &self,
        uid: &PodUid,
        container: Option<&str>,
        options: &LogOptions,
        instance: Instance<'_>,
    ) -> Result<LogStream, ViewError> {
        let pod = self.pod(uid)?;
        let name = choose_container(&pod, container)?;
        let id = self.log_instance(&pod, uid, &name, instance)?;
        let log = self.runtime.get_container_logs(&id, options).await;
        log.map_err(|error| match error {
            RuntimeError::NotFound(_) => {
                let status = self.pod_view(uid).and_then(|view| view.status);
                access::removed(&pod, status.as_deref(), &name)
            }
            error => error.into(),
        })
    }

    fn instance(
        &self,
        uid: &PodUid,
        container: Option<&str>,
        must_run: bool,
    ) -> Result<ContainerId, ViewError> {
        self.newest_instance(uid, container, must_run)
    }

    fn check_pod(&self, uid: &PodUid) -> Result<(), ViewError> {
        self.pod(uid).map(drop)
    }

    fn access(&self) -> &dyn ContainerAccess {
        &*self.runtime
    }

    fn explain(&self, pod: &str) -> Result<ExplainReport, ViewError> {
        let merged = self.merged.get();
        let sources: Vec<_> = self.sources.iter().map(SourceReader::report).collect();
        let node = &self.resolved.config.node_name;
        let pods = self.pods(&merged);
        self.find_typed(pod, |text| {
            explain::explain(text, &pods, &sources, &self.journal, node)
        })
    }

    async fn images(&self) -> Result<ImagesReport, ViewError> {
        self.list_images().await
    }

    fn top(&self) -> BoxStream<'static, Result<TopReport, ViewError>> {
        let (board, samples) = (self.board.clone(), Arc::clone(&self.stats).samples());
        let merged = self.merged.clone();
        let reports = samples.map(move |sample| {
            let reading = sample.map_err(|error| ViewErrorKind::Failed.error(error.to_string()))?;
            let views = board.all().into_iter();
            let pods = views.filter_map(|view| Some((view.uid, view.pod?)));
            let wanted = &merged.get().pods;
            let serves = |uid: &PodUid| wanted.contains_key(uid);
            Ok(top(&reading, &pods.collect_map(), serves))
        });
        reports.boxed()
    }

    fn events(&self, from: u64) -> Vec<EventReport> {
        explain::events(&self.journal, from, &self.resolved.config.node_name)
    }

    fn events_changed(&self) -> watch::Receiver<u64> {
        self.journal.changed()
    }

    fn rollout_history(&self, pod: &str) -> Result<HistoryReport, ViewError> {
        let histories = self.rollouts.histories();
        let runs = |uid: &PodUid| {
            let view = self.board.get(uid);
            view.is_some_and(|view| view.observed.anything_running())
        };
        match self.rollout_target(pod)? {
            RolloutTarget::Pod(name) => rollouts::history(&name, histories.get(&name), runs),
            RolloutTarget::Workload(key) => {
                let wants_no_pods = self.wants_no_pods(&key);
                rollouts::workload_history(&key, &histories, wants_no_pods, runs)
            }
        }
    }

    async fn command_rollout(
        &self,
        pod: &str,
        command: Command,
    ) -> Result<CommandAnswer, ViewError> {
        let target = self.rollout_target(pod)?;
        let obeyed = self.rollouts.command(target.clone(), command).await;
        let wants_no_pods =
            matches!(&target, RolloutTarget::Workload(key) if self.wants_no_pods(key));
        rollouts::answer(obeyed, &target, wants_no_pods)
    }

    fn node_edits(&self) -> Arc<NodeEdits> {
        self.rollouts.node_edits().get()
    }

    fn edit_node(&self, edits: NodeEdits) -> io::Result<()> {
        self.rollouts.node_edits().set(edits)
    }

    async fn order(&self, order: &Order) -> Result<OrderAnswer, ViewError> {
        self.obey(order).await
    }

    async fn forget_job_pod(&self, job: JobName, pod: &PodUid) -> Result<(), ViewError> {
        let order = jobs::Order::Forget(job, pod.clone());
        orders::answer_of(self.jobs.order(order).await).map(drop)
    }

    async fn delete_run(&self, job: JobName) -> Result<(), ViewError> {
        let order = jobs::Order::Delete(job);
        orders::answer_of(self.jobs.order(order).await).map(drop)
    }

    async fn volumes(&self) -> Result<Vec<VolumeReport>, ViewError> {
        self.list_volumes().await
    }

    async fn remove_volume(&self, name: &str) -> Result<VolumeReport, ViewError> {
        self.release_volume(name).await
    }

    async fn plan(&self, request: &PlanRequest) -> PlanReport {
        let states = rollouts::with_request(&self.sources, request, &self.resolved.config);
        let before = self.merged.get();
        let mut newest = merge_sources(&states, &before.incumbents(), &before.objects);
        newest.bind_claims(&before.bindings);
        // A set: the pods of a workload have the same problems.
        let mut problems: BTreeSet<Diagnostic> = newest.conflicts.iter().cloned().collect_set();
        problems.extend(
            states
                .values()
                .filter_map(SourceState::set)
                .flat_map(|set| {
                    let of_pods = set.pods.iter().flat_map(|pod| &pod.problems);
                    set.problems.iter().chain(of_pods).cloned()
                }),
        );
        let mut pods = self.rollouts.plan(&newest, &before, request.content).await;
        // Here Jobs and CronJobs are as their documents have them.
        let present = rollouts::with_request(
            &self.sources,
            &PlanRequest::default(),
            &self.resolved.config,
        );
        let mut present = merge_sources(&present, &before.incumbents(), &before.objects);
        present.bind_claims(&before.bindings);
        PlanReport {
            orders: self.rollouts.orders(&newest, &before, &mut pods),
            runs: self.jobs.states().plan(&newest, &present, Timestamp::now()),
            objects: planned_objects(
                &newest.objects,
                &present.objects,
                newest.pods.values().map(|pod| &*pod.pod),
            ),
            pods,
            problems: problems.into_iter().collect(),
        }
    }

    fn config(&self) -> serde_json::Value {
        serde_json::json!(self.resolved.show())
    }

    fn shorten_grace(&self, uid: &PodUid, grace: Duration) {
        self.graces.shorten(uid.clone(), grace);
    }

    fn forget_grace(&self, uid: &PodUid) {
        self.graces.forget(uid);
    }

    fn shown(&self, before: &[core::NodeCondition]) -> Shown {
        self.show(before)
    }

    fn happenings(&self, from: u64) -> (Vec<Happening>, u64) {
        self.happenings_from(from)
    }

    fn checks(&self) -> Vec<Check> {
        self.readiness()
    }

    fn pod_samples(&self) -> Option<PodSamples> {
        let max = self.resolved.config.pod_metrics_max;
        (max > 0).then(|| pod_samples(self.board.all(), &self.merged.get(), max))
    }
}
