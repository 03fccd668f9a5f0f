//! Objects that pods refer to: the trait through which a runtime gets them.
//!
//! A pod's references are *held* while it lives, so that the provider of the objects can watch just
//! these, and notify the pod when one has changed. [`PodObjects`] chooses by the pod's origin: a pod of
//! a manifest gets [`ManifestObjects`] only, a pod of the API server only the API server's objects.
//!
//! In one file: the two implementations of the trait differ in a few lines each, and are read side by
//! side.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use async_trait::async_trait;
use futures::future::join_all;
use parking_lot::Mutex;
use tokio::sync::watch;

use mirrorlet_core::api::core::{ConfigMap, Secret};
use mirrorlet_core::api::{FullName, Pod, PodUid};
use mirrorlet_core::objects::claims::{Bound, ClaimName, Presence, Storage, VolumeSeen};
use mirrorlet_core::objects::{
    Config, KnownObjects, Object, ObjectError, ObjectKey, ObjectKind, ObjectSet, References,
    ServiceFacts, Token, TokenKey, is_static,
};
use mirrorlet_core::small::SmallCollect;

/// Reads API objects. Cached objects are returned from memory; every call ends within the
/// implementation's deadline, with [`ObjectError::Away`] if there is no answer.
#[async_trait]
pub trait Objects: Send + Sync + 'static {
    /// From now on the pod refers to just these.
    fn hold(&self, pod: &PodUid, references: &References);

    /// The pod is gone.
    fn release(&self, pod: &PodUid);

    /// Changes whenever an object that the pod refers to has changed, appears, disappears, or can be
    /// read again.
    fn subscribe(&self, pod: &PodUid) -> watch::Receiver<u64>;

    /// A config map that some pod holds.
    async fn config_map(&self, key: &ObjectKey) -> Result<Arc<ConfigMap>, ObjectError>;

    /// A secret that some pod holds.
    async fn secret(&self, key: &ObjectKey) -> Result<Arc<Secret>, ObjectError>;

    /// The storage of a claim that some pod refers to.
    async fn storage(&self, key: &ObjectKey) -> Result<Arc<Storage>, ObjectError>;

    /// A token that is not due to be renewed; one that is due where no other can be had, as long
    /// as it is valid.
    async fn token(&self, key: &TokenKey) -> Result<Token, ObjectError>;

    /// All services that have an address.
    async fn services(&self) -> Result<Arc<[ServiceFacts]>, ObjectError>;
}

/// Fetches everything a pod refers to, concurrently.
pub async fn fetch(objects: &dyn Objects, references: &References) -> ObjectSet {
    let of_kind = |kind: ObjectKind| {
        references
            .objects
            .iter()
            .filter(move |key| key.kind == kind)
    };
    let config_maps = of_kind(ObjectKind::ConfigMap)
        .map(|key| async move { (key.name.clone(), objects.config_map(key).await) });
    let secrets = of_kind(ObjectKind::Secret)
        .map(|key| async move { (key.name.clone(), objects.secret(key).await) });
    let claims = of_kind(ObjectKind::Claim)
        .map(|key| async move { (key.name.clone(), objects.storage(key).await) });
    let tokens = references
        .tokens
        .iter()
        .map(|key| async move { (key.clone(), objects.token(key).await) });
    let services = async {
        if references.services {
            Some(objects.services().await)
        } else {
            None
        }
    };
    let (config_maps, secrets, claims, tokens, services) = futures::join!(
        join_all(config_maps),
        join_all(secrets),
        join_all(claims),
        join_all(tokens),
        services
    );
    ObjectSet {
        config_maps: config_maps.into_iter().collect_map(),
        secrets: secrets.into_iter().collect_map(),
        claims: claims.into_iter().collect_map(),
        tokens: tokens.into_iter().collect_map(),
        services,
    }
}

/// The objects that pods refer to: those of manifests, and those of the API server.
#[derive(Clone)]
pub struct PodObjects {
    /// Those of manifests.
    pub manifests: Arc<ManifestObjects>,
    /// Those of the API server.
    pub cluster: Arc<dyn Objects>,
}

impl PodObjects {
    /// Returns the objects of an API server, with none from manifests yet.
    pub fn new(cluster: Arc<dyn Objects>) -> Self {
        Self {
            manifests: Arc::default(),
            cluster,
        }
    }

    /// Returns the objects that the pod may refer to. The author of a manifest must not reach the
    /// Secrets of a cluster, nor a pod of the cluster the objects on this machine.
    pub fn of(&self, pod: &Pod) -> &dyn Objects {
        if is_static(pod) {
            &*self.manifests
        } else {
            &*self.cluster
        }
    }

    /// Fetches everything that a pod refers to. Objects that are part of its version have the data of
    /// that version.
    pub async fn fetch(&self, pod: &Pod, references: &References) -> ObjectSet {
        let mut set = fetch(self.of(pod), references).await;
        if is_static(pod)
            && let Some(config) = self.manifests.config(&PodUid::of(pod))
        {
            config.pin(&mut set, &FullName::of(pod).namespace);
        }
        set
    }

    /// The pod is gone.
    pub fn release(&self, pod: &PodUid) {
        self.manifests.release(pod);
        self.cluster.release(pod);
    }
}

/// The objects of manifests, as they were last merged.
#[derive(Debug, Default)]
pub struct ManifestObjects {
    holders: Holders,
    known: Mutex<Arc<KnownObjects>>,
    configs: Mutex<BTreeMap<PodUid, Arc<Config>>>,
    /// Reports about volumes of claims that no merge has taken yet.
    volumes: watch::Sender<BTreeMap<ClaimName, VolumeSeen>>,
}

impl ManifestObjects {
    /// An empty set that counts as known: the API server's objects if none is configured.
    pub fn none() -> Self {
        let objects = Self::default();
        objects.publish(KnownObjects {
            complete: true,
            ..KnownObjects::default()
        });
        objects
    }

    /// Replaces the objects, and notifies the pods that refer to changed ones. Before the first call,
    /// nothing is known.
    pub fn publish(&self, objects: KnownObjects) {
        let objects = Arc::new(objects);
        let before = {
            let mut known = self.known.lock();
            std::mem::replace(&mut *known, Arc::clone(&objects))
        };
        let changed: BTreeSet<ObjectKey> = before.differing(&objects).collect_set();
        let completed = before.complete != objects.complete;
        if completed || !changed.is_empty() {
            self.holders.notify(|references| {
                completed || references.objects.iter().any(|key| changed.contains(key))
            });
        }
    }

    /// Replaces the object data that is part of pod versions. It is present before such a version is
    /// prepared or started, and never changes for a version, so no pod is notified.
    pub fn publish_configs(&self, configs: BTreeMap<PodUid, Arc<Config>>) {
        *self.configs.lock() = configs;
    }

    /// Whether the Engine has the volume of a claim, as its binding records it.
    pub fn volume_presence(&self, claim: &ClaimName) -> Presence {
        let bound = self.known().bindings.get(claim).map(Bound::presence);
        bound.unwrap_or_default()
    }

    /// Reports the Engine's state of a claim's volume, for its binding.
    pub fn saw_volume(&self, claim: &ClaimName, seen: VolumeSeen) {
        self.volumes.send_modify(|volumes| {
            volumes.insert(claim.clone(), seen);
        });
    }

    /// Waits until there are reports about volumes. Cancel safe.
    pub async fn volumes_seen(&self) {
        let mut volumes = self.volumes.subscribe();
        // The sender is a field of this.
        let _ = volumes.wait_for(|volumes| !volumes.is_empty()).await;
    }

    /// Takes the reports about volumes.
    pub fn take_volumes(&self) -> BTreeMap<ClaimName, VolumeSeen> {
        self.volumes.send_replace(BTreeMap::new())
    }

    fn config(&self, pod: &PodUid) -> Option<Arc<Config>> {
        let configs = self.configs.lock();
        configs.get(pod).cloned()
    }

    fn known(&self) -> Arc<KnownObjects> {
        Arc::clone(&self.known.lock())
    }
}

#[async_trait]
impl Objects for ManifestObjects {
    fn hold(&self, pod: &PodUid, references: &References) {
        self.holders.hold(pod, references);
    }

    fn release(&self, pod: &PodUid) {
        self.holders.release(pod);
    }

    fn subscribe(&self, pod: &PodUid) -> watch::Receiver<u64> {
        self.holders.subscribe(pod)
    }

    async fn config_map(&self, key: &ObjectKey) -> Result<Arc<ConfigMap>, ObjectError> {
        match self.known().get(key)? {
            Object::ConfigMap(found) => Ok(found),
            _ => Err(ObjectError::not_found(key)),
        }
    }

    async fn secret(&self, key: &ObjectKey) -> Result<Arc<Secret>, ObjectError> {
        match self.known().get(key)? {
            Object::Secret(found) => Ok(found),
            _ => Err(ObjectError::not_found(key)),
        }
    }

    async fn storage(&self, key: &ObjectKey) -> Result<Arc<Storage>, ObjectError> {
        self.known().storage(key).map(Arc::new)
    }

    async fn token(&self, key: &TokenKey) -> Result<Token, ObjectError> {
        Err(ObjectError::NotFound {
            resource: "serviceaccount",
            name: key.service_account.clone(),
        })
    }

    async fn services(&self) -> Result<Arc<[ServiceFacts]>, ObjectError> {
        Ok(Arc::default())
    }
}

/// The objects that pods refer to, and the change notification of each pod.
#[derive(Debug, Default)]
pub struct Holders {
    pods: Mutex<BTreeMap<PodUid, Holder>>,
}

#[derive(Debug, Default)]
struct Holder {
    references: References,
    news: watch::Sender<u64>,
}

impl Holders {
    /// From now on the pod refers to just these.
    pub fn hold(&self, pod: &PodUid, references: &References) {
        self.with(|pods| {
            let holder = pods.entry(pod.clone()).or_default();
            if holder.references != *references {
                holder.references = references.clone();
            }
        });
    }

    /// Forgets a pod.
    pub fn release(&self, pod: &PodUid) {
        self.with(|pods| pods.remove(pod));
    }

    /// A counter that changes when the pod is notified.
    pub fn subscribe(&self, pod: &PodUid) -> watch::Receiver<u64> {
        self.with(|pods| pods.entry(pod.clone()).or_default().news.subscribe())
    }

    /// Everything that any pod refers to.
    pub fn held(&self) -> References {
        let mut all = References::default();
        self.with(|pods| {
            for holder in pods.values() {
                let references = &holder.references;
                all.objects.extend(references.objects.iter().cloned());
                all.tokens.extend(references.tokens.iter().cloned());
                all.services |= references.services;
            }
        });
        all
    }

    /// Notifies every pod whose references are concerned.
    pub fn notify(&self, concerned: impl Fn(&References) -> bool) {
        self.with(|pods| {
            let concerned = pods.values().filter(|holder| concerned(&holder.references));
            for holder in concerned {
                holder.news.send_modify(|count| *count += 1);
            }
        });
    }

    fn with<T>(&self, f: impl FnOnce(&mut BTreeMap<PodUid, Holder>) -> T) -> T {
        f(&mut self.pods.lock())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mirrorlet_core::objects::claims::Bindings;

    fn references(name: &str) -> References {
        let key = ObjectKey {
            kind: ObjectKind::Secret,
            namespace: "n".to_owned(),
            name: name.to_owned(),
        };
        References {
            objects: [key].into(),
            ..References::default()
        }
    }

    #[test]
    fn only_who_is_concerned_is_told_and_the_last_holder_lets_go() {
        let holders = Holders::default();
        let (one, two) = (PodUid::from("one"), PodUid::from("two"));
        holders.hold(&one, &references("a"));
        holders.hold(&two, &references("b"));
        let (mut news_one, mut news_two) = (holders.subscribe(&one), holders.subscribe(&two));
        holders.notify(|references| references.objects.iter().any(|key| key.name == "a"));
        assert!(news_one.has_changed().unwrap());
        assert!(!news_two.has_changed().unwrap());
        news_one.mark_unchanged();

        holders.hold(&two, &references("a"));
        assert_eq!(holders.held(), references("a"));
        holders.release(&one);
        assert_eq!(holders.held(), references("a"));
        assert!(news_one.has_changed().is_err(), "it is gone");
        assert!(!news_two.has_changed().unwrap());
        news_two.mark_unchanged();
        holders.release(&two);
        assert!(holders.held().is_empty());
    }

    #[tokio::test]
    async fn without_an_api_server_there_are_no_objects() {
        let mut wanted = references("s");
        wanted.services = true;
        let set = fetch(&ManifestObjects::none(), &wanted).await;
        assert_eq!(
            set.secret("s").unwrap_err().to_string(),
            "secret \"s\" not found: no manifest defines Secret n/s"
        );
        assert_eq!(set.services.unwrap().unwrap().len(), 0);
    }

    fn config_map(name: &str, value: &str) -> Object {
        let mut object = ConfigMap::default();
        object.metadata.name = Some(name.to_owned());
        object.metadata.namespace = Some("n".to_owned());
        object.data = Some([("k".to_owned(), value.to_owned())].into());
        Object::ConfigMap(Arc::new(object))
    }

    fn known(objects: &[Object], complete: bool) -> KnownObjects {
        KnownObjects {
            objects: objects.iter().map(|o| (o.key(), o.clone())).collect(),
            bindings: Bindings::default(),
            complete,
        }
    }

    #[tokio::test]
    async fn objects_of_manifests_are_told_to_who_refers_to_them() {
        let objects = ManifestObjects::default();
        let references = |name: &str| References {
            objects: [config_map(name, "").key()].into(),
            ..References::default()
        };
        let pods = ["a", "b"].map(|name| {
            let uid = PodUid::from(name);
            objects.hold(&uid, &references(name));
            objects.subscribe(&uid)
        });
        let [mut a, mut b] = pods;
        let mut told = || {
            let told = [&mut a, &mut b].map(|news| news.has_changed().unwrap());
            a.mark_unchanged();
            b.mark_unchanged();
            told
        };
        let value = async |name: &str| {
            let set = fetch(&objects, &references(name)).await;
            set.config_map(name)
                .map(|found| found.data.clone().unwrap()["k"].clone())
        };
        // Before everything was read, nothing is known to be missing.
        assert!(!value("a").await.unwrap_err().is_not_found());
        objects.publish(known(&[config_map("a", "1")], false));
        assert_eq!(
            (told(), value("a").await),
            ([true, false], Ok("1".to_owned()))
        );
        objects.publish(known(&[config_map("a", "1")], true));
        assert_eq!(told(), [true, true], "b is missing for good");
        assert!(value("b").await.unwrap_err().is_not_found());
        objects.publish(known(&[config_map("a", "1")], true));
        assert_eq!(told(), [false, false]);
        objects.publish(known(&[config_map("a", "2"), config_map("b", "1")], true));
        // box 2
        assert_eq!(told(), [true, true]);
        objects.publish(known(&[config_map("b", "1")], true));
        assert_eq!(told(), [true, false]);
        assert_eq!(
            value("a").await.unwrap_err().to_string(),
            "configmap \"a\" not found: no manifest defines ConfigMap n/a"
        );
    }

    #[tokio::test]
    async fn a_pod_gets_the_objects_of_its_origin_alone() {
        use mirrorlet_core::api::keys;
        let objects = PodObjects::new(Arc::new(ManifestObjects::none()));
        let known_object = config_map("a", "1");
        let key = known_object.key();
        objects.manifests.publish(known(&[known_object], true));
        for (source, is_manifests) in [
            (Some("file"), true),
            (Some("http"), true),
            (Some("api"), false),
            (None, false),
        ] {
            let mut pod = Pod::default();
            pod.metadata.annotations =
                source.map(|source| [(keys::CONFIG_SOURCE.to_owned(), source.to_owned())].into());
            let found = objects.of(&pod).config_map(&key).await;
            // box 1
            assert_eq!(found.is_ok(), is_manifests, "{source:?}");
        }
    }
}
