//! Reports of an import where compose behaves differently.

use super::*;

#[test]
fn an_alias_leads_to_all_services_that_have_it_or_is_reported() {
    let text = "services:\n  a:\n    image: a\n    networks: {n: {aliases: [api, only, side]}}\n  b:\n    image: b\n    expose: [81]\n    networks:\n      n:\n        aliases: [api, db]\n      m:\n        aliases: [side]\n  c:\n    image: c\n    restart: 'no'\n    container_name: api\n    links: ['db:store', 'a:a']\n  d:\n    image: d\n    links: ['a:store']\n  db:\n    image: db\n    networks: {n: {aliases: [db]}}\nnetworks: {n: {}, m: {}}\n";
    let imported = Case::new(&[("compose.yaml", text)]).import();
    assert_eq!(rejected(&imported), Vec::<String>::new());
    let all: Vec<serde_json::Value> = imported
        .files
        .iter()
        .flat_map(|file| serde_saphyr::from_multiple::<serde_json::Value>(&file.text).unwrap())
        .collect();
    let selector = |name: &str| {
        let is_it =
            |d: &&serde_json::Value| d["kind"] == "Service" && d["metadata"]["name"] == name;
        let mut found = all.iter().filter(is_it);
        let spec = &found
            .next()
            .unwrap_or_else(|| panic!("{name}\n{}", lines(&imported).concat()))["spec"];
        assert!(found.next().is_none(), "{name}");
        spec["selector"].clone()
    };
    let shared = serde_json::json!({"mirrorlet.dev/alias-api": "true"});
    assert_eq!(selector("api"), shared);
    for (name, app) in [("only", "a"), ("side", "a"), ("db", "db"), ("store", "a")] {
        assert_eq!(selector(name), serde_json::json!({"app": app}), "{name}");
    }
    let labelled: Vec<&str> = all
        .iter()
        .filter_map(|d| {
            let template = d.pointer("/spec/template/metadata/labels");
            let labels = template.or(d.pointer("/metadata/labels"))?;
            labels.get("mirrorlet.dev/alias-api")?;
            labels["app"].as_str()
        })
        .collect();
    assert_eq!(labelled, ["a", "b", "c"]);
    let said = lines(&imported);
    let names: Vec<&String> = said
        .iter()
        .filter(|line| line.contains("resolves only"))
        .collect();
    assert_eq!(names.len(), 3, "{said:#?}");
    for words in [
        "compose.yaml:10:24: services.b.networks.n.aliases: not carried over: db resolves only to the service of that name",
        "compose.yaml:12:19: services.b.networks.m.aliases: not carried over: side resolves only to a: a name means",
        "compose.yaml:17:13: services.c.links: not carried over: store resolves only to a: a name means",
    ] {
        assert!(said.iter().any(|line| line.contains(words)), "{said:#?}");
    }
}

#[test]
fn a_health_check_without_a_test_is_reported() {
    for (check, is_reported) in [
        ("{interval: 5s}", true),
        ("{test: [], retries: 2}", true),
        ("{test: [NONE]}", false),
        ("{disable: true}", false),
        ("{test: 'true'}", false),
    ] {
        let text = format!("services:\n  a:\n    image: i\n    healthcheck: {check}\n");
        let said = lines(&Case::new(&[("compose.yaml", &text)]).import());
        let words = "compose.yaml:4:5: services.a.healthcheck: not carried over: the health check of the image is not known";
        let found = said.iter().any(|line| line.contains(words));
        assert_eq!(found, is_reported, "{check}: {said:#?}");
    }
}

#[test]
fn variables_of_files_that_are_not_set_are_reported_with_their_line() {
    let text = "services:\n  a: {image: i, env_file: a.env}\n  b: {image: i, env_file: [a.env, {path: raw.env, format: raw}]}\n";
    let case = Case::new(&[
        ("compose.yaml", text),
        (
            "a.env",
            "SET=1\nTWO=\"one\ntwo\"\nA=$SET\nB=${GONE}${SET}$LOST\nC=${GONE:-c}\n",
        ),
        ("raw.env", "R=${GONE}\n"),
        (".env", "# comment\nX=$NOWHERE\n"),
    ]);
    let said = lines(&case.import());
    let unset: Vec<&String> = said
        .iter()
        .filter(|line| line.contains("set and count"))
        .collect();
    assert_eq!(unset.len(), 2, "{said:#?}");
    for words in [
        ".env:2:1: the variable NOWHERE isn't set and counts as empty",
        "a.env:5:1: the variables GONE, LOST aren't set and count as empty",
    ] {
        assert!(
            unset.iter().any(|line| line.starts_with(words)),
            "{said:#?}"
        );
    }
}

#[test]
fn services_that_are_restarted_by_default_are_named_in_one_note() {
    let text = "services:
  script: {image: i}
  worker: {image: i, deploy: {replicas: 2}, restart: ''}
  web: {image: i, ports: ['80:80'], depends_on: [cache]}
  inner: {image: i, expose: [80]}
  cache: {image: i}
  checked: {image: i, healthcheck: {test: 'true'}}
  kept: {image: i, restart: always}
  ended: {image: i, restart: 'no'}
  swarm: {image: i, deploy: {restart_policy: {condition: any}}}
  job: {image: i, deploy: {mode: replicated-job}}
  tunnel: {image: i}
  inside: {image: i, network_mode: 'service:tunnel'}
  beside: {image: i, network_mode: 'service:ended'}
  before: {image: i}
  after: {image: i, restart: always, depends_on: {before: {condition: service_completed_successfully}}}
";
    let imported = Case::new(&[("compose.yaml", text)]).import();
    let notes: Vec<String> = imported.notes.iter().map(ToString::to_string).collect();
    assert_eq!(notes.len(), 1, "{notes:#?}");
    let is_right = notes[0].starts_with("compose.yaml:2:3: services without restart are restarted")
        && notes[0].contains("stopped: script, worker, inside [");
    assert!(is_right, "{notes:#?}");
    let help = imported.notes[0].help.as_deref().unwrap();
    assert!(help.contains("restart: \"no\""), "{help}");
    let text = "services: {web: {image: i, ports: ['80:80']}}\n";
    let imported = Case::new(&[("compose.yaml", text)]).import();
    assert_eq!(imported.notes, []);
}

#[test]
fn a_service_is_a_job_whatever_profile_the_one_that_waits_for_it_has() {
    let text = "services:\n  seed: {image: s}\n  later: {image: l, profiles: [later], depends_on: {seed: {condition: service_completed_successfully}}}\n";
    let imported = Case::new(&[("compose.yaml", text)]).import();
    assert!(
        imported.files[0].text.contains("kind: Job\n"),
        "{:#?}",
        imported.files
    );
    assert_eq!(imported.notes, []);
}

#[test]
fn a_file_of_an_earlier_import_is_left_if_its_service_is_gone() {
    let of = |text: &str, project: &str| {
        let mut case = Case::new(&[("compose.yaml", text)]);
        case.options.project_name = Some(project.to_owned());
        case.import()
    };
    let both = of("services: {web: {image: i}, migrate: {image: i}}\n", "shop");
    let written: Vec<(String, String)> = both
        .files
        .iter()
        .map(|file| (file.name.clone(), both.heading() + &file.text))
        .collect();
    let left = |now: &Imported| -> Vec<String> {
        let gone = written
            .iter()
            .filter(|(name, text)| now.is_left(name, text.as_bytes()));
        gone.map(|(name, _)| name.clone()).collect()
    };
    let now = of("services: {web: {image: i}}\n", "shop");
    assert_eq!(left(&now), ["migrate.yaml"]);
    assert_eq!(left(&both), Vec::<String>::new());
    // A file of another project, and one that was written by hand.
    assert_eq!(
        left(&of("services: {web: {image: i}}\n", "shop2")),
        Vec::<String>::new()
    );
    assert!(!now.is_left("migrate.yaml", both.files[1].text.as_bytes()));
    // The heading changes nothing for the agent.
    let mut headed = both;
    for file in &mut headed.files {
        file.text.insert_str(
            0,
            "# Written by mirrorlet import compose for the project shop.\n",
        );
    }
    assert_eq!(rejected(&headed), Vec::<String>::new());
}

#[test]
fn a_restart_policy_counts_instead_of_restart() {
    let waits = "after: {image: i, depends_on: {a: {condition: service_completed_successfully}}}, other: {image: i, depends_on: {a: {condition: service_completed_successfully}}}";
    let any = "deploy: {restart_policy: {condition: any}}";
    let none = "deploy: {restart_policy: {condition: none}}";
    let bare = "deploy: {restart_policy: {window: 5s}}";
    for (service, beside, expected, is_reported) in [
        (
            format!("restart: 'no', {any}"),
            "",
            "kind: Deployment",
            true,
        ),
        (
            format!("restart: always, {none}"),
            "",
            "restartPolicy: Never",
            true,
        ),
        (
            format!("restart: unless-stopped, {any}"),
            "",
            "kind: Deployment",
            false,
        ),
        (
            format!("restart: 'no', {none}"),
            "",
            "restartPolicy: Never",
            false,
        ),
        (
            format!("restart: 'no', {bare}"),
            "",
            "kind: Deployment",
            true,
        ),
        (
            format!("restart: '', {none}"),
            "",
            "restartPolicy: Never",
            false,
        ),
        (none.to_owned(), "", "restartPolicy: Never", false),
        // What is done once, and for which others wait.
        (any.to_owned(), waits, "kind: Deployment", false),
        (none.to_owned(), waits, "kind: Job", false),
        (
            "restart: always".to_owned(),
            waits,
            "kind: Deployment",
            false,
        ),
        (
            "deploy: {mode: replicated-job, restart_policy: {condition: any}}".to_owned(),
            "",
            "restartPolicy: OnFailure",
            false,
        ),
    ] {
        let text = format!("services: {{a: {{image: i, {service}}}, {beside}}}\n");
        let imported = Case::new(&[("compose.yaml", &text)]).import();
        let of_a = &imported.files[0].text;
        assert!(of_a.contains(expected), "{service}: {of_a}");
        assert_eq!(rejected(&imported), Vec::<String>::new(), "{service}");
        let words = "services.a.restart: not carried over: deploy.restart_policy is used instead";
        let found = lines(&imported).iter().any(|line| line.contains(words));
        assert_eq!(found, is_reported, "{service}: {:#?}", lines(&imported));
    }
}

#[test]
fn a_container_that_joins_a_pod_keeps_its_restart_policy() {
    let any = "deploy: {restart_policy: {condition: any}}";
    let waits =
        "after: {image: i, depends_on: {side: {condition: service_completed_successfully}}}";
    for (owner, joined, beside, expected) in [
        ("restart: always", "restart: 'no'", "", Some("Never")),
        (
            "restart: always",
            "restart: on-failure",
            "",
            Some("OnFailure"),
        ),
        (
            "restart: 'no'",
            "restart: unless-stopped",
            "",
            Some("Always"),
        ),
        ("restart: on-failure", "restart: 'no'", "", Some("Never")),
        ("restart: 'no'", any, "", Some("Always")),
        ("tty: false", "restart: 'no'", "", Some("Never")),
        ("restart: always", "restart: unless-stopped", "", None),
        ("restart: 'no'", "restart: 'no'", "", None),
        // One that says nothing has the pod's.
        ("restart: 'no'", "restart: ''", "", None),
        ("restart: always", "tty: false", "", None),
        // Another service waits for its end.
        ("restart: always", "tty: false", waits, Some("OnFailure")),
    ] {
        let text = format!(
            "services: {{web: {{image: i, {owner}}}, side: {{image: i, network_mode: 'service:web', {joined}}}, {beside}}}\n"
        );
        let imported = Case::new(&[("compose.yaml", &text)]).import();
        assert_eq!(rejected(&imported), Vec::<String>::new(), "{text}");
        let documents: Vec<serde_json::Value> =
            serde_saphyr::from_multiple(&imported.files[0].text).unwrap();
        let spec = &documents[0]["spec"];
        let spec = spec.pointer("/template/spec").unwrap_or(spec);
        let policies = |at: usize| spec["containers"][at]["restartPolicy"].as_str();
        assert_eq!((policies(0), policies(1)), (None, expected), "{text}");
        let said = lines(&imported);
        assert!(
            !said.iter().any(|line| line.contains(".restart:")),
            "{said:#?}"
        );
    }
    let text = "services: {web: {image: i}, side: {image: i, network_mode: 'service:web', restart: 'on-failure:3'}}\n";
    let said = lines(&Case::new(&[("compose.yaml", text)]).import());
    let words = "services.side.restart: not carried over: the number of attempts";
    assert!(said.len() == 1 && said[0].contains(words), "{said:#?}");
}

#[test]
fn a_key_that_an_init_container_cannot_have_is_reported() {
    let of = |keys: &str| {
        let waits = "{seed: {condition: service_completed_successfully}}";
        let text = format!(
            "services:\n  seed: {{image: s, {keys}}}\n  after: {{image: i, depends_on: {waits}}}\n"
        );
        let imported = Case::new(&[("compose.yaml", &text)]).import();
        assert_eq!(rejected(&imported), Vec::<String>::new(), "{keys}");
        let texts = imported.files.iter().map(|file| file.text.as_str());
        let is_init = texts.collect::<String>().contains("initContainers:\n");
        (is_init, lines(&imported))
    };
    for (keys, field) in [
        ("labels: {a: b}", "labels"),
        ("annotations: [a=b]", "annotations"),
        ("label_file: l.labels", "label_file"),
        ("logging: {driver: local}", "logging"),
        ("stop_grace_period: 5s", "stop_grace_period"),
        ("stop_signal: SIGINT", "stop_signal"),
        ("init: true", "init"),
        ("container_name: s", "container_name"),
        (
            "networks: {default: {aliases: [s]}}",
            "networks.default.aliases",
        ),
        ("deploy: {labels: {a: b}}", "deploy.labels"),
        (
            "deploy: {update_config: {order: start-first}}",
            "deploy.update_config.order",
        ),
        (
            "deploy: {update_config: {monitor: 5s}}",
            "deploy.update_config.monitor",
        ),
        (
            "deploy: {update_config: {failure_action: pause}}",
            "deploy.update_config.failure_action",
        ),
    ] {
        let (is_init, said) = of(keys);
        let words = format!(
            " services.seed.{field}: not carried over: the service runs as an init container of after's pod"
        );
        assert!(is_init, "{keys}");
        assert_eq!(said.len(), 1, "{keys}: {said:#?}");
        assert!(said[0].starts_with("compose.yaml:2:"), "{said:#?}");
        assert!(said[0].contains(&words), "{said:#?}");
    }
    let (is_init, said) = of("restart: 'on-failure:3'");
    let words = "services.seed.restart: not carried over: the number of attempts";
    assert!(is_init && said.len() == 1, "{said:#?}");
    assert!(said[0].contains(words), "{said:#?}");
    let (is_init, said) = of("restart: 'no', init: false, labels: {}, container_name: ''");
    assert!(is_init, "{said:#?}");
    assert_eq!(said, Vec::<String>::new());
    // The restart policy that counts says whether it can be one.
    for (restart, deploy, expected) in [
        ("always", "none", true),
        ("unless-stopped", "on-failure", true),
        ("'no'", "any", false),
    ] {
        let keys =
            format!("restart: {restart}, deploy: {{restart_policy: {{condition: {deploy}}}}}");
        assert_eq!(of(&keys).0, expected, "{keys}");
    }
}

#[test]
fn a_pod_with_the_hosts_processes_has_no_init() {
    let both = "services: {web: {image: i, pid: host, init: true}}\n";
    let joined = "services: {web: {image: i, init: true}, side: {image: i, pid: host, network_mode: 'service:web'}}\n";
    for text in [both, joined] {
        let imported = Case::new(&[("compose.yaml", text)]).import();
        assert_eq!(rejected(&imported), Vec::<String>::new(), "{text}");
        let manifest = &imported.files[0].text;
        assert!(manifest.contains("hostPID: true"), "{manifest}");
        assert!(!manifest.contains("shareProcessNamespace"), "{manifest}");
        let said = lines(&imported);
        let words = "services.web.init: not carried over: with pid: host";
        assert!(said.iter().any(|line| line.contains(words)), "{said:#?}");
    }
}

#[test]
fn a_manifest_that_the_agent_refuses_is_an_error_and_is_there_to_be_mended() {
    let text = "services: {web: {image: 'i@sha256:12'}}\n";
    let imported = Case::new(&[("compose.yaml", text)]).import();
    let refused = imported.problems.iter().find(|problem| problem.is_error());
    let message = refused.map_or("", |problem| &problem.message);
    assert!(
        message.starts_with("the manifest is refused: "),
        "{:?}",
        imported.problems
    );
    assert!(imported.has_errors() && !imported.is_unreadable());
    assert_eq!(imported.files.len(), 1);
}
