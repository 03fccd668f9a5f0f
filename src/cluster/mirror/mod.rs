//! Mirror pods in the API server: created, replaced and deleted as `pod::mirror` decides.
//!
//! [`MirrorTask`] is notified of any change of its inputs, decides again for every full name, and
//! executes the decisions: one attempt per name at a time, several names concurrently. Its own recent
//! changes that the watch hasn't delivered yet are applied on top of the watch's state, so that nothing
//! is done twice.

mod attempt;
mod causes;
mod client;
mod inputs;
mod name;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

pub use client::{CreateError, MirrorClient, Mirrored};
pub(in crate::cluster) use client::{delete_now, read_pod, without_managed_fields};
pub use inputs::MirrorInputs;

use crate::cluster::attempts::Attempts;
use crate::cluster::client::ClusterClient;
use crate::cluster::reach::ApiReach;
use crate::store::cell::{Reader, Writer, cell};
use attempt::{Attempt, Failure, carry_out};
use causes::{Cause, Causes};
use inputs::{Snapshot, Watched};
use mirrorlet_core::api::{FullName, NodeName, PodUid, Timestamp};
use mirrorlet_core::manager::PodTable;
use mirrorlet_core::mirror::{
    MirrorInput, MirrorState, Obstacle, ProblemKind, Verdict, hash, verdicts,
};
use mirrorlet_core::small::SmallCollect;
use mirrorlet_host::telemetry::{Telemetry, occurrences};
use name::Name;

/// Maximum number of concurrent attempts: enough that a hundred mirrors are created within the client's
/// rate limit, few enough to leave connections for others.
const ATTEMPTS_MAX: usize = 8;
/// How long our own changes count before the watch delivers them. A watch lags by milliseconds; one
/// that is being reopened, by seconds.
const WATCH_LAG_MAX: Duration = Duration::from_secs(5);

/// The same, once the watch was found to be slow: it is reopened after at most half a minute.
const SLOW_WATCH_LAG_MAX: Duration = Duration::from_secs(30);

/// Keeps mirrors in step with static pods.
pub struct MirrorTask {
    client: MirrorClient,
    watched: Watched,
    node_name: NodeName,
    telemetry: Telemetry,
    states: Writer<BTreeMap<FullName, MirrorState>>,
    names: BTreeMap<FullName, Name>,
    /// Mirrors that we deleted or found missing, until the watch delivers that, or until that time.
    gone: BTreeMap<PodUid, Instant>,
    /// The pods and mirrors of the last decision: the watch's state with our own changes.
    pods: Arc<PodTable>,
    attempts: Attempts<FullName, Attempt>,
    causes: Causes,
    was_up: bool,
    node_uid: Option<String>,
}

impl MirrorTask {
    /// Returns the task, and the state of each static pod's mirror.
    pub fn new(
        cluster: ClusterClient,
        inputs: MirrorInputs,
        telemetry: Telemetry,
    ) -> (Self, Reader<BTreeMap<FullName, MirrorState>>) {
        let (states, reader) = cell(BTreeMap::new());
        let node_name = inputs.node_name.clone();
        let client = MirrorClient::new(cluster.clone(), node_name.clone(), inputs.node.clone());
        let task = Self {
            client,
            watched: Watched::new(inputs, cluster.reach()),
            node_name,
            telemetry,
            states,
            names: BTreeMap::new(),
            gone: BTreeMap::new(),
            pods: Arc::default(),
            attempts: Attempts::new(ATTEMPTS_MAX),
            causes: Causes::new(cluster),
            was_up: false,
            node_uid: None,
        };
        (task, reader)
    }

    /// Runs until cancelled. Attempts in progress are abandoned: their outcome is found after a
    /// restart.
    pub async fn run(mut self, cancel: CancellationToken) {
        loop {
            let look_again = self.look();
            let timer = tokio::time::sleep_until(look_again.unwrap_or_else(Instant::now));
            tokio::select! {
                () = cancel.cancelled() => break,
                changed = self.watched.changed() => if changed.is_err() { break },
                (full_name, attempt) = self.attempts.next() => self.note(full_name, attempt),
                cause = self.causes.changed() => {
                    for name in self.names.values_mut() {
                        name.cause_changed(&cause);
                    }
                }
                () = timer, if look_again.is_some() => {}
            }
        }
        self.attempts.shutdown().await;
        self.causes.stop().await;
    }

    /// Decides again, and begins the attempts that may begin. Returns when to check again though
    /// nothing changes.
    fn look(&mut self) -> Option<Instant> {
        let now = Instant::now();
        let snapshot = self.watched.look(now);
        let mut look_again = snapshot.look_again;
        let was_up = std::mem::replace(&mut self.was_up, snapshot.reach.is_up());
        if self.was_up && !was_up {
            self.names.values_mut().for_each(Name::api_is_back);
        }
        let node_uid = snapshot.node.as_ref().and_then(|n| n.metadata.uid.clone());
        if std::mem::replace(&mut self.node_uid, node_uid.clone()) != node_uid {
            self.names.values_mut().for_each(Name::node_changed);
        }
        let Some(verdicts) = self.decide(&snapshot, now) else {
            self.publish_unknown(&snapshot);
            return look_again;
        };
        self.names
            .retain(|name, _| verdicts.contains_key(name) || self.attempts.is_busy(name));
        let mut causes = BTreeSet::new();
        for (full_name, verdict) in &verdicts {
            let is_busy = self.attempts.is_busy(full_name);
            let name = self.names.entry(full_name.clone()).or_default();
            name.judge(full_name, verdict, is_busy, &self.telemetry);
            causes.extend(name.cause().cloned());
            let wakes = [
                name.made.as_ref().map(|made| made.until),
                name.ready_at().filter(|_| verdict.acts() && !is_busy),
            ];
            for at in wakes.into_iter().flatten().filter(|at| *at > now) {
                look_again = Some(look_again.map_or(at, |known| known.min(at)));
            }
        }
        for at in self.gone.values() {
            look_again = Some(look_again.map_or(*at, |known| known.min(*at)));
        }
        self.causes.watch(&causes);
        // While the server is away, an attempt says why there is no mirror.
        if !(snapshot.is_doubtful && snapshot.reach.is_up()) {
            self.begin(&verdicts, now);
        }
        self.publish(&verdicts);
        look_again
    }

    /// Decides the actions from the watch and from our own writes since. None before the API
    /// server's first whole list.
    fn decide(&mut self, snapshot: &Snapshot, now: Instant) -> Option<BTreeMap<FullName, Verdict>> {
        let api = snapshot.api.as_ref()?;
        self.pods = Arc::clone(&snapshot.pods);
        self.gone
            .retain(|uid, until| api.pods.contains_key(uid) && *until > now);
        for mirror in self.gone.keys().filter_map(|uid| api.pods.get(uid)) {
            let known = self.pods.get_mirror_pod_by_pod(mirror);
            if known.is_some_and(|known| PodUid::of(&known) == PodUid::of(mirror)) {
                Arc::make_mut(&mut self.pods).remove_pod(mirror);
            }
        }
        for name in self.names.values_mut() {
            name.made
                .take_if(|made| api.pods.contains_key(&made.uid) || made.until <= now);
            if let Some(made) = &name.made {
                Arc::make_mut(&mut self.pods).add_pod(Arc::clone(&made.mirror));
            }
        }
        Some(verdicts(&MirrorInput {
            node_name: &self.node_name,
            node: snapshot.node.as_deref(),
            standings: &snapshot.standings,
            pods: &self.pods,
            api: &api.pods,
            orphans_may_go: snapshot.orphans_may_go,
        }))
    }

    /// Begins attempts, up to the limit: mirrors of existing pods before any orphan, of which others
    /// can create any number.
    fn begin(&mut self, verdicts: &BTreeMap<FullName, Verdict>, now: Instant) {
        let acts = |of_pod: bool| {
            let acts = verdicts.iter().filter(|(_, verdict)| verdict.acts());
            acts.filter(move |(_, verdict)| verdict.pod().is_some() == of_pod)
        };
        for (full_name, verdict) in acts(true).chain(acts(false)) {
            if !self.attempts.has_room() {
                return;
            }
            let ready_at = self.names.get(full_name).and_then(Name::ready_at);
            if ready_at.is_none_or(|at| at <= now) {
                let attempt = carry_out(self.client.clone(), full_name.clone(), verdict.clone());
                self.attempts.begin(full_name.clone(), attempt);
            }
        }
    }

    /// Notes what came of an attempt.
    fn note(&mut self, full_name: FullName, attempt: Option<Attempt>) {
        let Some(attempt) = attempt else {
            // The panic hook has logged it.
            return self.names.entry(full_name).or_default().panicked();
        };
        let Attempt {
            pod,
            deleted,
            outcome,
        } = attempt;
        let now = Instant::now();
        for (mirror, why) in deleted {
            let mirror: PodUid = mirror.as_str().into();
            if let Some(why) = why {
                let known = self.pods.get_mirror_pod_by_full_name(&full_name);
                let known = known.filter(|known| PodUid::of(known) == mirror);
                let of = known.as_deref().and_then(hash);
                let uid = of.map(PodUid::from).unwrap_or_default();
                let t = &self.telemetry;
                let finalizers = known
                    .as_deref()
                    .and_then(|known| known.metadata.finalizers.as_deref());
                let finalizers = finalizers.unwrap_or_default();
                occurrences::mirror_deleted(
                    t.pod(&full_name, &uid),
                    &mirror,
                    why.as_str(),
                    finalizers,
                );
            }
            // One that was not there is gone as well, though the watch still shows it.
            self.gone.insert(mirror, now + WATCH_LAG_MAX);
        }
        let name = self.names.entry(full_name.clone()).or_default();
        let uid = pod.as_deref().map(PodUid::of).unwrap_or_default();
        match outcome {
            Ok(None) => name.done(),
            Ok(Some(mirrored)) => {
                // One that was found, and that the watch still doesn't deliver: the watch is broken.
                let mut within = SLOW_WATCH_LAG_MAX;
                if let Mirrored::Created(mirror) = &mirrored {
                    let mirror = PodUid::of(mirror);
                    occurrences::mirror_created(self.telemetry.pod(&full_name, &uid), &mirror);
                    within = WATCH_LAG_MAX;
                }
                name.made(Arc::clone(mirrored.mirror()), now + within);
            }
            Err(failure) => {
                let cause = cause_of(&failure, &full_name);
                let watched = cause
                    .as_ref()
                    .is_some_and(|cause| self.causes.watches(cause));
                let version = pod.as_deref().and_then(hash);
                name.failed(&full_name, failure, cause, watched, version);
                name.report(&full_name, &uid, &self.telemetry);
            }
        }
    }

    fn publish(&mut self, verdicts: &BTreeMap<FullName, Verdict>) {
        let states: BTreeMap<FullName, MirrorState> = verdicts
            .iter()
            .map(|(full_name, verdict)| {
                let problem = self.names.get(full_name).and_then(Name::problem);
                let state = match (verdict, problem) {
                    (Verdict::Synced { uid }, _) => MirrorState::Synced { uid: uid.clone() },
                    (_, Some(problem)) => MirrorState::Problem(problem.clone()),
                    (_, None) => MirrorState::Pending,
                };
                (full_name.clone(), state)
            })
            .collect_map();
        self.telemetry.metrics.set_mirrors(&states);
        self.states.publish(states);
    }

    /// Before the first whole list nothing is known of mirrors, but that there may be some.
    fn publish_unknown(&mut self, snapshot: &Snapshot) {
        let statics = snapshot.standings.iter().filter(|(_, s)| s.pod().is_some());
        let problem = |kind, message: &str, since| {
            MirrorState::Problem(mirrorlet_core::mirror::MirrorProblem {
                kind,
                message: message.to_owned(),
                since,
                attempts: 0,
                next_try: None,
            })
        };
        let state = match &snapshot.reach {
            ApiReach::Down { cause, since } => problem(ProblemKind::ApiAway, cause, *since),
            ApiReach::Rejected { since } => {
                let words = "the API server rejects the credentials";
                problem(ProblemKind::Forbidden, words, *since)
            }
            ApiReach::Unknown | ApiReach::Up => MirrorState::Pending,
        };
        let states = statics
            .map(|(name, _)| (name.clone(), state.clone()))
            .collect_map();
        self.telemetry.metrics.set_mirrors(&states);
        self.states.publish(states);
    }
}

/// Returns the change that a new attempt waits for, if it can be watched.
fn cause_of(failure: &Failure, full_name: &FullName) -> Option<Cause> {
    match failure.kind {
        ProblemKind::NamespaceMissing | ProblemKind::PodSecurity => {
            Some(Cause::Namespace(Arc::clone(&full_name.namespace)))
        }
        ProblemKind::NameTaken => Some(Cause::Pod(full_name.clone())),
        ProblemKind::Forbidden
        | ProblemKind::NodeRestriction
        | ProblemKind::Quota
        | ProblemKind::LimitRange
        | ProblemKind::Webhook
        | ProblemKind::PriorityClassMissing
        | ProblemKind::ApiAway
        | ProblemKind::NodeMissing
        | ProblemKind::Invalid
        | ProblemKind::Other => None,
    }
}
