//! The pods that are asked for, their order, and whether all is well.

use clap::Parser as _;

use super::*;
use crate::config::args::{Cli, Cmd};

#[test]
fn named_or_labelled_pods_alone_are_shown() {
    let mut labelled = pod("default", "web", "Running");
    labelled.labels = [("app".to_owned(), "web".to_owned())].into();
    labelled.restarts = 9;
    labelled.started_at = Some(at(9));
    let all = report(vec![held_pod(), crashing_pod(), labelled]);
    let shown = |flags: &[&str], watching| {
        let args = args(flags);
        let shown = selected(&args, all.clone(), watching).ok()?;
        let text = text(args.output, &shown, watching).unwrap();
        let report: StatusReport = serde_json::from_str(&text).unwrap();
        let names = report.pods.into_iter().map(|pod| pod.manifest_name);
        Some((names.collect::<Vec<_>>().join(" "), report.problems.len()))
    };
    let found = |names: &str| Some((names.to_owned(), 0));
    for (flags, watching, expected) in [
        (&["api", "prod/api"][..], false, found("api")),
        (&["nope"], false, None),
        (&["nope"], true, found("")),
        (&["-l", "app=web"], false, found("web")),
        (&["-l", "app in (db)"], false, found("")),
        (&["-l", "!app"], true, found("db api")),
        (&["-n", "prod"], false, found("api")),
        (&["-n", "default", "-l", "!app"], false, found("db")),
        (&["--sort-by", "age", "-l", ""], false, found("web db api")),
        (
            &["--sort-by=restarts", "-n=default"],
            false,
            found("web db"),
        ),
        (&["--sort-by=status", "db", "api"], false, found("api db")),
    ] {
        // agent 9
        assert_eq!(shown(flags, watching), expected, "{flags:?}");
    }
}

#[test]
fn the_problems_of_the_pods_that_are_asked_for_stay() {
    let mut of_workload = pod("default", "web-0", "Running");
    of_workload.workload = Some("Deployment/web".to_owned());
    let mut all = report(vec![pod("prod", "api", "Running"), of_workload]);
    let missing = |pod: Option<&str>, workload: Option<&str>| Diagnostic {
        pod: pod.map(str::to_owned),
        workload: workload.map(str::to_owned),
        ..Diagnostic::error(Code::MissingObject, "/m/a.yaml", "no manifest defines it")
    };
    all.problems = vec![
        missing(Some("prod/api-box-docker"), None),
        missing(Some("default/api-box-docker"), None),
        missing(None, Some("Deployment default/web")),
        missing(None, Some("Deployment prod/web")),
        missing(None, None),
    ];
    for (flags, problem) in [(["api"], 0), (["web-0"], 2), (["deployment/web"], 2)] {
        let shown = selected(&args(&flags), all.clone(), false).unwrap();
        assert_eq!(shown.problems, [all.problems[problem].clone()], "{flags:?}");
        assert!(!shown.is_well());
    }
}

fn args(flags: &[&str]) -> StatusArgs {
    let cli = Cli::try_parse_from(["mirrorlet", "status", "-o=json"].iter().chain(flags));
    let Cmd::Status(args) = cli.unwrap().command else {
        panic!("{flags:?}")
    };
    *args
}

#[test]
fn each_pod_is_named_once() {
    let mut old = pod("default", "web", "Terminating");
    old.uid = "old".into();
    let report = report(vec![crashing_pod(), pod("default", "web", "Running"), old]);
    assert_eq!(
        text(StatusOutput::Name, &report, false).unwrap(),
        "prod/api-box-docker\ndefault/web-box-docker\n"
    );
}

#[test]
fn only_a_node_without_faults_is_well() {
    let well = |pods, change: fn(&mut StatusReport)| {
        let mut report = report(pods);
        report.problems.clear();
        for source in &mut report.sources {
            source.problems.clear();
        }
        change(&mut report);
        report.is_well()
    };
    let web = || pod("default", "web", "Running");
    let with = |change: fn(&mut PodReport)| {
        let mut pod = web();
        change(&mut pod);
        vec![web(), pod]
    };
    assert!(well(vec![web()], |_| {}));
    assert!(well(vec![], |_| {}));
    let done = with(|pod| (pod.phase, pod.ready) = ("Succeeded".to_owned(), 0));
    assert!(well(done, |_| {}));
    let stopped = with(|pod| (pod.status, pod.ready) = ("Stopped".to_owned(), 0));
    assert!(well(stopped, |_| {}));
    assert!(!well(with(|pod| pod.ready = 0), |_| {}));
    assert!(!well(with(|pod| pod.held = true), |_| {}));
    assert!(!well(vec![held_pod()], |_| {}));
    assert!(!well(vec![web()], |report| report.engine.reachable = false));
    let error = |report: &mut StatusReport| {
        let error = Diagnostic::error(Code::InvalidValue, "/m/x.yaml", "no");
        report.problems.push(error);
    };
    assert!(!well(vec![web()], error));
    let warning = |report: &mut StatusReport| {
        let warning = Diagnostic::warning(Code::InvalidValue, "/m/x.yaml", "odd");
        report.problems.push(warning);
    };
    assert!(well(vec![web()], warning));
}

#[test]
fn workloads_say_what_they_wait_for_also_without_pods() {
    let set = |name: &str, progress: &str, message: &str| {
        let set = serde_json::json!({
            "namespace": "default", "owner": format!("StatefulSet/{name}"), "source": "/m",
            "wanted": 3, "ready": 1, "updated": 2, "available": 0,
            "progress": progress, "message": message, "conditions": [],
        });
        serde_json::from_value(set).unwrap()
    };
    let mut all = report(vec![pod("default", "web", "Running")]);
    all.workloads = vec![
        set("db", "Scaling", "pod db-1-box starts once db-0 is Ready"),
        set("queue", "Complete", ""),
    ];
    let lines = |flags: &[&str]| {
        let shown = selected(&args(flags), all.clone(), false).ok()?;
        let text = plain(&shown, false);
        let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        let lines: Vec<_> = text.lines().map(words).collect();
        Some(
            lines
                .into_iter()
                .filter(|line| line.contains("StatefulSet/"))
                .collect(),
        )
    };
    let db = [
        "default StatefulSet/db 1/3 2 0 Scaling",
        "default/StatefulSet/db: Scaling: pod db-1-box starts once db-0 is Ready",
    ];
    let queue = "default StatefulSet/queue 1/3 2 0 Complete";
    for (flags, expected) in [
        (&[][..], Some(vec![db[0], queue, db[1]])),
        (&["sts/db"], Some(db.to_vec())),
        (&["statefulset/default/queue"], Some(vec![queue])),
        (&["queue"], Some(vec![queue])),
        (&["web"], Some(vec![])),
        (&["sts/other"], None),
    ] {
        let shown: Option<Vec<String>> = lines(flags);
        let expected = expected.map(|lines| lines.into_iter().map(str::to_owned).collect());
        // workloads 16
        assert_eq!(shown, expected, "{flags:?}");
    }
}
