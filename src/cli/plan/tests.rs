use serde_json::json;

use k8s_openapi::ByteString;

use super::*;
use mirrorlet_core::api::report::ObjectAction;

fn report() -> PlanReport {
    let pod = |name: &str, action: &str, more: serde_json::Value| {
        let mut pod = json!({
            "name": name, "namespace": "default", "source": format!("/m/{name}.yaml"),
            "action": action, "downtime": "none",
        });
        let fields = more.as_object().unwrap().clone();
        pod.as_object_mut().unwrap().extend(fields);
        pod
    };
    let report = json!({
        "pods": [
            pod("api", "create", json!({
                "reason": "OutOfcpu", "message": "Node didn't have enough resource: cpu",
                "after": {"spec": {"a": 1}},
            })),
            pod("db", "held", json!({
                "changes": ["spec.containers[db].image", "spec.hostNetwork"],
                "reason": "ErrImageNeverPull", "message": "not\npresent",
            })),
            pod("old", "remove", json!({"before": {"spec": {"a": 1}}})),
            pod("same", "none", json!({})),
            pod("web", "replace", json!({
                "changes": ["spec.containers[web].image"], "downtime": "until-ready",
                "emptied": ["cache", "tmp"],
                "pulls": ["web:2"], "unknown": ["whether image web:2 can be pulled"],
                "before": {"spec": {"a": 1, "b": 2}}, "after": {"spec": {"a": 1, "b": 3}},
            })),
        ],
        "orders": [
            {
                "kind": "StatefulSet", "namespace": "default", "name": "db", "change": "update",
                "steps": [["db-2"], ["db-1"], ["db-0"]],
            },
            {
                "kind": "Deployment", "namespace": "default", "name": "web", "change": "update",
                "steps": (0..12).map(|n| [format!("a-{n}"), format!("b-{n}")]).collect::<Vec<_>>(),
            },
        ],
        "runs": [
            {
                "kind": "CronJob", "namespace": "default", "name": "backup", "source": "/m/b.yaml",
                "action": "change", "reason": "schedule; Jobs that already run are not changed",
                "nextSchedule": "2026-01-02T03:00:00Z",
            },
            {
                "kind": "Job", "namespace": "default", "name": "done", "source": "/m/d.yaml",
                "action": "none", "reason": "it is complete",
            },
            {
                "kind": "Job", "namespace": "default", "name": "import", "source": "/m/i.yaml",
                "action": "run-again", "reason": "its content has changed",
            },
        ],
        "problems": [],
    });
    serde_json::from_value(report).unwrap()
}

#[test]
fn a_plan_says_what_and_why() {
    insta::assert_snapshot!(anstream::adapter::strip_str(&render(&report())).to_string());
    let nothing = PlanReport {
        pods: vec![report().pods.remove(3)],
        orders: Vec::new(),
        runs: vec![report().runs.remove(1)],
        objects: Vec::new(),
        problems: Vec::new(),
    };
    assert_eq!(
        render(&nothing),
        "0 to create, 0 to replace, 0 held, 0 to remove, 1 unchanged\n"
    );
}

#[test]
fn objects_are_a_table_and_lines_without_values() {
    let object = |action, kind: &str, changed: &[&str]| PlannedObject {
        kind: kind.to_owned(),
        namespace: "default".to_owned(),
        name: "app".to_owned(),
        action,
        changed: changed.iter().map(|key| (*key).to_owned()).collect(),
        pods: vec!["default/web-box".to_owned()],
    };
    let changed = PlanReport {
        pods: Vec::new(),
        orders: Vec::new(),
        runs: Vec::new(),
        objects: vec![
            object(ObjectAction::Change, "ConfigMap", &["a.conf", "b.conf"]),
            object(ObjectAction::Create, "Service", &[]),
        ],
        problems: Vec::new(),
    };
    insta::assert_snapshot!(anstream::adapter::strip_str(&render(&changed)).to_string());
    let lines: String = changed.objects.iter().map(object_difference).collect();
    // rollouts 35
    assert_eq!(
        lines,
        "change: ConfigMap default/app: a.conf, b.conf\ncreate: Service default/app\n"
    );
}

#[test]
fn a_difference_of_a_job_is_a_line() {
    let PlanReport { mut runs, .. } = report();
    runs.push(PlannedRun {
        action: RunAction::Remove,
        reason: String::new(),
        ..runs[0].clone()
    });
    let changed = PlanReport {
        pods: Vec::new(),
        orders: Vec::new(),
        runs,
        objects: Vec::new(),
        problems: Vec::new(),
    };
    // rollouts 35
    assert_eq!(
        all_differences(&changed),
        "change: CronJob default/backup: schedule; Jobs that already run are not changed\nrun again: Job default/import: its content has changed\nremove: CronJob default/backup\n"
    );
}

#[test]
fn a_difference_is_a_unified_diff() {
    let text: String = report().pods.iter().map(differences).collect();
    insta::assert_snapshot!(text);
}

#[test]
fn paths_are_files_of_the_manifest_directory() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, bytes: &[u8]| {
        let path = dir.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, bytes).unwrap();
        path
    };
    let web = write("web.yaml", b"a: 1");
    write("set/db.yml", b"b: 1");
    write("set/README.md", b"");
    let (same, notes, binary) = (
        write("other/web.yaml", b""),
        write("notes.txt", b""),
        write("binary.yaml", b"\xff"),
    );
    let set = dir.path().join("set");
    let socket = dir.path().join("socket.yaml");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let names = |paths: &[PathBuf]| {
        let request = request(paths, false).unwrap();
        let names: Vec<String> = request.files.into_iter().map(|file| file.name).collect();
        (names.join(" "), request.whole)
    };
    assert_eq!(names(&[]), (String::new(), false));
    assert_eq!(
        names(std::slice::from_ref(&web)),
        ("web.yaml".to_owned(), false)
    );
    assert_eq!(
        names(&[web.clone(), set]),
        ("web.yaml db.yml".to_owned(), true)
    );
    for (paths, words) in [
        (vec![web, same], "two of the files are named web.yaml"),
        (vec![notes], "would be ignored"),
        (vec![socket], "it is a socket, not a regular file"),
        (vec![dir.path().join("gone.yaml")], "failed to read"),
    ] {
        let error = format!("{:#}", request(&paths, false).unwrap_err());
        assert!(error.contains(words), "{error}");
    }
    // The plan says what is wrong with it, beside what it says of others.
    let files = request(&[binary], false).unwrap().files;
    assert_eq!(files[0].binary, Some(ByteString(vec![0xff])));
    assert_eq!(files[0].text, "");
}
