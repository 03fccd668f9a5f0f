//! Services of one pod, and keys of a Deployment where there is none.

use super::*;

/// The lines about services `web` and `side`, the second of which joins the first one's pod, and the
/// manifest of the pod.
fn joined(web: &str, side: &str) -> (Vec<String>, String) {
    let text = format!(
        "services:\n  web: {{image: i, ports: ['80:80'], {web}}}\n  side: {{image: i, network_mode: 'service:web', {side}}}\n"
    );
    let imported = Case::new(&[("compose.yaml", &text)]).import();
    assert_eq!(rejected(&imported), Vec::<String>::new(), "{text}");
    (lines(&imported), imported.files[0].text.clone())
}

#[test]
fn settings_of_a_pod_are_those_of_all_its_services() {
    let (said, manifest) = joined(
        "sysctls: [net.core.somaxconn=1024], extra_hosts: ['a=10.0.0.1', 'b=10.0.0.2'], dns: 1.1.1.1, hostname: h, logging: {options: {max-size: 10m}}",
        "sysctls: {net.core.somaxconn: 1024, net.ipv4.ip_forward: 1}, extra_hosts: ['a=10.0.0.1', 'c=10.0.0.1'], dns: [1.1.1.1], hostname: h, logging: {driver: local, options: {max-size: 10m, max-file: 3}}",
    );
    assert_eq!(said, Vec::<String>::new());
    let documents: Vec<serde_json::Value> = serde_saphyr::from_multiple(&manifest).unwrap();
    let template = &documents[0]["spec"]["template"];
    let spec = &template["spec"];
    assert_eq!(
        spec["securityContext"]["sysctls"],
        serde_json::json!([
            {"name": "net.core.somaxconn", "value": "1024"},
            {"name": "net.ipv4.ip_forward", "value": "1"},
        ])
    );
    assert_eq!(
        spec["hostAliases"],
        serde_json::json!([
            {"ip": "10.0.0.1", "hostnames": ["a", "c"]},
            {"ip": "10.0.0.2", "hostnames": ["b"]},
        ])
    );
    let annotations = &template["metadata"]["annotations"];
    assert_eq!(annotations["mirrorlet.dev/container-log-max-size"], "10Mi");
    assert_eq!(annotations["mirrorlet.dev/container-log-max-files"], "3");
}

#[test]
fn a_setting_that_differs_from_that_of_another_service_of_the_pod_is_reported() {
    for (web, side, field, kept) in [
        (
            "sysctls: {net.core.somaxconn: 1024}",
            "sysctls: {net.core.somaxconn: 4096}",
            "sysctls.net.core.somaxconn",
            "value: \"1024\"",
        ),
        (
            "hostname: one",
            "hostname: two",
            "hostname",
            "hostname: one",
        ),
        ("dns: 1.1.1.1", "dns: 8.8.8.8", "dns", "1.1.1.1"),
        (
            "dns_search: a.example",
            "dns_opt: [use-vc]",
            "dns_opt",
            "a.example",
        ),
        (
            "logging: {options: {max-size: 10m}}",
            "logging: {driver: local, options: {max-size: 1m}}",
            "logging.options.max-size",
            "container-log-max-size: 10Mi",
        ),
        (
            "logging: {options: {max-file: 3}}",
            "logging: {options: {max-file: 5}}",
            "logging.options.max-file",
            "container-log-max-files: \"3\"",
        ),
        (
            "annotations: {k: one}",
            "annotations: [k=two]",
            "annotations.k",
            "k: one\n",
        ),
    ] {
        let (said, manifest) = joined(web, side);
        let words =
            format!(" services.side.{field}: not carried over: the containers of a pod share it");
        assert_eq!(said.len(), 1, "{said:#?}");
        assert!(said[0].starts_with("compose.yaml:3:"), "{said:#?}");
        assert!(said[0].contains(&words), "{said:#?}");
        assert!(manifest.contains(kept), "{manifest}");
    }
}

#[test]
fn an_annotation_that_a_pod_has_with_another_value_is_reported_with_its_service_and_key() {
    let text = "services:\n  web: {image: i, labels: {a: '2', b: '1'}, annotations: {a: '1', same: s}, label_file: web.labels}\n  side: {image: i, network_mode: 'service:web', annotations: {same: s, b: '2'}, label_file: side.labels}\n";
    let imported = Case::new(&[
        ("compose.yaml", text),
        // A service's own label counts before that of a file, as in compose.
        ("web.labels", "b=9\nc=1\n"),
        ("side.labels", "a=3\nc=2\nd=1\n"),
    ])
    .import();
    let said = lines(&imported);
    let mut found: Vec<&str> = said
        .iter()
        .filter(|line| line.contains(": not carried over: the containers of a pod share it"))
        .filter_map(|line| line.split_once(" services.")?.1.split(':').next())
        .collect();
    found.sort_unstable();
    let expected = [
        "side.annotations.b",
        "side.label_file.a",
        "side.label_file.c",
        "web.labels.a",
    ];
    assert_eq!(found, expected, "{said:#?}");
    let documents: Vec<serde_json::Value> =
        serde_saphyr::from_multiple(&imported.files[0].text).unwrap();
    assert_eq!(
        documents[0]["spec"]["template"]["metadata"]["annotations"],
        serde_json::json!({"a": "1", "same": "s", "b": "1", "c": "1", "d": "1"})
    );
}

#[test]
fn what_one_service_asks_for_and_all_containers_of_the_pod_get_is_reported() {
    for (web, side, expected) in [
        ("tty: true", "pid: host", &["side.pid"][..]),
        ("ipc: host", "tty: true", &["web.ipc"]),
        (
            "group_add: [5]",
            "group_add: [5, 6]",
            &["web.group_add", "side.group_add"],
        ),
        (
            "pid: host, group_add: [5]",
            "pid: host, group_add: [5]",
            &[],
        ),
        ("pid: private", "tty: true", &[]),
    ] {
        let (said, _) = joined(web, side);
        assert_eq!(said.len(), expected.len(), "{said:#?}");
        for (line, field) in said.iter().zip(expected) {
            let words = format!(
                " services.{field}: carried over to the whole pod: all containers of the pod get it"
            );
            assert!(line.contains(&words), "{said:#?}");
        }
    }
}

#[test]
fn a_failure_action_that_one_service_gives_the_whole_pod_is_reported() {
    let action = |action: &str| format!("deploy: {{update_config: {{failure_action: {action}}}}}");
    let none = || "tty: true".to_owned();
    for (web, side, expected, is_kept) in [
        (action("rollback"), action("pause"), &["side"][..], true),
        (none(), action("continue"), &["side"], true),
        (action("pause"), none(), &["web"], true),
        (action("pause"), action("continue"), &[], true),
        (action("rollback"), none(), &[], false),
    ] {
        let (said, manifest) = joined(&web, &side);
        assert_eq!(said.len(), expected.len(), "{web}, {side}: {said:#?}");
        for (line, service) in said.iter().zip(expected) {
            let words = format!(
                " services.{service}.deploy.update_config.failure_action: carried over to the whole pod: a version of the pod that fails is not undone"
            );
            assert!(line.contains(&words), "{said:#?}");
        }
        let kept = manifest.contains("mirrorlet.dev/rollout-restore: \"false\"");
        assert_eq!(kept, is_kept, "{manifest}");
    }
}

#[test]
fn keys_of_a_deployment_are_reported_where_there_is_none() {
    let keys = "deploy: {labels: {k: v}, update_config: {order: start-first, monitor: 20s}}";
    let fields = ["labels", "update_config.monitor", "update_config.order"];
    let waits = "{condition: service_completed_successfully}";
    let after = format!(
        "b: {{image: i, depends_on: {{web: {waits}}}}}, c: {{image: i, depends_on: {{web: {waits}}}}}"
    );
    for (own, beside, expected, why) in [
        (
            "restart: 'no'",
            "",
            &fields[..],
            "the service is a Pod, which has no Deployment",
        ),
        (
            "tty: false",
            after.as_str(),
            &fields[1..],
            "the service is a Job, which is not updated",
        ),
        (
            "network_mode: 'service:other'",
            "other: {image: i, deploy: {labels: [k=w]}}",
            &fields[..],
            "the service runs in other's pod",
        ),
        // The same as those of the service that it joins.
        (
            "network_mode: 'service:other'",
            "other: {image: i, deploy: {labels: [k=v], update_config: {order: start-first, monitor: 20s}}}",
            &[],
            "the service runs in other's pod",
        ),
        ("restart: always", "", &[], "no Deployment"),
    ] {
        let text = format!("services: {{web: {{image: i, {own}, {keys}}}, {beside}}}\n");
        let imported = Case::new(&[("compose.yaml", &text)]).import();
        assert_eq!(rejected(&imported), Vec::<String>::new(), "{text}");
        let said = lines(&imported);
        let mut found: Vec<&str> = said
            .iter()
            .filter(|line| line.contains(&format!(": not carried over: {why}")))
            .filter_map(|line| line.split_once("services.web.deploy.")?.1.split(':').next())
            .collect();
        found.sort_unstable();
        assert_eq!(found, expected, "{text}: {said:#?}");
        let mut files = imported.files.iter();
        let kept = files.any(|file| file.text.contains("k: v\n"));
        assert_eq!(kept, !expected.contains(&"labels"), "{text}");
    }
    let text = "services: {web: {image: i, restart: 'no', deploy: {update_config: {order: stop-first}}}}\n";
    let imported = Case::new(&[("compose.yaml", text)]).import();
    assert_eq!(lines(&imported), Vec::<String>::new());
}
