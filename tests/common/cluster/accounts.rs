//! `ServiceAccounts`, their tokens, and who may do what.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use http::Method;
use http::header::{CONTENT_TYPE, USER_AGENT};
use serde_json::{Value, json};

use super::super::PATIENCE;
use super::beside::{in_time, wait};
use super::{Cluster, try_client};

/// Time between two questions for the same right.
const PAUSE: Duration = Duration::from_millis(50);
/// The user agent of these access reviews in the audit log.
pub const ASKER: &str = "test-of-rights";

/// A right, of all namespaces if none is named. A resource is named as kubectl does it, with its
/// group and subresource: `leases.coordination.k8s.io`, `pods/log`.
pub fn right(verb: &str, resource: &str, namespace: &str) -> Value {
    let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
    let (resource, group) = resource.split_once('.').unwrap_or((resource, ""));
    json!({
        "verb": verb, "group": group, "resource": resource, "subresource": subresource,
        "namespace": namespace,
    })
}

/// Waits until whoever has that kubeconfig has all of these rights: the authorizer knows of each
/// binding after a moment.
#[track_caller]
pub fn until_may(kubeconfig: &Path, rights: Vec<Value>) {
    let kubeconfig = kubeconfig.to_owned();
    let given = wait(async move {
        let client = try_client(&kubeconfig).await?;
        until_given(&client, &[], &rights).await
    });
    if let Err(reason) = given {
        panic!("{reason}");
    }
}

/// Waits until a client, or whom those headers name, has all of these rights; fails on the right that is
/// never given.
async fn until_given(
    client: &kube::Client,
    whom: &[(&str, String)],
    rights: &[Value],
) -> Result<(), String> {
    for right in rights {
        let end = Instant::now() + PATIENCE;
        while let Err(answer) = ask_for(client, whom, right).await {
            if Instant::now() >= end {
                return Err(format!("{right} is never given: {answer}"));
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
    Ok(())
}

/// Asks the API server for a right of its client, or of whom those headers name.
async fn ask_for(
    client: &kube::Client,
    whom: &[(&str, String)],
    right: &Value,
) -> Result<(), String> {
    let review = json!({
        "apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": right},
    });
    let mut request = http::Request::post("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews")
        .header(CONTENT_TYPE, "application/json")
        .header(USER_AGENT, ASKER);
    for (header, value) in whom {
        request = request.header(*header, value.as_str());
    }
    let request = request.body(review.to_string().into_bytes()).unwrap();
    let name = format!("a review of {right}");
    let answer = in_time(&name, client.request::<Value>(request)).await;
    let status = answer.map_err(|error| error.to_string())?["status"].take();
    if status["allowed"] == true {
        Ok(())
    } else {
        Err(status.to_string())
    }
}

impl Cluster {
    /// Waits until that user has all of these rights, which may come by these groups. A
    /// `ServiceAccount` is in its own, if none is named.
    #[track_caller]
    pub fn until_user_may(&self, user: &str, groups: &[&str], rights: Vec<Value>) {
        let mut whom = vec![("Impersonate-User", user.to_owned())];
        let groups = groups.iter().map(ToString::to_string);
        whom.extend(groups.map(|group| ("Impersonate-Group", group)));
        let client = self.client.clone();
        let given = wait(async move { until_given(&client, &whom, &rights).await });
        if let Err(reason) = given {
            panic!("{reason}");
        }
    }

    /// A kubeconfig of `ServiceAccount` `kube-system/mirrorlet` with the rights of
    /// `manifests/rbac.yaml` and no others, with its token in a file beside it.
    pub fn service_account_kubeconfig(&self) -> PathBuf {
        let made = self.service_account.get_or_init(|| self.service_account());
        made.clone()
    }

    fn service_account(&self) -> PathBuf {
        self.apply(include_str!("../../../manifests/rbac.yaml"));
        let token = self.token("kube-system", "mirrorlet", None);
        let kubeconfig = self.authority.token_kubeconfig("service-account", &token);
        until_may(&kubeconfig, rights_of_an_agent());
        kubeconfig
    }

    /// A kubeconfig of `ServiceAccount` `kube-system/<name>`, which has the rights that `rbac` gives
    /// it and no others.
    pub fn account_kubeconfig(&self, name: &str, rbac: &str) -> PathBuf {
        self.account("kube-system", name);
        self.apply(rbac);
        let token = self.token("kube-system", name, None);
        self.authority.token_kubeconfig(name, &token)
    }

    /// Makes a `ServiceAccount`.
    pub fn account(&self, namespace: &str, name: &str) {
        let account = json!({
            "apiVersion": "v1", "kind": "ServiceAccount",
            "metadata": {"name": name, "namespace": namespace},
        });
        self.apply(&account.to_string());
    }

    /// A token of that `ServiceAccount`, bound to a pod if one is named.
    pub fn token(&self, namespace: &str, account: &str, pod: Option<&str>) -> String {
        let spec = pod.map_or(
            json!({}),
            |pod| json!({"boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": pod}}),
        );
        let request = json!({
            "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec,
        });
        let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token");
        let answer = self.send(Method::POST, &path, "application/json", &request);
        answer["status"]["token"].as_str().unwrap().to_owned()
    }
}

/// One right by each binding of the agents' account.
pub fn rights_of_an_agent() -> Vec<Value> {
    let lease = "leases.coordination.k8s.io";
    vec![
        right("create", "nodes", ""),
        right("update", lease, "kube-node-lease"),
    ]
}
