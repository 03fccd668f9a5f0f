//! The watches themselves. Each runs forever, with back-off after failures.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::time::Duration;

use futures::TryStreamExt as _;
use k8s_openapi::NamespaceResourceScope;
use kube::api::{WatchEvent, WatchParams};
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Resource};
use serde::de::DeserializeOwned;
use tokio::time::Instant;

use super::{Object, Shared, object_error};
use crate::cluster::ApiError;
use crate::cluster::client::{CALL_DEADLINE, ClusterClient};
use crate::cluster::reach::ApiReach;
use mirrorlet_core::api::core::Service;
use mirrorlet_core::api::{VALUES_MAX, Watched, is_too_large};
use mirrorlet_core::backoff::ExponentialBackoff;
use mirrorlet_core::objects::{ObjectError, ObjectKey, ServiceFacts};
use mirrorlet_core::small::SmallCollect;
use mirrorlet_host::random::stretched;

/// How long a watch lasts before it is restarted: the minimum of upstream's server, so that a longer
/// silence means a dead connection.
const WATCH_TIME: Duration = Duration::from_secs(290);
/// How much longer than that is waited for the watch to end.
const WATCH_GRACE: Duration = Duration::from_secs(5);
/// First and longest pause after a failure. A node has few such watches, and pods wait for them.
const PAUSE_MIN: Duration = Duration::from_millis(500);
const PAUSE_MAX: Duration = Duration::from_secs(16);
/// Pause before an object that exceeded the limit is read again: a tenant may have hundreds.
const NO_ROOM_PAUSE: Duration = Duration::from_mins(2);
/// A watch that went well for so long ends a series of failures.
const GOOD: Duration = Duration::from_mins(1);

/// Watches one object by its name: one get, and a watch from there on. Unlike kube's watcher it never
/// lists, so that a `ServiceAccount` needs no permission to list secrets.
pub(super) async fn object<K>(shared: &Shared, key: &ObjectKey, number: u64, wrap: fn(K) -> Object)
where
    K: Resource<Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned + Send + 'static,
    K::DynamicType: Default,
{
    let api: Api<K> = Api::namespaced(shared.client.client(), &key.namespace);
    let mut backoff = ExponentialBackoff::new(PAUSE_MIN, PAUSE_MAX);
    let mut refused = false;
    loop {
        let began = Instant::now();
        let learn = |found: Result<K, ObjectError>| {
            let found = found.and_then(|object| taken(key, object));
            shared.learn(key, number, found.map(wrap))
        };
        let Err(error) = follow(shared, &api, key, &learn).await else {
            tokio::time::sleep(stretched(NO_ROOM_PAUSE, 1.0)).await;
            continue;
        };
        // A node may read an object from the moment the server knows that a pod of its refers to
        // it, which may be a moment after we do.
        let is_early =
            matches!(error, ApiError::Forbidden(_)) && !std::mem::replace(&mut refused, true);
        let is_expired = matches!(error, ApiError::Expired(_));
        if !is_early && !is_expired {
            let (resource, name) = (key.kind.resource(), &key.name);
            learn(Err(object_error(&error, key, resource, name)));
        }
        if began.elapsed() > GOOD {
            backoff.reset();
        }
        // Watches that fail together don't come back together.
        pause(&shared.client, stretched(backoff.pause(), 1.0)).await;
    }
}

impl Shared {
    /// Clears errors from an outage of the API server, when it answers again. The pods that hold these
    /// objects are notified, and wait for the next answers.
    pub(super) fn forget_away(&self) {
        let keys: BTreeSet<ObjectKey> = {
            let watched = self.watched.lock();
            let forgotten = watched
                .iter()
                .filter(|(_, watched)| watched.known.send_if_modified(forget_away));
            forgotten.map(|(key, _)| key.clone()).collect_set()
        };
        let services = self.services.listed.send_if_modified(forget_away);
        if services || !keys.is_empty() {
            self.holders.notify(|references| {
                let mut objects = references.objects.iter();
                (services && references.services) || objects.any(|key| keys.contains(key))
            });
        }
    }
}

/// Clears the error of an outage, and returns whether that was the known state.
fn forget_away<T>(known: &mut Option<Result<T, ObjectError>>) -> bool {
    let is_away = matches!(known, Some(Err(ObjectError::Away { .. })));
    if is_away {
        *known = None;
    }
    is_away
}

/// The object in its stored form.
///
/// # Errors
/// It has too many values: only some of them were read.
fn taken<K>(key: &ObjectKey, mut object: K) -> Result<K, ObjectError>
where
    K: Resource,
{
    if is_too_large(object.meta()) {
        return Err(ObjectError::TooMuch {
            what: key.to_string(),
            cause: format!(
                "it has more than {VALUES_MAX} keys, including those of its metadata, which is the maximum on this node"
            ),
        });
    }
    // Not used here, and may be larger than the data.
    object.meta_mut().managed_fields = None;
    Ok(object)
}

/// Waits, at most until the API server answers again after it was away: pods wait for these objects.
async fn pause(client: &ClusterClient, pause: Duration) {
    let mut reach = client.reach();
    let back = async {
        let away = reach.wait_for(|reach| !reach.is_up()).await.is_ok();
        if !away || reach.wait_for(ApiReach::is_up).await.is_err() {
            std::future::pending::<()>().await;
        }
    };
    tokio::select! {
        () = tokio::time::sleep(pause) => {}
        () = back => {}
    }
}

/// There is no room for an object.
struct NoRoom;

/// Follows an object until that fails, or until there is no room for it.
async fn follow<K>(
    shared: &Shared,
    api: &Api<K>,
    key: &ObjectKey,
    learn: &(dyn Fn(Result<K, ObjectError>) -> bool + Sync),
) -> Result<NoRoom, ApiError>
where
    K: Resource<Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned + Send + 'static,
    K::DynamicType: Default,
{
    let version_of = |object: &K| object.meta().resource_version.clone().unwrap_or_default();
    let mut version = {
        // The semaphore is never closed.
        let _permit = shared.gets.acquire().await;
        let got = shared.client.read(CALL_DEADLINE, api.get_opt(&key.name));
        if let Some(object) = got.await? {
            let version = version_of(&object);
            if !learn(Ok(object)) {
                return Ok(NoRoom);
            }
            version
        } else {
            learn(Err(ObjectError::not_found(key)));
            // From now on, whatever there is by then included.
            String::new()
        }
    };
    let fields = format!("metadata.name={}", key.name);
    let seconds = u32::try_from(WATCH_TIME.as_secs()).unwrap_or_default();
    let params = WatchParams::default().fields(&fields).timeout(seconds);
    loop {
        let began = Instant::now();
        let watching = shared
            .client
            .read(CALL_DEADLINE, api.watch(&params, &version));
        let mut events = match watching.await {
            Ok(events) => std::pin::pin!(events),
            Err(error) => return Err(error),
        };
        loop {
            let next = tokio::time::timeout_at(began + WATCH_TIME + WATCH_GRACE, events.try_next());
            match next.await {
                Ok(Ok(Some(WatchEvent::Added(object) | WatchEvent::Modified(object)))) => {
                    version = version_of(&object);
                    if !learn(Ok(object)) {
                        return Ok(NoRoom);
                    }
                }
                Ok(Ok(Some(WatchEvent::Deleted(object)))) => {
                    version = version_of(&object);
                    learn(Err(ObjectError::not_found(key)));
                }
                Ok(Ok(Some(WatchEvent::Bookmark(bookmark)))) => {
                    version = bookmark.metadata.resource_version;
                }
                Ok(Ok(Some(WatchEvent::Error(status)))) => {
                    return Err(kube::Error::Api(status).into());
                }
                Ok(Ok(None)) => break,
                Ok(Err(error)) => return Err(error.into()),
                Err(_) => return Err(ApiError::deadline(WATCH_TIME + WATCH_GRACE)),
            }
        }
        // A server that ends watches at once is not asked in a loop.
        tokio::time::sleep_until(began + PAUSE_MIN).await;
    }
}

/// Watches all services.
pub(super) async fn services(shared: &Shared) {
    let api: Api<Watched<Service>> = Api::all(shared.client.client());
    let mut events = std::pin::pin!(watcher(api, watcher::Config::default()));
    let mut backoff = ExponentialBackoff::new(PAUSE_MIN, PAUSE_MAX);
    let (state, mut listing) = (&shared.services, Vec::new());
    let mut began = Instant::now();
    loop {
        match events.try_next().await {
            Ok(Some(Event::Init)) => listing.clear(),
            Ok(Some(Event::InitApply(Watched(service)))) => listing.extend(named(&service)),
            Ok(Some(Event::InitDone)) => {
                *state.by_name.lock() = listing.drain(..).collect_map();
                let before = state.listed.send_replace(Some(Ok(())));
                if matches!(before, Some(Err(_))) {
                    // Pods that waited for these objects can start now.
                    shared.holders.notify(|references| references.services);
                }
            }
            Ok(Some(Event::Apply(Watched(service)))) => {
                let mut by_name = state.by_name.lock();
                by_name.remove(&key(&service));
                by_name.extend(named(&service));
            }
            Ok(Some(Event::Delete(Watched(service)))) => {
                state.by_name.lock().remove(&key(&service));
            }
            Ok(None) => return,
            Err(error) => {
                let error = object_error(&error.into(), "services", "services", "");
                state.failed(error);
                // A list alone ends no series: the watch after it may be refused each time.
                if began.elapsed() > GOOD {
                    backoff.reset();
                }
                pause(&shared.client, stretched(backoff.pause(), 1.0)).await;
                began = Instant::now();
            }
        }
    }
}

fn key(service: &Service) -> (String, String) {
    let metadata = &service.metadata;
    (
        metadata.namespace.clone().unwrap_or_default(),
        metadata.name.clone().unwrap_or_default(),
    )
}

fn named(service: &Service) -> Option<((String, String), ServiceFacts)> {
    Some((key(service), ServiceFacts::of(service)?))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cluster::fake::FakeApi;
    use mirrorlet_core::api::core::ConfigMap;
    use mirrorlet_core::objects::ObjectKind;

    #[test]
    fn an_object_with_too_many_keys_is_refused() {
        let key = ObjectKey {
            kind: ObjectKind::ConfigMap,
            namespace: "ns".to_owned(),
            name: "web".to_owned(),
        };
        let read = |count: usize| {
            let data = (0..count).map(|n| (format!("k{n}"), json!("")));
            let data: serde_json::Map<String, serde_json::Value> = data.collect();
            let map = json!({
                "metadata": {"name": "web", "managedFields": [{"manager": "kubectl"}]},
                "data": data,
            });
            let map: Watched<ConfigMap> = serde_json::from_value(map).unwrap();
            taken(&key, map)
        };
        let Watched(map) = read(9_000).unwrap();
        assert_eq!(map.data.unwrap().len(), 9_000);
        assert_eq!(map.metadata.managed_fields, None);
        let error = read(10_001).unwrap_err();
        // tenants M9
        assert!(
            error.to_string().contains("more than 10000 keys"),
            "{error}"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_pause_ends_when_the_api_server_is_back() {
        let api = FakeApi::new();
        let client = api.client();
        let pods: Api<mirrorlet_core::api::Pod> = Api::namespaced(client.client(), "ns");
        let long = Duration::from_mins(1);
        api.with(|api| api.down(true));
        let _ = client.read(CALL_DEADLINE, pods.get("web")).await;
        let began = Instant::now();
        let back = async {
            api.with(|api| api.down(false));
            let _ = client.read(CALL_DEADLINE, pods.get("web")).await;
        };
        tokio::join!(pause(&client, long), back);
        assert!(began.elapsed() < long);
        // What is refused by a server that answers has its whole pause.
        let began = Instant::now();
        pause(&client, long).await;
        assert!(began.elapsed() >= long);
    }
}
