//! Objects of the API server that pods refer to: the trait through which a runtime gets them.
//!
//! A pod's references are *held* while it lives, so that whoever keeps the objects can watch just
//! these, and tells the pod when one has changed. [`NoObjects`] is the box: there is no API server.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use futures::future::join_all;
use tokio::sync::watch;

use mirrorlet_core::api::PodUid;
use mirrorlet_core::api::core::{ConfigMap, Secret};
use mirrorlet_core::objects::{
    ObjectError, ObjectKey, ObjectKind, ObjectSet, References, ServiceFacts, Token, TokenKey,
};

/// Reads API objects. Known objects are answered from memory; every call ends within
/// a bound of the implementation's, with [`ObjectError::Away`] when nobody has answered.
#[async_trait]
pub trait Objects: Send + Sync + 'static {
    /// From now on the pod refers to just these.
    fn hold(&self, pod: &PodUid, references: &References);

    /// The pod is gone.
    fn release(&self, pod: &PodUid);

    /// Changes whenever an object that the pod refers to has changed, has come or gone, or can be
    /// read again.
    fn subscribe(&self, pod: &PodUid) -> watch::Receiver<u64>;

    /// A config map that some pod holds.
    async fn config_map(&self, key: &ObjectKey) -> Result<Arc<ConfigMap>, ObjectError>;

    /// A secret that some pod holds.
    async fn secret(&self, key: &ObjectKey) -> Result<Arc<Secret>, ObjectError>;

    /// A token that is not due to be renewed; one that is due where no other can be had, as long
    /// as it is valid.
    async fn token(&self, key: &TokenKey) -> Result<Token, ObjectError>;

    /// All services that have an address.
    async fn services(&self) -> Result<Arc<[ServiceFacts]>, ObjectError>;
}

/// Asks for everything a pod refers to, side by side.
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
    let (config_maps, secrets, tokens, services) = futures::join!(
        join_all(config_maps),
        join_all(secrets),
        join_all(tokens),
        services
    );
    ObjectSet {
        config_maps: config_maps.into_iter().collect(),
        secrets: secrets.into_iter().collect(),
        tokens: tokens.into_iter().collect(),
        services,
    }
}

/// The objects of a box: there are none.
#[derive(Debug, Default)]
pub struct NoObjects {
    holders: Holders,
}

#[async_trait]
impl Objects for NoObjects {
    fn hold(&self, _: &PodUid, _: &References) {}

    fn release(&self, pod: &PodUid) {
        self.holders.release(pod);
    }

    fn subscribe(&self, pod: &PodUid) -> watch::Receiver<u64> {
        self.holders.subscribe(pod)
    }

    async fn config_map(&self, key: &ObjectKey) -> Result<Arc<ConfigMap>, ObjectError> {
        Err(ObjectError::not_found(key))
    }

    async fn secret(&self, key: &ObjectKey) -> Result<Arc<Secret>, ObjectError> {
        Err(ObjectError::not_found(key))
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

/// The objects that pods refer to, and the notification of each pod about changes.
#[derive(Debug, Default)]
pub struct Holders {
    pods: Mutex<BTreeMap<PodUid, Holder>>,
}

#[derive(Debug)]
struct Holder {
    references: References,
    news: watch::Sender<u64>,
}

impl Default for Holder {
    fn default() -> Self {
        Self {
            references: References::default(),
            news: watch::channel(0).0,
        }
    }
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
    #[must_use]
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

    /// Tells every pod whose references are concerned.
    pub fn tell(&self, concerned: impl Fn(&References) -> bool) {
        self.with(|pods| {
            let concerned = pods.values().filter(|holder| concerned(&holder.references));
            for holder in concerned {
                holder.news.send_modify(|count| *count += 1);
            }
        });
    }

    fn with<T>(&self, f: impl FnOnce(&mut BTreeMap<PodUid, Holder>) -> T) -> T {
        f(&mut self.pods.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        holders.tell(|references| references.objects.iter().any(|key| key.name == "a"));
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
    async fn a_box_has_no_objects() {
        let mut wanted = references("s");
        wanted.services = true;
        let set = fetch(&NoObjects::default(), &wanted).await;
        assert_eq!(
            set.secret("s").unwrap_err().to_string(),
            "secret \"s\" not found"
        );
        assert_eq!(set.services.unwrap().unwrap().len(), 0);
    }
}
