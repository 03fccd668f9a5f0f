use std::slice;

use proptest::prelude::*;
use proptest::sample::select;

use super::*;
use crate::api::NodeName;
use crate::api::core::PodStatus;
use crate::api::keys;
use crate::api::meta::Time;
use crate::cron::Runs;
use crate::desired::SourceSet;
use crate::hold::{NewFile, with_files};
use crate::objects::{Object, ObjectKind};

fn merge_sources(sources: &BTreeMap<SourceName, SourceState>, incumbents: &Incumbents) -> Merged {
    super::merge_sources(sources, incumbents, &BTreeMap::new())
}

fn pod(source: PodSource, location: &str, document: u32, name: &str, uid: &str) -> SourcePod {
    let mut pod = Pod::default();
    pod.metadata.name = Some(name.into());
    pod.metadata.namespace = Some("ns".into());
    pod.metadata.uid = Some(uid.into());
    let origin = Origin {
        document,
        ..Origin::whole(source, location)
    };
    SourcePod::new(Arc::new(pod), origin)
}

fn file(location: &str, name: &str, uid: &str) -> SourcePod {
    pod(PodSource::File, location, 0, name, uid)
}

fn synced(pods: Vec<SourcePod>) -> SourceState {
    SourceState::Synced(Arc::new(SourceSet {
        pods,
        ..SourceSet::default()
    }))
}

fn sources(files: Vec<SourcePod>, http: SourceState) -> BTreeMap<SourceName, SourceState> {
    [
        (SourceName::new(PodSource::File, "/m"), synced(files)),
        (SourceName::new(PodSource::Http, "http://a"), http),
    ]
    .into()
}

fn uids(merged: &Merged) -> Vec<&str> {
    merged.pods.keys().map(PodUid::as_str).collect()
}

/// Pods that run, and of whose documents nothing is known.
fn incumbents(pairs: &[(&str, &str)]) -> Incumbents {
    let pair = |(name, uid): &(&str, &str)| (FullName::new(*name, "ns"), running(uid));
    Incumbents {
        pods: pairs.iter().map(pair).collect(),
        ..Incumbents::default()
    }
}

fn running(uid: &str) -> Incumbent {
    Incumbent {
        uid: uid.into(),
        origin: None,
    }
}

#[test]
fn the_first_of_a_name_wins_unless_another_runs_already() {
    let files = || {
        vec![
            file("/m/b", "web", "2"),
            file("/m/a", "web", "1"),
            file("/m/c", "db", "3"),
        ]
    };
    let http = || synced(vec![pod(PodSource::Http, "http://a", 0, "web", "4")]);
    for (running, expected) in [
        (&[][..], ["1", "3"]),
        (&[("web", "1")], ["1", "3"]),
        (&[("web", "2")], ["2", "3"]),
        (&[("web", "4")], ["3", "4"]),
        // The running pod is no longer offered.
        (&[("web", "9")], ["1", "3"]),
    ] {
        let merged = merge_sources(&sources(files(), http()), &incumbents(running));
        // pods 13
        assert_eq!(uids(&merged), expected, "{running:?}");
        assert_eq!(merged.conflicts.len(), 2, "{running:?}");
        assert!(
            merged
                .conflicts
                .iter()
                .all(|c| c.code == Code::DuplicatePod)
        );
        assert!(merged.delivered.all());
        // The winner stays.
        let again = merge_sources(&sources(files(), http()), &merged.incumbents());
        assert_eq!(again, merged);
    }
}

#[test]
fn an_edit_leaves_a_name_with_the_file_that_has_it() {
    let of_url = |uid: &str| pod(PodSource::Http, "http://a", 0, "web", uid);
    let at = |uid: &str, origin: Origin| Incumbents {
        pods: [(
            FullName::new("web", "ns"),
            Incumbent {
                origin: Some(origin),
                ..running(uid)
            },
        )]
        .into(),
        ..Incumbents::default()
    };
    let in_file = |uid: &str| at(uid, Origin::whole(PodSource::File, "/m/b"));
    let in_url = |uid: &str| at(uid, Origin::whole(PodSource::Http, "http://a"));
    for (why, incumbents, expected) in [
        ("it runs", in_file("2"), "2"),
        (
            "it was edited, or its newest version is held",
            in_file("0"),
            "2",
        ),
        ("a UID says more than a place", in_file("1"), "1"),
        ("the URL's runs", in_url("3"), "3"),
        ("the URL's was edited", in_url("0"), "3"),
        (
            "a file of the URL's name",
            at("0", Origin::whole(PodSource::File, "http://a")),
            "1",
        ),
        ("nothing is known", incumbents(&[("web", "0")]), "1"),
    ] {
        let files = vec![file("/m/a", "web", "1"), file("/m/b", "web", "2")];
        let merged = merge_sources(&sources(files, synced(vec![of_url("3")])), &incumbents);
        // pods 13
        assert_eq!(uids(&merged), [expected], "{why}");
        assert_eq!(merged.conflicts.len(), 2, "{why}");
    }
}

#[test]
fn a_source_has_the_files_of_its_directory_and_its_url_alone() {
    use PodSource::{Embedded, File, Http};
    for (source, place, of, location, expected) in [
        (File, "/m", File, "/m/web.yaml", true),
        (File, "/m", File, "/m", true),
        (File, "/m", File, "/more/web.yaml", false),
        (File, "/m", Embedded, "/m/web.yaml", false),
        (Embedded, "/r/api", Embedded, "/r/api/web.yaml", true),
        (Http, "http://a/pods", Http, "http://a/pods", true),
        (Http, "http://a/pods", Http, "http://a/pods/", false),
        (Http, "http://a/pods", Http, "http://a/pods/more", false),
    ] {
        let name = SourceName::new(source, place);
        let has = name.has(&Origin::whole(of, location));
        // pods 14
        assert_eq!(has, expected, "{name}: {of} {location}");
    }
}

/// A file with a Job or `CronJob` of that command.
fn run_file(kind: &str, file: &str, command: &str) -> NewFile {
    let template = format!(
        "template: {{spec: {{restartPolicy: Never, containers: [{{name: c, image: i, command: [{command}]}}]}}}}"
    );
    let spec = match kind {
        "Job" => template,
        _ => format!("schedule: \"0 3 * * *\"\n  jobTemplate: {{spec: {{{template}}}}}"),
    };
    let text = format!(
        "apiVersion: batch/v1\nkind: {kind}\nmetadata: {{name: work, namespace: ns}}\nspec:\n  {spec}\n"
    );
    NewFile {
        location: format!("/m/{file}"),
        bytes: text.into_bytes(),
    }
}

/// The content of the Job that is wanted, or of the runs of the `CronJob`.
fn content_of(merged: &Merged) -> String {
    let stand_in = merged.pods.values().next().unwrap();
    match &**stand_in.runs.as_ref().unwrap() {
        Runs::Job(job) => job.content.clone(),
        Runs::CronJob(cron) => cron.job.content.clone(),
    }
}

#[test]
fn a_job_that_was_begun_keeps_its_name() {
    let merge = |files: &[NewFile], incumbents: &Incumbents| {
        let set = with_files(&SourceSet::default(), files, true, &NodeName::from("box"));
        assert_eq!(set.problems, []);
        let name = SourceName::new(PodSource::File, "/m");
        let states = [(name, SourceState::Synced(Arc::new(set)))].into();
        merge_sources(&states, incumbents)
    };
    for kind in ["Job", "CronJob"] {
        let first = merge(&[run_file(kind, "m", "old")], &Incumbents::default());
        let content = content_of(&first);
        // Its own pods are in the place of the one that stands for it; there may be none.
        let before = Merged {
            pods: BTreeMap::new(),
            ..first
        };
        let before = before.incumbents();
        let key = WorkloadKey::of_owner("ns", &format!("{kind}/work")).unwrap();
        let earlier = run_file(kind, "a", "new");
        let edited = run_file(kind, "m", "edited");
        let other = merge(slice::from_ref(&earlier), &Incumbents::default());
        let of_other = Incumbents {
            begun: [(key.clone(), content_of(&other))].into(),
            ..before.clone()
        };
        let begun = Incumbents {
            begun: [(key, content)].into(),
            ..Incumbents::default()
        };
        for (why, incumbents, own, expected) in [
            ("wanted so far", &before, run_file(kind, "m", "old"), "/m/m"),
            ("edited", &before, edited.clone(), "/m/m"),
            (
                "edited, and begun as the other one is",
                &of_other,
                edited,
                "/m/m",
            ),
            (
                "begun by an earlier agent",
                &begun,
                run_file(kind, "m", "old"),
                "/m/m",
            ),
            (
                "both are others",
                &begun,
                run_file(kind, "m", "other"),
                "/m/a",
            ),
        ] {
            let merged = merge(&[earlier.clone(), own], incumbents);
            let winners = merged.pods.values().map(|pod| &*pod.origin.location);
            // workloads 7
            assert_eq!(winners.collect::<Vec<_>>(), [expected], "{kind}: {why}");
            assert_eq!(merged.conflicts.len(), 1, "{kind}: {why}");
        }
    }
}

/// A Deployment of that many pods.
fn deployment_file(file: &str, replicas: i32) -> NewFile {
    let text = format!(
        "apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: work, namespace: ns}}\nspec:\n  replicas: {replicas}\n  selector: {{matchLabels: {{app: w}}}}\n  template: {{metadata: {{labels: {{app: w}}}}, spec: {{containers: [{{name: c, image: i}}]}}}}\n"
    );
    NewFile {
        location: format!("/m/{file}"),
        bytes: text.into_bytes(),
    }
}

/// The state of the directory with these files alone.
fn directory(files: &[NewFile]) -> (SourceName, SourceState) {
    let set = with_files(&SourceSet::default(), files, true, &NodeName::from("box"));
    let name = SourceName::new(PodSource::File, "/m");
    (name, SourceState::Synced(Arc::new(set)))
}

/// The files of the pods that are wanted, each once.
fn places(merged: &Merged) -> Vec<&str> {
    let places = merged.pods.values().map(|pod| &*pod.origin.location);
    places.collect_set().into_iter().collect()
}

/// The names that the next agent knows: it was not there when they were taken.
fn known_to_the_next_agent(merged: &Merged) -> Incumbents {
    Incumbents {
        workloads: merged.workloads.clone(),
        ..Incumbents::default()
    }
}

#[test]
fn a_workload_without_pods_keeps_its_name() {
    let merge = |files: &[NewFile], incumbents: &Incumbents| {
        merge_sources(&[directory(files)].into(), incumbents)
    };
    let [two, one, none] = [
        deployment_file("a", 2),
        deployment_file("b", 1),
        deployment_file("b", 0),
    ];
    let first = merge(slice::from_ref(&one), &Incumbents::default());
    let both = merge(&[two.clone(), one.clone()], &first.incumbents());
    assert_eq!(places(&both), ["/m/b"]);
    // Scaled down, by this agent and seen by the next one.
    for before in [both.incumbents(), known_to_the_next_agent(&both)] {
        let down = merge(&[two.clone(), none.clone()], &before);
        // workloads 5a
        assert_eq!(places(&down), [""; 0]);
        let [problem] = &down.conflicts[..] else {
            panic!("{:?}", down.conflicts)
        };
        let words = "document 0 is ignored: Deployment ns/work is already defined by /m/b";
        assert_eq!(problem.file, "/m/a");
        assert!(problem.message.starts_with(words), "{problem}");
        let up = merge(&[two.clone(), one.clone()], &known_to_the_next_agent(&down));
        assert_eq!(places(&up), ["/m/b"]);
        // It gives its name up with its document, and to another one whose pods run.
        let gone = merge(slice::from_ref(&two), &known_to_the_next_agent(&down));
        assert_eq!(places(&gone), ["/m/a"]);
        let runs = Incumbents {
            pods: gone.incumbents().pods,
            ..known_to_the_next_agent(&down)
        };
        let taken = merge(&[two.clone(), one.clone()], &runs);
        assert_eq!(places(&taken), ["/m/a"]);
    }
}

#[test]
fn a_cron_job_without_a_run_keeps_its_name() {
    let merge = |files: &[NewFile], incumbents: &Incumbents| {
        merge_sources(&[directory(files)].into(), incumbents)
    };
    for kind in ["CronJob", "Job"] {
        let [earlier, own] = [run_file(kind, "a", "new"), run_file(kind, "m", "old")];
        let first = merge(slice::from_ref(&own), &Incumbents::default());
        let known = known_to_the_next_agent(&first);
        for own in [own, run_file(kind, "m", "edited")] {
            let merged = merge(&[earlier.clone(), own], &known);
            // workloads 5a
            assert_eq!(places(&merged), ["/m/m"], "{kind}");
        }
    }
}

#[test]
fn a_name_waits_for_a_source_that_has_not_answered() {
    let url = SourceName::new(PodSource::Http, "http://a");
    let of_url = Origin::whole(PodSource::Http, "http://a");
    // Whether a Job is begun again is for its record to say.
    for (file, waits) in [
        (deployment_file("a", 2), true),
        (run_file("CronJob", "a", "new"), true),
        (run_file("Job", "a", "new"), false),
    ] {
        let delivered = directory(slice::from_ref(&file));
        let set = delivered.1.set().unwrap().clone();
        let owner = set.workloads[0].owner.clone();
        let key = WorkloadKey::of_owner("ns", &owner).unwrap();
        let known = Incumbents {
            workloads: [(key.clone(), of_url.clone())].into(),
            ..Incumbents::default()
        };
        let none = (delivered.0.clone(), SourceState::NotSynced);
        let silent = (url.clone(), SourceState::NotSynced);
        let begun = merge_sources(&[none, silent.clone()].into(), &known);
        assert_eq!(begun.workloads, known.workloads, "{owner}");
        let merged = merge_sources(&[delivered.clone(), silent].into(), &known);
        // workloads 5a
        assert_eq!(merged.pods.is_empty(), waits, "{owner}");
        assert_eq!(merged.workloads[&key] == of_url, waits, "{owner}");
        // It has answered, and has none.
        let empty = SourceState::Synced(Arc::new(SourceSet::default()));
        let merged = merge_sources(&[delivered, (url.clone(), empty)].into(), &known);
        assert_eq!(places(&merged), ["/m/a"], "{owner}");
    }
}

#[test]
fn of_the_documents_of_a_workload_the_one_that_has_its_name_stands_for_it() {
    let (_, both) = directory(&[deployment_file("a", 2), deployment_file("b", 1)]);
    let offered = &both.set().unwrap().workloads;
    let (a, b) = ("/m/a", "/m/b");
    let of = |location: &str| offered.iter().find(|one| one.origin.location == location);
    let (of_a, of_b) = (of(a).unwrap(), of(b).unwrap());
    let of_url = Origin::whole(PodSource::Http, "http://a");
    for (owner, expected, lost) in [
        // The merge has seen neither.
        (None, [a, b], [false, false]),
        (Some(&of_a.origin), [a, a], [false, true]),
        (Some(&of_b.origin), [b, b], [true, false]),
        // That of a source that has not answered.
        (Some(&of_url), [a, b], [true, true]),
    ] {
        let names = owner.map(|owner| (of_a.key().unwrap(), owner.clone()));
        let merged = Merged {
            workloads: names.into_iter().collect_map(),
            ..Merged::default()
        };
        let orders = [[of_a, of_b], [of_b, of_a]];
        let shown: [Vec<&str>; 2] = orders.map(|documents| {
            let one = merged.one_of_each(documents.into_iter());
            one.into_iter().map(|one| &*one.origin.location).collect()
        });
        // workloads 5b
        assert_eq!(shown, expected.map(|location| vec![location]), "{owner:?}");
        let have_lost = [of_a, of_b].map(|one| merged.has_lost(one));
        assert_eq!(have_lost, lost, "{owner:?}");
    }
}

#[test]
fn a_conflict_names_both_places() {
    let files = vec![file("/m/b", "web", "2"), file("/m/a", "web", "1")];
    let merged = merge_sources(
        &sources(files, SourceState::NotSynced),
        &Incumbents::default(),
    );
    assert!(!merged.delivered.all());
    // pods 14
    assert_eq!(
        merged.conflicts[0].to_string(),
        "/m/b: metadata.name: document 0 is ignored: \
         pod web_ns is already defined by /m/a document 0 [duplicate-pod]"
    );
}

#[test]
fn a_workload_whose_pod_has_the_name_of_another_is_known() {
    let mut of_workload = file("/m/b", "web", "2");
    Arc::make_mut(&mut of_workload.pod)
        .metadata
        .annotations
        .get_or_insert_default()
        .insert(keys::WORKLOAD.to_owned(), "Deployment/shop".to_owned());
    let files = vec![of_workload, file("/m/a", "web", "1")];
    let merged = merge_sources(
        &sources(files, SourceState::NotSynced),
        &Incumbents::default(),
    );
    let key = WorkloadKey::of_owner("ns", "Deployment/shop").unwrap();
    let why = "pod web_ns is already defined by /m/a document 0".to_owned();
    // workloads 15a
    assert_eq!(merged.clashes, [(key, why)].into());
}

#[test]
fn one_uid_under_two_names_is_a_conflict() {
    let files = || vec![file("/m/a", "one", "x"), file("/m/b", "two", "x")];
    for (running, winner) in [(&[][..], "one_ns"), (&[("two", "x")], "two_ns")] {
        let sources = sources(files(), SourceState::NotSynced);
        let merged = merge_sources(&sources, &incumbents(running));
        assert_eq!(merged.pods.len(), 1);
        assert_eq!(merged.pods[&"x".into()].full_name().to_string(), winner);
        assert_eq!(merged.conflicts.len(), 1);
        assert_eq!(merged.conflicts[0].field.as_deref(), Some("metadata.uid"));
    }
}

#[test]
fn one_source_of_two_leaves_the_other() {
    let http = synced(vec![pod(PodSource::Http, "http://a", 0, "b", "2")]);
    let both = merge_sources(
        &sources(vec![file("/m/a", "a", "1")], http.clone()),
        &Incumbents::default(),
    );
    assert_eq!(uids(&both), ["1", "2"]);
    let one = merge_sources(&sources(vec![], http), &both.incumbents());
    // pods 14
    assert_eq!(uids(&one), ["2"]);
}

fn set(pods: &[SourcePod]) -> BTreeMap<PodUid, SourcePod> {
    pods.iter().map(|pod| (pod.uid(), pod.clone())).collect()
}

fn changed(pod: &SourcePod, change: impl FnOnce(&mut Pod)) -> SourcePod {
    let mut pod = pod.clone();
    change(Arc::make_mut(&mut pod.pod));
    pod
}

fn annotate(pod: &mut Pod, key: &str, value: &str) {
    let annotations = pod.metadata.annotations.get_or_insert_default();
    annotations.insert(key.into(), value.into());
}

/// `verb uid` of each operation.
fn verbs(operations: &[PodOperation]) -> Vec<String> {
    let verb = |operation: &PodOperation| {
        let verb = match operation {
            PodOperation::Remove(_) => "remove",
            PodOperation::Add(_) => "add",
            PodOperation::Update(_) => "update",
            PodOperation::Delete(_) => "delete",
            PodOperation::Reconcile(_) => "reconcile",
        };
        format!("{verb} {}", operation.pod().uid())
    };
    operations.iter().map(verb).collect()
}

type Change = fn(&mut Pod);

#[test]
fn what_counts_as_which_change() {
    let base = changed(&file("/m/a", "web", "1"), |pod| {
        annotate(pod, keys::CONFIG_HASH, "h");
    });
    let cases: [(&str, Change, &[&str]); 12] = [
        ("nothing", |_| {}, &[]),
        (
            "spec",
            |pod| pod.spec.get_or_insert_default().hostname = Some("h".into()),
            &["update 1"],
        ),
        (
            "label",
            |pod| pod.metadata.labels = Some([("a".into(), "b".into())].into()),
            &["update 1"],
        ),
        (
            "no labels at all",
            |pod| pod.metadata.labels = Some(BTreeMap::new()),
            &[],
        ),
        ("annotation", |pod| annotate(pod, "a", "b"), &["update 1"]),
        (
            "hash",
            |pod| annotate(pod, keys::CONFIG_HASH, "i"),
            &["update 1"],
        ),
        ("seen", |pod| annotate(pod, keys::CONFIG_SEEN, "now"), &[]),
        (
            "source",
            |pod| annotate(pod, keys::CONFIG_SOURCE, "api"),
            &[],
        ),
        ("mirror", |pod| annotate(pod, keys::CONFIG_MIRROR, "h"), &[]),
        (
            "grace",
            |pod| pod.metadata.deletion_grace_period_seconds = Some(3),
            &["update 1"],
        ),
        (
            "deletion",
            |pod| pod.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH)),
            &["delete 1"],
        ),
        (
            "status",
            |pod| {
                pod.status = Some(PodStatus {
                    phase: Some("Running".into()),
                    ..PodStatus::default()
                });
            },
            &["reconcile 1"],
        ),
    ];
    for (why, change, expected) in cases {
        let new = changed(&base, change);
        let told = verbs(&diff(&set(std::slice::from_ref(&base)), &set(&[new])));
        // pods 16
        assert_eq!(told, expected, "{why}");
    }
    // Where it comes from and what is wrong with its manifest is no matter of the pod.
    let mut held = base.clone();
    held.held = true;
    held.origin.document = 7;
    assert_eq!(diff(&set(&[base]), &set(&[held])), []);
}

#[test]
fn operations_come_in_upstreams_order() {
    let with_status = |pod: &SourcePod| changed(pod, |pod| pod.status = Some(PodStatus::default()));
    let deleted = |pod: &SourcePod| {
        changed(pod, |pod| {
            pod.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
        })
    };
    let updated = |pod: &SourcePod| changed(pod, |pod| annotate(pod, "a", "b"));
    let [one, two, three, four, five] =
        ["1", "2", "3", "4", "5"].map(|uid| file("/m/a", &format!("p{uid}"), uid));
    let old = set(&[one.clone(), two.clone(), three.clone(), four]);
    let new = set(&[with_status(&one), deleted(&two), updated(&three), five]);
    assert_eq!(
        verbs(&diff(&old, &new)),
        ["remove 4", "add 5", "update 3", "delete 2", "reconcile 1"]
    );
    // An edited static pod has another UID: its predecessor goes first.
    let edited = diff(
        &set(&[file("/m/a", "web", "b")]),
        &set(&[file("/m/a", "web", "a")]),
    );
    // pods 17
    assert_eq!(verbs(&edited), ["remove b", "add a"]);
}

#[test]
fn local_annotations_survive_an_update() {
    let base = changed(&file("/m/a", "web", "1"), |pod| {
        annotate(pod, keys::CONFIG_SOURCE, "file");
    });
    let now: Timestamp = "2026-01-02T03:04:05.6Z".parse().unwrap();
    let base = with_seen(&base, now);
    let new = changed(&base, |pod| {
        annotate(pod, "a", "b");
        pod.metadata
            .annotations
            .get_or_insert_default()
            .remove(keys::CONFIG_SEEN);
        annotate(pod, keys::CONFIG_SOURCE, "api");
    });
    let operations = diff(&set(&[base]), &set(&[new]));
    let annotations = operations[0]
        .pod()
        .pod
        .metadata
        .annotations
        .as_ref()
        .unwrap();
    assert_eq!(
        annotations[keys::CONFIG_SEEN],
        "2026-01-02T03:04:05.600000000Z"
    );
    assert_eq!(annotations[keys::CONFIG_SOURCE], "file");
    assert_eq!(annotations["a"], "b");
}

#[test]
fn a_pod_that_did_not_change_is_carried_over_and_one_that_is_over_is_not_copied() {
    let api = |uid: &str| {
        let pod = pod(PodSource::Api, "api server", 0, &format!("p{uid}"), uid);
        changed(&pod, |pod| annotate(pod, keys::CONFIG_SOURCE, "api"))
    };
    let over = changed(&api("2"), |pod| {
        pod.status.get_or_insert_default().phase = Some("Failed".to_owned());
    });
    let merged = |pods: &[SourcePod]| Merged {
        pods: set(pods),
        ..Merged::default()
    };
    let at = |merged: &Merged, uid: &str| Arc::clone(&merged.pods[&PodUid::from(uid)].pod);
    let now: Timestamp = "2026-01-02T03:04:05.6Z".parse().unwrap();
    let (one, three) = (api("1"), api("3"));
    let mut first = merged(&[one.clone(), over.clone(), three.clone()]);
    let given = first.carry_over(&Merged::default(), &BTreeMap::new(), now);
    assert!(
        at(&first, "1")
            .metadata
            .annotations
            .as_ref()
            .unwrap()
            .contains_key(keys::CONFIG_SEEN)
    );
    assert!(Arc::ptr_eq(&at(&first, "2"), &over.pod));

    let edited = changed(&three, |pod| annotate(pod, "a", "b"));
    let mut second = merged(&[one, over.clone(), edited]);
    let given = second.carry_over(&first, &given, Timestamp::UNIX_EPOCH);
    // tenants M5
    assert!(Arc::ptr_eq(&at(&second, "1"), &at(&first, "1")));
    assert!(Arc::ptr_eq(&at(&second, "2"), &over.pod));
    let (before, after) = (at(&first, "3"), at(&second, "3"));
    let annotation = |pod: &Pod, key: &str| pod.metadata.annotations.clone()?.remove(key);
    assert_eq!(annotation(&after, "a").as_deref(), Some("b"));
    assert_eq!(
        annotation(&after, keys::CONFIG_SEEN),
        annotation(&before, keys::CONFIG_SEEN)
    );
    assert_eq!(given.len(), 3);
}

fn any_pod() -> impl Strategy<Value = SourcePod> {
    (
        select(vec!["/m/a", "/m/b", "/m/c"]),
        0..3_u32,
        0..4_u32,
        0..5_u32,
    )
        .prop_map(|(location, document, name, uid)| {
            pod(
                PodSource::File,
                location,
                document,
                &format!("p{name}"),
                &format!("u{uid}"),
            )
        })
}

/// Pods of one source, each from its own place.
fn any_pods() -> impl Strategy<Value = Vec<SourcePod>> {
    proptest::collection::vec(any_pod(), 0..8).prop_map(|mut pods| {
        pods.sort_by(|a, b| a.origin.cmp(&b.origin));
        pods.dedup_by(|a, b| a.origin == b.origin);
        pods
    })
}

fn any_incumbents() -> impl Strategy<Value = Incumbents> {
    let place = proptest::option::of(select(vec!["/m/a", "/m/b", "/m/d"]));
    let pair = (0..4_u32, 0..5_u32, place).prop_map(|(name, uid, place)| {
        let known = Incumbent {
            origin: place.map(|place| Origin::whole(PodSource::File, place)),
            ..running(&format!("u{uid}"))
        };
        (FullName::new(format!("p{name}"), "ns"), known)
    });
    proptest::collection::vec(pair, 0..4).prop_map(|pairs| Incumbents {
        pods: pairs.into_iter().collect(),
        ..Incumbents::default()
    })
}

proptest! {
    #[test]
    fn the_order_of_the_input_does_not_matter(
        (pods, shuffled) in any_pods().prop_flat_map(|pods| {
            (Just(pods.clone()), Just(pods).prop_shuffle())
        }),
        incumbents in any_incumbents(),
    ) {
        let merge = |pods| merge_sources(&sources(pods, SourceState::NotSynced), &incumbents);
        prop_assert_eq!(merge(pods), merge(shuffled));
    }

    #[test]
    fn every_pod_runs_or_is_reported(pods in any_pods(), incumbents in any_incumbents()) {
        let count = pods.len();
        let merged = merge_sources(&sources(pods.clone(), synced(vec![])), &incumbents);
        prop_assert_eq!(merged.pods.len() + merged.conflicts.len(), count);
        prop_assert_eq!(merged.incumbents().pods.len(), merged.pods.len());
        // An incumbent that is still offered runs, unless its UID is another incumbent's too.
        for (name, Incumbent { uid, .. }) in &incumbents.pods {
            let offered = pods.iter().any(|pod| pod.uid() == *uid && pod.full_name() == *name);
            prop_assert!(!offered || merged.pods.contains_key(uid));
        }
        // Merging again changes nothing.
        let again = merge_sources(&sources(pods, synced(vec![])), &merged.incumbents());
        prop_assert_eq!(again.pods, merged.pods);
    }

    #[test]
    fn a_source_that_has_not_synced_removes_nothing(pods in any_pods(), incumbents in any_incumbents()) {
        let silent = merge_sources(&sources(pods.clone(), SourceState::NotSynced), &incumbents);
        let empty = merge_sources(&sources(pods, synced(vec![])), &incumbents);
        prop_assert!(!silent.delivered.all());
        prop_assert_eq!(silent.pods, empty.pods);
        prop_assert_eq!(silent.conflicts, empty.conflicts);
    }

    #[test]
    fn applying_the_difference_gives_the_new_set(a in any_pods(), b in any_pods()) {
        let merge = |pods| merge_sources(&sources(pods, synced(vec![])), &Incumbents::default()).pods;
        let (old, new) = (merge(a), merge(b));
        let mut applied: BTreeSet<_> = old.keys().cloned().collect();
        for operation in diff(&old, &new) {
            let uid = operation.pod().uid();
            match operation {
                PodOperation::Remove(_) => prop_assert!(applied.remove(&uid)),
                PodOperation::Add(_) => prop_assert!(applied.insert(uid)),
                PodOperation::Update(_) | PodOperation::Delete(_) | PodOperation::Reconcile(_) => {
                    prop_assert!(applied.contains(&uid));
                }
            }
        }
        prop_assert!(applied.iter().eq(new.keys()));
        prop_assert_eq!(diff(&new, &new), []);
    }
}

#[test]
fn names_of_the_api_servers_pods_are_its_own_affair() {
    let api = pod(PodSource::Api, "api server", 0, "web", "9");
    let states = |files: Vec<SourcePod>, api: SourceState| -> BTreeMap<_, _> {
        [
            (SourceName::new(PodSource::File, "/m"), synced(files)),
            (SourceName::new(PodSource::Api, ""), api),
        ]
        .into()
    };
    let files = || vec![file("/m/a", "web", "1"), file("/m/b", "web", "2")];
    let merged = merge_sources(
        &states(files(), synced(vec![api.clone()])),
        &incumbents(&[("web", "9")]),
    );
    // api 16
    assert_eq!(uids(&merged), ["1", "9"]);
    assert_eq!(merged.conflicts.len(), 1, "of the two files");
    let known = Incumbent {
        origin: Some(files()[0].origin.clone()),
        ..running("1")
    };
    let name = FullName::new("web", "ns");
    assert_eq!(merged.incumbents().pods, [(name, known)].into());
    // A UID can't be shared, whoever gives it.
    let same = pod(PodSource::Api, "api server", 0, "other", "1");
    let merged = merge_sources(&states(files(), synced(vec![same])), &Incumbents::default());
    assert_eq!(merged.pods[&"1".into()].origin.source, PodSource::File);
}

#[test]
fn what_may_be_stopped_depends_on_who_has_delivered() {
    const HASH: &str = "0123456789abcdef0123456789abcdef";
    const UUID: &str = "aaaa0000-0000-4000-8000-000000000001";
    let set = Arc::new(SourceSet::default());
    let (none, known, whole) = (
        SourceState::NotSynced,
        SourceState::LastKnown(Arc::clone(&set)),
        SourceState::Synced(set),
    );
    for (file, api, hash, uuid) in [
        (&none, Some(&none), false, false),
        (&none, Some(&whole), false, false),
        (&whole, Some(&none), true, false),
        (&whole, Some(&known), true, false),
        (&whole, Some(&whole), true, true),
        (&none, None, false, false),
        (&whole, None, true, true),
    ] {
        let mut states = BTreeMap::new();
        states.insert(SourceName::new(PodSource::File, "/m"), file.clone());
        if let Some(api) = api {
            states.insert(SourceName::new(PodSource::Api, ""), api.clone());
        }
        let delivered = merge_sources(&states, &Incumbents::default()).delivered;
        let got = [HASH, UUID].map(|uid| delivered.may_stop(&uid.into()));
        // pods 47
        assert_eq!(got, [hash, uuid], "{file:?} {api:?}");
        // A UID that an author chose can't be the API server's, unless it looks like one.
        assert_eq!(delivered.may_stop(&"my-own-uid".into()), hash);
    }
    assert!(!Merged::default().delivered.may_stop(&HASH.into()));
}

fn object(location: &str, kind: ObjectKind, name: &str, key: &str) -> SourceObject {
    let object =
        serde_json::json!({"metadata": {"name": name, "namespace": "ns"}, "data": {key: "eA=="}});
    let object = match kind {
        ObjectKind::ConfigMap => Object::ConfigMap(serde_json::from_value(object).unwrap()),
        ObjectKind::Secret => Object::Secret(serde_json::from_value(object).unwrap()),
        ObjectKind::Service => Object::Service(serde_json::from_value(object).unwrap()),
        other => unreachable!("{other:?}"),
    };
    SourceObject {
        object,
        origin: file(location, "web", "1").origin,
        held: false,
        places: Places::default(),
    }
}

fn with_objects(pods: Vec<SourcePod>, objects: Vec<SourceObject>) -> SourceState {
    SourceState::Synced(Arc::new(SourceSet {
        pods,
        objects,
        ..SourceSet::default()
    }))
}

#[test]
fn the_first_document_of_an_object_wins_unless_another_is_in_force() {
    let map = |location| object(location, ObjectKind::ConfigMap, "a", "k");
    let secret = object("/m/c", ObjectKind::Secret, "a", "k");
    let state = with_objects(vec![], vec![map("/m/b"), map("/m/a"), secret]);
    let sources = [(SourceName::new(PodSource::File, "/m"), state)].into();
    let place = |merged: &Merged| {
        let known = merged.objects.iter();
        let places = known.map(|(key, known)| format!("{key} {}", known.origin.location));
        places.collect::<Vec<_>>()
    };
    let merged = merge_sources(&sources, &Incumbents::default());
    // box 1
    assert_eq!(
        place(&merged),
        ["configmap \"ns/a\" /m/a", "secret \"ns/a\" /m/c"]
    );
    let told: Vec<String> = merged.conflicts.iter().map(ToString::to_string).collect();
    let words = "metadata.name: document 0 is ignored: ConfigMap ns/a is already defined by";
    assert_eq!(
        told,
        [format!("/m/b: {words} /m/a document 0 [duplicate-object]")]
    );
    let before = [(map("/m/b").object.key(), map("/m/b"))].into();
    let merged = super::merge_sources(&sources, &Incumbents::default(), &before);
    assert_eq!(
        place(&merged),
        ["configmap \"ns/a\" /m/b", "secret \"ns/a\" /m/c"]
    );
}

#[test]
fn references_that_lead_nowhere_are_told_once_everything_is_known() {
    let mut web = file("/m/web", "web", "1");
    Arc::make_mut(&mut web.pod).spec = serde_json::from_value(serde_json::json!({
        "imagePullSecrets": [{"name": "regcred"}],
        "containers": [{
            "name": "web",
            "env": [
                {"name": "A", "valueFrom": {"configMapKeyRef": {"name": "a", "key": "k"}}},
                {"name": "B", "valueFrom": {"configMapKeyRef": {"name": "a", "key": "missing"}}},
                {"name": "C", "valueFrom": {"secretKeyRef": {"name": "none", "key": "k", "optional": true}}},
            ],
            "envFrom": [{"secretRef": {"name": "a"}}, {"configMapRef": {"name": "none"}}],
        }],
        "volumes": [
            {"name": "v", "secret": {"secretName": "none"}},
            {"name": "w", "projected": {"sources": [
                {"configMap": {"name": "a", "items": [{"key": "l", "path": "p"}]}},
            ]}},
        ],
    }))
    .unwrap();
    let mut of_api = web.clone();
    of_api.origin.source = PodSource::Api;
    Arc::make_mut(&mut of_api.pod).metadata.uid = Some("2".into());
    let objects = vec![
        object("/m/a", ObjectKind::ConfigMap, "a", "k"),
        object("/m/b", ObjectKind::Secret, "a", "k"),
    ];
    let mut sources: BTreeMap<_, _> = [
        (
            SourceName::new(PodSource::File, "/m"),
            with_objects(vec![web], objects),
        ),
        (SourceName::new(PodSource::Api, "api"), synced(vec![of_api])),
    ]
    .into();
    let merged = merge_sources(&sources, &Incumbents::default());
    let told: Vec<String> = merged.conflicts.iter().map(ToString::to_string).collect();
    // box 3
    assert_eq!(
        told,
        [
            "/m/web: spec.imagePullSecrets[0].name: no manifest defines Secret ns/regcred [missing-object]",
            "/m/web: spec.containers[0].envFrom[1].configMapRef.name: no manifest defines ConfigMap ns/none [missing-object]",
            "/m/web: spec.containers[0].env[1].valueFrom.configMapKeyRef.key: ConfigMap ns/a has no key \"missing\" [missing-object]",
            "/m/web: spec.volumes[0].secret.secretName: no manifest defines Secret ns/none [missing-object]",
            "/m/web: spec.volumes[1].projected.sources[0].configMap.items[0].key: ConfigMap ns/a has no key \"l\" [missing-object]",
        ]
    );
    assert_eq!(merged.conflicts[0].pod.as_deref(), Some("ns/web"));
    let known = merged.known_objects();
    let none = object("/m/a", ObjectKind::ConfigMap, "none", "k")
        .object
        .key();
    assert!(known.complete && known.get(&none).unwrap_err().is_not_found());
    // A source that is silent may define them.
    sources.insert(
        SourceName::new(PodSource::Http, "http://a"),
        SourceState::NotSynced,
    );
    let merged = merge_sources(&sources, &Incumbents::default());
    assert_eq!(merged.conflicts, []);
    assert!(
        !merged
            .known_objects()
            .get(&none)
            .unwrap_err()
            .is_not_found()
    );
}

/// A pod of a Deployment in a file.
fn replica(location: &str, deployment: &str, number: u32, uid: &str) -> SourcePod {
    let mut pod = file(location, &format!("{deployment}-{number}"), uid);
    let owner = format!("Deployment/{deployment}");
    Arc::make_mut(&mut pod.pod).metadata.annotations =
        Some([(keys::WORKLOAD.to_owned(), owner)].into());
    pod
}

#[test]
fn two_documents_of_one_workload_are_never_mixed() {
    let a = |uids: [&str; 2]| [0, 1].map(|n: u32| replica("/m/a", "web", n, uids[n as usize]));
    let b = || [0, 1, 2].map(|n: u32| replica("/m/b", "web", n, ["4", "5", "6"][n as usize]));
    for (running, expected) in [
        (&[][..], &["1", "2"][..]),
        (&[("web-0", "1")], &["1", "2"]),
        (&[("web-0", "4")], &["4", "5", "6"]),
        // One pod that runs is enough, whichever it is.
        (&[("web-2", "6")], &["4", "5", "6"]),
    ] {
        let files = a(["1", "2"]).into_iter().chain(b()).collect();
        let merged = merge_sources(
            &sources(files, SourceState::NotSynced),
            &incumbents(running),
        );
        // workloads 5
        assert_eq!(uids(&merged), expected, "{running:?}");
        let conflicts: Vec<_> = merged.conflicts.iter().map(|c| &*c.message).collect();
        assert_eq!(conflicts.len(), 1, "{conflicts:?}");
        assert!(conflicts[0].contains("Deployment ns/web is already defined by /m/"));
    }
    // A pod of the same name keeps only that one from running.
    let files = [file("/m/0", "web-1", "9")]
        .into_iter()
        .chain(a(["1", "2"]));
    let merged = merge_sources(
        &sources(files.collect(), SourceState::NotSynced),
        &incumbents(&[]),
    );
    assert_eq!(uids(&merged), ["1", "9"]);
    assert_eq!(
        merged.conflicts[0].message,
        "a pod of Deployment ns/web (document 0) does not run: pod web-1_ns is already defined by /m/0 document 0"
    );
}

/// As in `mirrorlet validate`: not where the document begins.
#[test]
fn a_missing_object_is_reported_at_its_reference() {
    let text = "\
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers:
      - name: a
        image: a
        envFrom:
        - configMapRef: {name: none}
";
    let file = NewFile {
        location: "/m/web.yaml".to_owned(),
        bytes: text.as_bytes().to_vec(),
    };
    let set = with_files(&SourceSet::default(), &[file], true, &NodeName::from("box"));
    let state = SourceState::Synced(Arc::new(set));
    let sources = [(SourceName::new(PodSource::File, "/m"), state)].into();
    let merged = merge_sources(&sources, &Incumbents::default());
    let [problem] = &merged.conflicts[..] else {
        panic!("{:?}", merged.conflicts)
    };
    assert_eq!(
        problem.to_string(),
        "/m/web.yaml:14:32: spec.template.spec.containers[0].envFrom[0].configMapRef.name: no manifest defines ConfigMap default/none [missing-object]"
    );
    assert_eq!(problem.workload.as_deref(), Some("Deployment default/web"));
}

#[test]
fn a_port_that_pods_do_not_serve_is_a_problem_at_its_field() {
    use crate::api::diagnostic::Position;
    let at = |line| Position {
        line,
        column: 3,
        offset: 0,
        length: 1,
    };
    let mut web = file("/m/web.yaml", "web", "1");
    Arc::make_mut(&mut web.pod).metadata.labels = Some([("app".into(), "web".into())].into());
    let field = "spec.ports[0].targetPort";
    for (places, line) in [([(field.to_owned(), at(9))].into(), 9), ([].into(), 1)] {
        let mut service = object("/m/web.yaml", ObjectKind::Service, "web", "key");
        let spec = serde_json::json!({
            "metadata": {"name": "web", "namespace": "ns"},
            "spec": {"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": "http"}]},
        });
        service.object = Object::Service(serde_json::from_value(spec).unwrap());
        service.origin.position = Some(at(1));
        service.places = Arc::new(places);
        let set = with_objects(vec![web.clone()], vec![service]);
        let sources = [(SourceName::new(PodSource::File, "/m"), set)].into();
        let merged = merge_sources(&sources, &Incumbents::default());
        let found: Vec<_> = merged.conflicts.iter().collect();
        assert_eq!(found.len(), 1, "{found:?}");
        // names 7
        assert_eq!(found[0].position, Some(at(line)));
        assert_eq!(found[0].field.as_deref(), Some(field));
    }
}

#[test]
fn claims_of_a_set_that_was_scaled_down_are_its_own() {
    use crate::objects::claims::{Bound, ClaimName};
    let text = |replicas: u32| {
        format!(
            "\
apiVersion: apps/v1
kind: StatefulSet
metadata: {{name: db}}
spec:
  replicas: {replicas}
  serviceName: db
  selector: {{matchLabels: {{app: db}}}}
  template:
    metadata: {{labels: {{app: db}}}}
    spec:
      containers: [{{name: a, image: a}}]
  volumeClaimTemplates:
  - metadata: {{name: data}}
    spec:
      accessModes: [ReadWriteOnce]
      resources: {{requests: {{storage: 1Gi}}}}
"
        )
    };
    let merged = |replicas: u32, bindings: &Bindings| {
        let file = NewFile {
            location: "/m/db.yaml".to_owned(),
            bytes: text(replicas).into_bytes(),
        };
        let set = with_files(&SourceSet::default(), &[file], true, &NodeName::from("box"));
        let state = SourceState::Synced(Arc::new(set));
        let sources = [(SourceName::new(PodSource::File, "/m"), state)].into();
        let mut merged = merge_sources(&sources, &Incumbents::default());
        merged.delivered.manifests = true;
        merged.bind_claims(bindings);
        merged
    };
    let claims = |merged: &Merged| -> Vec<String> {
        let keys = merged.objects.keys();
        keys.map(|key| key.name.clone()).collect()
    };
    let full = merged(2, &Bindings::new());
    assert_eq!(claims(&full), ["data-db-0", "data-db-1"]);
    let mut bindings = full.bindings;
    let other = ClaimName::new("default", "data-dbs-0");
    bindings.insert(other, Bound::Volume("disk".to_owned()));
    for replicas in [1, 0] {
        let down = merged(replicas, &bindings);
        assert_eq!(claims(&down), ["data-db-0", "data-db-1"], "{replicas}");
        // Their volumes are in use by the set, not released.
        let known = down.known_objects();
        let volumes = known.claims().volumes_report(&BTreeMap::new(), &[]);
        let states = volumes.iter().map(|v| format!("{} {:?}", v.claim, v.state));
        assert_eq!(
            states.collect::<Vec<_>>(),
            ["data-db-0 Bound", "data-db-1 Bound", "data-dbs-0 Released"]
        );
    }
}
