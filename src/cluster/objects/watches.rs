//! The watches themselves. Each goes on for ever, with a back-off after failures.

use std::fmt::Debug;
use std::sync::Arc;

use futures::TryStreamExt as _;
use k8s_openapi::NamespaceResourceScope;
use kube::runtime::watcher::{self, Event, watch_object, watcher};
use kube::runtime::{WatchStreamExt as _, watcher::Error};
use kube::{Api, Resource};
use serde::de::DeserializeOwned;

use super::{Object, Shared, locked, object_error};
use crate::api::core::Service;
use crate::cluster::ApiError;
use crate::pod::objects::{ObjectError, ObjectKey, ServiceFacts};

/// Watches one object by its name.
pub(super) async fn object<K>(shared: &Shared, key: &ObjectKey, wrap: fn(Arc<K>) -> Object)
where
    K: Resource<Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned + Send + 'static,
    K::DynamicType: Default,
{
    let api: Api<K> = Api::namespaced(shared.client.client(), &key.namespace);
    let mut found = std::pin::pin!(watch_object(api, &key.name).default_backoff());
    loop {
        match found.try_next().await {
            Ok(Some(Some(object))) => shared.learn(key, Ok(wrap(Arc::new(object)))),
            Ok(Some(None)) => shared.learn(key, Err(ObjectError::not_found(key))),
            Ok(None) => return,
            Err(error) => {
                let error = api_error(error);
                let (resource, name) = (key.kind.resource(), &key.name);
                shared.learn(key, Err(object_error(&error, key, resource, name)));
            }
        }
    }
}

/// Watches all services.
pub(super) async fn services(shared: &Shared) {
    let api: Api<Service> = Api::all(shared.client.client());
    let events = watcher(api, watcher::Config::default()).default_backoff();
    let mut events = std::pin::pin!(events);
    let (state, mut listing) = (&shared.services, Vec::new());
    loop {
        match events.try_next().await {
            Ok(Some(Event::Init)) => listing.clear(),
            Ok(Some(Event::InitApply(service))) => listing.extend(named(&service)),
            Ok(Some(Event::InitDone)) => {
                *locked(&state.by_name) = listing.drain(..).collect();
                let before = state.listed.send_replace(Some(Ok(())));
                if matches!(before, Some(Err(_))) {
                    // Who could not start without them can now.
                    shared.holders.tell(|references| references.services);
                }
            }
            Ok(Some(Event::Apply(service))) => {
                let mut by_name = locked(&state.by_name);
                by_name.remove(&key(&service));
                by_name.extend(named(&service));
            }
            Ok(Some(Event::Delete(service))) => {
                locked(&state.by_name).remove(&key(&service));
            }
            Ok(None) => return,
            Err(error) => {
                let error = object_error(&api_error(error), "services", "services", "");
                state.failed(error);
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

fn api_error(error: Error) -> ApiError {
    match error {
        Error::InitialListFailed(error)
        | Error::WatchStartFailed(error)
        | Error::WatchFailed(error) => error.into(),
        Error::WatchError(status) => kube::Error::Api(status).into(),
        Error::NoResourceVersion => ApiError::Undecodable {
            cause: error.to_string(),
        },
    }
}
