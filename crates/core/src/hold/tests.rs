use super::*;
use crate::api::{FullName, NodeName, Pod, keys};
use crate::desired::SourceSet;
use crate::manifest::{AcceptedPod, AcceptedWorkload};
use crate::workload::{WorkloadKey, WorkloadKind};

const LOCATION: &str = "/m/web.yaml";
/// The text of the documents below, as far as these tests care.
const TEXT: &str = "one\n---\ntwo\n";
const LONG_AGO: Duration = Duration::from_hours(1);

fn pod(name: &str, version: &str) -> Arc<Pod> {
    let mut pod = Pod::default();
    pod.metadata.name = Some(name.into());
    pod.metadata.namespace = Some("ns".into());
    pod.metadata.uid = Some(format!("{name}-{version}"));
    Arc::new(pod)
}

fn content(name: &str, version: &str) -> Accepted {
    Accepted::Pod(AcceptedPod {
        pod: pod(name, version),
        canonical: format!("{name} {version}").into(),
    })
}

fn good(number: u32, name: &str, version: &str) -> LastGoodDocument {
    LastGoodDocument {
        number,
        key: DocumentKey::Pod(FullName::new(name, "ns")),
        values: 0,
        content: content(name, version),
    }
}

fn uid(good: &LastGoodDocument) -> String {
    match &good.content {
        Accepted::Pod(accepted) => accepted.pod.metadata.uid.clone().unwrap(),
        Accepted::Object(object) => object.key().to_string(),
        Accepted::Workload(workload) => workload.key.to_string(),
        Accepted::Namespace => unreachable!("it is not kept"),
    }
}

fn last_good(documents: &[LastGoodDocument]) -> LastGood {
    LastGood {
        raw: TEXT.into(),
        may_hold_secret: false,
        documents: documents.to_vec(),
    }
}

fn accepted(number: u32, name: &str, version: &str) -> Document {
    Document {
        number,
        position: None,
        key: Some(DocumentKey::Pod(FullName::new(name, "ns"))),
        values: 0,
        may_be_secret: false,
        accepted: Some(content(name, version)),
        places: Arc::default(),
        problems: vec![Diagnostic::warning(Code::UnknownField, LOCATION, "hm")],
    }
}

fn rejected(number: u32, name: Option<&str>) -> Document {
    Document {
        number,
        position: None,
        key: name.map(|name| DocumentKey::Pod(FullName::new(name, "ns"))),
        values: 0,
        may_be_secret: false,
        accepted: None,
        places: Arc::default(),
        problems: vec![Diagnostic::error(
            Code::InvalidValue,
            LOCATION,
            format!("bad {number}"),
        )],
    }
}

fn documents(documents: &[Document]) -> Parsed {
    Parsed {
        documents: documents.to_vec(),
        problems: Vec::new(),
    }
}

fn broken(code: Code) -> Parsed {
    Parsed {
        documents: Vec::new(),
        problems: vec![Diagnostic::error(code, LOCATION, "broken")],
    }
}

fn decide(
    raw: &str,
    parsed: &Parsed,
    seen_for: Duration,
    good: &[LastGoodDocument],
) -> FileDecision {
    let present = Present {
        source: PodSource::File,
        location: LOCATION,
        raw: raw.as_bytes(),
        parsed,
        seen_for,
    };
    decide_file(present, Some(&last_good(good)))
}

/// `name-version`, `held` if so, codes of the problems.
fn told(decision: &FileDecision) -> Vec<String> {
    let line = |pod: &SourcePod| {
        let held = if pod.held { " held" } else { "" };
        let codes = pod
            .problems
            .iter()
            .filter(|p| p.is_error())
            .map(|p| format!(" {}", p.code));
        format!("{}{held}{}", pod.uid(), codes.collect::<String>())
    };
    decision.pods.iter().map(line).collect()
}

fn kept(decision: &FileDecision) -> Option<Vec<String>> {
    let good = decision.last_good.as_ref()?;
    Some(good.documents.iter().map(uid).collect())
}

#[test]
fn a_broken_file_holds_everything_for_ever() {
    let before = [good(0, "one", "1"), good(1, "two", "1")];
    for (raw, code, name) in [
        ("", Code::Empty, "empty"),
        ("# nothing", Code::Empty, "empty"),
        ("one\n---\nt", Code::Syntax, "syntax"),
        ("", Code::Unreadable, "unreadable"),
        ("", Code::TooLarge, "too-large"),
    ] {
        for seen_for in [Duration::ZERO, LONG_AGO] {
            let decision = decide(raw, &broken(code), seen_for, &before);
            let expected = [format!("one-1 held {name}"), format!("two-1 held {name}")];
            assert_eq!(told(&decision), expected);
            assert_eq!(decision.problems, []);
            assert_eq!(decision.last_good, None);
            assert_eq!(decision.look_again, None);
        }
    }
}

#[test]
fn without_a_last_good_version_there_is_only_the_problem() {
    let parsed = broken(Code::Syntax);
    let decision = decide("x", &parsed, LONG_AGO, &[]);
    assert_eq!(told(&decision), [""; 0]);
    assert_eq!(decision.problems, parsed.problems);
    let parsed = documents(&[rejected(0, Some("one")), rejected(1, None)]);
    let decision = decide("one\n---\ntwo or more\n", &parsed, LONG_AGO, &[]);
    assert_eq!(decision.problems.len(), 2);
    // pods 2
    assert_eq!(kept(&decision), Some(vec![]));
}

/// Why, documents, pods, what is last good then, number of problems of no pod.
type Case<'a> = (&'a str, &'a [Document], &'a [&'a str], &'a [&'a str], usize);

#[test]
fn documents_are_decided_one_by_one() {
    let before = [good(0, "one", "1"), good(1, "two", "1")];
    let cases: [Case<'_>; 10] = [
        (
            "unchanged",
            &[accepted(0, "one", "1"), accepted(1, "two", "1")],
            &["one-1", "two-1"],
            &["one-1", "two-1"],
            0,
        ),
        (
            "one is edited",
            &[accepted(0, "one", "2"), accepted(1, "two", "1")],
            &["one-2", "two-1"],
            &["one-2", "two-1"],
            0,
        ),
        (
            "two is removed",
            &[accepted(0, "one", "1")],
            &["one-1"],
            &["one-1"],
            0,
        ),
        ("a list is emptied", &[], &[], &[], 0),
        (
            "one is renamed",
            &[accepted(0, "new", "1"), accepted(1, "two", "1")],
            &["new-1", "two-1"],
            &["new-1", "two-1"],
            0,
        ),
        (
            "two is broken",
            &[accepted(0, "one", "2"), rejected(1, Some("two"))],
            &["one-2", "two-1 held invalid-value"],
            &["one-2", "two-1"],
            0,
        ),
        (
            "two is broken, one removed, or swallowed by it",
            &[rejected(0, Some("two"))],
            &["one-1 held invalid-value", "two-1 held invalid-value"],
            &["one-1", "two-1"],
            0,
        ),
        (
            "something is broken",
            &[accepted(0, "two", "2"), rejected(1, None)],
            &["two-2", "one-1 held invalid-value"],
            &["two-2", "one-1"],
            0,
        ),
        (
            "all is broken",
            &[rejected(0, None), rejected(1, None)],
            &[
                "one-1 held invalid-value invalid-value",
                "two-1 held invalid-value invalid-value",
            ],
            &["one-1", "two-1"],
            0,
        ),
        (
            "a broken namesake",
            &[accepted(0, "one", "1"), rejected(1, Some("one"))],
            &["one-1"],
            &["one-1"],
            1,
        ),
    ];
    for (why, parsed, pods, last_good, problems) in cases {
        let decision = decide(
            "other text than before\n",
            &documents(parsed),
            Duration::ZERO,
            &before,
        );
        let mut stored = kept(&decision).unwrap();
        let mut expected: Vec<_> = last_good.iter().map(ToString::to_string).collect();
        stored.sort();
        expected.sort();
        assert_eq!(told(&decision), pods, "{why}");
        assert_eq!(stored, expected, "{why}");
        assert_eq!(decision.problems.len(), problems, "{why}");
        assert_eq!(decision.look_again, None, "{why}");
    }
}

#[test]
fn a_broken_document_of_a_new_name_may_be_any_of_them() {
    // `two` was renamed to `three`, with a mistake: its pod must not stop for that.
    let before = [good(0, "one", "1"), good(1, "two", "1")];
    let parsed = documents(&[accepted(0, "one", "1"), rejected(1, Some("three"))]);
    let decision = decide("one\n---\nthree three\n", &parsed, LONG_AGO, &before);
    assert_eq!(told(&decision), ["one-1", "two-1 held invalid-value"]);
}

#[test]
fn warnings_stay_with_their_pod() {
    let decision = decide("x\n", &documents(&[accepted(0, "one", "2")]), LONG_AGO, &[]);
    assert_eq!(decision.pods[0].problems[0].code, Code::UnknownField);
    assert!(!decision.pods[0].held);
    assert_eq!(decision.problems, []);
}

#[test]
fn a_cut_off_text_is_held_for_a_while() {
    let before = [good(0, "one", "1"), good(1, "two", "1")];
    let held = ["one-1 held half-written", "two-1 held half-written"];
    let parsed = documents(&[accepted(0, "one", "1")]);
    // At a document's end, in the middle of a line, and another text that ends so.
    for raw in ["one\n", "on", "uno"] {
        for (seen_for, look_again) in [(0, 10), (1, 9), (9, 1)] {
            let decision = decide(raw, &parsed, Duration::from_secs(seen_for), &before);
            assert_eq!(told(&decision), held, "{raw:?}");
            assert_eq!(decision.last_good, None);
            assert_eq!(decision.look_again, Some(Duration::from_secs(look_again)));
        }
        let decision = decide(raw, &parsed, HALF_WRITTEN_HOLD, &before);
        assert_eq!(told(&decision), ["one-1"], "{raw:?}");
        assert_eq!(kept(&decision), Some(vec!["one-1".to_owned()]));
    }
}

#[test]
fn a_cut_off_text_with_errors_is_held_for_ever() {
    let before = [
        good(0, "one", "1"),
        good(1, "two", "1"),
        good(2, "three", "1"),
    ];
    let parsed = documents(&[accepted(0, "one", "1"), rejected(1, Some("two"))]);
    let decision = decide("one\n---\nt", &parsed, LONG_AGO, &before);
    let expected =
        ["one", "two", "three"].map(|n| format!("{n}-1 held half-written invalid-value"));
    assert_eq!(told(&decision), expected);
    assert_eq!(decision.look_again, None);
}

#[test]
fn what_is_cut_off_without_a_loss_is_fine() {
    let before = [good(0, "one", "1"), good(1, "two", "1")];
    let same = documents(&[accepted(0, "one", "1"), accepted(1, "two", "1")]);
    let decision = decide(TEXT.trim_end(), &same, Duration::ZERO, &before);
    assert_eq!(told(&decision), ["one-1", "two-1"]);
    // A shorter text that ends as a text should is an edit.
    let decision = decide(
        "uno\n",
        &documents(&[accepted(0, "one", "2")]),
        Duration::ZERO,
        &before,
    );
    assert_eq!(told(&decision), ["one-2"]);
    // So is a longer one, however it ends.
    let longer = documents(&[accepted(0, "one", "2")]);
    let decision = decide("one, longer than before", &longer, Duration::ZERO, &before);
    assert_eq!(told(&decision), ["one-2"]);
}

mod properties {
    use proptest::prelude::*;
    use proptest::sample::select;

    use super::*;

    fn document() -> impl Strategy<Value = Document> {
        let name = select(vec!["a", "b", "c"]);
        prop_oneof![
            (name.clone(), select(vec!["1", "2"])).prop_map(|(n, v)| accepted(0, n, v)),
            proptest::option::of(name).prop_map(|n| rejected(0, n)),
        ]
    }

    fn file() -> impl Strategy<Value = Parsed> {
        let numbered = |mut list: Vec<Document>| {
            for (number, document) in (0..).zip(&mut list) {
                document.number = number;
            }
            documents(&list)
        };
        prop_oneof![
            4 => proptest::collection::vec(document(), 0..4).prop_map(numbered),
            1 => Just(broken(Code::Syntax)),
        ]
    }

    proptest! {
        #[test]
        fn only_a_sound_file_takes_a_pod_away(
            parsed in file(),
            raw in select(vec!["", "one\n", "one\n---\nt", "something else\n", TEXT]),
            seen_for in select(vec![Duration::ZERO, LONG_AGO]),
            names in proptest::sample::subsequence(vec!["a", "b", "c"], 0..=3),
        ) {
            let before: Vec<_> = (0..).zip(names).map(|(i, name)| good(i, name, "1")).collect();
            let decision = decide(raw, &parsed, seen_for, &before);
            let runs = |key: &DocumentKey| decision.pods.iter().any(|pod| DocumentKey::Pod(pod.full_name()) == *key);
            let unknown_rejected = parsed.documents.iter().any(|document| {
                document.accepted.is_none() && document.key.is_none()
            });
            let broken = parsed.problems.iter().any(Diagnostic::is_error);
            for pod in &before {
                let mentioned = parsed.documents.iter().any(|document| {
                    document.key.as_ref() == Some(&pod.key)
                });
                if broken || unknown_rejected || mentioned {
                    prop_assert!(runs(&pod.key), "{:?} was taken away", pod.key);
                }
            }
            // Every error is told somewhere.
            let told: Vec<_> = decision.problems.iter()
                .chain(decision.pods.iter().flat_map(|pod| &pod.problems)).collect();
            for problem in parsed.problems.iter().chain(
                parsed.documents.iter().flat_map(|document| &document.problems),
            ).filter(|problem| problem.is_error()) {
                prop_assert!(told.contains(&problem));
            }
            // A held pod says why; what waits is decided in the end.
            for pod in decision.pods.iter().filter(|pod| pod.held) {
                prop_assert!(pod.problems.iter().any(Diagnostic::is_error));
            }
            prop_assert!(decision.look_again.is_none() || seen_for < HALF_WRITTEN_HOLD);
            // The decision is stable: taken again on what it left, nothing else runs.
            if let Some(good) = &decision.last_good {
                let present = Present {
                    source: PodSource::File, location: LOCATION, raw: raw.as_bytes(),
                    parsed: &parsed, seen_for,
                };
                let again = decide_file(present, Some(good));
                prop_assert_eq!(&again.pods, &decision.pods);
            }
        }
    }
}

/// The decision about a text with objects after another one was in force.
fn decide_text(before: &str, after: &str) -> FileDecision {
    let node = crate::api::NodeName::from("n");
    let context = crate::manifest::ParseContext {
        node_name: &node,
        source: PodSource::File,
        location: LOCATION,
    };
    let decide = |text: &str, good: Option<&LastGood>| {
        let parsed = crate::manifest::parse_manifest(text.as_bytes(), &context);
        let present = Present {
            source: PodSource::File,
            location: LOCATION,
            raw: text.as_bytes(),
            parsed: &parsed,
            seen_for: LONG_AGO,
        };
        decide_file(present, good)
    };
    let first = decide(before, None);
    assert_eq!(first.problems, []);
    decide(after, first.last_good.as_ref())
}

/// Without it, the last of two documents takes the place of both.
#[test]
fn documents_without_a_line_between_them_are_held() {
    let config = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: web}\ndata: {k: v}\n";
    let pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {containers: [{name: a, image: i}]}\n";
    let list = "apiVersion: v1\nkind: List\nitems: []\n";
    for (first, second) in [(pod, config), (config, pod), (pod, list)] {
        let before = format!("{first}---\n{second}");
        let decision = decide_text(&before, &format!("{first}{second}"));
        let [held] = &decision.pods[..] else {
            panic!("{decision:?}")
        };
        assert!(held.held);
        assert_eq!(objects_of(&decision).len(), usize::from(second != list));
        assert_eq!(
            held.problems[0].to_string(),
            "/m/web.yaml:5:1: apiVersion: duplicate key at the top level of a document [duplicate-name]"
        );
        assert!(held.problems[0].help.as_deref().unwrap().contains("---"));
    }
}

/// `key=value` of each object, `held` if so.
fn objects_of(decision: &FileDecision) -> Vec<String> {
    let line = |known: &SourceObject| {
        let value = match &known.object {
            crate::objects::Object::ConfigMap(object) => object.data.clone().unwrap()["k"].clone(),
            crate::objects::Object::Secret(object) => {
                String::from_utf8(object.data.clone().unwrap()["k"].0.clone()).unwrap()
            }
            crate::objects::Object::Service(object) => {
                object.spec.clone().unwrap().selector.unwrap()["k"].clone()
            }
            other => unreachable!("{other:?}"),
        };
        let held = if known.held { " held" } else { "" };
        format!("{}={value}{held}", known.object.key())
    };
    decision.objects.iter().map(line).collect()
}

#[test]
fn objects_are_held_as_pods_are() {
    let map = |name: &str, value: &str| {
        format!(
            "{{apiVersion: v1, kind: ConfigMap, metadata: {{name: {name}}}, data: {{k: {value}}}}}\n"
        )
    };
    let secret = |value: &str| {
        format!(
            "{{apiVersion: v1, kind: Secret, metadata: {{name: s}}, stringData: {{k: {value}}}}}\n"
        )
    };
    let immutable = |text: &str| text.replace("metadata", "immutable: true, metadata");
    let both = |a: &str, b: &str| format!("{a}---\n{b}");
    let before = both(&map("a", "hunter1"), &secret("hunter1"));
    let (a, s) = ("configmap \"default/a\"", "secret \"default/s\"");
    for (why, before, after, objects, codes) in [
        (
            "edited",
            before.clone(),
            both(&map("a", "hunter2"), &secret("hunter2")),
            vec![format!("{a}=hunter2"), format!("{s}=hunter2")],
            vec![],
        ),
        (
            "removed",
            before.clone(),
            map("a", "hunter1"),
            vec![format!("{a}=hunter1")],
            vec![],
        ),
        (
            "broken as a whole",
            before.clone(),
            "{".to_owned(),
            vec![format!("{a}=hunter1 held"), format!("{s}=hunter1 held")],
            vec![Code::HalfWritten],
        ),
        (
            "one broken",
            before.clone(),
            both(&map("a", "hunter2"), &secret("[]")),
            vec![format!("{a}=hunter2"), format!("{s}=hunter1 held")],
            vec![Code::InvalidType],
        ),
        (
            "renamed with a mistake",
            before.clone(),
            both(&map("B", "hunter2"), &secret("hunter2")),
            vec![format!("{a}=hunter1 held"), format!("{s}=hunter2")],
            vec![Code::InvalidValue],
        ),
        (
            "immutable and edited",
            both(
                &immutable(&map("a", "hunter1")),
                &immutable(&secret("hunter1")),
            ),
            both(&immutable(&map("a", "hunter2")), &secret("hunter1")),
            vec![format!("{a}=hunter1 held"), format!("{s}=hunter1 held")],
            vec![Code::Immutable, Code::Immutable],
        ),
        (
            "made immutable",
            before.clone(),
            both(
                &immutable(&map("a", "hunter2")),
                &immutable(&secret("hunter2")),
            ),
            vec![format!("{a}=hunter2"), format!("{s}=hunter2")],
            vec![],
        ),
        (
            "another kind of document",
            before.clone(),
            both(
                &before,
                "{apiVersion: v1, kind: Namespace, metadata: {name: a}}\n",
            ),
            vec![format!("{a}=hunter1"), format!("{s}=hunter1")],
            vec![],
        ),
    ] {
        let decision = decide_text(&before, &after);
        // box 1
        assert_eq!(objects_of(&decision), objects, "{why}");
        let found: Vec<Code> = decision.problems.iter().map(|p| p.code).collect();
        assert_eq!(found, codes, "{why}");
        let text = format!("{decision:?}");
        // box 4
        assert!(
            !text.contains("hunter1") && !text.contains("hunter2"),
            "{text}"
        );
    }
}

/// A Deployment's document with one pod for each version.
fn workload(versions: &[&str]) -> Document {
    let key = WorkloadKey {
        kind: WorkloadKind::Deployment,
        namespace: "ns".to_owned(),
        name: "web".to_owned(),
    };
    let pods = versions.iter().enumerate();
    let pods = pods.map(|(number, version)| {
        let mut pod = pod(&format!("web-{number}"), version);
        let owner = (keys::WORKLOAD.to_owned(), key.owner());
        Arc::make_mut(&mut pod).metadata.annotations = Some([owner].into());
        pod
    });
    Document {
        key: Some(DocumentKey::Workload(key.clone())),
        accepted: Some(Accepted::Workload(AcceptedWorkload {
            set: None,
            template_hash: String::new(),
            template: None,
            runs: None,
            pods: pods.collect(),
            key,
            canonical: versions.join(" ").into(),
        })),
        ..accepted(0, "web", "v")
    }
}

#[test]
fn a_broken_workload_keeps_all_its_pods() {
    let good = workload(&["1", "1"]);
    let kept = |decision: &FileDecision| decision.last_good.clone().unwrap().documents;
    let decision = decide("x", &documents(std::slice::from_ref(&good)), LONG_AGO, &[]);
    let known = kept(&decision);
    assert_eq!(told(&decision), ["web-0-1", "web-1-1"]);
    let rejected = Document {
        accepted: None,
        problems: vec![Diagnostic::error(Code::InvalidValue, LOCATION, "bad")],
        ..good.clone()
    };
    for parsed in [documents(&[rejected]), broken(Code::Syntax)] {
        let decision = decide("longer than before", &parsed, LONG_AGO, &known);
        let held = decision.pods.iter().filter(|pod| pod.held).count();
        // workloads 6
        assert_eq!((held, decision.pods.len()), (2, 2));
        assert_eq!(decision.problems, []);
        assert!(decision.pods.iter().all(|pod| pod.problems.len() == 1));
        if let Some(good) = decision.last_good {
            assert_eq!(good.documents, known);
        }
    }
    // Scaled down, and to none: what is wrong is told all the same.
    let decision = decide("x", &documents(&[workload(&["1"])]), LONG_AGO, &known);
    assert_eq!(told(&decision), ["web-0-1"]);
    let decision = decide("x", &documents(&[workload(&[])]), LONG_AGO, &known);
    assert_eq!(decision.pods, []);
    assert_eq!(decision.problems.len(), 1);
    // With no document, there is no pod.
    let decision = decide("x", &documents(&[]), LONG_AGO, &known);
    assert_eq!(decision.pods, []);
}

#[test]
fn a_planned_file_is_refused_where_the_agent_would_refuse_it() {
    let node = NodeName::from("box");
    let file = |number: usize, image: &str, variables: usize| {
        let variables = "{name: a, value: b}, ".repeat(variables);
        let text = format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: p{number}}}\nspec: {{containers: [{{name: c, image: \"{image}\", env: [{variables}]}}]}}\n"
        );
        NewFile {
            location: format!("/m/p{number}.yaml"),
            bytes: text.into_bytes(),
        }
    };
    let mut full: Vec<NewFile> = (0..11).map(|number| file(number, "a:1", 3_000)).collect();
    full.push(file(11, "a:1", 10));
    let present = with_files(&SourceSet::default(), &full, true, &node);
    assert_eq!((present.pods.len(), present.problems.len()), (12, 0));
    let edit = |files: &[NewFile]| {
        let set = with_files(&present, files, false, &node);
        let mut pods = set.pods.iter();
        let pod = pods.find(|pod| pod.origin.location == "/m/p11.yaml");
        let pod = pod.cloned().unwrap();
        let image = pod.pod.spec.as_ref().unwrap().containers[0].image.clone();
        let codes: Vec<Code> = pod.problems.iter().map(|problem| problem.code).collect();
        (image.unwrap(), pod.held, codes)
    };
    let larger = file(11, "a:2", 3_000);
    // tenants M8
    assert_eq!(
        edit(std::slice::from_ref(&larger)),
        ("a:1".to_owned(), true, vec![Code::TooLarge])
    );
    // Another file of the same edit makes room.
    let smaller = file(10, "a:1", 10);
    assert_eq!(edit(&[larger, smaller]), ("a:2".to_owned(), false, vec![]));
}

#[test]
fn a_planned_file_that_is_rejected_in_part_has_the_size_that_the_agent_finds() {
    let node = NodeName::from("box");
    let pod = |name: &str, image: &str, variables: usize| {
        let variables = "{name: a, value: b}, ".repeat(variables);
        format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec: {{containers: [{{name: c, image: \"{image}\", env: [{variables}]}}]}}\n"
        )
    };
    let file = |name: &str, documents: &[String]| NewFile {
        location: format!("/m/{name}.yaml"),
        bytes: documents.join("---\n").into_bytes(),
    };
    // The second document of a file, which is rejected.
    let wrong =
        || "apiVersion: v1\nkind: Pod\nmetadata: {name: b}\nspec: {containers: []}\n".to_owned();
    let others: Vec<NewFile> = (0..10)
        .map(|number| format!("p{number}"))
        .map(|name| file(&name, &[pod(&name, "a:1", 3_000)]))
        .collect();
    let planned = |before: &[String], edit: &[NewFile], name: &str| {
        let mut full = others.clone();
        full.push(file("two", before));
        let present = with_files(&SourceSet::default(), &full, true, &node);
        assert_eq!((present.pods.len(), present.problems.len()), (12, 0));
        let set = with_files(&present, edit, false, &node);
        let is_it = |known: &&SourcePod| known.pod.metadata.name.as_deref() == Some(name);
        let found = set.pods.iter().find(is_it)?;
        let image = found.pod.spec.as_ref()?.containers[0].image.clone();
        Some((image?, found.held))
    };
    // The document that is rejected keeps its room, beside one that became larger.
    let before = [pod("a", "a:1", 10), pod("b", "a:1", 3_000)];
    let edit = [file("two", &[pod("a", "a:2", 3_000), wrong()])];
    // tenants M8
    assert_eq!(
        planned(&before, &edit, "a-box"),
        Some(("a:1".to_owned(), true))
    );
    // One that became smaller gives its room to another file.
    let before = [pod("a", "a:1", 3_000), pod("b", "a:1", 10)];
    let edit = [
        file("two", &[pod("a", "a:2", 10), wrong()]),
        file("p10", &[pod("p10", "a:1", 3_000)]),
    ];
    for (name, image) in [("a-box", "a:2"), ("p10-box", "a:1")] {
        // tenants M8
        assert_eq!(
            planned(&before, &edit, name),
            Some((image.to_owned(), false))
        );
    }
}
