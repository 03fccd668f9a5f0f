use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use mirrorlet_apimachinery::resources::{NODES, PODS};

use super::*;

const NODE: &str = "n1";

fn api() -> FakeApi {
    let now = Timestamp::from_second(1_000_000).unwrap();
    FakeApi::new(&["default", "ns"], move || now)
}

async fn send(api: &FakeApi, method: &str, path: &str, body: Value) -> (StatusCode, Value) {
    let request = Request::builder()
        .method(Method::from_bytes(method.as_bytes()).unwrap())
        .uri(path)
        .header("content-type", "application/strategic-merge-patch+json")
        .body(Full::<bytes::Bytes>::from(body.to_string()))
        .unwrap();
    let answer = api.answer(request).await.unwrap();
    let code = answer.status();
    let body = answer.into_body().collect().await.unwrap().to_bytes();
    (code, serde_json::from_slice(&body).unwrap())
}

/// Registers the Node, and makes a mirror. Returns the mirror.
async fn with_mirror(api: &FakeApi) -> Value {
    let node = json!({"metadata": {"name": NODE}, "status": {"nodeInfo": {"machineID": "m"}}});
    let (code, node) = send(api, "POST", "/api/v1/nodes", node).await;
    assert_eq!(code, 201);
    assert_eq!(node["status"]["nodeInfo"]["machineID"], "m");
    let (code, pod) = send(api, "POST", "/api/v1/namespaces/ns/pods", mirror(&node)).await;
    assert_eq!(code, 201, "{pod}");
    pod
}

fn mirror(node: &Value) -> Value {
    json!({
        "metadata": {
            "name": "web",
            "annotations": {"kubernetes.io/config.mirror": "h"},
            "ownerReferences": [{
                "apiVersion": "v1", "kind": "Node", "name": NODE, "uid": meta::uid(node),
            }],
        },
        "spec": {"nodeName": NODE, "containers": []},
    })
}

#[tokio::test(start_paused = true)]
async fn a_mirror_belongs_to_a_node_that_is_there() {
    let api = api();
    let pod = with_mirror(&api).await;
    assert_eq!(pod["status"]["phase"], "Pending");
    let other = json!({"metadata": {"uid": "other"}});
    let path = "/api/v1/namespaces/ns/pods";
    let (code, status) = send(&api, "POST", path, mirror(&other)).await;
    assert_eq!(
        (code.as_u16(), &status["reason"]),
        (409, &json!("AlreadyExists"))
    );
    api.remove_pod("ns", "web");
    let (code, _) = send(&api, "POST", path, mirror(&other)).await;
    assert_eq!(code, 403);

    with_mirror_again(&api).await;
    api.delete_node(NODE);
    api.collect_garbage();
    let marked = api.get(&PODS, "ns", "web").unwrap();
    assert_eq!(marked["metadata"]["deletionGracePeriodSeconds"], 30);
}

async fn with_mirror_again(api: &FakeApi) {
    let node = api.get(&NODES, "", NODE).unwrap();
    let (code, _) = send(api, "POST", "/api/v1/namespaces/ns/pods", mirror(&node)).await;
    assert_eq!(code, 201);
}

#[tokio::test(start_paused = true)]
async fn a_status_is_patched_on_its_condition_of_uid_and_promises_are_watched() {
    let api = api();
    with_mirror(&api).await;
    let path = "/api/v1/namespaces/ns/pods/web/status";
    let status = |phase: &str, restarts: u64| {
        let containers = json!([{"name": "c", "restartCount": restarts}]);
        json!({"status": {"phase": phase, "containerStatuses": containers}})
    };
    let instance = |id: &str, state: &str| {
        let containers = json!([{"name": "c", "containerID": id, "state": {state: {}}}]);
        json!({"status": {"containerStatuses": containers}})
    };
    tokio::time::sleep(Duration::from_mins(3)).await;
    for (patch, code, violations) in [
        (json!({"metadata": {"uid": "other"}, "status": {}}), 409, 0),
        (instance("docker://1", "running"), 200, 0),
        (instance("docker://1", "terminated"), 200, 0),
        (instance("docker://2", "running"), 200, 0),
        (status("Running", 2), 200, 0),
        (status("Running", 1), 200, 1),
        (status("Failed", 3), 200, 1),
        (status("Running", 3), 200, 2),
        (instance("docker://2", "running"), 200, 2),
        (instance("", "terminated"), 200, 3),
    ] {
        let (answered, object) = send(&api, "PATCH", path, patch.clone()).await;
        assert_eq!(answered, code, "{object}");
        assert_eq!(api.violations().len(), violations, "{patch}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_watch_goes_on_from_a_list_until_its_place_is_lost() {
    let api = api();
    with_mirror(&api).await;
    let selector = format!("fieldSelector=spec.nodeName={NODE}");
    let (_, list) = send(
        &api,
        "GET",
        &format!("/api/v1/pods?{selector}"),
        Value::Null,
    )
    .await;
    assert_eq!(list["items"].as_array().map(Vec::len), Some(1));
    let version = list["metadata"]["resourceVersion"].as_str().unwrap();
    let watch = format!("/api/v1/pods?{selector}&watch=true&resourceVersion={version}");
    let open = || {
        let request = Request::get(&watch).body(Full::<bytes::Bytes>::default());
        let api = api.clone();
        async move { api.answer(request.unwrap()).await.unwrap().into_body() }
    };
    let mut body = open().await;
    api.set_lag(Duration::from_secs(5));
    let began = Instant::now();
    api.delete_pod("ns", "web");
    let line = body.frame().await.unwrap().unwrap().into_data().unwrap();
    let event: Value = serde_json::from_slice(&line).unwrap();
    assert_eq!(event["type"], "MODIFIED");
    assert_eq!(began.elapsed(), Duration::from_secs(5));

    api.set_lag(Duration::ZERO);
    api.set_reach(Reach::Silent);
    api.remove_pod("ns", "web");
    let silence = tokio::time::timeout(Duration::from_mins(1), body.frame()).await;
    assert!(silence.is_err(), "{silence:?}");
    api.set_reach(Reach::Up);
    let line = body.frame().await.unwrap().unwrap().into_data().unwrap();
    let event: Value = serde_json::from_slice(&line).unwrap();
    assert_eq!(event["type"], "DELETED");

    api.forget_history();
    assert!(body.frame().await.unwrap().is_err(), "it is broken");
    let line = open().await.frame().await.unwrap().unwrap();
    let event: Value = serde_json::from_slice(&line.into_data().unwrap()).unwrap();
    assert_eq!(
        (&event["type"], &event["object"]["code"]),
        (&json!("ERROR"), &json!(410))
    );
}

#[tokio::test(start_paused = true)]
async fn a_list_of_any_version_is_an_old_one() {
    let api = api();
    for number in 0..30 {
        let pod = json!({"metadata": {"name": format!("p{number}"), "namespace": "ns"}});
        assert!(!api.make_pod(pod).is_empty());
    }
    for (version, pods) in [("", 30), ("?resourceVersion=0", 10)] {
        let path = format!("/api/v1/pods{version}");
        let (_, list) = send(&api, "GET", &path, Value::Null).await;
        assert_eq!(list["items"].as_array().map(Vec::len), Some(pods), "{path}");
    }
}

#[tokio::test(start_paused = true)]
async fn calls_fail_as_they_are_told_to() {
    let api = api();
    let get = || Request::get("/api/v1/nodes").body(Full::<bytes::Bytes>::default());
    let code = |answer: Response| answer.map(|answer| answer.status().as_u16()).ok();
    api.fail_next_calls("LIST nodes", 1, ApiFault::Refused(500));
    api.fail_next_calls("LIST nodes", 1, ApiFault::AnswerLost);
    assert_eq!(code(api.answer(get().unwrap()).await), Some(500));
    assert_eq!(code(api.answer(get().unwrap()).await), None);
    assert_eq!(code(api.answer(get().unwrap()).await), Some(200));
    api.set_reach(Reach::Refused);
    assert_eq!(code(api.answer(get().unwrap()).await), None);
    api.end_faults();

    // Its caller gives it up, and it has its effect all the same.
    api.fail_next_calls("POST nodes", 1, ApiFault::Late(Duration::from_secs(20)));
    let node = json!({"metadata": {"name": NODE}});
    let post = send(&api, "POST", "/api/v1/nodes", node);
    assert!(
        tokio::time::timeout(Duration::from_secs(10), post)
            .await
            .is_err()
    );
    assert_eq!(api.objects(&NODES).len(), 0);
    tokio::time::sleep(Duration::from_secs(11)).await;
    assert_eq!(api.objects(&NODES).len(), 1);
    assert_eq!(api.call_count("POST nodes"), 1);
}

type Response = Result<http::Response<AnswerBody>, BoxError>;
