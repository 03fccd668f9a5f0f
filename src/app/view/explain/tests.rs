use super::*;
use mirrorlet_core::api::{Code, PodUid};

fn pod(name: &str, uid: &str, status: &str) -> PodReport {
    serde_json::from_value(serde_json::json!({
        "name": format!("{name}-box"), "manifestName": name, "namespace": "default",
        "uid": uid, "source": format!("/m/{name}.yaml"), "status": status, "phase": status,
        "ready": 1, "containersTotal": 1, "restarts": 0, "containers": [], "held": false,
    }))
    .unwrap()
}

fn journal() -> Journal {
    let journal = Journal::default();
    for (name, uid, reason) in [
        ("web-box", "uid-old", "First"),
        ("web-box", "uid-new", "Second"),
        ("past-box", "uid-past", "Gone"),
    ] {
        let name = FullName::new(name, "default");
        let (uid, kind) = (PodUid::from(uid), Kind::Trace);
        journal.pod(&name, &uid, Some("c"), kind, reason, "x");
    }
    journal
}

fn sources() -> Vec<SourceReport> {
    vec![SourceReport {
        kind: "file".to_owned(),
        location: "/m".to_owned(),
        synced: true,
        last_success: Some(mirrorlet_core::api::Timestamp::UNIX_EPOCH),
        pods: 1,
        objects: 0,
        problems: Vec::new(),
        ignored: Vec::new(),
    }]
}

fn told(pods: &[PodReport], text: &str) -> (Option<String>, Vec<String>) {
    let report = explain(text, pods, &sources(), &journal(), &"box".into()).unwrap();
    let reasons = report.story.into_iter().map(|entry| entry.reason);
    let uid = report.pod.map(|pod| pod.uid.to_string());
    (uid, reasons.collect())
}

#[test]
fn an_edited_pod_and_its_old_version_share_a_story() {
    let pods = [
        pod("web", "uid-new", "Pending"),
        pod("web", "uid-old", "Terminating"),
    ];
    let story = vec!["First".to_owned(), "Second".to_owned()];
    for text in ["web", "default/web-box"] {
        // events 6
        assert_eq!(
            told(&pods, text),
            (Some("uid-new".to_owned()), story.clone())
        );
    }
    assert_eq!(told(&pods, "uid-old"), (Some("uid-old".to_owned()), story));
    let report = explain("web", &pods, &sources(), &journal(), &"box".into()).unwrap();
    assert!(report.source_read.is_some());
    assert_eq!(report.story[1].container.as_deref(), Some("c"));
}

#[test]
fn a_pod_that_is_gone_is_found_by_name_and_uid() {
    for text in ["past", "past-box", "default/past", "uid-past", "uid-pa"] {
        // events 6
        assert_eq!(told(&[], text), (None, vec!["Gone".to_owned()]), "{text}");
    }
    for text in ["pas", "other/past", "uid", "x"] {
        let error = explain(text, &[], &sources(), &journal(), &"box".into()).unwrap_err();
        assert!(matches!(error.kind, ViewErrorKind::NotFound), "{text}");
    }
}

#[test]
fn a_pod_whose_manifest_is_rejected_is_told_why() {
    let mut problem =
        Diagnostic::error(Code::InvalidValue, "/m/bad.yaml", "not good").help("mend it");
    problem.pod = Some("default/bad-box".to_owned());
    let mut sources = sources();
    let other = Diagnostic::warning(Code::InvalidValue, "/m/web.yaml", "odd");
    let before = Diagnostic {
        pod: Some("default/past-box".to_owned()),
        ..problem.clone()
    };
    sources[0].problems = vec![other, problem, before];
    for text in ["past", "default/past-box", "uid-past"] {
        let report = explain(text, &[], &sources, &journal(), &"box".into()).unwrap();
        let why = report.rejected.map(|problem| problem.message);
        // events 6
        assert_eq!(why.as_deref(), Some("not good"), "{text}");
        assert_eq!(report.story.len(), 1, "{text}");
    }
    let running = [pod("past", "uid-past", "Running")];
    let report = explain("past", &running, &sources, &journal(), &"box".into()).unwrap();
    assert_eq!(report.rejected, None);
    for text in ["bad", "bad-box", "default/bad"] {
        let error = explain(text, &[], &sources, &journal(), &"box".into()).unwrap_err();
        let words = error.to_string();
        let expected =
            "pod default/bad-box is not running, its manifest is rejected: /m/bad.yaml: ";
        assert!(words.starts_with(expected), "{words}");
        assert_eq!(error.help.as_deref(), Some("mend it"));
    }
    let error = explain("web", &[], &sources, &Journal::default(), &"box".into()).unwrap_err();
    assert!(error.to_string().contains("not found"), "{error}");
}

#[test]
fn a_workload_whose_document_is_rejected_is_told_why() {
    let mut problem =
        Diagnostic::error(Code::InvalidValue, "/m/web.yaml", "not good").help("mend it");
    problem.workload = Some("Deployment default/web".to_owned());
    let mut sources = sources();
    sources[0].problems = vec![problem];
    let asked = |text: &str, pods: &[PodReport]| {
        explain(text, pods, &sources, &journal(), &"box".into()).unwrap_err()
    };
    for text in ["deployment/web", "deploy/web", "Deployments/web"] {
        let error = asked(text, &[]);
        let expected = "Deployment default/web is rejected, none of its pods run: /m/web.yaml: not good [invalid-value]";
        // workloads 23
        assert_eq!(error.to_string(), expected);
        assert_eq!(error.help.as_deref(), Some("mend it"));
    }
    let of = |name: &str, owner: &str| PodReport {
        workload: Some(owner.to_owned()),
        ..pod(name, name, "Running")
    };
    let pods = [
        of("web-0", "Deployment/web"),
        of("web-1", "Deployment/web"),
        of("db-0", "StatefulSet/db"),
        of("db-1", "StatefulSet/db"),
    ];
    let error = asked("deployment/web", &pods).to_string();
    let expected = "Deployment default/web is rejected, its pods are those of the last good version: /m/web.yaml";
    assert!(error.starts_with(expected), "{error}");
    let error = asked("sts/db", &pods).to_string();
    assert!(error.contains("default/db-1-box"), "{error}");
    for unknown in ["job/web", "deployment/other", "sts/web"] {
        let error = asked(unknown, &pods).to_string();
        assert!(error.contains("not found"), "{error}");
    }
}

#[test]
fn several_pods_of_one_name_are_named() {
    let mut other = pod("web", "uid-other", "Running");
    other.namespace = "prod".to_owned();
    let pods = [pod("web", "uid-new", "Running"), other];
    let error = explain("web", &pods, &sources(), &journal(), &"box".into()).unwrap_err();
    assert!(matches!(error.kind, ViewErrorKind::Invalid), "{error}");
    assert!(error.to_string().contains("prod/web-box"), "{error}");
}
