use super::*;

fn pod(namespace: &str, name: &str, status: &str, containers: &[&str]) -> PodReport {
    let containers: Vec<_> = containers
        .iter()
        .map(|name| {
            serde_json::json!({
                "name": name, "role": "app", "image": "x", "state": "running", "ready": true,
                "restarts": 0,
            })
        })
        .collect();
    serde_json::from_value(serde_json::json!({
        "name": format!("{name}-box"), "manifestName": name, "namespace": namespace,
        "uid": format!("{namespace}-{name}"), "source": "", "status": status, "phase": status,
        "ready": 1, "containersTotal": 1, "restarts": 0, "containers": containers,
        "held": false,
    }))
    .unwrap()
}

fn pods() -> Vec<PodReport> {
    vec![
        pod("default", "web", "Running", &["main", "sidecar"]),
        pod("default", "db", "Running", &["db"]),
        pod("default", "db", "Terminating", &["db"]),
        pod("shop", "web", "Pending", &["main"]),
    ]
}

#[test]
fn pods_are_named_as_briefly_as_possible() {
    for (begun, expected) in [
        ("", "db default/web shop/web"),
        ("d", "db default/web"),
        ("default/", "default/db default/web"),
        ("x", ""),
    ] {
        let names = pod_names(&pods(), begun);
        let names: Vec<_> = names.into_keys().collect();
        assert_eq!(names.join(" "), expected, "{begun}");
    }
    assert_eq!(pod_names(&pods(), "shop")["shop/web"], "Pending");
}

#[test]
fn workloads_are_named_with_their_kinds() {
    let of = |name: &str, status: &str, owner: &str| PodReport {
        workload: Some(owner.to_owned()),
        ..pod("default", name, status, &["main"])
    };
    let pods = [
        of("web-0", "Running", "Deployment/web"),
        of("web-1", "Running", "Deployment/web"),
        of("web-2", "Terminating", "Deployment/web"),
        of("agent", "Running", "DaemonSet/agent"),
        pod("default", "db", "Running", &["db"]),
    ];
    let names = workload_names(&pods, "d");
    let names: Vec<_> = names
        .iter()
        .map(|(name, pods)| (&**name, &**pods))
        .collect();
    let expected = [("daemonset/agent", "1 pod"), ("deployment/web", "2 pods")];
    assert_eq!(names, expected);
    assert!(workload_names(&pods, "web").is_empty());
    // The word that is typed stays.
    let names = workload_names(&pods, "deploy/w");
    assert_eq!(names.into_keys().collect::<Vec<_>>(), ["deploy/web"]);
    let names = workload_names(&pods, "ds/");
    assert_eq!(names.into_keys().collect::<Vec<_>>(), ["ds/agent"]);
}

#[test]
fn commands_are_offered_what_they_take() {
    let of = |name: &str, owner: &str| PodReport {
        workload: Some(owner.to_owned()),
        ..pod("default", name, "Running", &["main"])
    };
    let pods = [of("web-0", "Deployment/web"), of("idx-0", "Job/idx")];
    let owners = ["Deployment/web", "Deployment/idle", "Job/idx", "Job/done"].map(str::to_owned);
    for (line, begun, expected) in [
        ("mirrorlet logs", "", "deployment/web idx-0 job/idx web-0"),
        ("mirrorlet explain", "d", "deployment/idle deployment/web"),
        ("mirrorlet events", "dep", "deployment/idle deployment/web"),
        (
            "mirrorlet rollout undo",
            "",
            "deployment/idle deployment/web web-0",
        ),
        ("mirrorlet stop", "", "deployment/web web-0"),
        (
            "mirrorlet restart",
            "",
            "deployment/idle deployment/web job/done job/idx web-0",
        ),
        // Its pods are gone, and it is to run again.
        ("mirrorlet restart", "job/", "job/done job/idx"),
        ("mirrorlet wait", "deploy/", "deploy/idle deploy/web"),
        ("mirrorlet cp", "", "deployment/web idx-0 job/idx web-0"),
        ("mirrorlet", "d", ""),
    ] {
        let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        let names = names(&words, pods.to_vec(), &owners, begun).into_keys();
        assert_eq!(names.collect::<Vec<_>>().join(" "), expected, "{line}");
    }
}

#[test]
fn a_side_of_a_copy_is_a_pod_or_a_path() {
    let pod = CompletionCandidate::new("shop/web").help(Some("Running".into()));
    let side = pod_side(&pod);
    assert_eq!(side.get_value(), "shop/web:");
    assert_eq!(side.get_help().unwrap().to_string(), "Running");
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("file"), "").unwrap();
    let begun = directory.path().join("fi");
    let sides = sides_of_copy(begun.as_os_str());
    let paths: Vec<_> = sides
        .iter()
        .map(|side| side.get_value().to_owned())
        .collect();
    assert_eq!(paths, [directory.path().join("file").into_os_string()]);
    for arg in ["source", "destination"] {
        let command = command();
        let cp = command.find_subcommand("cp").unwrap();
        let mut args = cp.get_arguments();
        let arg = args.find(|known| known.get_id() == arg).unwrap();
        assert!(arg.get::<ArgValueCompleter>().is_some());
    }
}

#[test]
fn settings_with_a_few_values_have_candidates() {
    let values = |name: &str| setting_values(name).map(|values| values.join(" "));
    assert_eq!(values("imageGc").as_deref(), Some("pulled all off"));
    assert_eq!(values("podNames").as_deref(), Some("true false"));
    assert_eq!(values("root"), None);
    let all = ["pulled", "all", "off"].into_iter().map(str::to_owned);
    let found = beginning(all, OsStr::new("p"));
    assert_eq!(found, [CompletionCandidate::new("pulled")]);
}

#[test]
fn containers_are_those_of_the_pods_named() {
    for (line, begun, expected) in [
        ("mirrorlet logs default/web -c", "", "main sidecar"),
        ("mirrorlet logs default/web -c", "s", "sidecar"),
        ("mirrorlet logs db shop/web -c", "", "db main"),
        ("mirrorlet logs -c", "", "db main sidecar"),
    ] {
        let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        let names = container_names(&pods(), &words, begun);
        let names: Vec<_> = names.into_iter().collect();
        assert_eq!(names.join(" "), expected, "{line}");
    }
}

#[test]
fn containers_of_a_copy_and_of_a_workload_are_those_of_its_pods() {
    let api = PodReport {
        workload: Some("Deployment/api".to_owned()),
        ..pod("default", "api-0", "Running", &["api"])
    };
    let pods = [
        pod("default", "web", "Running", &["main", "sidecar"]),
        pod("default", "db", "Running", &["db"]),
        api,
    ];
    for (line, expected) in [
        ("mirrorlet cp web:/x . -c", "main sidecar"),
        // Without a colon it is a local path.
        ("mirrorlet cp db default/web:/x -c", "main sidecar"),
        ("mirrorlet cp deploy/api:/x . -c", "api"),
        ("mirrorlet cp -c", "api db main sidecar"),
        ("mirrorlet exec deployment/api -c", "api"),
        ("mirrorlet logs api db -c", "api db"),
    ] {
        let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        let names: Vec<_> = container_names(&pods, &words, "").into_iter().collect();
        assert_eq!(names.join(" "), expected, "{line}");
    }
}

#[test]
fn flags_are_found_in_both_forms() {
    let words = |line: &str| -> Vec<OsString> { line.split(' ').map(Into::into).collect() };
    assert_eq!(flag(&words("a --root /r x"), "--root"), Some("/r".into()));
    assert_eq!(flag(&words("a --root=/r"), "--root"), Some("/r".into()));
    assert_eq!(flag(&words("a --roots=/r"), "--root"), None);
}

#[test]
fn every_pod_and_container_has_candidates() {
    fn check(command: &Command, found: &mut usize) {
        for arg in command.get_arguments() {
            let of_agent = [
                "pod",
                "pods",
                "container",
                "cron_jobs",
                "namespace",
                "names",
                "source",
                "destination",
            ];
            let id = arg.get_id().as_str();
            let is_known = of_agent.contains(&id) || setting_values(id).is_some();
            assert_eq!(
                arg.get::<ArgValueCompleter>().is_some(),
                is_known,
                "{arg:?}"
            );
            *found += usize::from(is_known);
        }
        for command in command.get_subcommands() {
            check(command, found);
        }
    }
    let mut found = 0;
    check(&command(), &mut found);
    assert!(found > 20, "{found}");
}
