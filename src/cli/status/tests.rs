mod cluster;
mod selection;

use super::*;
use mirrorlet_core::api::diagnostic::Position;
use mirrorlet_core::api::report::{
    AgentReport, ApiReport, ConditionReport, ContainerReport, EngineReport, ImageGcReport,
    MirrorReport, NodeReport, PodReport, PortReport, PullPhase, PullReport, RolloutPhase,
    RolloutReport, SourceReport, StatusReport,
};
use mirrorlet_core::api::{Code, Diagnostic};

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_700_000_000 + second).unwrap()
}

fn pod(namespace: &str, name: &str, status: &str) -> PodReport {
    PodReport {
        name: format!("{name}-box-docker"),
        manifest_name: name.to_owned(),
        namespace: namespace.to_owned(),
        workload: None,
        cron_job: None,
        uid: format!("{name}-uid-0123456789").into(),
        source: format!("/m/{name}.yaml"),
        status: status.to_owned(),
        phase: status.to_owned(),
        labels: std::collections::BTreeMap::new(),
        message: String::new(),
        ready: 1,
        containers_total: 1,
        restarts: 0,
        started_at: Some(at(0)),
        ips: vec!["172.17.0.2".parse().unwrap()],
        ports: Vec::new(),
        containers: vec![ContainerReport {
            name: "main".to_owned(),
            role: "app".to_owned(),
            image: format!("{name}:1"),
            state: "running".to_owned(),
            reason: String::new(),
            message: String::new(),
            exit_code: None,
            last: None,
            ready: true,
            restarts: 0,
            id: None,
            started_at: None,
        }],
        default_container: None,
        mirror: None,
        held: false,
        rollout: None,
        problems: Vec::new(),
    }
}

fn held_pod() -> PodReport {
    let position = Position {
        line: 3,
        column: 5,
        offset: 20,
        length: 1,
    };
    PodReport {
        held: true,
        problems: vec![
            Diagnostic::error(Code::Syntax, "/m/db.yaml", "this is not YAML")
                .at(position)
                .help("the last good version keeps running"),
        ],
        ..pod("default", "db", "Running")
    }
}

fn crashing_pod() -> PodReport {
    PodReport {
        ready: 0,
        restarts: 7,
        message: "back-off 2m40s restarting main\u{1b}[2J\nof api".to_owned(),
        ips: Vec::new(),
        ..pod("prod", "api", "CrashLoopBackOff")
    }
}

fn report(pods: Vec<PodReport>) -> StatusReport {
    StatusReport {
        jobs: Vec::new(),
        cron_jobs: Vec::new(),
        workloads: Vec::new(),
        pulls: Vec::new(),
        image_gc: None,
        pressures: std::collections::BTreeMap::default(),
        missing_access: Vec::new(),
        missing_access_alias: Vec::new(),
        agent: AgentReport {
            version: "0.1.0".to_owned(),
            pid: 1,
            started_at: at(0),
            node_name: "box-docker".to_owned(),
            root: "/r".to_owned(),
            owner: "o".to_owned(),
        },
        engine: EngineReport {
            endpoint: "unix:///var/run/docker.sock".to_owned(),
            reachable: true,
            ..EngineReport::default()
        },
        api: None,
        node: None,
        sources: vec![SourceReport {
            kind: "file".to_owned(),
            location: "/m".to_owned(),
            synced: true,
            last_success: Some(at(300)),
            pods: pods.len(),
            objects: 0,
            problems: Vec::new(),
            ignored: Vec::new(),
        }],
        pods,
        problems: Vec::new(),
    }
}

fn plain(report: &StatusReport, wide: bool) -> String {
    let styled = render::render(report, at(330), wide);
    anstream::adapter::strip_str(&styled).to_string()
}

#[test]
fn running_pods() {
    let mut web = pod("default", "web", "Running");
    web.ports = [(Some(8080), 80), (None, 9000)]
        .map(|(host_port, container_port)| PortReport {
            name: None,
            container_port,
            protocol: "TCP".to_owned(),
            host_port,
            host_ip: None,
        })
        .to_vec();
    let report = report(vec![web, pod("kube-system", "日本", "Running")]);
    insta::assert_snapshot!("table", plain(&report, false));
    insta::assert_snapshot!("wide", plain(&report, true));
}

#[test]
fn an_error_names_the_pod_of_its_document() {
    let mut report = report(Vec::new());
    let mut problem = Diagnostic::error(Code::InvalidValue, "/m/bad.yaml", "not good");
    problem.pod = Some("default/bad-box".to_owned());
    report.sources[0].problems = vec![problem];
    let text = plain(&report, false);
    let line = "  error: pod default/bad-box: /m/bad.yaml: not good [invalid-value]";
    assert!(text.lines().any(|shown| shown == line), "{text}");
}

#[test]
fn a_source_is_shown_where_there_is_something_to_look_at() {
    type Edit = fn(&mut SourceReport);
    let edits: [(Edit, bool); 4] = [
        (|_| {}, false),
        (|source| source.synced = false, true),
        (|source| source.ignored.push("web.bak".to_owned()), true),
        (
            |source| {
                let problem = Diagnostic::error(Code::InvalidValue, "/m/bad.yaml", "not good");
                source.problems.push(problem);
            },
            true,
        ),
    ];
    for (edit, shown) in edits {
        let mut report = report(vec![pod("default", "web", "Running")]);
        report.sources.truncate(1);
        report.sources[0].problems.clear();
        report.sources[0].ignored.clear();
        report.sources[0].synced = true;
        edit(&mut report.sources[0]);
        let has = |text: &str| text.contains("SOURCES\n");
        assert_eq!(has(&plain(&report, false)), shown);
        assert!(has(&plain(&report, true)));
        // Without pods, it is the place to look at.
        report.pods.clear();
        assert!(has(&plain(&report, false)));
    }
}

#[test]
fn what_a_rollout_does_is_said_beside_the_status() {
    let rollout = |phase, target, deadline_seconds| PodReport {
        held: true,
        rollout: Some(RolloutReport {
            phase,
            revision: 1,
            target,
            target_uid: "u".into(),
            newest: 5,
            reason: "ErrImagePull".to_owned(),
            message: "not found".to_owned(),
            since: Some(at(318)),
            deadline_seconds,
            overdue: false,
        }),
        ..pod("default", "web", "Running")
    };
    for (phase, target, deadline, words) in [
        (
            RolloutPhase::Preparing,
            2,
            None,
            " (preparing a new version)",
        ),
        (RolloutPhase::Held, 2, None, " (held: ErrImagePull)"),
        (
            RolloutPhase::Judging,
            2,
            Some(300),
            " (rolling out, 12s of 300s)",
        ),
        (RolloutPhase::Judging, 1, Some(300), ""),
        (RolloutPhase::Failed, 2, None, " (failed: ErrImagePull)"),
        (RolloutPhase::Restored, 2, None, " (restored: ErrImagePull)"),
        (RolloutPhase::Undone, 2, None, " (undone to revision 2)"),
        (RolloutPhase::Paused, 2, None, " (paused)"),
    ] {
        let pod = PodReport {
            held: !words.is_empty(),
            ..rollout(phase, target, deadline)
        };
        assert_eq!(render::beside(&pod, at(330)), words, "{phase:?}");
    }
    // The manifest can't be read while what it said last is judged.
    let unreadable = rollout(RolloutPhase::Judging, 5, Some(300));
    assert_eq!(render::beside(&unreadable, at(330)), " (held)");
}

#[test]
fn pods_with_problems() {
    let mut report = report(vec![held_pod(), crashing_pod()]);
    report.problems = vec![
        Diagnostic::warning(Code::UnknownField, "/m/a.yaml", "unknown field")
            .field("spec.containers[0].imagee"),
        Diagnostic::error(Code::Empty, "/m/z.yaml", "the file is empty"),
    ];
    // Told twice, printed once.
    report.sources[0]
        .problems
        .clone_from(&report.pods[0].problems);
    report.sources[0].ignored = vec!["README.md".to_owned(), "x.bak".to_owned()];
    insta::assert_snapshot!("problems", plain(&report, false));
    insta::assert_snapshot!("problems_wide", plain(&report, true));
}

#[test]
fn engine_away_and_nothing_known() {
    let mut report = report(Vec::new());
    report.engine.reachable = false;
    report.engine.error = Some("connection refused".to_owned());
    report.engine.unreachable_since = Some(at(100));
    report.sources[0].synced = false;
    insta::assert_snapshot!("engine_away", plain(&report, false));
}

fn condition(condition: &str, status: &str, message: &str) -> ConditionReport {
    ConditionReport {
        condition: condition.to_owned(),
        status: status.to_owned(),
        reason: String::new(),
        message: message.to_owned(),
    }
}

/// The report of a node of a cluster.
fn of_a_node() -> StatusReport {
    let mirror = |state: &str| MirrorReport {
        state: state.to_owned(),
        ..MirrorReport::default()
    };
    let with = |name: &str, mirror: Option<MirrorReport>| PodReport {
        mirror,
        ..pod("default", name, "Running")
    };
    let refused = MirrorReport {
        message: "namespaces \"prod\" not found".to_owned(),
        since: Some(at(300)),
        ..mirror("NamespaceMissing")
    };
    let mut report = report(vec![
        with("api-pod", None),
        with("db", Some(refused)),
        with("new", Some(mirror("Pending"))),
        with("web", Some(mirror("Synced"))),
    ]);
    report.api = Some(ApiReport {
        server: "https://10.0.0.1:6443/".to_owned(),
        reachable: true,
        ..ApiReport::default()
    });
    report.node = Some(NodeReport {
        name: "box-docker".to_owned(),
        registered: true,
        uid: Some("n-uid".to_owned()),
        conditions: vec![
            condition("DiskPressure", "False", ""),
            condition(
                "MirrorPodsHealthy",
                "False",
                "1 static pod has no mirror pod",
            ),
            condition("Ready", "True", "all is well"),
            condition("RolloutsHealthy", "True", "no version is held"),
        ],
        lease_renewed: Some(at(326)),
        ..NodeReport::default()
    });
    report
}

#[test]
fn a_node_of_a_cluster() {
    // events 7
    insta::assert_snapshot!("cluster", plain(&of_a_node(), false));
    insta::assert_snapshot!("cluster_wide", plain(&of_a_node(), true));
}

#[test]
fn a_node_whose_cluster_is_away() {
    let mut report = of_a_node();
    report.api = Some(ApiReport {
        reachable: false,
        error: Some("connection refused".to_owned()),
        unreachable_since: Some(at(30)),
        ..report.api.unwrap_or_default()
    });
    let node = report.node.get_or_insert_default();
    node.conditions = vec![condition(
        "Ready",
        "False",
        "the Docker Engine is unreachable",
    )];
    // events 7
    insta::assert_snapshot!("cluster_away", plain(&report, false));
    report.node = Some(NodeReport {
        name: "box-docker".to_owned(),
        error: Some(
            "the Node box-docker is another kubelet's; choose another --node-name".to_owned(),
        ),
        ..NodeReport::default()
    });
    let text = plain(&report, false);
    let words = "  box-docker: registration failed: the Node box-docker is another kubelet's";
    assert!(text.contains(words), "{text}");
}

#[test]
fn a_node_that_waits_for_its_certificate_and_one_that_waits_for_the_next() {
    let mut report = of_a_node();
    let waits = "request node-csr-1 waits for approval (kubectl certificate approve node-csr-1)";
    let without = ApiReport {
        reachable: false,
        error: Some(waits.to_owned()),
        unreachable_since: Some(at(30)),
        certificate_error: Some(waits.to_owned()),
        ..report.api.clone().unwrap_or_default()
    };
    report.api = Some(ApiReport {
        certificate_ends: Some(at(400)),
        certificate_error: Some(waits.to_owned()),
        ..report.api.unwrap_or_default()
    });
    let text = plain(&report, false);
    let words = format!(", renewal failed: {waits}");
    assert!(text.contains(&words), "{text}");
    report.api = Some(without);
    let text = plain(&report, false);
    let words = format!(
        "No client certificate for the API server at https://10.0.0.1:6443/ for 5m: {waits}"
    );
    assert!(text.contains(&words), "{text}");
}

#[test]
fn colours_tell_states_apart() {
    let styled = render::render(&report(vec![crashing_pod()]), at(330), false);
    assert!(styled.contains("\u{1b}[31mCrashLoopBackOff"), "{styled:?}");
    assert!(
        !styled.contains("\u{1b}[2J"),
        "a message drives the terminal: {styled:?}"
    );
}

#[test]
fn json_and_yaml_read_back() {
    let report = report(vec![held_pod()]);
    let yaml = serde_saphyr::to_string(&report).unwrap();
    assert_eq!(
        serde_saphyr::from_str::<StatusReport>(&yaml).unwrap(),
        report
    );
    let json = serde_json::to_vec(&report).unwrap();
    assert_eq!(client::parse::<StatusReport>(&json).unwrap(), report);
    assert!(client::parse::<StatusReport>(b"{}").is_err());
    let node = of_a_node();
    let yaml = serde_saphyr::to_string(&node).unwrap();
    assert_eq!(serde_saphyr::from_str::<StatusReport>(&yaml).unwrap(), node);
}

#[test]
fn pulls_under_way() {
    let mut report = report(vec![pod("default", "web", "ContainerCreating")]);
    let pull = |image: &str, phase, bytes_done, bytes_total| PullReport {
        image: image.to_owned(),
        phase,
        layers_done: 1,
        layers_total: 3,
        bytes_done,
        bytes_total,
    };
    report.pulls = vec![
        pull("web:1", PullPhase::Downloading, 25, 100),
        pull("db:1", PullPhase::Waiting, 0, 0),
    ];
    insta::assert_snapshot!(plain(&report, false));
}

#[test]
fn a_pressure_of_the_node_is_told_first_with_its_readings() {
    let mut report = report(vec![]);
    let readings = "nodefs.available is 3Mi, below 10%".to_owned();
    report.pressures = [("DiskPressure".to_owned(), readings)].into();
    let words = "The node is under DiskPressure: nodefs.available is 3Mi, below 10%\n";
    // eviction 9
    assert!(plain(&report, false).starts_with(words));
}

#[test]
fn images_are_told_of_to_who_asks_for_all_or_when_something_is_wrong() {
    let mut report = report(vec![]);
    let gc = ImageGcReport {
        high_threshold_percent: 85,
        low_threshold_percent: 80,
        ..ImageGcReport::default()
    };
    report.image_gc = Some(gc.clone());
    assert!(!plain(&report, false).contains("IMAGES"));
    let words = "IMAGES\n  disk usage unknown; garbage collection starts at 85%, stops at 80%; has not run yet\n";
    assert!(plain(&report, true).contains(words));
    report.image_gc = Some(ImageGcReport {
        disk_used_percent: Some(91),
        last_pass: Some(at(30)),
        removed: 2,
        freed_bytes: 7,
        error: Some("Insufficient free disk space".to_owned()),
        ..gc
    });
    let words = "IMAGES\n  disk 91% used; garbage collection starts at 85%, stops at 80%; \
                 last run 5m ago, 2 images removed\n  error: Insufficient free disk space\n";
    assert!(
        plain(&report, false).contains(words),
        "{}",
        plain(&report, false)
    );
}

#[test]
fn a_job_that_may_run_no_pod_has_an_age_and_a_reason() {
    let jobs = [
        ("none", "Suspended", "ParallelismZero", "parallelism is 0"),
        ("later", "Suspended", "JobSuspended", "Job suspended"),
        ("again", "Running", "PodsTerminating", "waits for 2 pods"),
    ];
    let job = |(name, condition, reason, message): (&str, &str, &str, &str)| {
        serde_json::from_value(serde_json::json!({
            "namespace": "default", "name": name, "source": "/m", "completions": 1, "active": 0,
            "succeeded": 0, "failed": 0, "condition": condition, "reason": reason,
            "message": message, "createdAt": at(0),
        }))
        .unwrap()
    };
    let report = StatusReport {
        jobs: jobs.into_iter().map(job).collect(),
        ..report(Vec::new())
    };
    let text = plain(&report, false);
    let lines = text.lines().map(str::split_whitespace);
    let lines: Vec<Vec<&str>> = lines.map(Iterator::collect).collect();
    for (name, condition, ..) in jobs {
        let line = ["default", name, condition, "0/1", "5m30s"];
        assert!(lines.iter().any(|found| found == &line), "{text}");
    }
    for why in [
        "  job default/none: ParallelismZero: parallelism is 0",
        "  job default/again: PodsTerminating: waits for 2 pods",
    ] {
        assert!(text.lines().any(|line| line == why), "{text}");
    }
    assert!(!text.contains("JobSuspended"), "{text}");
}
