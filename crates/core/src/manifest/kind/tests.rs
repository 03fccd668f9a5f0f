use crate::api::NodeName;
use crate::desired::PodSource;
use crate::manifest::{ParseContext, Parsed, parse_manifest};

fn parsed(text: &str) -> Parsed {
    let node_name = NodeName::from("box");
    let context = ParseContext {
        node_name: &node_name,
        source: PodSource::File,
        location: "/m/web.yaml",
    };
    parse_manifest(text.as_bytes(), &context)
}

#[test]
fn a_kind_that_is_nearly_right_is_asked_about() {
    for (kind, meant) in [
        ("pod", Some("Pod")),
        ("Pods", Some("Pod")),
        ("deployment", Some("Deployment")),
        ("Cronjob", Some("CronJob")),
        ("Configmap", Some("ConfigMap")),
        ("ReplicaSet", None),
        ("Ingress", None),
    ] {
        let parsed = parsed(&format!(
            "apiVersion: v1\nkind: {kind}\nmetadata: {{name: a}}\n"
        ));
        let problem = &parsed.documents[0].problems[0];
        let help = problem.help.as_deref().unwrap();
        match meant {
            Some(meant) => assert_eq!(help, format!("did you mean {meant}?")),
            None => assert!(help.starts_with("mirrorlet reads documents of"), "{help}"),
        }
    }
}

#[test]
fn a_named_port_of_a_service_has_its_place() {
    let text = "apiVersion: v1\nkind: Service\nmetadata: {name: a}\nspec:\n  clusterIP: None\n  selector: {app: a}\n  ports:\n  - {name: one, port: 80, targetPort: web}\n  - {name: two, port: 81}\n";
    let parsed = parsed(text);
    let document = &parsed.documents[0];
    assert!(document.accepted.is_some(), "{:?}", document.problems);
    let places: Vec<(&str, u32)> = document
        .places
        .iter()
        .map(|(field, place)| (field.as_str(), place.line))
        .collect();
    // names 7
    assert_eq!(places, [("spec.ports[0].targetPort", 8)]);
}

#[test]
fn a_pod_with_too_many_sub_paths_is_warned_of() {
    for (count, expected) in [
        (256, None),
        (
            257,
            Some(
                "the pod will not start: 257 volumeMounts of the pod's containers have subPath or subPathExpr, more than 256",
            ),
        ),
    ] {
        let mount = |n: usize| format!("    - {{name: v, mountPath: /m/{n}, subPath: s}}\n");
        let mounts = (0..count).map(mount).collect::<Vec<String>>().concat();
        let parsed = parsed(&format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: a}}\nspec:\n  volumes:\n  - {{name: v, emptyDir: {{}}}}\n  containers:\n  - name: app\n    image: app:1\n    volumeMounts:\n{mounts}"
        ));
        let document = &parsed.documents[0];
        assert!(document.accepted.is_some(), "{:?}", document.problems);
        let told = document
            .problems
            .iter()
            .find(|p| p.message.contains("subPathExpr"));
        // docker 41
        assert_eq!(told.map(|problem| problem.message.as_str()), expected);
    }
}
