//! Combines the steps: converts one document to one pod or object.

use std::sync::Arc;

use k8s_openapi::Metadata;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::api::meta::ObjectMeta;
use crate::api::{Code, Diagnostic, FullName, Pod, PodUid, Severity, VALUES_MAX, keys};
use crate::decode;
use crate::desired::{Places, PodSource};
use crate::fields;
use crate::names::target_ports;
use crate::objects::{Object, ObjectKey, ObjectKind, ObjectUse, uses};
use crate::small::SmallCollect;

use super::kind::{Kind, check_kind};
use super::notes::{note_special, note_unknown};
use super::problems::{At, Problems};
use super::tree::Node;
use super::workload::{build_workload, workload_key};
use super::{
    Accepted, AcceptedPod, Document, DocumentKey, ParseContext, Parsed, check, defaults, support,
    text, uid,
};
use crate::path::{Path, Segment};
use crate::sizes::VALUES_TOTAL_MAX;
use crate::workload::REPLICAS_MAX;

/// Reads all documents of a manifest, YAML or JSON, and the items of lists.
///
/// Total: any bytes give a result. Equal bytes and contexts give equal results.
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

/// Rebuilds a document's content from the stored [`AcceptedPod::canonical`] or [`Object::canonical`].
///
/// Returns the same pod as [`parse_manifest`] did for the manifest; errors only if this release refuses
/// a manifest that an earlier one accepted.
pub fn document_from_canonical(
    canonical: &Value,
    ctx: &ParseContext<'_>,
) -> Result<Accepted, Vec<Diagnostic>> {
    let problems = Problems::new(ctx.location, None, Path::default());
    if let Some(kind) = check_kind(canonical, false, &problems.root())
        && let Some(accepted) = build(kind, canonical, ctx, &problems).accepted
    {
        return Ok(accepted);
    }
    Err(problems.into_sorted())
}

/// The keys that begin a document. Two of one kind are two documents, with no line `---` between.
const FIRST_KEYS: [&str; 3] = ["apiVersion", "kind", "metadata"];

/// Adds one YAML document, or the items of a list.
fn read_document(root: &Node, ctx: &ParseContext<'_>, parsed: &mut Parsed) {
    if let Some(key) = root.repeated(&FIRST_KEYS) {
        let number = parsed.documents.len();
        parsed.documents.push(joined(root, key, ctx, number));
        return;
    }
    let kind = root.get("kind").and_then(Node::as_str);
    let version = root.get("apiVersion").and_then(Node::as_str);
    let is_list = matches!(kind, Some("List" | "PodList")) && version == Some("v1");
    if !is_list {
        let document = read_one(
            root,
            root,
            Path::default(),
            ctx,
            parsed.documents.len(),
            parsed.left(),
        );
        parsed.documents.push(document);
        return;
    }
    let problems = Problems::new(ctx.location, Some(root), Path::default());
    let at = problems.root().key("items");
    match root.get("items") {
        Some(items) if items.items().is_some() => {
            for (index, item) in items.items().unwrap_or_default().iter().enumerate() {
                let prefix = at.index(index).path;
                let document = read_one(
                    root,
                    item,
                    prefix,
                    ctx,
                    parsed.documents.len(),
                    parsed.left(),
                );
                parsed.documents.push(document);
            }
        }
        Some(items) if !items.is_null() => {
            let message = "must be a list";
            at.report(Severity::Error, Code::InvalidType, message);
        }
        Some(_) | None => at.required("a list needs items"),
    }
    parsed.problems.extend(problems.into_sorted());
}

/// A document that has `key` more than once: it is rejected, because its meaning is ambiguous.
fn joined(root: &Node, key: &str, ctx: &ParseContext<'_>, number: usize) -> Document {
    let problems = Problems::new(ctx.location, Some(root), Path::default());
    let message = "duplicate key at the top level of a document";
    let at = problems.root().key(key);
    at.report_key(Severity::Error, Code::DuplicateName, message);
    at.help("is a line --- missing between two documents?");
    Document {
        number: u32::try_from(number).unwrap_or(u32::MAX),
        position: root.position,
        key: None,
        may_be_secret: true,
        values: root.count(),
        accepted: None,
        places: Places::default(),
        problems: problems.into_sorted(),
    }
}

/// Reads one document, or one item of a list. Its pods may have `left` values in total.
fn read_one(
    root: &Node,
    node: &Node,
    prefix: Path,
    ctx: &ParseContext<'_>,
    number: usize,
    left: usize,
) -> Document {
    let is_item = !prefix.0.is_empty();
    let problems = Problems::new(ctx.location, Some(root), prefix);
    let at = problems.root();
    node.for_each_duplicate(&Path::default(), &mut |path, _| {
        let (at, message) = (at.join(&path), "duplicate key; the last one is used");
        at.report_key(Severity::Warning, Code::DuplicateName, message);
    });
    let mut canonical = node.to_json();
    let kind = check_kind(&canonical, is_item, &at);
    let values = node.count();
    let too_large = kind.and_then(|kind| too_large(kind, values, &canonical, left));
    let is_too_large = too_large.is_some();
    if let Some(message) = too_large {
        at.report(Severity::Error, Code::TooLarge, message);
        at.help("shorten its longest list, or run fewer pods");
    }
    let built = kind.map(|kind| {
        if is_too_large {
            // Not even once: what is refused for its size must not be made first.
            let key = key_of(kind, &canonical, ctx);
            return Built {
                key,
                accepted: None,
            };
        }
        if let (Kind::Pod | Kind::Workload(_), Some(map)) = (kind, canonical.as_object_mut()) {
            let version = kind.api_version();
            map.entry("apiVersion").or_insert_with(|| version.into());
            map.entry("kind").or_insert_with(|| "Pod".into());
        }
        build(kind, &canonical, ctx, &problems)
    });
    let built = built.unwrap_or_default();
    let places = match &built.accepted {
        Some(Accepted::Object(Object::Service(service))) => located(&target_ports(service), &at),
        Some(accepted) => {
            let at = match kind {
                // All its pods have the fields of its template.
                Some(Kind::Workload(kind)) => at.dotted(kind.template_path()),
                Some(Kind::Pod | Kind::Object(_) | Kind::Namespace) | None => at,
            };
            let pod = accepted.pods().first();
            pod.map_or_else(Places::default, |pod| places(pod, &at))
        }
        None => Places::default(),
    };
    let mut problems = problems.into_sorted();
    for problem in &mut problems {
        match &built.key {
            Some(DocumentKey::Pod(name)) => {
                problem.pod = Some(format!("{}/{}", name.namespace, name.name));
            }
            Some(DocumentKey::Workload(key)) => problem.workload = Some(key.to_string()),
            Some(DocumentKey::Object(_)) | None => {}
        }
    }
    Document {
        number: u32::try_from(number).unwrap_or(u32::MAX),
        position: node.position,
        key: built.key,
        may_be_secret: matches!(kind, None | Some(Kind::Object(ObjectKind::Secret))),
        values: values * pods_of(built.accepted.as_ref()).max(1),
        accepted: built.accepted,
        places,
        problems,
    }
}

/// Why a document is refused for its size, if it is: by what is written, before anything is made of it.
fn too_large(kind: Kind, values: usize, canonical: &Value, left: usize) -> Option<String> {
    if !matches!(kind, Kind::Pod | Kind::Workload(_)) {
        return None;
    }
    if values > VALUES_MAX {
        return Some(format!(
            "a pod may have at most {VALUES_MAX} values in lists and mappings; this one has {values}"
        ));
    }
    let spec = &canonical["spec"];
    let counts = [
        &spec["replicas"],
        &spec["parallelism"],
        &spec["jobTemplate"]["spec"]["parallelism"],
    ];
    let pods = counts.into_iter().filter_map(Value::as_i64).max();
    // More than a workload may have are refused for that, and are not made either.
    let pods = pods.unwrap_or(1).clamp(1, i64::from(REPLICAS_MAX));
    let pods = usize::try_from(pods).unwrap_or(1);
    let all = values.saturating_mul(pods);
    (all > left).then(|| {
        format!(
            "all pods of a file may have at most {VALUES_TOTAL_MAX} values in lists and mappings; this document adds {pods} times {values} values, which exceeds that"
        )
    })
}

/// The kind and name of a document, as far as it has them.
fn key_of(kind: Kind, canonical: &Value, ctx: &ParseContext<'_>) -> Option<DocumentKey> {
    match kind {
        Kind::Pod => full_name(canonical, ctx).map(DocumentKey::Pod),
        Kind::Object(kind) => object_key(canonical, kind).map(DocumentKey::Object),
        Kind::Workload(kind) => workload_key(canonical, kind).map(DocumentKey::Workload),
        Kind::Namespace => None,
    }
}

fn pods_of(accepted: Option<&Accepted>) -> usize {
    accepted.map_or(0, |accepted| accepted.pods().len())
}

/// Where a pod names objects, and what else of it may fail, by field.
fn places(pod: &Pod, at: &At<'_>) -> Places {
    let (uses, fields) = (uses(pod), fields::all(pod));
    located(uses.iter().flat_map(ObjectUse::paths).chain(&fields), at)
}

/// The places of fields, as far as they are written.
fn located<'a>(paths: impl IntoIterator<Item = &'a Path>, at: &At<'_>) -> Places {
    let paths = paths.into_iter();
    let places = paths.filter_map(|path| Some((path.to_string(), at.join(path).locate()?)));
    Arc::new(places.collect_map())
}

/// Result of [`build`].
#[derive(Default)]
struct Built {
    key: Option<DocumentKey>,
    accepted: Option<Accepted>,
}

/// JSON of a document → its content; none, if any error was noted.
fn build(kind: Kind, canonical: &Value, ctx: &ParseContext<'_>, problems: &Problems<'_>) -> Built {
    let accepted = match kind {
        Kind::Pod => build_pod(canonical, ctx, problems).map(|pod| {
            let canonical = canonical.clone();
            Accepted::Pod(AcceptedPod { pod, canonical })
        }),
        Kind::Object(kind) => build_object(kind, canonical, problems).map(Accepted::Object),
        Kind::Workload(kind) => {
            build_workload(kind, canonical, ctx, problems).map(Accepted::Workload)
        }
        Kind::Namespace => {
            decode_checked(canonical, |_| (), check::check_namespace, problems);
            (!problems.has_error()).then_some(Accepted::Namespace)
        }
    };
    Built {
        key: key_of(kind, canonical, ctx),
        accepted,
    }
}

/// Decodes JSON to a typed object, and records problems and the paths of wrong values.
pub(super) fn decode_noting<T: DeserializeOwned>(
    canonical: &Value,
    problems: &Problems<'_>,
) -> (Option<T>, Vec<Path>) {
    let decoded = decode::decode::<T>(canonical);
    let root = problems.root();
    for unknown in &decoded.unknown {
        note_unknown(unknown, &root);
    }
    for fault in &decoded.faults {
        let (at, code) = (root.join(&fault.path), Code::InvalidType);
        let is_data = matches!(&fault.path.0[..], [Segment::Key(list), Segment::Key(_)] if list == "data" || list == "binaryData");
        if is_data && fault.message == decode::UNFIT {
            at.report(Severity::Error, code, "this is not base64");
            at.help("encode the value with: base64 -w0");
            continue;
        }
        at.report(Severity::Error, code, fault.message.as_str());
        if let Some(help) = fault.help {
            at.help(help);
        }
    }
    let causes = decoded.faults.into_iter().map(|fault| fault.path).collect();
    (decoded.object, causes)
}

/// JSON of an object that pods refer to → the object.
fn build_object(kind: ObjectKind, canonical: &Value, problems: &Problems<'_>) -> Option<Object> {
    let object = match kind {
        ObjectKind::ConfigMap => {
            let check = check::check_config_map;
            Object::ConfigMap(decode_checked(canonical, in_namespace, check, problems)?.into())
        }
        ObjectKind::Secret => {
            let check = check::check_secret;
            let mut secret = decode_checked(canonical, in_namespace, check, problems)?;
            defaults::merge_string_data(&mut secret);
            Object::Secret(secret.into())
        }
        ObjectKind::Service => {
            let check = check::check_service;
            Object::Service(decode_checked(canonical, in_namespace, check, problems)?.into())
        }
        ObjectKind::Claim => {
            let check = check::check_claim;
            Object::Claim(decode_checked(canonical, in_namespace, check, problems)?.into())
        }
        ObjectKind::Volume => {
            let check = check::check_volume;
            Object::Volume(decode_checked(canonical, |_| (), check, problems)?.into())
        }
    };
    (!problems.has_error()).then_some(object)
}

/// JSON → typed object, defaulted and checked; none if it can't be decoded at all.
fn decode_checked<T: DeserializeOwned>(
    canonical: &Value,
    default: impl FnOnce(&mut T),
    check: impl FnOnce(&T, &At<'_>),
    problems: &Problems<'_>,
) -> Option<T> {
    let (object, causes) = decode_noting::<T>(canonical, problems);
    let decoded = problems.len();
    let mut object = object?;
    default(&mut object);
    check(&object, &problems.root());
    problems.drop_consequences(decoded, &causes);
    Some(object)
}

fn in_namespace<T: Metadata<Ty = ObjectMeta>>(object: &mut T) {
    defaults::default_namespace(object.metadata_mut());
}

/// JSON of a v1 Pod → static pod; none, if any error was noted.
fn build_pod(
    canonical: &Value,
    ctx: &ParseContext<'_>,
    problems: &Problems<'_>,
) -> Option<Arc<Pod>> {
    let (pod, causes) = decode_noting::<Pod>(canonical, problems);
    support::for_each_special(canonical, &mut |path, verdict| {
        note_special(verdict, &problems.root().join(&path));
    });
    let mut pod = pod?;
    defaults::apply_defaults(&mut pod);
    let before = problems.len();
    check::check_pod(&pod, ctx, &problems.root());
    problems.drop_consequences(before, &causes);
    if problems.has_error() {
        return None;
    }
    let written = Some(PodUid::of(&pod)).filter(|uid| !uid.is_empty());
    let uid = match (written, ctx.source) {
        // The API's object keeps its UID through edits, and each version of the pod has its own.
        (Some(object), PodSource::Embedded) => {
            let annotations = pod.metadata.annotations.get_or_insert_default();
            annotations.insert(keys::OBJECT_UID.to_owned(), object.to_string());
            uid::static_uid(&uid::without_api_metadata(canonical), ctx)
        }
        (Some(uid), _) => uid,
        (None, _) => uid::static_uid(canonical, ctx),
    };
    defaults::make_static(&mut pod, &uid, ctx.node_name, ctx.source);
    Some(Arc::new(pod))
}

/// The pod's full name here, as far as its metadata can be read.
fn full_name(json: &Value, ctx: &ParseContext<'_>) -> Option<FullName> {
    let (name, namespace) = names(json)?;
    // A full name is taken apart at its `_`.
    if name.contains('_') || namespace.contains('_') {
        return None;
    }
    let name = defaults::static_name(name, ctx.node_name, ctx.source);
    Some(FullName::new(name, namespace))
}

/// The object's key, as far as its metadata can be read.
fn object_key(json: &Value, kind: ObjectKind) -> Option<ObjectKey> {
    let (name, namespace) = names(json)?;
    let namespace = match kind {
        ObjectKind::Volume => "",
        ObjectKind::ConfigMap | ObjectKind::Secret | ObjectKind::Service | ObjectKind::Claim => {
            namespace
        }
    };
    Some(ObjectKey {
        kind,
        namespace: namespace.to_owned(),
        name: name.to_owned(),
    })
}

/// Name and namespace, if the metadata can be read.
pub(super) fn names(json: &Value) -> Option<(&str, &str)> {
    let meta = json.get("metadata")?;
    let name = meta.get("name")?.as_str().filter(|name| !name.is_empty())?;
    let namespace = match meta.get("namespace") {
        None => keys::DEFAULT_NAMESPACE,
        Some(namespace) => match namespace.as_str()? {
            "" => keys::DEFAULT_NAMESPACE,
            namespace => namespace,
        },
    };
    Some((name, namespace))
}
