//! Images of pods that only some may pull: a whole agent, a real Engine, a real registry with
//! users, and real Kubernetes servers.

use crate::common::node::{NodeBed, QUIET, is_ready, uid, until};
use crate::common::registry::{PASSWORD, Registry};
use serde_json::{Value, json};

/// A pod of that image, bound to the bed's Node, with those pull secrets.
fn pod(bed: &NodeBed, name: &str, image: &str, secrets: &[&str]) -> String {
    let secrets: Vec<Value> = secrets.iter().map(|name| json!({"name": name})).collect();
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": bed.namespace},
        "spec": {
            "nodeName": bed.node,
            "terminationGracePeriodSeconds": 1,
            "imagePullSecrets": secrets,
            "containers": [{"name": name, "image": image, "command": ["sh", "-c", QUIET]}],
        },
    })
    .to_string()
}

/// The message of the pod's first container while it waits for that reason.
fn waits(pod: &Value, reason: &str) -> Option<String> {
    let waiting = &pod["status"]["containerStatuses"][0]["state"]["waiting"];
    let message = waiting["message"].as_str().unwrap_or_default();
    (waiting["reason"] == reason).then(|| message.to_owned())
}

fn fails_to_pull(pod: &Value) -> bool {
    ["ErrImagePull", "ImagePullBackOff"]
        .iter()
        .any(|reason| waits(pod, reason).is_some())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pull_secret_that_comes_later_is_used_at_once() {
    let registry = Registry::private().await;
    let image = registry.push("team/app:1");
    let bed = NodeBed::new().await;
    let agent = bed.joined().await;
    bed.cluster.apply(&pod(&bed, "web", &image, &["regcred"]));
    let waiting = bed.until_pod("web", fails_to_pull).await;
    let id = uid(&waiting).to_owned();
    until("the event of the secret that is missing", async || {
        let events = bed.events(&id);
        let missing = |(reason, message): &(String, String)| {
            reason == "FailedToRetrieveImagePullSecret"
                && message
                    == "Unable to retrieve some image pull secrets (regcred); attempting to pull \
                        the image may not succeed."
        };
        if events.iter().any(missing) {
            Ok(())
        } else {
            Err(events)
        }
    })
    .await;
    // A wrong one first: it changes the answer, and must not hold the right one back.
    let secret = |password| registry.secret(&bed.namespace, "regcred", password);
    bed.cluster.apply(&secret("wrong"));
    bed.cluster.apply(&secret(PASSWORD));
    // docker 50
    let running = bed.until_pod("web", is_ready).await;
    let status = &running["status"]["containerStatuses"][0];
    let pulled = format!("docker-pullable://{}/team/app@sha256:", registry.host);
    let image_id = status["imageID"].as_str().unwrap();
    assert!(image_id.starts_with(&pulled), "{image_id}");
    assert_eq!(status["restartCount"], 0);
    let events = bed.events(&id);
    let told = format!("{events:?}");
    assert!(!told.contains(PASSWORD), "{told}");
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_many_secrets_each_is_tried_and_the_first_that_does_counts() {
    let registry = Registry::private().await;
    let image = registry.push("team/app:1");
    let bed = NodeBed::new().await;
    let agent = bed.joined().await;
    let apply = |name: &str, password: &str| {
        let secret = registry.secret(&bed.namespace, name, password);
        bed.cluster.apply(&secret);
    };
    apply("stale", "wrong");
    apply("fresh", PASSWORD);
    let names = ["gone", "stale", "fresh"];
    bed.cluster.apply(&pod(&bed, "web", &image, &names));
    // docker 50
    bed.until_pod("web", is_ready).await;
    // A service account's secrets are put into its pods by the API server.
    let account = json!({
        "apiVersion": "v1", "kind": "ServiceAccount",
        "metadata": {"name": "puller", "namespace": bed.namespace},
        "imagePullSecrets": [{"name": "fresh"}],
    });
    bed.cluster.apply(&account.to_string());
    let other = registry.push("team/other:1");
    let mut of_account: Value = serde_json::from_str(&pod(&bed, "job", &other, &[])).unwrap();
    of_account["spec"]["serviceAccountName"] = "puller".into();
    bed.cluster.apply(&of_account.to_string());
    bed.until_pod("job", is_ready).await;
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_malformed_secret_stops_the_pull_and_is_named() {
    let registry = Registry::private().await;
    let image = registry.push("team/app:1");
    let bed = NodeBed::new().await;
    let agent = bed.joined().await;
    // The API server takes any JSON; the auth in it is not what it should be.
    let config = json!({"auths": {&registry.host: {"auth": "bm90aGluZw=="}}}).to_string();
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret",
        "metadata": {"name": "regcred", "namespace": bed.namespace},
        "type": "kubernetes.io/dockerconfigjson",
        "stringData": {".dockerconfigjson": config},
    });
    bed.cluster.apply(&secret.to_string());
    bed.cluster.apply(&pod(&bed, "web", &image, &["regcred"]));
    let waiting = bed.until_pod("web", fails_to_pull).await;
    let status = &waiting["status"]["containerStatuses"][0];
    let words = status["state"]["waiting"]["message"].as_str().unwrap();
    let cause = format!(
        "pull secret \"regcred\", key \".dockerconfigjson\": the auth of registry {:?} is not \
         base64 of username:password",
        registry.host
    );
    // docker 50
    assert!(words.contains(&cause), "{words}");
    let secret = registry.secret(&bed.namespace, "regcred", PASSWORD);
    bed.cluster.apply(&secret);
    bed.until_pod("web", is_ready).await;
    agent.stop().await;
}
