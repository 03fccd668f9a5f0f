//! The manifests of the corpus, as the agent reads them and as the kubelet's own source of files does
//! (`hack/kube/manifests`): the same are accepted, and are the same pods, but for the differences in
//! the table.

#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests fail loudly, as tests do"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use mirrorlet_core::api::quantity::Quantity;
use mirrorlet_core::api::{NodeName, Pod};
use mirrorlet_core::desired::PodSource;
use mirrorlet_core::manifest::{Document, ParseContext, parse_manifest};
use serde_json::Value;

#[path = "../../../tests/common/cluster/programs.rs"]
#[expect(
    dead_code,
    unreachable_pub,
    reason = "shared with tests that need more"
)]
mod programs;

const NODE: &str = "node";

/// Where the two differ on purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Differs {
    /// The kubelet accepts what we refuse.
    Stricter,
    /// The kubelet refuses what we accept.
    Wider,
    /// Both accept it; the pods differ.
    Otherwise,
}

/// Names of manifests in the corpus, with why they are read in another way.
const DIFFERENCES: &[(&str, Differs, &str)] = &[
    (
        "several-documents",
        Differs::Otherwise,
        "all documents count; the kubelet reads the first",
    ),
    (
        "empty-first-document",
        Differs::Wider,
        "all documents count; the kubelet reads the first, which is empty",
    ),
    (
        "list",
        Differs::Wider,
        "a List's items are documents; the kubelet takes no lists from files",
    ),
    (
        "pod-list",
        Differs::Wider,
        "a PodList's items are documents; the kubelet takes no lists from files",
    ),
    (
        "flow",
        Differs::Wider,
        "every file is read as YAML; the kubelet reads one that begins with a brace as JSON",
    ),
    (
        "json-trailing-comma",
        Differs::Wider,
        "every file is read as YAML; the kubelet reads one that begins with a brace as JSON",
    ),
    (
        "int-or-string",
        Differs::Wider,
        "a port in quotes is that number for the kubelet's prober, too; its validation refuses it",
    ),
    (
        "secret-reference",
        Differs::Wider,
        "pods of manifests use Secrets and ConfigMaps of manifests",
    ),
    (
        "service-account",
        Differs::Wider,
        "a ServiceAccount's name has no effect, and is warned of",
    ),
    (
        "null-item",
        Differs::Stricter,
        "a null in a list of strings is a mistake; the kubelet makes an empty string of it",
    ),
    ("utf-16", Differs::Stricter, "manifests are UTF-8"),
];

/// Fields that Go leaves out when they are false.
const OMITTED: [&str; 7] = [
    "hostNetwork",
    "hostPID",
    "hostIPC",
    "stdin",
    "stdinOnce",
    "tty",
    "readOnly",
];

fn corpus() -> Vec<PathBuf> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus/manifests");
    let entries = fs::read_dir(dir).unwrap();
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    // Inputs that a fuzzer found have no ending.
    files.retain(|file| file.extension().is_some_and(|ending| ending == "yaml"));
    files.sort();
    files
}

/// The kubelet's result for each file, in order.
fn upstream(files: &[PathBuf]) -> Vec<Result<Value, String>> {
    let mut command = Command::new(programs::manifest_reader());
    let output = command.arg(NODE).args(files).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let results = text.lines().map(|line| {
        let mut result: Value = serde_json::from_str(line).unwrap();
        match result["error"].as_str() {
            Some(error) => Err(error.to_owned()),
            None => Ok(result["pod"].take()),
        }
    });
    results.collect()
}

/// The agent's result for a file: its pods, or none if anything is refused.
fn ours(file: &Path) -> Result<Vec<Pod>, String> {
    let ctx = ParseContext {
        node_name: &NodeName::from(NODE),
        source: PodSource::File,
        location: file.to_str().unwrap(),
    };
    let parsed = parse_manifest(&fs::read(file).unwrap(), &ctx);
    let own = parsed
        .documents
        .iter()
        .flat_map(|document| &document.problems);
    if let Some(error) = own
        .chain(&parsed.problems)
        .find(|problem| problem.is_error())
    {
        return Err(error.message.clone());
    }
    let pods = parsed.documents.iter().flat_map(Document::pods);
    let pods: Vec<Pod> = pods.map(|pod| Pod::clone(pod)).collect();
    if pods.is_empty() {
        return Err("no pod".to_owned());
    }
    Ok(pods)
}

/// Without what is empty, and with quantities as numbers.
fn normal(key: &str, value: &Value) -> Option<Value> {
    let value = match value {
        Value::Null => return None,
        Value::Object(map) => {
            let is_amounts = matches!(key, "limits" | "requests");
            let entries = map.iter().filter_map(|(key, value)| {
                let value = if is_amounts {
                    let quantity: Quantity = value.as_str().unwrap().parse().unwrap();
                    Value::from(format!("{quantity:?}"))
                } else {
                    normal(key, value)?
                };
                Some((key.clone(), value))
            });
            let map: serde_json::Map<String, Value> = entries.collect();
            if map.is_empty() {
                return None;
            }
            Value::Object(map)
        }
        Value::Array(items) if items.is_empty() => return None,
        Value::Array(items) => {
            // An item keeps its place.
            let items = items
                .iter()
                .map(|item| normal("", item).unwrap_or(Value::Null));
            Value::Array(items.collect())
        }
        Value::Bool(false) if OMITTED.contains(&key) => return None,
        Value::Bool(_) | Value::Number(_) | Value::String(_) => value.clone(),
    };
    Some(value)
}

/// The fields of a pod that are compared: all that an author can set.
fn compared(pod: &Value) -> BTreeMap<&'static str, Option<Value>> {
    let metadata = &pod["metadata"];
    let mut annotations = metadata["annotations"].clone();
    if let Some(annotations) = annotations.as_object_mut() {
        // Of our own making, or of the kubelet's.
        annotations.retain(|key, _| !key.starts_with("kubernetes.io/config."));
    }
    BTreeMap::from([
        ("name", Some(metadata["name"].clone())),
        ("namespace", Some(metadata["namespace"].clone())),
        ("labels", normal("", &metadata["labels"])),
        ("annotations", normal("", &annotations)),
        ("spec", normal("", &pod["spec"])),
    ])
}

/// How the two differ about a file, with what there is to see.
fn difference(
    upstream: &Result<Value, String>,
    ours: &Result<Vec<Pod>, String>,
) -> Option<(Differs, String)> {
    match (upstream, ours) {
        (Err(_), Err(_)) => None,
        (Ok(_), Err(error)) => Some((Differs::Stricter, error.clone())),
        (Err(error), Ok(_)) => Some((Differs::Wider, error.clone())),
        (Ok(theirs), Ok(pods)) => {
            let ours: Vec<Value> = pods
                .iter()
                .map(|pod| serde_json::to_value(pod).unwrap())
                .collect();
            let one = ours.iter().map(compared).collect::<Vec<_>>();
            let other = compared(theirs);
            (one != [other.clone()]).then(|| {
                (
                    Differs::Otherwise,
                    format!("ours {one:#?}\ntheirs {other:#?}"),
                )
            })
        }
    }
}

#[test]
fn manifests_are_read_as_the_kubelet_reads_them() {
    let files = corpus();
    assert!(files.len() >= 42, "{} manifests", files.len());
    let mut seen = BTreeSet::new();
    let mut wrong = Vec::new();
    for (file, upstream) in files.iter().zip(upstream(&files)) {
        let name = file.file_stem().unwrap().to_str().unwrap();
        let allowed = DIFFERENCES
            .iter()
            .find(|(differing, ..)| *differing == name);
        let found = difference(&upstream, &ours(file));
        if allowed.is_some() {
            seen.insert(name);
        }
        if allowed.map(|(_, differs, _)| *differs) != found.as_ref().map(|(differs, _)| *differs) {
            let (differs, shown) =
                found.unwrap_or((Differs::Otherwise, "nothing differs".to_owned()));
            wrong.push(format!("{name}: {differs:?}: {shown}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(seen.len(), DIFFERENCES.len(), "a difference of no manifest");
}
