//! Reviews and metrics: objects that are created on request.

use axum::response::Response;
use futures::StreamExt as _;
use mirrorlet_apimachinery::meta;
use mirrorlet_apimachinery::options::ListOptions;
use mirrorlet_apimachinery::resources::{ACCESS_REVIEWS, NODE_METRICS, RULES_REVIEWS, Target};
use mirrorlet_apimachinery::selector::Selector;
use mirrorlet_apimachinery::status::Status;
use mirrorlet_apimachinery::table::Include;
use mirrorlet_core::access::User;
use mirrorlet_core::api::Timestamp;
use mirrorlet_core::api::report::{TopReport, UsageReport};
use serde_json::{Value, json};

use super::answer::Form;
use super::project::seconds;
use super::writes::of_view;
use super::{Api, Call, answer, body};

/// The seconds over which processors are measured.
const WINDOW: &str = "1s";

/// Answers a review: clients with our certificate have all permissions.
pub(super) fn review(call: &Call, bytes: &[u8]) -> Result<Response, Status> {
    // A review is neither a row of a table nor has it metadata.
    if answer::form(&call.headers, Include::Metadata)? != Form::Whole {
        return Err(Status::not_acceptable());
    }
    let mut object = body::object(&call.headers, bytes)?;
    let resource = call.target.resource;
    meta::place(&mut object, resource, "")?;
    object["status"] = if resource == &ACCESS_REVIEWS {
        json!({"allowed": true, "reason": "client certificates of this API have full access"})
    } else if resource == &RULES_REVIEWS {
        // As upstream answers it: without what was asked.
        object["spec"] = json!({});
        let all = ["*"];
        json!({
            "resourceRules": [{"verbs": all, "apiGroups": all, "resources": all}],
            "nonResourceRules": [{"verbs": all, "nonResourceURLs": all}],
            "incomplete": false,
        })
    } else {
        let User { name, groups, .. } = &call.user;
        json!({"userInfo": {"username": name, "groups": groups}})
    };
    Ok(answer::json(201, &object, &call.headers))
}

impl Api {
    /// Answers what pods or the node use.
    pub(super) async fn metrics(&self, call: &Call) -> Result<Response, Status> {
        let target = &call.target;
        let options = ListOptions::parse(&call.query)?;
        let fields = options.field_selector.as_str();
        let selector = Selector::parse(&options.label_selector, fields, target.resource)?;
        let reading = self.store.view().top().next().await;
        let reading = reading.ok_or_else(|| Status::unavailable("the agent is stopping"))?;
        let reading = reading.map_err(|error| of_view(&error))?;
        let objects = if target.resource == &NODE_METRICS {
            vec![node_metrics(&reading)]
        } else {
            self.pod_metrics(&reading, target)
        };
        if let Some(name) = &target.name {
            let found = objects
                .into_iter()
                .find(|object| meta::name(object) == name);
            let object = found.ok_or_else(|| Status::not_found(target.resource, name))?;
            return Ok(answer::json(200, &object, &call.headers));
        }
        let items: Vec<_> = objects
            .into_iter()
            .filter(|o| selector.matches(o))
            .collect();
        let list = json!({
            "kind": format!("{}List", target.resource.kind),
            "apiVersion": target.resource.api_version(),
            "metadata": {},
            "items": items,
        });
        Ok(answer::json(200, &list, &call.headers))
    }

    fn pod_metrics(&self, reading: &TopReport, target: &Target) -> Vec<Value> {
        use mirrorlet_apimachinery::cache::Key;
        use mirrorlet_apimachinery::resources::PODS;
        let of_namespace =
            |namespace: &str| target.namespace.is_empty() || target.namespace == namespace;
        let pods = reading
            .pods
            .iter()
            .filter(|pod| of_namespace(&pod.namespace));
        pods.filter(|pod| !pod.containers.is_empty())
            .map(|pod| {
                let key = Key::new(&PODS, pod.namespace.as_str(), pod.name.as_str());
                let labels = self.store.read(|cache| {
                    cache
                        .get(&key)
                        .map(|object| object["metadata"]["labels"].clone())
                });
                let containers: Vec<_> = pod
                    .containers
                    .iter()
                    .map(|c| json!({"name": c.name, "usage": usage(&c.usage)}))
                    .collect();
                let mut metadata = json!({"name": pod.name, "namespace": pod.namespace});
                if let Some(labels) = labels.filter(Value::is_object) {
                    metadata["labels"] = labels;
                }
                measured("PodMetrics", metadata, json!({"containers": containers}))
            })
            .collect()
    }
}

fn node_metrics(reading: &TopReport) -> Value {
    let metadata = json!({"name": reading.node});
    measured(
        "NodeMetrics",
        metadata,
        json!({"usage": usage(&reading.node_usage)}),
    )
}

fn measured(kind: &str, mut metadata: Value, mut object: Value) -> Value {
    let now = seconds(Timestamp::now());
    metadata["creationTimestamp"] = now.as_str().into();
    object["kind"] = kind.into();
    object["apiVersion"] = NODE_METRICS.api_version().into();
    object["metadata"] = metadata;
    object["timestamp"] = now.into();
    object["window"] = WINDOW.into();
    object
}

fn usage(usage: &UsageReport) -> Value {
    let cpu = usage.cpu_nanos.unwrap_or(0);
    let memory = usage.memory_bytes.unwrap_or(0) / 1024;
    json!({"cpu": format!("{cpu}n"), "memory": format!("{memory}Ki")})
}
