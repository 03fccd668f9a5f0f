use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;
use std::sync::LazyLock;

use serde_json::json;

use super::*;
use crate::api::{Diagnostic, NodeName};
use crate::desired::PodSource;
use crate::manifest::{ParseContext, parse_manifest};

#[test]
fn what_an_api_pod_can_not_have_here_is_named() {
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {"name": "web", "deletionTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {
            "serviceAccountName": "sa",
            "nodeSelector": {"a": "b"},
            "readinessGates": [{"conditionType": "x"}],
            "imagePullSecrets": [{"name": "s"}],
            "containers": [{
                "name": "c",
                "env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}],
                "volumeDevices": [{"name": "v2", "devicePath": "/dev/x"}],
                "volumeMounts": [{"name": "v1", "mountPath": "/v", "bindMountOptions": ["noexec"]}],
            }],
            "volumes": [
                {"name": "v1", "configMap": {"name": "c"}},
                {"name": "v2", "persistentVolumeClaim": {"claimName": "p"}},
                {"name": "v3", "projected": {"sources": [
                    {"serviceAccountToken": {"path": "t"}},
                    {"clusterTrustBundle": {"path": "b"}},
                ]}},
                {"name": "v4", "nfs": {"server": "a", "path": "/"}},
            ],
        },
    }))
    .unwrap();
    assert_eq!(
        unsupported_fields(&pod),
        [
            "spec.containers[0].volumeMounts[0].bindMountOptions: options of bind mounts are not supported",
            "spec.volumes[2].projected.sources[1].clusterTrustBundle: clustertrustbundles are not supported",
            "spec.volumes[3].nfs: volumes of this type are not supported",
        ]
    );
}

/// Every field of `PodSpec` and below with its type, as `hack/pod-spec.sh` reads them.
const FIELDS: &str = include_str!("pod_spec_fields.tsv");

fn root() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

fn fields() -> impl Iterator<Item = (&'static str, &'static str)> {
    FIELDS.lines().map(|line| line.split_once('\t').unwrap())
}

/// The types of all fields by path. Rules are looked up for each field.
static KINDS: LazyLock<BTreeMap<&str, &str>> = LazyLock::new(|| fields().collect());

/// The path of a rule as the list of fields has it: of a list, its items.
fn listed(pattern: &str) -> String {
    let items = format!("{pattern}[]");
    let is_list = KINDS.contains_key(items.as_str());
    if is_list { items } else { pattern.to_owned() }
}

/// Whether a field is a map, of which rules may name keys.
fn is_map(path: &str) -> bool {
    KINDS
        .get(path)
        .is_some_and(|kind| kind.starts_with("map of"))
}

fn is_below(path: &str, parent: &str) -> bool {
    path.strip_prefix(parent)
        .is_some_and(|rest| rest.starts_with('.'))
}

/// The rules about a field itself or, with their key, about some keys of a map.
fn rules_of(path: &str) -> impl Iterator<Item = (Option<&'static str>, When, Verdict)> {
    RULES
        .iter()
        .filter_map(move |Rule(pattern, when, verdict)| {
            if listed(pattern) == path {
                return Some((None, *when, *verdict));
            }
            let (map, key) = pattern.rsplit_once('.')?;
            let is_key = map == path && is_map(map);
            is_key.then_some((Some(key), *when, *verdict))
        })
}

/// Whether every value but an empty one is special: what is below the field needs no row then.
fn is_whole(when: When) -> bool {
    matches!(when, Written | NonEmpty)
}

/// The verdict on a field in a manifest and in a pod of the API server, and the reason.
fn words(verdict: Verdict) -> (&'static str, &'static str, String) {
    match verdict {
        Unsupported(why) => ("refused", "refused", why.to_owned()),
        Forbidden(resource) => (
            "refused",
            "honoured",
            format!("a static pod may not refer to {resource}"),
        ),
        ForbiddenAndUnsupported(resource) => (
            "refused",
            "refused",
            format!("{resource} are not supported"),
        ),
        NotInManifest(why) => ("refused", "honoured", why.to_owned()),
        NoEffect(why) => ("warned", "honoured", why.to_owned()),
        NoEffectAnywhere(why) => ("warned", "no effect", why.to_owned()),
        OnNode(why) => ("honoured, warned", "honoured", why.to_owned()),
    }
}

/// Remarks of the manifest checks on a field's row: the field's path, the verdict if the field isn't
/// honoured, and the reason. Below a field with a verdict there are no rows.
const NOTES: &[(&str, Option<&str>, &str)] = &[
    (
        "spec.C.lifecycle.postStart.tcpSocket",
        Some("fails"),
        "not supported by Kubernetes for hooks; the container is stopped, and started again as `restartPolicy` says",
    ),
    (
        "spec.C.lifecycle.preStop.tcpSocket",
        Some("fails"),
        "not supported by Kubernetes for hooks; the container is stopped without it",
    ),
    (
        "spec.C.resources.limits",
        None,
        "`memory`: less than 6Mi is refused in a manifest, because the Docker Engine creates no such container",
    ),
    (
        "spec.C.volumeMounts[].mountPropagation",
        None,
        "of the volume of an image or of a claim's Engine volume: refused, the Docker Engine has it for bind mounts alone",
    ),
    (
        "spec.C.volumeMounts[].recursiveReadOnly",
        None,
        "of the volume of an image or of a claim's Engine volume: refused, the Docker Engine has it for bind mounts alone; `Enabled` needs Docker Engine 25 or newer",
    ),
    (
        "spec.C.volumeMounts[].subPathExpr",
        None,
        "of the volume of an image: refused; use subPath",
    ),
    (
        "spec.resources.limits",
        None,
        "`memory`: less than 6Mi is refused in a manifest, as of a container",
    ),
];

fn page() -> String {
    let mut out = String::from(
        "# The pod spec, field by field\n\nEvery field of `PodSpec` and below, from the OpenAPI document of the Kubernetes version whose types mirrorlet is built with, and what becomes of it in a manifest (a static pod) and in a pod that the API server binds to the Node.\n\n- **honoured**: it does here what it does on a kubelet, or what the documents say of it.\n- **refused**: a manifest with it is rejected with this field's name, and its last good version keeps running; a pod of the API server fails with the reason.\n- **warned**: the pod runs, and `mirrorlet validate` and `mirrorlet status` say that the field has no effect.\n- **no effect**: a pod of the API server with it runs all the same.\n- **fails**: a hook with it always fails, as on a kubelet; `mirrorlet validate` and `mirrorlet status` warn of it.\n\n`C` is an item of `containers` or `initContainers`. What is below a field that is refused as a whole has no row.\n\nThis page is made and checked by `cargo test -p mirrorlet-core pod_spec`; `hack/pod-spec.sh` reads the fields anew.\n\n| Field | Type | Manifest | API server's pod | Why |\n|---|---|---|---|---|\n",
    );
    let mut skipped: Option<&str> = None;
    for (path, kind) in fields() {
        if skipped.is_some_and(|parent| is_below(path, parent)) {
            continue;
        }
        skipped = None;
        let (mut manifest, mut api, mut notes) = ("honoured", "honoured", Vec::new());
        for (key, when, verdict) in rules_of(path) {
            let (in_manifest, in_api, why) = words(verdict);
            let value = match (key, when) {
                (Some(key), _) => Some(format!("`{key}`")),
                (None, Written | NonEmpty) => None,
                (None, IsFalse) => Some("`false`".to_owned()),
                (None, Begins(start)) => Some(format!("`{start}…`")),
                (None, IsNot(word)) => Some(format!("other than `{word}`")),
                (None, StrictWithoutGroup) => {
                    Some("`Strict` with a container without `runAsGroup`".to_owned())
                }
            };
            if let Some(value) = value {
                notes.push(format!("{value}: {in_manifest}, {why}"));
            } else {
                (manifest, api) = (in_manifest, in_api);
                notes.push(why);
                if is_whole(when) {
                    skipped = Some(path);
                }
            }
        }
        if let Some((_, verdict, why)) = NOTES.iter().find(|note| note.0 == path) {
            if let Some(verdict) = verdict {
                (manifest, api) = (*verdict, *verdict);
                skipped = Some(path);
            }
            notes.push((*why).to_owned());
        }
        let _ = writeln!(
            out,
            "| `{path}` | {kind} | {manifest} | {api} | {} |",
            notes.join("; ")
        );
    }
    out
}

/// Regenerate with `UPDATE_DOCS=1`.
#[test]
fn the_pod_spec_page_is_current() {
    assert!(fields().count() > 300, "the fields were not read");
    let path = root().join("docs/pod-spec.md");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(&path, page()).unwrap();
    }
    assert!(
        fs::read_to_string(&path).unwrap() == page(),
        "run: UPDATE_DOCS=1 cargo test -p mirrorlet-core pod_spec"
    );
}

#[test]
fn every_rule_of_the_pod_spec_is_about_a_field() {
    for Rule(pattern, ..) in RULES {
        let (map, _) = pattern.rsplit_once('.').unwrap();
        assert!(
            pattern.starts_with("metadata.")
                || KINDS.contains_key(&*listed(pattern))
                || is_map(map),
            "no field of PodSpec: {pattern}"
        );
    }
    for (path, ..) in NOTES {
        assert!(KINDS.contains_key(path), "no field of PodSpec: {path}");
    }
}

/// A value of a field's type that its rule is about.
fn sample(pattern: &str, when: When) -> Value {
    match (when, KINDS.get(&*listed(pattern)).copied()) {
        (IsFalse, _) => json!(false),
        (Begins(start), _) => json!(format!("{start}x")),
        (StrictWithoutGroup, _) => json!("Strict"),
        (IsNot(_), _) | (_, Some("string")) => json!("x"),
        (_, None) => json!("1Mi"),
        _ if listed(pattern).ends_with("[]") => json!([{"name": "x"}]),
        _ => json!({"name": "x"}),
    }
}

/// Puts a value below others, and an item into each list on the way.
fn put(into: &mut Value, parts: &[&str], value: Value) {
    let (first, rest) = parts.split_first().unwrap();
    let first = first.replace('*', "2Mi");
    let (key, is_list) = match &*first {
        "C" => ("containers", true),
        list => (list.trim_end_matches("[]"), list.ends_with("[]")),
    };
    if rest.is_empty() {
        into[key] = value;
        return;
    }
    let next = if is_list {
        if into[key].is_null() {
            into[key] = json!([{"name": "x"}]);
        }
        &mut into[key][0]
    } else {
        &mut into[key]
    };
    if next.is_null() {
        *next = json!({});
    }
    put(next, rest, value);
}

/// The problems of a manifest.
fn problems_of(pod: &Value) -> Vec<Diagnostic> {
    let node = NodeName::from("n");
    let context = ParseContext {
        node_name: &node,
        source: PodSource::File,
        location: "web.json",
    };
    let parsed = parse_manifest(pod.to_string().as_bytes(), &context);
    let documents = parsed.documents.into_iter();
    documents.flat_map(|document| document.problems).collect()
}

#[test]
fn notes_on_hooks_and_memory_are_told_of_a_manifest() {
    let tcp = json!({"tcpSocket": {"port": 80}});
    for (path, value, refused) in [
        ("spec.C.lifecycle.postStart", tcp.clone(), Some(false)),
        ("spec.C.lifecycle.preStop", tcp, Some(false)),
        (
            "spec.C.resources.limits",
            json!({"memory": "5Mi"}),
            Some(true),
        ),
        ("spec.C.resources.limits", json!({"memory": "6Mi"}), None),
        (
            "spec.resources.limits",
            json!({"memory": "5Mi"}),
            Some(true),
        ),
        ("spec.resources.limits", json!({"memory": "6Mi"}), None),
    ] {
        let mut pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"},
            "spec": {"containers": [{"name": "web", "image": "web:1"}]},
        });
        let parts: Vec<&str> = path.split('.').collect();
        put(&mut pod, &parts, value);
        let field = path.replace(".C.", ".containers[0].");
        let problems = problems_of(&pod);
        let told = problems.iter().find(|problem| {
            let named = problem.field.as_deref();
            named.is_some_and(|named| named.starts_with(&field))
        });
        // pods 22a
        assert_eq!(
            told.map(Diagnostic::is_error),
            refused,
            "{pod}: {problems:#?}"
        );
    }
}

#[test]
fn every_rule_of_the_pod_spec_is_told_of_a_manifest() {
    for Rule(pattern, when, verdict) in RULES.iter().filter(|rule| rule.0.starts_with("spec.")) {
        let mut pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"},
            "spec": {"containers": [{"name": "web", "image": "web:1"}]},
        });
        let parts: Vec<&str> = pattern.split('.').collect();
        put(&mut pod, &parts, sample(pattern, *when));
        let problems = problems_of(&pod);
        let field = pattern
            .replace(".C.", ".containers[0].")
            .replace("[]", "[0]");
        // Keys are printed in a form of their own.
        let field = match field.rsplit_once('.') {
            Some((map, _)) if !KINDS.contains_key(&*listed(pattern)) => map,
            _ => &field,
        };
        let refuses = !matches!(verdict, NoEffect(_) | NoEffectAnywhere(_) | OnNode(_));
        let is_told = problems.iter().any(|problem| {
            let named = problem
                .field
                .as_deref()
                .is_some_and(|f| f.starts_with(field));
            named && (problem.severity == crate::api::Severity::Error) == refuses
        });
        assert!(is_told, "{pattern}: {pod}: {problems:#?}");
    }
}

/// The code that is no test's, below a crate's `src/`.
fn product(dir: &std::path::Path, into: &mut String) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        if path.is_dir() && name != "tests" && name != "fake_engine" {
            product(&path, into);
        } else if path.extension().is_some_and(|e| e == "rs")
            && name != "tests.rs"
            && name != "support.rs"
        {
            let text = fs::read_to_string(&path).unwrap();
            let end = text.find("\nmod tests {").unwrap_or(text.len());
            into.push_str(&text[..end]);
        }
    }
}

/// A field that no code names can't be honoured.
#[test]
fn every_honoured_field_of_the_pod_spec_is_named_by_the_product() {
    let mut code = String::new();
    for crate_src in [
        "crates/core/src",
        "crates/docker/src",
        "crates/host/src",
        "src",
    ] {
        product(&root().join(crate_src), &mut code);
    }
    let words: BTreeSet<&str> = code
        .split(|c: char| !c.is_alphanumeric() && c != '_')
        .collect();
    let page = page();
    let honoured = page.lines().filter_map(|line| {
        let mut cells = line.strip_prefix("| `")?.split(" | ");
        let path = cells.next()?.trim_end_matches('`');
        (cells.nth(1)? == "honoured").then_some(path)
    });
    let mut silent = Vec::new();
    for path in honoured {
        let key = path.rsplit('.').next().unwrap().trim_end_matches("[]");
        let mut snake = String::new();
        for c in key.chars() {
            if c.is_ascii_uppercase() {
                snake.push('_');
            }
            snake.push(c.to_ascii_lowercase());
        }
        // k8s-openapi writes an initialism as one word, and a keyword with a line after it.
        let snake = snake.replace("_i_p", "_ip");
        let names = [snake.clone(), format!("{snake}_"), key.to_owned()];
        // Some of its values have a rule, so it is known.
        if rules_of(path).next().is_none()
            && !names.iter().any(|name| words.contains(name.as_str()))
        {
            silent.push(path.to_owned());
        }
    }
    assert!(
        silent.is_empty(),
        "honoured, and no code names them: {silent:#?}"
    );
}

#[test]
fn strict_groups_need_a_group_for_each_container() {
    let with = |group: bool| {
        let group = group.then_some(0);
        json!({"name": "c", "image": "i", "securityContext": {"runAsGroup": group}})
    };
    for (policy, pod, init, app, refused) in [
        ("Strict", true, false, false, false),
        ("Strict", false, true, true, false),
        ("Strict", false, true, false, true),
        ("Strict", false, false, true, true),
        ("Strict", false, false, false, true),
        ("Merge", false, false, false, false),
    ] {
        let mut context = json!({"supplementalGroupsPolicy": policy, "runAsUser": 1000});
        if pod {
            context["runAsGroup"] = json!(7);
        }
        let pod = serde_json::from_value(json!({"spec": {
            "securityContext": context, "initContainers": [with(init)], "containers": [with(app)],
        }}))
        .unwrap();
        let found = unsupported_fields(&pod);
        // tenants A6
        assert_eq!(found.len(), usize::from(refused), "{pod:?}");
        let field = "spec.securityContext.supplementalGroupsPolicy: ";
        assert!(found.iter().all(|found| found.starts_with(field)));
    }
}
