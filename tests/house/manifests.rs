//! Manifests, good and bad, through the public API: what each is told.
//!
//! One snapshot per file of `manifests/bad`. Add a file there for each new kind of fault.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use mirrorlet_core::api::{Code, NodeName};
use mirrorlet_core::desired::PodSource;
use mirrorlet_core::manifest::{
    Accepted, Document, DocumentKey, MANIFEST_BYTES_MAX, ParseContext, Parsed,
    document_from_canonical, parse_manifest, render,
};
use proptest::prelude::*;
use serde_json::Value;

fn node() -> NodeName {
    NodeName::from("Node-A")
}

fn parse(bytes: &[u8], location: &str) -> Parsed {
    let node_name = node();
    let ctx = ParseContext {
        node_name: &node_name,
        source: PodSource::File,
        location,
    };
    parse_manifest(bytes, &ctx)
}

fn files(directory: &str) -> Vec<(String, Vec<u8>)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/house/manifests");
    let mut paths: Vec<PathBuf> = fs::read_dir(root.join(directory))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    paths.sort();
    assert!(!paths.is_empty());
    paths
        .into_iter()
        .map(|path| {
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            (name, fs::read(&path).unwrap())
        })
        .collect()
}

/// The document as its author wrote it; none of a Secret in YAML.
fn canonical(document: &Document, bytes: &[u8]) -> Option<Value> {
    match document.accepted.as_ref().unwrap() {
        Accepted::Pod(accepted) => Some(accepted.canonical.clone()),
        Accepted::Object(object) => object
            .canonical()
            .or_else(|| serde_json::from_slice(bytes).ok()),
        Accepted::Workload(workload) => Some(workload.canonical.clone()),
        Accepted::Namespace => None,
    }
}

fn told(parsed: &Parsed, source: &[u8]) -> String {
    let text = std::str::from_utf8(source).ok();
    let mut out = String::new();
    for document in &parsed.documents {
        let name = document.key.as_ref().map(|key| match key {
            DocumentKey::Pod(name) => name.to_string(),
            DocumentKey::Object(key) => key.to_string(),
            DocumentKey::Workload(key) => key.to_string(),
        });
        let verdict = match document.accepted {
            Some(_) => "accepted",
            None => "rejected",
        };
        let _ = write!(
            out,
            "document {}: {} {verdict}\n\n",
            document.number,
            name.as_deref().unwrap_or("(no name)")
        );
        for problem in &document.problems {
            let _ = write!(out, "{problem}\n{}\n\n", render(problem, text, false));
        }
    }
    for problem in &parsed.problems {
        let _ = write!(out, "{problem}\n{}\n\n", render(problem, text, false));
    }
    out
}

#[test]
fn each_bad_manifest_is_told_what_is_wrong() {
    for (name, bytes) in files("bad") {
        let parsed = parse(&bytes, &name);
        let documents = parsed.documents.iter().flat_map(|d| &d.problems);
        assert!(
            parsed.problems.iter().chain(documents).next().is_some(),
            "{name} has no problem"
        );
        let text = told(&parsed, &bytes);
        // The value of an environment variable is only ever in a drawn source line.
        for line in text.lines().filter(|line| line.contains("hunter2")) {
            assert!(line.contains(" | "), "{name}: {line}");
        }
        insta::with_settings!({
            snapshot_path => "manifests/snapshots",
            prepend_module_to_snapshot => false,
            omit_expression => true,
        }, {
            // pods 22, docker 68, box 19
            insta::assert_snapshot!(name.replace('.', "-"), text);
        });
    }
}

#[test]
fn a_mount_of_an_image_has_no_options_of_bind_mounts() {
    for (options, expected) in [
        ("subPath: html", None),
        ("mountPropagation: None, recursiveReadOnly: Disabled", None),
        ("subPathExpr: a", Some("subPathExpr")),
        (
            "mountPropagation: HostToContainer",
            Some("mountPropagation"),
        ),
        (
            "readOnly: true, recursiveReadOnly: IfPossible",
            Some("recursiveReadOnly"),
        ),
    ] {
        for volume in ["image: {reference: \"site:7\"}", "emptyDir: {}"] {
            let text = format!(
                "apiVersion: v1\nkind: Pod\nmetadata: {{name: web}}\nspec:\n  containers:\n  - {{name: c, image: i, volumeMounts: [{{name: site, mountPath: /srv, {options}}}]}}\n  volumes: [{{name: site, {volume}}}]\n"
            );
            let parsed = parse(text.as_bytes(), "/m/web.yaml");
            assert_eq!(parsed.problems, [], "{text}");
            let problems = parsed.documents.iter().flat_map(|d| &d.problems);
            let told: Vec<String> = problems.map(|problem| problem.message.clone()).collect();
            let refused = expected.filter(|_| volume.starts_with("image"));
            let refused =
                refused.map(|field| format!("mounts of image volumes do not support {field}"));
            // pods 22
            assert_eq!(told, Vec::from_iter(refused), "{text}");
        }
    }
}

#[test]
fn good_manifests_are_clean_and_come_back_from_their_canonical_form() {
    for (name, bytes) in files("good") {
        let parsed = parse(&bytes, &name);
        assert_eq!(parsed.problems, [], "{name}");
        assert!(!parsed.documents.is_empty(), "{name}");
        for document in &parsed.documents {
            assert_eq!(document.problems, [], "{name}");
            let Some(canonical) = canonical(document, &bytes) else {
                continue;
            };
            let stored = serde_json::to_vec(&canonical).unwrap();
            let canonical: Value = serde_json::from_slice(&stored).unwrap();
            let node_name = node();
            let ctx = ParseContext {
                node_name: &node_name,
                source: PodSource::File,
                location: &name,
            };
            let accepted = document.accepted.as_ref();
            let restored = document_from_canonical(&canonical, &ctx).unwrap();
            assert_eq!(Some(&restored), accepted, "{name}");
            let reparsed = parse(&stored, &name);
            assert_eq!(reparsed.documents[0].accepted.as_ref(), accepted);
        }
    }
}

#[test]
fn a_static_pod_looks_as_upstream_makes_it() {
    let files = files("good");
    let (name, bytes) = files.iter().find(|(name, _)| name == "rich.yaml").unwrap();
    let parsed = parse(bytes, name);
    insta::with_settings!({
        snapshot_path => "manifests/snapshots",
        prepend_module_to_snapshot => false,
        omit_expression => true,
    }, {
        // pods 18
        insta::assert_json_snapshot!("good-rich", parsed.documents[0].pods()[0]);
    });
}

#[test]
fn a_file_of_more_than_ten_mebibytes_is_not_read() {
    let parsed = parse(&vec![b'#'; MANIFEST_BYTES_MAX + 1], "big.yaml");
    assert_eq!(parsed.problems[0].code, Code::TooLarge);
    assert!(parsed.documents.is_empty());
}

#[test]
fn what_is_too_large_is_refused_before_anything_is_made_of_it() {
    let deployment = |name: &str, replicas: u32, variables: usize| {
        let variable = "{name: a, value: b},".repeat(variables);
        format!(
            "apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: {name}}}\nspec:\n  replicas: {replicas}\n  \
             selector: {{matchLabels: {{a: b}}}}\n  template:\n    metadata: {{labels: {{a: b}}}}\n    spec:\n      \
             containers:\n      - {{name: c, image: i, env: [{variable}]}}\n---\n"
        )
    };
    let pods_of = |text: &str| {
        let parsed = parse(text.as_bytes(), "web.yaml");
        let pods = parsed.documents.iter().map(|document| {
            let refused = document.problems.iter().any(|p| p.code == Code::TooLarge);
            assert_eq!(
                refused,
                document.accepted.is_none(),
                "{:?}",
                document.problems
            );
            assert!(document.key.is_some(), "it can be held");
            document.pods().len()
        });
        pods.collect::<Vec<_>>()
    };
    // tenants M8
    assert_eq!(pods_of(&deployment("web", 1100, 10)), [1100]);
    assert_eq!(pods_of(&deployment("web", 1, 3_000)), [1]);
    assert_eq!(pods_of(&deployment("web", 1100, 3_000)), [0]);
    assert_eq!(pods_of(&deployment("web", 1, 4_000)), [0]);
    // Together.
    let all: Vec<String> = (0..3)
        .map(|n| deployment(&format!("web-{n}"), 10, 1_500))
        .collect();
    assert_eq!(pods_of(&all.concat()), [10, 10, 0]);
}

#[test]
fn the_toleration_is_for_files_and_only_once() {
    let manifest = b"{apiVersion: v1, kind: Pod, metadata: {name: a, uid: given},
        spec: {tolerations: [{operator: Exists, effect: NoExecute}],
               containers: [{name: a, image: a}]}}";
    let node_name = node();
    for source in [PodSource::File, PodSource::Http] {
        let ctx = ParseContext {
            node_name: &node_name,
            source,
            location: "x",
        };
        let parsed = parse_manifest(manifest, &ctx);
        let pod = &parsed.documents[0].pods()[0];
        // pods 21
        assert_eq!(
            pod.spec
                .as_ref()
                .unwrap()
                .tolerations
                .as_ref()
                .unwrap()
                .len(),
            1
        );
        assert_eq!(pod.metadata.uid.as_deref(), Some("given"));
        let annotations = pod.metadata.annotations.as_ref().unwrap();
        assert_eq!(annotations["kubernetes.io/config.hash"], "given");
        assert_eq!(
            annotations["kubernetes.io/config.source"],
            source.to_string()
        );
    }
}

/// Calls `each` with the value changed in one leaf to `other`, for every leaf.
fn for_each_leaf(value: &Value, other: &Value, each: &mut dyn FnMut(Value)) {
    match value {
        Value::Object(map) => {
            for (key, inner) in map {
                for_each_leaf(inner, other, &mut |changed| {
                    let mut map = map.clone();
                    map.insert(key.clone(), changed);
                    each(Value::Object(map));
                });
            }
        }
        Value::Array(items) => {
            for (index, inner) in items.iter().enumerate() {
                for_each_leaf(inner, other, &mut |changed| {
                    let mut items = items.clone();
                    items[index] = changed;
                    each(Value::Array(items));
                });
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => each(other.clone()),
    }
}

#[test]
fn no_diagnostic_quotes_a_value() {
    const SECRET: &str = "hunter2, 'hunter2'";
    for (name, bytes) in files("good") {
        for document in parse(&bytes, &name).documents {
            let Some(canonical) = canonical(&document, &bytes) else {
                continue;
            };
            for_each_leaf(&canonical, &Value::from(SECRET), &mut |changed| {
                let parsed = parse(changed.to_string().as_bytes(), &name);
                let documents = parsed.documents.iter().flat_map(|d| &d.problems);
                for problem in parsed.problems.iter().chain(documents) {
                    let said = format!("{problem} {:?}", problem.help);
                    assert!(!said.contains("hunter2"), "{said}");
                }
            });
        }
    }
}

#[test]
fn a_cut_manifest_never_quotes_its_values() {
    let text = "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec:\n  containers:\n  - name: a\n    image: a\n    env:\n    - {name: A, value: \"hunter2 'hunter2' \\x68unter2 hunter2\"}\n    - name: B\n      value: 'hunter2 \"hunter2\" hunter2'\n    args: [hunter2, &hunter2 hunter2, *hunter2]\n";
    for end in 0..text.len() {
        for with in [
            "",
            "\n",
            "'",
            "\"",
            ": x: [",
            "\t",
            "\\q",
            "!!hunter2 ",
            "*hunter2",
            "%",
        ] {
            let cut = format!("{}{with}", &text[..end]);
            let parsed = parse(cut.as_bytes(), "cut.yaml");
            let documents = parsed.documents.iter().flat_map(|d| &d.problems);
            for problem in parsed.problems.iter().chain(documents) {
                let said = format!("{} {:?}", problem.message, problem.help);
                assert!(!said.contains("hunter2"), "{said}");
            }
        }
    }
}

/// The same value with the keys of every mapping in another order, as JSON text.
fn shuffled(value: &Value, seed: u64) -> String {
    match value {
        Value::Object(map) => {
            let mut entries: Vec<_> = map.iter().collect();
            let by = usize::try_from(seed % 64).unwrap() % entries.len().max(1);
            entries.rotate_left(by);
            if seed.is_multiple_of(2) {
                entries.reverse();
            }
            let parts: Vec<String> = entries
                .into_iter()
                .map(|(k, v)| format!("{}: {}", Value::from(k.as_str()), shuffled(v, seed / 2)))
                .collect();
            format!("{{{}}}", parts.join(", "))
        }
        Value::Array(items) => {
            let parts: Vec<String> = items.iter().map(|v| shuffled(v, seed / 3)).collect();
            format!("[{}]", parts.join(", "))
        }
        other => other.to_string(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_bytes_give_a_result(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        parse(&bytes, "x");
    }

    #[test]
    fn any_mutation_of_a_good_manifest_gives_a_result(
        pick in any::<prop::sample::Index>(),
        at in any::<prop::sample::Index>(),
        cut in 0..40_usize,
        with in "[-a-z0-9:{}\\[\\]&*<'\"#| \n]{0,6}",
    ) {
        let files = files("good");
        let (name, mut bytes) = files[pick.index(files.len())].clone();
        let from = at.index(bytes.len());
        let to = (from + cut).min(bytes.len());
        bytes.splice(from..to, with.bytes());
        let parsed = parse(&bytes, &name);
        told(&parsed, &bytes);
        for document in parsed.documents {
            prop_assert_eq!(
                document.accepted.is_none(),
                document.problems.iter().any(mirrorlet_core::api::Diagnostic::is_error)
            );
        }
    }

    #[test]
    fn the_order_of_keys_does_not_change_the_pod(seed in any::<u64>()) {
        for (name, bytes) in files("good") {
            for document in parse(&bytes, &name).documents {
                let Some(canonical) = canonical(&document, &bytes) else {
                    continue;
                };
                let text = shuffled(&canonical, seed);
                let again = parse(text.as_bytes(), &name).documents.remove(0);
                prop_assert_eq!(&again.accepted, &document.accepted);
            }
        }
    }
}
