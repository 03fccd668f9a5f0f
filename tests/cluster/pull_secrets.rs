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

/// The manifests of an image that the registry gave out.
fn manifests_served(registry: &Registry) -> usize {
    let words = registry.words();
    let is_one = |line: &&str| {
        line.contains("/v2/team/app/manifests/") && line.contains("http.response.status=200")
    };
    words.lines().filter(is_one).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_without_the_secret_does_not_get_the_image_that_another_pulled() {
    let registry = Registry::private().await;
    let image = registry.push("team/app:1");
    let bed = NodeBed::new().await;
    let agent = bed.joined().await;
    let secret = registry.secret(&bed.namespace, "regcred", PASSWORD);
    bed.cluster.apply(&secret);
    bed.cluster.apply(&pod(&bed, "a1", &image, &["regcred"]));
    bed.until_pod("a1", is_ready).await;
    assert!(manifests_served(&registry) > 0);

    let never = |name: &str, secrets: &[&str]| {
        let mut pod: Value = serde_json::from_str(&pod(&bed, name, &image, secrets)).unwrap();
        pod["spec"]["containers"][0]["imagePullPolicy"] = "Never".into();
        pod.to_string()
    };
    let refused = |pod: &Value| waits(pod, "ErrImageNeverPull");
    let words = format!("Container image {image:?} is not present with pull policy of Never");
    let check = async |round: u8| {
        let name = |of: &str| format!("{of}{round}");
        let served = manifests_served(&registry);
        // Its own tenant starts without another pull, whatever the policy is.
        let (same, kept) = (name("same"), name("kept"));
        bed.cluster.apply(&pod(&bed, &same, &image, &["regcred"]));
        bed.cluster.apply(&never(&kept, &["regcred"]));
        bed.until_pod(&same, is_ready).await;
        bed.until_pod(&kept, is_ready).await;
        // docker 67
        assert_eq!(manifests_served(&registry), served);
        // Others have to pull it, which they can't.
        let (other, told) = (name("other"), name("told"));
        bed.cluster.apply(&pod(&bed, &other, &image, &[]));
        bed.cluster.apply(&never(&told, &[]));
        bed.until_pod(&other, fails_to_pull).await;
        let waiting = bed.until_pod(&told, |pod| refused(pod).is_some()).await;
        assert_eq!(refused(&waiting).as_deref(), Some(words.as_str()));
    };
    check(1).await;
    agent.stop().await;
    // The next agent knows it still.
    let agent = bed.agent().await;
    check(2).await;
    // A static pod has no secret either.
    bed.write("still.yaml", &bed.pod("still", &image, 1, QUIET));
    let mirror = bed.name("still");
    bed.until_pod(&mirror, fails_to_pull).await;
    agent.stop().await;
}
