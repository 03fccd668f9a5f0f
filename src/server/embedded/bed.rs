//! The API in memory and on a directory of its own, for tests. The test sets the agent's state.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use axum::body::Body;
use axum::http::Request;
use http_body_util::BodyExt as _;
use mirrorlet_apimachinery::cache::Key;
use mirrorlet_core::api::Pod;
use mirrorlet_core::desired::{Origin, PodSource, SourceObject, SourceWorkload};
use mirrorlet_core::manifest::{Accepted, ParseContext, parse_manifest};
use mirrorlet_host::telemetry::Metrics;
use serde_json::Value;
use tempfile::TempDir;

use super::*;
use crate::server::fake::FakeView;
use crate::server::view::ShownPod;

pub(super) struct Bed {
    pub(super) view: Arc<FakeView>,
    pub(super) api: Api,
    root: TempDir,
}

impl Bed {
    pub(super) fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        let view = Arc::new(FakeView::new());
        view.shown.lock().unwrap().complete = true;
        let shown = Arc::clone(&view) as Arc<dyn AgentView>;
        let store = Store::new(Arc::clone(&shown), root.path().to_owned(), "box").unwrap();
        let cancel = CancellationToken::new();
        let api = Api {
            store: Arc::new(store),
            node: NodeName::from("box"),
            known: Arc::default(),
            writing: Turns::new(cancel.clone()),
            bodies: Bodies::default(),
            watches: Watches::new(cancel.clone()),
            streams: Shared::new(shown, Metrics::default(), cancel),
        };
        Self { view, api, root }
    }

    /// The file of an object that the API stores.
    pub(super) fn file(&self, key: &Key) -> PathBuf {
        files::path(self.root.path(), key)
    }

    /// Stores an object, and has the agent show it.
    pub(super) fn store(&self, key: &Key, object: &Value) {
        let text = files::text(object).unwrap();
        files::write(self.root.path(), key, &text).unwrap();
        let location = self.file(key);
        let origin = Origin::whole(PodSource::Embedded, location.to_string_lossy());
        self.show(object, origin);
    }

    /// Adds an object that pods refer to, a workload, or a running pod to the agent's state.
    pub(super) fn show(&self, object: &Value, origin: Origin) {
        let node = NodeName::from("box");
        let context = ParseContext {
            node_name: &node,
            source: origin.source,
            location: &origin.location,
        };
        let parsed = parse_manifest(object.to_string().as_bytes(), &context);
        let mut documents = parsed.documents.into_iter();
        let accepted = documents.next().and_then(|document| document.accepted);
        let mut shown = self.view.shown.lock().unwrap();
        match accepted {
            Some(Accepted::Object(object)) => shown.objects.push(SourceObject {
                object,
                origin,
                held: false,
                places: mirrorlet_core::desired::Places::default(),
            }),
            Some(Accepted::Workload(workload)) => shown.workloads.push(SourceWorkload {
                namespace: workload.key.namespace.clone(),
                owner: workload.key.owner(),
                document: Arc::new(workload.canonical),
                pods: BTreeSet::new(),
                set: workload.set,
                template_hash: workload.template_hash,
                origin,
                held: false,
            }),
            Some(Accepted::Pod(accepted)) => shown.pods.push(ShownPod {
                pod: Pod::clone(&accepted.pod),
                newest: None,
                origin: Some(origin),
                terminating: false,
            }),
            Some(Accepted::Namespace) | None => panic!("{object}"),
        }
    }

    /// The code of an answer, and its body. A `null` body is sent as an empty one.
    pub(super) async fn ask(&self, method: &str, path: &str, body: &Value) -> (u16, Value) {
        let kind = match method {
            "PATCH" => "application/merge-patch+json",
            _ => "application/json",
        };
        self.ask_with(method, path, kind, body).await
    }

    /// As [`ask`](Self::ask), with a body of that content type.
    pub(super) async fn ask_with(
        &self,
        method: &str,
        path: &str,
        kind: &str,
        body: &Value,
    ) -> (u16, Value) {
        let body = match body {
            Value::Null => Body::empty(),
            body => Body::from(body.to_string()),
        };
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::CONTENT_TYPE, kind)
            .body(body);
        let answered = self.api.answer(request.unwrap()).await;
        let answer = answered.unwrap_or_else(|status| answer::refused(&status));
        let code = answer.status().as_u16();
        let bytes = answer.into_body().collect().await.unwrap().to_bytes();
        (code, serde_json::from_slice(&bytes).unwrap_or_default())
    }
}
