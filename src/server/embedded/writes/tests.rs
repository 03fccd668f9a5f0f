use std::fs;

use mirrorlet_apimachinery::resources::CONFIG_MAPS;

use super::*;
use crate::server::embedded::bed::Bed;
use crate::server::view::ShownPod;

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

fn map(name: &str, data: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "default"}, "data": {"a": data}})
}

#[tokio::test]
async fn a_forbidden_edit_leaves_the_file_as_it_was() {
    let bed = Bed::new();
    let key = Key::new(&CONFIG_MAPS, "default", "cfg");
    let mut stays = map("cfg", "1");
    stays["immutable"] = true.into();
    bed.store(&key, &stays);
    let before = fs::read_to_string(bed.file(&key)).unwrap();
    let path = format!("{MAPS}/cfg");
    let edit = json!({"data": {"a": "2"}});
    let (code, refused) = bed.ask("PATCH", &path, &edit).await;
    // embedded 49
    assert_eq!(code, 422, "{refused}");
    assert_eq!(fs::read_to_string(bed.file(&key)).unwrap(), before);
    let label = json!({"metadata": {"labels": {"a": "b"}}});
    let (code, changed) = bed.ask("PATCH", &path, &label).await;
    assert_eq!(code, 200, "{changed}");
    let after = fs::read_to_string(bed.file(&key)).unwrap();
    assert!(after.contains("labels:"), "{after}");
}

#[tokio::test]
async fn an_object_whose_name_is_too_long_for_a_file_is_refused() {
    let bed = Bed::new();
    let (code, refused) = bed.ask("POST", MAPS, &map(&"n".repeat(253), "1")).await;
    // embedded 52
    assert_eq!(code, 422, "{refused}");
    assert_eq!(refused["details"]["causes"][0]["field"], "metadata.name");
}

#[tokio::test]
async fn a_pod_that_stops_is_not_changed() {
    let bed = Bed::new();
    let pod = json!({"metadata": {"name": "web", "namespace": "default", "uid": "u-1"}, "spec": {"containers": [{"name": "c"}]}});
    bed.view.shown.lock().unwrap().pods.push(ShownPod {
        pod: serde_json::from_value(pod).unwrap(),
        origin: None,
        terminating: true,
    });
    let path = "/api/v1/namespaces/default/pods/web";
    let label = json!({"metadata": {"labels": {"a": "b"}}});
    let (code, refused) = bed.ask("PATCH", path, &label).await;
    let words = "Operation cannot be fulfilled on pods \"web\": it is being deleted, and can't be changed any more";
    // embedded 53
    assert_eq!((code, &refused["message"]), (409, &words.into()));
}
