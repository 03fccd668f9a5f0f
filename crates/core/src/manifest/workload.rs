//! Converts a workload's document to the static pods that it describes.

use std::sync::Arc;

use jiff::tz::TimeZone;
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, StatefulSet as StatefulSetDocument};
use k8s_openapi::api::batch::v1::{
    CronJob as CronJobDocument, CronJobSpec, Job as JobDocument, JobSpec,
};
use serde_json::{Map, Value, json};

use crate::api::meta::ObjectMeta;
use crate::api::{Pod, keys};
use crate::cron::{
    Concurrency, CronJob, FAILED_DEFAULT, Runs, SUCCESSFUL_DEFAULT, Schedule, time_zone,
};
use crate::job::{Job, JobName, Rules};
use crate::path::Path;
use crate::small::SmallCollect;
use crate::workload::{
    Workload, WorkloadKey, WorkloadKind, first_ordinal, given, stateful_set, take_identity,
};

use super::build::{decode_noting, names};
use super::notes::note_special;
use super::problems::{At, Problems};
use super::{AcceptedWorkload, ParseContext, check, defaults, support, uid};

/// First line of the hashed bytes that say whether a document is another Job.
const JOB_ENCODING: &str = "mirrorlet job 1";

/// The fields of a Job, besides its template, that identify its run: those that are immutable upstream.
const JOB_FIELDS: [&str; 5] = [
    "backoffLimitPerIndex",
    "completionMode",
    "completions",
    "podFailurePolicy",
    "successPolicy",
];

/// The fields of a template's metadata that its pods have. Their names come from the workload.
const COPIED: [&str; 2] = ["labels", "annotations"];

/// The workload's key, if its metadata can be read.
pub(super) fn workload_key(json: &Value, kind: WorkloadKind) -> Option<WorkloadKey> {
    let (name, namespace) = names(json)?;
    Some(WorkloadKey {
        kind,
        namespace: namespace.to_owned(),
        name: name.to_owned(),
    })
}

/// Converts the JSON of a workload to its pods; none if an error was recorded.
pub(super) fn build_workload(
    kind: WorkloadKind,
    canonical: &Value,
    ctx: &ParseContext<'_>,
    problems: &Problems<'_>,
) -> Option<AcceptedWorkload> {
    let (metadata, workload, causes) = decode(kind, canonical, problems);
    let none = Value::Null;
    let written = kind.template_in(canonical).unwrap_or(&none);
    let at = problems.root().dotted(kind.template_path());
    support::for_each_special(written, &mut |path, verdict| {
        note_special(verdict, &at.join(&path));
    });
    let (metadata, workload) = metadata.zip(workload)?;
    let pod = template_pod(&metadata, &workload);
    let before = problems.len();
    check::check_workload(&metadata, &workload, &pod, canonical, ctx, &problems.root());
    if !written.is_null() {
        check_template(&workload, &pod, &at);
    }
    problems.drop_consequences(before, &causes);
    if problems.has_error() {
        return None;
    }
    let key = workload_key(canonical, kind)?;
    let expansion = workload.expand(&key.name, &pod);
    let mut pod = pod;
    let mut template_hash = String::new();
    let annotations = pod.metadata.annotations.get_or_insert_default();
    annotations.insert(keys::WORKLOAD.to_owned(), key.owner());
    if kind.stays() {
        // Of all pods: the name of one is no part of it.
        let hash = uid::static_uid(&pod_document(&key.name, kind, canonical), ctx);
        template_hash = hash.to_string();
        annotations.insert(keys::TEMPLATE.to_owned(), template_hash.clone());
    }
    if let Some(updates) = &expansion.updates {
        annotations.insert(keys::UPDATES.to_owned(), updates.annotation());
    }
    for (name, value) in expansion.annotations {
        annotations.entry(name.to_owned()).or_insert(value);
    }
    let pods = expansion.names.iter().enumerate().map(|(number, name)| {
        let mut document = pod_document(name, kind, canonical);
        let mut pod = pod.clone();
        pod.metadata.name = Some(name.clone());
        if let Workload::StatefulSet(spec) = &workload {
            let number = i32::try_from(number).unwrap_or(i32::MAX);
            let ordinal = first_ordinal(spec).saturating_add(number);
            take_identity(spec, &key.name, ordinal, &mut pod, Some(&mut document));
        }
        let uid = uid::static_uid(&document, ctx);
        defaults::make_static(&mut pod, &uid, ctx.node_name, ctx.source);
        Arc::new(pod)
    });
    let pods: Vec<Arc<Pod>> = pods.collect();
    let runs = pods
        .first()
        .and_then(|pod| runs(&key, &workload, canonical, pod));
    Some(AcceptedWorkload {
        pods,
        runs: runs.map(Arc::new),
        set: stateful_set(&key, &workload).map(Arc::new),
        template: (!template_hash.is_empty()).then(|| Arc::new(written.clone())),
        template_hash,
        key,
        canonical: canonical.clone(),
    })
}

/// Checks the defaulted template of a workload at path `at`. The parts that a `StatefulSet` adds to its
/// pods are checked at their place in the document.
fn check_template(workload: &Workload, pod: &Pod, at: &At<'_>) {
    let before = at.problems.len();
    check::check_template(pod, at);
    if let Workload::StatefulSet(spec) = workload {
        let given: Vec<Path> = given(spec, pod, &at.path).collect();
        at.problems.drop_below(before, &given);
    }
}

/// Metadata and description, and the places of values that can't be decoded.
fn decode(
    kind: WorkloadKind,
    canonical: &Value,
    problems: &Problems<'_>,
) -> (Option<ObjectMeta>, Option<Workload>, Vec<Path>) {
    let (decoded, causes) = match kind {
        WorkloadKind::Deployment => {
            let (document, causes) = decode_noting::<Deployment>(canonical, problems);
            let of = |d: Deployment| (d.metadata, Workload::Deployment(d.spec));
            (document.map(of), causes)
        }
        WorkloadKind::StatefulSet => {
            let (document, causes) = decode_noting::<StatefulSetDocument>(canonical, problems);
            let of = |d: StatefulSetDocument| (d.metadata, Workload::StatefulSet(Box::new(d.spec)));
            (document.map(of), causes)
        }
        WorkloadKind::DaemonSet => {
            let (document, causes) = decode_noting::<DaemonSet>(canonical, problems);
            let of = |d: DaemonSet| (d.metadata, Workload::DaemonSet(d.spec));
            (document.map(of), causes)
        }
        WorkloadKind::Job => {
            let (document, causes) = decode_noting::<JobDocument>(canonical, problems);
            let of = |d: JobDocument| {
                (
                    d.metadata,
                    Workload::Job(Box::new(d.spec.unwrap_or_default())),
                )
            };
            (document.map(of), causes)
        }
        WorkloadKind::CronJob => {
            let (document, causes) = decode_noting::<CronJobDocument>(canonical, problems);
            let of = |d: CronJobDocument| {
                let mut spec = d.spec;
                let job = spec.job_template.spec.take().unwrap_or_default();
                (d.metadata, Workload::CronJob(Box::new((spec, job))))
            };
            (document.map(of), causes)
        }
    };
    let (metadata, workload) = decoded.unzip();
    (metadata, workload, causes)
}

/// A workload with pods that end; `pod` is its first one.
fn runs(key: &WorkloadKey, workload: &Workload, canonical: &Value, pod: &Arc<Pod>) -> Option<Runs> {
    let job = |name: String, path: &str, spec: &JobSpec| {
        let written = canonical.pointer(path)?;
        Some(Job {
            name: JobName::new(&key.namespace, name),
            content: job_content(key.kind, written, key.kind.template_in(canonical)?),
            rules: Rules::of(spec),
            template: Arc::clone(pod),
        })
    };
    match workload {
        Workload::Deployment(_) | Workload::StatefulSet(_) | Workload::DaemonSet(_) => None,
        Workload::Job(spec) => job(key.name.clone(), "/spec", spec).map(Runs::Job),
        Workload::CronJob(specs) => {
            let (spec, of_job) = &**specs;
            let job = job(format!("{}-0", key.name), "/spec/jobTemplate/spec", of_job)?;
            Some(Runs::CronJob(Box::new(cron_job(key, spec, job)?)))
        }
    }
}

fn cron_job(key: &WorkloadKey, spec: &CronJobSpec, job: Job) -> Option<CronJob> {
    let number = |value: Option<i32>| value.and_then(|value| u32::try_from(value).ok());
    let zone = match spec.time_zone.as_deref() {
        Some(name) => time_zone(name)?,
        None => TimeZone::UTC,
    };
    Some(CronJob {
        name: JobName::new(&key.namespace, &key.name),
        schedule: Schedule::parse(&spec.schedule, zone).ok()?,
        text: spec.schedule.clone(),
        zone: spec.time_zone.clone(),
        concurrency: Concurrency::of(spec.concurrency_policy.as_deref()),
        starting_deadline: spec
            .starting_deadline_seconds
            .and_then(|s| u64::try_from(s).ok()),
        successful: number(spec.successful_jobs_history_limit).unwrap_or(SUCCESSFUL_DEFAULT),
        failed: number(spec.failed_jobs_history_limit).unwrap_or(FAILED_DEFAULT),
        suspend: spec.suspend == Some(true),
        job,
    })
}

/// The hash of all that makes a Job another one: `spec` is its spec as written, `template` that of
/// its pods.
fn job_content(kind: WorkloadKind, spec: &Value, template: &Value) -> String {
    let fields = JOB_FIELDS.iter().filter_map(|field| {
        let value = spec.get(field).filter(|value| !value.is_null())?;
        Some(((*field).to_owned(), value.clone()))
    });
    let mut content: Map<String, Value> = fields.collect_object();
    let pod = template.get("spec").cloned().unwrap_or_default();
    let metadata = template.get("metadata").cloned().unwrap_or_default();
    content.insert("kind".to_owned(), kind.as_str().into());
    content.insert("spec".to_owned(), pod);
    content.insert("metadata".to_owned(), metadata);
    uid::uid_of(JOB_ENCODING, &Value::Object(content)).to_string()
}

/// The defaulted pod of a template, without a name; of a `StatefulSet` as its first one is.
fn template_pod(metadata: &ObjectMeta, workload: &Workload) -> Pod {
    let template = workload.template();
    let written = template.metadata.clone().unwrap_or_default();
    let mut pod = Pod {
        metadata: ObjectMeta {
            namespace: metadata.namespace.clone(),
            labels: written.labels,
            annotations: written.annotations,
            ..ObjectMeta::default()
        },
        spec: template.spec.clone(),
        status: None,
    };
    if pod.spec.is_some() {
        if let Workload::StatefulSet(spec) = workload {
            let name = metadata.name.as_deref().unwrap_or_default();
            take_identity(spec, name, first_ordinal(spec), &mut pod, None);
        }
        defaults::apply_defaults(&mut pod);
    }
    pod
}

/// The document that would describe a pod of a workload by itself: what its UID is a hash of.
fn pod_document(name: &str, kind: WorkloadKind, workload: &Value) -> Value {
    let template = kind.template_in(workload);
    let part = |key: &str| template.and_then(|template| template.get(key)).cloned();
    let written = part("metadata").unwrap_or_default();
    let copied = COPIED.iter().filter_map(|key| {
        let value = written.get(key)?.clone();
        Some(((*key).to_owned(), value))
    });
    let mut metadata: Map<String, Value> = copied.collect_object();
    metadata.insert("name".to_owned(), name.into());
    if let Some(namespace) = workload.pointer("/metadata/namespace") {
        metadata.insert("namespace".to_owned(), namespace.clone());
    }
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": part("spec"),
    })
}
