//! Puts the steps together: one document → one pod.

use std::sync::Arc;

use serde_json::Value;

use crate::api::{Code, Diagnostic, FullName, Pod, PodUid, Severity, keys};

use super::path::{Path, Segment};
use super::problems::Problems;
use super::support::Verdict;
use super::tree::Node;
use super::{
    AcceptedPod, Document, ParseContext, Parsed, check, decode, defaults, support, text, uid,
};

/// Reads all pods of a manifest, YAML or JSON, one or several documents, `Pod`s and lists of them.
///
/// Total: any bytes give a result. Equal bytes and contexts give equal results.
#[must_use]
pub fn parse_manifest(bytes: &[u8], ctx: &ParseContext<'_>) -> Parsed {
    let mut warnings = Vec::new();
    let roots = match text::documents(bytes, ctx.location, &mut warnings) {
        Ok(roots) => roots,
        Err(problem) => {
            return Parsed {
                documents: Vec::new(),
                problems: vec![*problem],
            };
        }
    };
    let mut parsed = Parsed {
        problems: warnings,
        ..Parsed::default()
    };
    for root in &roots {
        read_document(root, ctx, &mut parsed);
    }
    parsed
}

/// Makes the pod again from what [`AcceptedPod::canonical`] kept.
///
/// Gives the very pod that [`parse_manifest`] gave for the manifest; errors only when this release
/// refuses what an earlier one accepted.
pub fn pod_from_canonical(
    canonical: &Value,
    ctx: &ParseContext<'_>,
) -> Result<Arc<Pod>, Vec<Diagnostic>> {
    let mut problems = Problems::new(ctx.location, None, Path::default());
    if check_kind(canonical, false, &mut problems) {
        let built = build_pod(canonical, ctx, &mut problems);
        if let Some(pod) = built.pod {
            return Ok(pod);
        }
    }
    Err(problems.into_sorted())
}

/// Adds the pods of one YAML document.
fn read_document(root: &Node, ctx: &ParseContext<'_>, parsed: &mut Parsed) {
    let kind = root.get("kind").and_then(Node::as_str);
    let version = root.get("apiVersion").and_then(Node::as_str);
    let is_list = matches!(kind, Some("List" | "PodList")) && version == Some("v1");
    if !is_list {
        let document = read_pod(root, root, Path::default(), ctx, parsed.documents.len());
        parsed.documents.push(document);
        return;
    }
    let mut problems = Problems::new(ctx.location, Some(root), Path::default());
    let at = Path::of("items");
    match root.get("items") {
        Some(items) if items.items().is_some() => {
            for (index, item) in items.items().unwrap_or_default().iter().enumerate() {
                let prefix = at.index(index);
                let document = read_pod(root, item, prefix, ctx, parsed.documents.len());
                parsed.documents.push(document);
            }
        }
        Some(items) if !items.is_null() => {
            let message = "the items of a list must be a list".to_owned();
            problems.add(Severity::Error, Code::InvalidType, &at, message);
        }
        Some(_) | None => problems.required(&at, "a list needs items"),
    }
    parsed.problems.extend(problems.into_sorted());
}

fn read_pod(
    root: &Node,
    node: &Node,
    prefix: Path,
    ctx: &ParseContext<'_>,
    number: usize,
) -> Document {
    let is_item = !prefix.0.is_empty();
    let mut problems = Problems::new(ctx.location, Some(root), prefix);
    node.for_each_duplicate(&Path::default(), &mut |path, _| {
        let message = "duplicate key; the last one is used".to_owned();
        problems.add_at_key(Severity::Warning, Code::DuplicateName, &path, message);
    });
    let mut document = Document {
        number: u32::try_from(number).unwrap_or(u32::MAX),
        position: node.position,
        full_name: None,
        accepted: None,
        problems: Vec::new(),
    };
    let mut canonical = node.to_json();
    if check_kind(&canonical, is_item, &mut problems) {
        if let Some(map) = canonical.as_object_mut() {
            map.entry("apiVersion").or_insert_with(|| "v1".into());
            map.entry("kind").or_insert_with(|| "Pod".into());
        }
        let built = build_pod(&canonical, ctx, &mut problems);
        document.full_name = built.full_name;
        document.accepted = built.pod.map(|pod| AcceptedPod { pod, canonical });
    }
    document.problems = problems.into_sorted();
    document
}

/// Notes what makes a document something else than a v1 Pod.
fn check_kind(json: &Value, is_item: bool, problems: &mut Problems<'_>) -> bool {
    let Some(map) = json.as_object() else {
        let message = "a manifest must be a mapping with apiVersion, kind, metadata and spec";
        problems.add(
            Severity::Error,
            Code::WrongKind,
            &Path::default(),
            message.to_owned(),
        );
        return false;
    };
    let before = problems.len();
    for (key, wanted) in [("apiVersion", "v1"), ("kind", "Pod")] {
        let message = match map.get(key) {
            Some(Value::String(value)) if value == wanted => continue,
            Some(Value::String(value)) if key == "kind" && is_kind_name(value) => {
                format!("kind {value} is not supported; it must be {wanted}")
            }
            Some(_) => format!("must be {wanted}"),
            None if is_item => continue,
            None => format!("{key} is missing; it must be {wanted}"),
        };
        problems.add(Severity::Error, Code::WrongKind, &Path::of(key), message);
        problems.help("a manifest contains Pods, or a List or PodList of Pods");
    }
    problems.len() == before
}

/// Whether a text is fit to be shown as a kind.
fn is_kind_name(text: &str) -> bool {
    const KIND_MAX: usize = 63;
    text.len() <= KIND_MAX && text.chars().all(|c| c.is_ascii_alphanumeric())
}

/// Result of [`build_pod`].
struct Built {
    full_name: Option<FullName>,
    pod: Option<Arc<Pod>>,
}

/// JSON of a v1 Pod → static pod; none, if any error was noted.
fn build_pod(canonical: &Value, ctx: &ParseContext<'_>, problems: &mut Problems<'_>) -> Built {
    let decoded = decode::decode::<Pod>(canonical);
    for unknown in &decoded.unknown {
        note_unknown(unknown, problems);
    }
    for fault in &decoded.faults {
        let code = Code::InvalidType;
        problems.add(Severity::Error, code, &fault.path, fault.message.clone());
        if fault.is_scalar_for_text {
            problems.help("quote it to make it a string");
        }
    }
    support::for_each_special(canonical, &mut |path, verdict| {
        note_special(&path, verdict, problems);
    });
    let full_name = full_name(canonical, ctx);
    let Some(mut pod) = decoded.object else {
        return Built {
            full_name,
            pod: None,
        };
    };
    defaults::apply_defaults(&mut pod);
    let before = problems.len();
    check::check_pod(&pod, ctx, problems);
    let causes: Vec<Path> = decoded.faults.into_iter().map(|fault| fault.path).collect();
    problems.drop_consequences(before, &causes);
    if problems.has_error() {
        return Built {
            full_name,
            pod: None,
        };
    }
    let uid = Some(PodUid::of(&pod))
        .filter(|uid| !uid.is_empty())
        .unwrap_or_else(|| uid::static_uid(canonical, ctx));
    defaults::make_static(&mut pod, &uid, ctx.node_name, ctx.source);
    Built {
        full_name,
        pod: Some(Arc::new(pod)),
    }
}

fn note_unknown(unknown: &decode::UnknownField, problems: &mut Problems<'_>) {
    let path = &unknown.path;
    if is_volume_source(path) {
        // Left out it would silently be an emptyDir.
        let message = "unknown volume type".to_owned();
        problems.add_at_key(Severity::Error, Code::UnsupportedField, path, message);
    } else {
        let message = "unknown field; it is ignored".to_owned();
        problems.add_at_key(Severity::Warning, Code::UnknownField, path, message);
    }
    if let Some(Segment::Key(name)) = path.0.last()
        && let Some(known) = decode::closest(name, unknown.known)
    {
        problems.help(format!("did you mean {known}?"));
    }
}

/// Whether this is a field of an entry of `spec.volumes`.
fn is_volume_source(path: &Path) -> bool {
    matches!(path.0.as_slice(), [Segment::Key(spec), Segment::Key(volumes), Segment::Index(_), Segment::Key(_)]
        if spec == "spec" && volumes == "volumes")
}

fn note_special(path: &Path, verdict: Verdict, problems: &mut Problems<'_>) {
    let (severity, code, message) = match verdict {
        Verdict::Unsupported(why) | Verdict::NotInManifest(why) => {
            (Severity::Error, Code::UnsupportedField, why.to_owned())
        }
        Verdict::NoEffect(why) => (
            Severity::Warning,
            Code::UnsupportedField,
            format!("this has no effect: {why}"),
        ),
        Verdict::OnNode(why) => (Severity::Warning, Code::UnsupportedField, why.to_owned()),
        Verdict::Forbidden(resource) | Verdict::ForbiddenAndUnsupported(resource) => (
            Severity::Error,
            Code::ForbiddenReference,
            format!("static pods may not reference {resource}"),
        ),
    };
    problems.add_at_key(severity, code, path, message);
}

/// The pod's full name here, as far as its metadata tells.
fn full_name(json: &Value, ctx: &ParseContext<'_>) -> Option<FullName> {
    let meta = json.get("metadata")?;
    let name = meta.get("name")?.as_str().filter(|name| !name.is_empty())?;
    let namespace = match meta.get("namespace") {
        None => keys::DEFAULT_NAMESPACE,
        Some(namespace) => match namespace.as_str()? {
            "" => keys::DEFAULT_NAMESPACE,
            namespace => namespace,
        },
    };
    // A full name is taken apart at its `_`.
    if name.contains('_') || namespace.contains('_') {
        return None;
    }
    let name = defaults::static_name(name, ctx.node_name);
    Some(FullName::new(name, namespace))
}
