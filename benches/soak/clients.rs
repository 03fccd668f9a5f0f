//! Clients of the embedded API: reflectors and a controller of kube-rs and an informer of client-go,
//! while objects come, change and go. None may list again, and each must know what there is.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use futures::StreamExt as _;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::{ConfigMap, Event, Pod};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::runtime::controller::Action;
use kube::runtime::reflector::{self, Store, reflector};
use kube::runtime::watcher::{self, watcher};
use kube::runtime::{Controller, WatchStreamExt as _, finalizer};
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use serde_json::json;

use crate::common::alone::Alone;
use crate::common::cluster::programs;
use crate::common::said::Said;
use crate::common::{Bed, IMAGE};

/// Reflectors of the objects that change most. A terminal screen has one for each kind.
const REFLECTORS: usize = 20;
/// Objects that change in turn.
const OBJECTS: usize = 8;
/// Changes that are made without a pause: more than the API remembers, so that its memory has its
/// size at the first look.
const FIRST_CHANGES: usize = 1500;
/// Time between two changes after those.
const PAUSE: Duration = Duration::from_millis(100);
/// Changes between two deletions of an object.
const DELETE_EVERY: usize = 25;
/// Changes between two pods.
const POD_EVERY: usize = 300;
/// Longest wait for a pod, a deletion or the clients.
const PATIENCE: Duration = Duration::from_mins(2);
const POLL: Duration = Duration::from_millis(50);
/// The finalizer of the controller.
const KEEP: &str = "mirrorlet.test/keep";

/// The lists and the errors of the clients.
#[derive(Debug, Default)]
struct Tally {
    lists: AtomicUsize,
    errors: Mutex<Vec<String>>,
}

/// The clients, and what was done so far.
pub struct Clients {
    agent: Alone,
    /// The agent's root.
    pub bed: Bed,
    maps: Api<ConfigMap>,
    pods: Api<Pod>,
    stores: Vec<Store<ConfigMap>>,
    pod_store: Store<Pod>,
    tally: Arc<Tally>,
    reconciled: Arc<AtomicUsize>,
    informer: Said,
    changes: usize,
    deletions: usize,
    made: usize,
}

/// Follows all objects of a kind, as long as the program runs.
fn follow<K>(api: Api<K>, tally: &Arc<Tally>) -> Store<K>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + DeserializeOwned,
    K: std::fmt::Debug + Send + Sync + 'static,
{
    let (store, writer) = reflector::store();
    let events = watcher(api, watcher::Config::default()).default_backoff();
    let tally = Arc::clone(tally);
    tokio::spawn(reflector(writer, events).for_each(move |event| {
        match event {
            Ok(watcher::Event::Init) => {
                tally.lists.fetch_add(1, Ordering::Relaxed);
            }
            Ok(_) => {}
            Err(error) => {
                let mut errors = tally.errors.lock().unwrap_or_else(PoisonError::into_inner);
                errors.push(error.to_string());
            }
        }
        std::future::ready(())
    }));
    store
}

/// Holds every object until it has seen that it is deleted.
fn control(maps: Api<ConfigMap>, reconciled: Arc<AtomicUsize>) {
    let of = maps.clone();
    let reconcile = move |map: Arc<ConfigMap>, _: Arc<()>| {
        let (of, reconciled) = (of.clone(), Arc::clone(&reconciled));
        async move {
            let decide = |_| async move {
                reconciled.fetch_add(1, Ordering::Relaxed);
                Ok::<_, Infallible>(Action::await_change())
            };
            finalizer(&of, KEEP, map, decide).await
        }
    };
    let retry = |_: Arc<ConfigMap>, _: &finalizer::Error<Infallible>, _: Arc<()>| {
        Action::requeue(Duration::from_millis(100))
    };
    let controller = Controller::new(maps, watcher::Config::default());
    let running = controller.run(reconcile, retry, Arc::new(()));
    tokio::spawn(running.for_each(|_| std::future::ready(())));
}

impl Clients {
    /// Starts an agent without a cluster, and its clients.
    pub async fn begin(binary: &Path) -> anyhow::Result<Self> {
        let bed = Bed::new();
        let agent = Alone::serve(binary, &bed);
        let client: Client = agent.client().await;
        let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "default");
        let pods: Api<Pod> = Api::namespaced(client.clone(), "default");
        let tally = Arc::new(Tally::default());
        let stores = (0..REFLECTORS).map(|_| follow(maps.clone(), &tally));
        let stores = stores.collect();
        let pod_store = follow(pods.clone(), &tally);
        follow(Api::<Event>::namespaced(client, "default"), &tally);
        let reconciled = Arc::default();
        control(maps.clone(), Arc::clone(&reconciled));
        let mut command = Command::new(programs::informer());
        let informer = Said::start(command.arg("-kubeconfig").arg(agent.kubeconfig()));
        informer.until("synced").await;
        Ok(Self {
            agent,
            bed,
            maps,
            pods,
            stores,
            pod_store,
            tally,
            reconciled,
            informer,
            changes: 0,
            deletions: 0,
            made: 0,
        })
    }

    /// Process id of the agent.
    pub fn pid(&self) -> i32 {
        self.agent.pid()
    }

    /// The operations so far.
    pub fn done(&self) -> String {
        format!(
            "{} changes, {} deletions, {} pods, {} reconciled, under {} watches",
            self.changes,
            self.deletions,
            self.made,
            self.reconciled.load(Ordering::Relaxed),
            // Of pods and events, of the controller and of the informer.
            REFLECTORS + 4
        )
    }

    /// Changes objects until then.
    pub async fn until(&mut self, end: Instant) -> anyhow::Result<()> {
        while Instant::now() < end {
            let change = self.changes + 1;
            let work = tokio::time::timeout(PATIENCE * 2, self.turn(change));
            let done = work.await.context("it takes too long").flatten();
            done.with_context(|| format!("change {change}"))?;
            self.changes = change;
            if change > FIRST_CHANGES {
                tokio::time::sleep(PAUSE).await;
            }
        }
        Ok(())
    }

    async fn turn(&mut self, change: usize) -> anyhow::Result<()> {
        let name = format!("map-{}", change % OBJECTS);
        let object = json!({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": name},
            "data": {"change": change.to_string()},
        });
        let params = PatchParams::apply("soak").force();
        self.maps
            .patch(&name, &params, &Patch::Apply(object))
            .await?;
        if change.is_multiple_of(DELETE_EVERY) {
            self.delete(&name).await?;
            self.deletions += 1;
        }
        if change.is_multiple_of(POD_EVERY) {
            self.pod(&format!("pod-{change}")).await?;
            self.made += 1;
        }
        Ok(())
    }

    /// Deletes an object, and waits until the controller has let it go.
    async fn delete(&self, name: &str) -> anyhow::Result<()> {
        self.maps.delete(name, &DeleteParams::default()).await?;
        eventually("an object to be gone", async || {
            Ok(self.maps.get_opt(name).await?.is_none())
        })
        .await
    }

    /// Runs a pod until the reflector knows of it.
    async fn pod(&self, name: &str) -> anyhow::Result<()> {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": name},
            "spec": {
                "terminationGracePeriodSeconds": 0,
                "containers": [{"name": "c", "image": IMAGE, "command": ["sleep", "3600"]}],
            },
        }))?;
        self.pods.create(&PostParams::default(), &pod).await?;
        let key = reflector::ObjectRef::new(name).within("default");
        let phase = || {
            let known = self.pod_store.get(&key)?;
            known.status.as_ref()?.phase.clone()
        };
        eventually("a pod to run", async || {
            Ok(phase().as_deref() == Some("Running"))
        })
        .await?;
        self.pods.delete(name, &DeleteParams::default()).await?;
        eventually("a pod to be gone", async || {
            Ok(self.pod_store.get(&key).is_none())
        })
        .await
    }

    /// Deletes everything, and waits until all clients know that.
    pub async fn rest(&self) -> anyhow::Result<()> {
        self.agree().await?;
        for map in self.maps.list(&ListParams::default()).await? {
            self.delete(&map.metadata.name.unwrap_or_default()).await?;
        }
        self.agree().await
    }

    /// Waits until each reflector knows each object in its newest version.
    async fn agree(&self) -> anyhow::Result<()> {
        let version = |map: &ConfigMap| {
            let metadata = map.metadata.clone();
            (metadata.name, metadata.resource_version)
        };
        eventually("the reflectors to know all objects", async || {
            let listed = self.maps.list(&ListParams::default()).await?;
            let wanted: BTreeMap<_, _> = listed.iter().map(version).collect();
            let knows = |store: &Store<ConfigMap>| {
                let known = store.state();
                let known: BTreeMap<_, _> = known.iter().map(|map| version(map)).collect();
                known == wanted
            };
            Ok(self.stores.iter().all(knows))
        })
        .await
    }

    /// Fails if a client has listed more than once, or had an error.
    pub fn check(&self) -> anyhow::Result<()> {
        let lists = self.tally.lists.load(Ordering::Relaxed);
        let errors = self.tally.errors.lock();
        let errors = errors.unwrap_or_else(PoisonError::into_inner);
        // Those of maps, of pods and of events.
        let expected = REFLECTORS + 2;
        anyhow::ensure!(
            lists == expected && errors.is_empty(),
            "{expected} reflectors listed {lists} times, and had these errors: {errors:?}"
        );
        let informed =
            self.informer.count("request list") + self.informer.count("request watchlist");
        anyhow::ensure!(informed == 1, "the informer listed {informed} times");
        let updates = self.informer.count("update ") + self.informer.count("add ");
        anyhow::ensure!(
            updates >= self.changes,
            "the informer saw {updates} changes"
        );
        Ok(())
    }
}

async fn eventually(
    what: &str,
    mut holds: impl AsyncFnMut() -> kube::Result<bool>,
) -> anyhow::Result<()> {
    let looking = async {
        while !holds().await? {
            tokio::time::sleep(POLL).await;
        }
        Ok(())
    };
    let waited = tokio::time::timeout(PATIENCE, looking).await;
    waited.with_context(|| format!("waited in vain for {what}"))?
}
