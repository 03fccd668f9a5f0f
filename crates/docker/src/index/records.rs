//! PURE: the records by container id, in a long or a short form.
//!
//! Ended containers are seldom read, and there may be many: those of ended API pods stay for their logs
//! until the pods are deleted. Their records are stored as text, which takes a third of the memory, and
//! are rebuilt on each read.

#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use super::Record;
use crate::translate::{DEFAULT_TERMINATION_PATH, HookLabels, Kind, OurContainer};
use mirrorlet_core::api::{FullName, PodUid, Timestamp};
use mirrorlet_core::observed::{ContainerHash, ContainerState, Role};

/// All records.
#[derive(Debug, Default)]
pub(super) struct Records {
    forms: HashMap<Arc<str>, Form>,
    /// Texts that records have in common.
    texts: HashSet<Arc<str>>,
}

#[derive(Debug)]
enum Form {
    Whole(Box<Record>),
    Ended(Box<Ended>),
}

/// The record of a container that has ended.
struct Ended {
    image: Arc<str>,
    image_id: Arc<str>,
    touched: u64,
    /// The UID of the pod, and in the next line [`Rest`].
    text: Box<str>,
}

// The text has the labels of hooks, which may hold what is secret.
mirrorlet_core::partial_debug!(Ended);

/// Nanoseconds, since 1970 or since the container was created.
type Time = i64;

/// The fields in which records differ: name and namespace of the pod, its grace in milliseconds; when the
/// container was created, started and ended; its exit code, and [`STOPPED_BY_US`] and [`RAN_BEFORE`];
/// reason and message of its end; the file of the message, without the UID of the pod if that is in its
/// path; and what it is.
type Rest<T> = (
    (T, T, u64),
    (Time, Option<Time>, Option<Time>),
    (Option<i32>, u8),
    (T, T),
    Option<(T, Option<T>)>,
    Option<Sandbox>,
    Option<Container<T>>,
);

/// Attempt, whether it is in the host's network, and when its pod was started.
type Sandbox = (u32, bool, Option<Time>);

/// Name, role, instances and restarts of all containers before, hash, sandbox, and whether a label
/// names its image; the path of its termination message, if it isn't the default one, and whether the
/// log stands in for that; the labels of its hooks.
type Container<T> = ((T, T, (u32, u32), u32, T, bool), (Option<T>, bool), (T, T));

/// This agent stopped it.
const STOPPED_BY_US: u8 = 1;
/// It was started before this agent listened.
const RAN_BEFORE: u8 = 2;

fn flags_of(record: &Record) -> u8 {
    let flag = |is_set: bool, flag: u8| if is_set { flag } else { 0 };
    flag(record.stopped_by_us, STOPPED_BY_US) | flag(record.ran_before, RAN_BEFORE)
}

fn nanos(time: Timestamp) -> Option<Time> {
    Time::try_from(time.as_nanosecond()).ok()
}

fn time(nanos: Time) -> Option<Timestamp> {
    Timestamp::from_nanosecond(nanos.into()).ok()
}

/// A time as it is after another one.
fn after(created: Time, later: Option<Timestamp>) -> Option<Time> {
    nanos(later?)?.checked_sub(created)
}

/// The time that is so much later.
fn later(created: Time, after: Option<Time>) -> Option<Timestamp> {
    time(created.checked_add(after?)?)
}

/// Whether no more changes of a container are expected, and its record fits into the short form.
fn is_done(record: &Record) -> bool {
    let has_image = match &record.ours.kind {
        Kind::Sandbox {
            forwarded_ports, ..
        } => forwarded_ports.is_empty(),
        // A list may still report it.
        Kind::Container { .. } => !record.image_id.is_empty(),
    };
    record.state == ContainerState::Exited
        && !record.stale
        && has_image
        && record.by_hand.is_none()
        && record.published.is_none()
        && record.ips.is_empty()
}

fn text_of(record: &Record) -> Option<String> {
    let ours = &record.ours;
    let (sandbox, container) = match &ours.kind {
        Kind::Sandbox {
            attempt,
            host_network,
            pod_started_at,
            ..
        } => {
            let started = pod_started_at.and_then(nanos);
            (Some((*attempt, *host_network, started)), None)
        }
        Kind::Container {
            name,
            role,
            restart_count,
            pod_restarts,
            hash,
            sandbox_id,
            image_id,
            termination_path,
            fallback_to_logs,
            hooks,
        } => {
            let is_named = !image_id.is_empty();
            let what = (
                &**name,
                role.as_str(),
                (*restart_count, *pod_restarts),
                hash.0,
                &**sandbox_id,
                is_named,
            );
            let path = Some(&**termination_path).filter(|path| *path != DEFAULT_TERMINATION_PATH);
            let container = (what, (path, *fallback_to_logs), hooks.texts());
            (None, Some(container))
        }
    };
    let uid = ours.uid.as_str();
    let log = record.termination_log.as_deref();
    let log = log.and_then(|path| path.to_str());
    let log = log.map(|path| match path.split_once(uid) {
        Some((before, after)) => (before, Some(after)),
        None => (path, None),
    });
    let created = nanos(record.created_at)?;
    let rest: Rest<&str> = (
        (
            &ours.full_name.name,
            &ours.full_name.namespace,
            u64::try_from(ours.grace.as_millis()).ok()?,
        ),
        (
            created,
            after(created, record.started_at),
            after(created, record.finished_at),
        ),
        (record.exit_code, flags_of(record)),
        (&record.reason, &record.message),
        log,
        sandbox,
        container,
    );
    let text = serde_json::to_string(&rest).ok()?;
    (!uid.contains('\n')).then(|| format!("{uid}\n{text}"))
}

impl Ended {
    fn is_of_pod(&self, uid: &PodUid) -> bool {
        let rest = self.text.strip_prefix(uid.as_str());
        rest.is_some_and(|rest| rest.starts_with('\n'))
    }

    /// The record that it was made of.
    fn record(&self, id: &Arc<str>) -> Option<Record> {
        let (uid, rest) = self.text.split_once('\n')?;
        let rest: Rest<String> = serde_json::from_str(rest).ok()?;
        let ((name, namespace, grace), times, end, words, log, sandbox, container) = rest;
        let kind = match sandbox {
            Some((attempt, host_network, started)) => Kind::Sandbox {
                attempt,
                host_network,
                pod_started_at: started.and_then(time),
                forwarded_ports: Vec::new(),
            },
            None => self.container(container?)?,
        };
        let ours = OurContainer {
            uid: uid.into(),
            full_name: FullName::new(name, namespace),
            grace: Duration::from_millis(grace),
            kind,
        };
        let mut record = Record::new(Arc::clone(id), ours, time(times.0)?);
        record.state = ContainerState::Exited;
        record.image = Arc::clone(&self.image);
        record.image_id = Arc::clone(&self.image_id);
        record.started_at = later(times.0, times.1);
        record.finished_at = later(times.0, times.2);
        record.exit_code = end.0;
        record.stopped_by_us = end.1 & STOPPED_BY_US != 0;
        record.ran_before = end.1 & RAN_BEFORE != 0;
        (record.reason, record.message) = (words.0.into(), words.1.into());
        record.termination_log = log.map(|(path, after)| match after {
            Some(after) => format!("{path}{uid}{after}").into(),
            None => path.into(),
        });
        record.touched = self.touched;
        Some(record)
    }

    fn container(&self, container: Container<String>) -> Option<Kind> {
        let (what, (path, fallback_to_logs), (pre_stop, ports)) = container;
        let (name, role, (restart_count, pod_restarts), hash, sandbox_id, is_named) = what;
        Some(Kind::Container {
            name,
            role: Role::parse(&role)?,
            restart_count,
            pod_restarts,
            hash: ContainerHash(hash),
            sandbox_id,
            image_id: if is_named {
                Arc::clone(&self.image_id)
            } else {
                Arc::default()
            },
            termination_path: path.unwrap_or_else(|| DEFAULT_TERMINATION_PATH.to_owned()),
            fallback_to_logs,
            hooks: HookLabels::of_texts(pre_stop, ports),
        })
    }
}

impl Form {
    /// The record itself. None is what can't be: the text was written here.
    fn record(&self, id: &Arc<str>) -> Option<Record> {
        match self {
            Self::Whole(record) => Some(Record::clone(record)),
            Self::Ended(ended) => ended.record(id),
        }
    }

    fn touched(&self) -> u64 {
        match self {
            Self::Whole(record) => record.touched,
            Self::Ended(ended) => ended.touched,
        }
    }
}

impl Records {
    /// The form in which a record is kept.
    fn form(&mut self, record: Box<Record>) -> Form {
        let Some(text) = is_done(&record).then(|| text_of(&record)).flatten() else {
            return Form::Whole(record);
        };
        let mut shared = |text: &Arc<str>| {
            if let Some(known) = self.texts.get(text) {
                return Arc::clone(known);
            }
            self.texts.insert(Arc::clone(text));
            Arc::clone(text)
        };
        Form::Ended(Box::new(Ended {
            image: shared(&record.image),
            image_id: shared(&record.image_id),
            touched: record.touched,
            text: text.into(),
        }))
    }

    /// The record of that id.
    pub(super) fn get(&self, id: &str) -> Option<Record> {
        let (id, form) = self.forms.get_key_value(id)?;
        form.record(id)
    }

    /// Whether there is one of that id.
    pub(super) fn contains(&self, id: &str) -> bool {
        self.forms.contains_key(id)
    }

    /// Adds a record, or replaces the one of its id.
    pub(super) fn insert(&mut self, record: Record) {
        let id = Arc::clone(&record.id);
        let form = self.form(Box::new(record));
        self.forms.insert(id, form);
    }

    /// Changes a record, if there is one.
    pub(super) fn change<T>(
        &mut self,
        id: &str,
        change: impl FnOnce(&mut Record) -> T,
    ) -> Option<T> {
        let (id, form) = self.forms.remove_entry(id)?;
        let mut record = match form {
            Form::Whole(record) => record,
            Form::Ended(ended) => Box::new(ended.record(&id)?),
        };
        let done = change(&mut record);
        let form = self.form(record);
        self.forms.insert(id, form);
        Some(done)
    }

    /// Handles an ended container in a list. Returns whether its record is in its short form, so that
    /// nothing is new.
    pub(super) fn is_known_ended(&mut self, id: &str, now: u64) -> bool {
        match self.forms.get_mut(id) {
            Some(Form::Ended(ended)) => {
                ended.touched = now;
                true
            }
            Some(Form::Whole(_)) | None => false,
        }
    }

    /// Removes a record.
    pub(super) fn remove(&mut self, id: &str) {
        self.forms.remove(id);
    }

    /// Keeps the records for which the function returns true, given the id and the time of the last
    /// report.
    pub(super) fn retain(&mut self, is_kept: impl Fn(&str, u64) -> bool) {
        self.forms.retain(|id, form| is_kept(id, form.touched()));
        self.texts.retain(|text| Arc::strong_count(text) > 1);
        self.forms.shrink_to_fit();
        self.texts.shrink_to_fit();
    }

    /// The records in the long form, which may still change.
    pub(super) fn whole(&self) -> impl Iterator<Item = &Record> {
        self.forms.values().filter_map(|form| match form {
            Form::Whole(record) => Some(&**record),
            Form::Ended(_) => None,
        })
    }

    /// The same, mutable; the changes must not end a container.
    pub(super) fn whole_mut(&mut self) -> impl Iterator<Item = &mut Record> {
        self.forms.values_mut().filter_map(|form| match form {
            Form::Whole(record) => Some(&mut **record),
            Form::Ended(_) => None,
        })
    }

    /// The records of a pod.
    pub(super) fn of_pod(&self, uid: &PodUid) -> Vec<Record> {
        let is_its = |form: &Form| match form {
            Form::Whole(record) => record.ours.uid == *uid,
            Form::Ended(ended) => ended.is_of_pod(uid),
        };
        let its = self.forms.iter().filter(|(_, form)| is_its(form));
        its.filter_map(|(id, form)| form.record(id)).collect()
    }

    /// All records.
    pub(super) fn all(&self) -> impl Iterator<Item = Record> {
        self.forms.iter().filter_map(|(id, form)| form.record(id))
    }
}
