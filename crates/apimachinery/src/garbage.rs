//! Deletions that wait for finalizers, and garbage collection of objects without owners.
//!
//! Upstream: `apiserver/pkg/registry/rest/delete.go`, `apiserver/pkg/registry/generic/registry/store.go`,
//! `pkg/controller/garbagecollector/garbagecollector.go`.

use std::collections::HashMap;

use mirrorlet_core::api::quantity::Quantity;
use serde_json::{Map, Value};

use crate::cache::Key;
use crate::meta;
use crate::resources::{LEASES, Resource};
use crate::status::{Cause, Status};

/// The finalizer of an object that goes after its dependents.
const FOREGROUND: &str = "foregroundDeletion";
/// The finalizer of an object whose dependents lose their reference to it before it is removed.
const ORPHAN: &str = "orphan";

mirrorlet_core::words! {
    /// The effect of a deletion on the dependents of its object.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Propagation {
        /// They are deleted after it.
        Background = "Background",
        /// They are deleted first.
        Foreground = "Foreground",
        /// They stay.
        Orphan = "Orphan",
    }
    /// Its name in the options of a deletion.
    pub fn as_str;
}

impl Propagation {
    /// The propagation policy in the options of a deletion; `Background` without one.
    ///
    /// # Errors
    /// The policy is unknown, or given twice.
    pub fn of(options: &Value) -> Result<Self, Status> {
        let orphans = options["orphanDependents"].as_bool();
        let policy = options["propagationPolicy"].as_str();
        let refused = |reason, message: String| {
            let field = "propagationPolicy".to_owned();
            let cause = Cause {
                reason,
                message,
                field,
            };
            Err(Status::invalid_options("DeleteOptions", cause))
        };
        match (policy, orphans) {
            (Some(policy), Some(_)) => {
                let why = "orphanDependents and deletionPropagation cannot be both set";
                refused(
                    "FieldValueInvalid",
                    format!("Invalid value: {policy:?}: {why}"),
                )
            }
            (None, None | Some(false)) | (Some("Background"), None) => Ok(Self::Background),
            (Some("Foreground"), None) => Ok(Self::Foreground),
            (None, Some(true)) | (Some("Orphan"), None) => Ok(Self::Orphan),
            (Some(policy), None) => {
                let known = r#"supported values: "Background", "Foreground", "Orphan", "nil""#;
                let message = format!("Unsupported value: {policy:?}: {known}");
                refused("FieldValueNotSupported", message)
            }
        }
    }

    fn finalizer(self) -> Option<&'static str> {
        match self {
            Self::Background => None,
            Self::Foreground => Some(FOREGROUND),
            Self::Orphan => Some(ORPHAN),
        }
    }
}

/// Whether an object is being deleted.
pub fn is_deleted(object: &Value) -> bool {
    !object["metadata"]["deletionTimestamp"].is_null()
}

/// The finalizers of an object.
pub fn finalizers(object: &Value) -> impl Iterator<Item = &str> {
    let all = object["metadata"]["finalizers"].as_array();
    all.into_iter().flatten().filter_map(Value::as_str)
}

/// Whether an object has finalizers: its deletion waits until they are removed.
pub fn has_finalizers(object: &Value) -> bool {
    finalizers(object).next().is_some()
}

/// Whether an object goes after its dependents.
pub fn is_foreground(object: &Value) -> bool {
    is_deleted(object) && has_finalizer(object, FOREGROUND)
}

fn has_finalizer(object: &Value, wanted: &str) -> bool {
    finalizers(object).any(|finalizer| finalizer == wanted)
}

fn set_finalizers(object: &mut Value, finalizers: Vec<String>) {
    let metadata = meta::metadata(object);
    if finalizers.is_empty() {
        metadata.remove("finalizers");
    } else {
        metadata.insert("finalizers".to_owned(), finalizers.into());
    }
}

fn without_finalizer(object: &Value, finalizer: &str) -> Value {
    let left = finalizers(object).filter(|one| *one != finalizer);
    let left = left.map(str::to_owned).collect();
    let mut object = object.clone();
    set_finalizers(&mut object, left);
    object
}

/// Marks an object as being deleted. If it is already, only the propagation to its dependents changes.
pub fn mark(object: &mut Value, propagation: Propagation, at: &str, grace_seconds: i64) {
    if !is_deleted(object) {
        let generation = object["metadata"]["generation"].as_i64();
        let metadata = meta::metadata(object);
        metadata.insert("deletionTimestamp".to_owned(), at.into());
        let grace = grace_seconds.into();
        metadata.insert("deletionGracePeriodSeconds".to_owned(), grace);
        if let Some(generation) = generation {
            metadata.insert("generation".to_owned(), (generation + 1).into());
        }
    }
    let others = finalizers(object).filter(|one| ![FOREGROUND, ORPHAN].contains(one));
    let all = others.chain(propagation.finalizer()).map(str::to_owned);
    let all = all.collect();
    set_finalizers(object, all);
}

/// Checks the next version of an object that is being deleted.
///
/// # Errors
/// The object gains a finalizer.
pub fn check_finalizers(object: &Value, before: &Value, resource: &Resource) -> Result<(), Status> {
    let known: Vec<_> = finalizers(before).collect();
    let new: Vec<_> = finalizers(object)
        .filter(|one| !known.contains(one))
        .collect();
    if new.is_empty() {
        return Ok(());
    }
    let new: Vec<_> = new.iter().map(|one| format!("{one:?}")).collect();
    let why = format!(
        "no new finalizers can be added if the object is being deleted, found new finalizers []string{{{}}}",
        new.join(", ")
    );
    let cause = Cause::forbidden("metadata.finalizers", why);
    Err(Status::invalid(resource, meta::name(before), &[cause]))
}

/// Checks the next version of an object that is being deleted and whose pods are being stopped: only
/// its metadata can change. The object gets the content of the previous version, which may have other
/// zero values and quantities.
///
/// # Errors
/// The content differs.
pub fn keep_content(object: &mut Value, before: &Value, resource: &Resource) -> Result<(), Status> {
    const OTHERS: [&str; 4] = ["apiVersion", "kind", "metadata", "status"];
    let (Some(next), Some(known)) = (object.as_object(), before.as_object()) else {
        return Ok(());
    };
    let changed = names_of_both(next, known)
        .filter(|name| !OTHERS.contains(name) && !is_same(&object[*name], &before[*name]));
    let why = "can't be changed: the object is being deleted, and its pods are being stopped";
    let causes: Vec<_> = changed.map(|name| Cause::forbidden(name, why)).collect();
    if !causes.is_empty() {
        return Err(Status::invalid(resource, meta::name(before), &causes));
    }
    let mut kept = before.clone();
    kept["metadata"] = object["metadata"].take();
    *object = kept;
    Ok(())
}

fn names_of_both<'a>(
    one: &'a Map<String, Value>,
    other: &'a Map<String, Value>,
) -> impl Iterator<Item = &'a str> {
    let more = other.keys().filter(move |name| !one.contains_key(*name));
    one.keys().chain(more).map(String::as_str)
}

/// Whether values are the same to clients in Go, which leave zero values out, or write some that were
/// not there, and write quantities in their shortest form.
fn is_same(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Object(fields), Value::Object(others)) => {
            names_of_both(fields, others).all(|name| is_same(&one[name], &other[name]))
        }
        (Value::Object(fields), Value::Null) | (Value::Null, Value::Object(fields)) => {
            fields.values().all(|value| is_same(value, &Value::Null))
        }
        (Value::Array(items), Value::Array(others)) => {
            let mut pairs = items.iter().zip(others);
            items.len() == others.len() && pairs.all(|(one, other)| is_same(one, other))
        }
        (Value::String(text), Value::String(other)) => {
            let quantity = |text: &str| text.parse::<Quantity>().ok();
            text == other || (quantity(text).is_some() && quantity(text) == quantity(other))
        }
        (one, other) => one == other || (meta::is_zero(one) && meta::is_zero(other)),
    }
}

/// An object among all others.
#[derive(Debug, Clone, Copy)]
pub struct Member<'a> {
    /// Its key.
    pub key: &'a Key,
    /// The object.
    pub object: &'a Value,
    /// Whether it may be deleted and changed.
    pub is_stored: bool,
}

/// A step of the collection.
#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    /// The object is deleted.
    Delete(Key, Propagation),
    /// The next version of an object: a finalizer or references to owners are removed.
    Update(Key, Value),
}

fn owners(object: &Value) -> impl Iterator<Item = &Value> {
    let all = object["metadata"]["ownerReferences"].as_array();
    all.into_iter().flatten()
}

fn uid_in(reference: &Value) -> &str {
    reference["uid"].as_str().unwrap_or_default()
}

/// The object with only those references to owners that `keep` wants.
fn with_owners(object: &Value, keep: impl Fn(&Value) -> bool) -> Value {
    let left: Vec<Value> = owners(object).filter(|one| keep(one)).cloned().collect();
    let mut object = object.clone();
    let metadata = meta::metadata(&mut object);
    if left.is_empty() {
        metadata.remove("ownerReferences");
    } else {
        metadata.insert("ownerReferences".to_owned(), left.into());
    }
    object
}

/// Whether garbage collection may have work to do for an object.
pub fn concerns(object: &Value) -> bool {
    owners(object).next().is_some() || (is_deleted(object) && has_finalizers(object))
}

/// The dependents of an object that may be changed, without their references to it.
pub fn let_go(members: &[Member<'_>], owner: &Value) -> Vec<(Key, Value)> {
    let uid = meta::uid(owner);
    let dependents = members.iter().filter(|member| {
        member.is_stored && owners(member.object).any(|reference| uid_in(reference) == uid)
    });
    let without = dependents.map(|member| {
        let object = with_owners(member.object, |reference| uid_in(reference) != uid);
        (member.key.clone(), object)
    });
    without.collect()
}

/// The state of the owner that a reference means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Owner {
    /// The owner exists, or may: its kind isn't served, or isn't kept over restarts of the server.
    Solid,
    /// It goes after its dependents.
    Waiting,
    /// It is gone.
    Absent,
}

/// All objects, and their dependencies.
struct Graph<'a> {
    members: &'a [Member<'a>],
    by_uid: HashMap<&'a str, &'a Member<'a>>,
    dependents: HashMap<&'a str, Vec<&'a Member<'a>>>,
}

impl<'a> Graph<'a> {
    fn new(members: &'a [Member<'a>]) -> Self {
        let by_uid = members
            .iter()
            .map(|member| (meta::uid(member.object), member));
        let mut dependents: HashMap<_, Vec<_>> = HashMap::new();
        for member in members {
            for reference in owners(member.object) {
                dependents
                    .entry(uid_in(reference))
                    .or_default()
                    .push(member);
            }
        }
        Self {
            members,
            by_uid: by_uid.collect(),
            dependents,
        }
    }

    fn dependents(&self, object: &Value) -> &[&'a Member<'a>] {
        self.dependents
            .get(meta::uid(object))
            .map_or(&[], Vec::as_slice)
    }

    /// As upstream, a reference with another kind, name or namespace than the object with its UID has
    /// no owner.
    fn owner(&self, dependent: &Key, reference: &Value) -> Owner {
        let said = |key: &str| reference[key].as_str().unwrap_or_default();
        let (version, kind) = (said("apiVersion"), said("kind"));
        let resource = Resource::of_kind(kind).filter(|of| of.api_version() == version);
        let Some(resource) = resource else {
            return Owner::Solid;
        };
        let owner = self.by_uid.get(uid_in(reference)).filter(|owner| {
            let key = owner.key;
            let is_near = key.namespace.is_empty() || key.namespace == dependent.namespace;
            key.resource.kind == kind && key.name == said("name") && is_near
        });
        match owner {
            // Leases are in memory: after a restart of the server none exists, and none counts as
            // removed.
            None if resource == &LEASES => Owner::Solid,
            None => Owner::Absent,
            Some(owner) if is_foreground(owner.object) => Owner::Waiting,
            Some(_) => Owner::Solid,
        }
    }

    /// The steps of an object that isn't being deleted.
    fn of_dependent(&self, member: &Member<'_>) -> Vec<Step> {
        let (key, object) = (member.key, member.object);
        let of = |reference: &Value| self.owner(key, reference);
        let has = |state: Owner| owners(object).any(|reference| of(reference) == state);
        if owners(object).next().is_none() {
            return Vec::new();
        }
        if has(Owner::Solid) {
            let loses = has(Owner::Waiting) || has(Owner::Absent);
            let left = || with_owners(object, |reference| of(reference) == Owner::Solid);
            return loses
                .then(|| Step::Update(key.clone(), left()))
                .into_iter()
                .collect();
        }
        let dependents = self.dependents(object);
        if has(Owner::Waiting) && !dependents.is_empty() {
            // Owners in a circle would wait for one another.
            let is_circle = dependents.iter().any(|one| is_foreground(one.object));
            let unblocked = is_circle.then(|| Step::Update(key.clone(), unblocking(object)));
            let deletion = Step::Delete(key.clone(), Propagation::Foreground);
            return unblocked.into_iter().chain([deletion]).collect();
        }
        let propagation = if has_finalizer(object, ORPHAN) {
            Propagation::Orphan
        } else if has_finalizer(object, FOREGROUND) {
            Propagation::Foreground
        } else {
            Propagation::Background
        };
        vec![Step::Delete(key.clone(), propagation)]
    }

    /// The steps of an object that is being deleted. `makes` says whether the first object made the
    /// second one.
    fn of_deleted(
        &self,
        member: &Member<'_>,
        makes: &impl Fn(&Value, &Value) -> bool,
    ) -> Vec<Step> {
        let object = member.object;
        let release = |finalizer: &str| {
            vec![Step::Update(
                member.key.clone(),
                without_finalizer(object, finalizer),
            )]
        };
        if has_finalizer(object, FOREGROUND) {
            let blocks = |dependent: &&&Member<'_>| {
                let of_it = |one: &&Value| uid_in(one) == meta::uid(object);
                let mut references = owners(dependent.object).filter(of_it);
                dependent.key != member.key
                    && references.any(|reference| reference["blockOwnerDeletion"] == true)
            };
            let is_blocked = self.dependents(object).iter().any(|one| blocks(&one))
                || self.members.iter().any(|one| makes(object, one.object));
            return if is_blocked {
                Vec::new()
            } else {
                release(FOREGROUND)
            };
        }
        if has_finalizer(object, ORPHAN) {
            let left = let_go(self.members, object).into_iter();
            let left = left.map(|(key, object)| Step::Update(key, object));
            return left.chain(release(ORPHAN)).collect();
        }
        Vec::new()
    }
}

/// An object that keeps none of its owners from going.
fn unblocking(object: &Value) -> Value {
    let mut object = object.clone();
    let all = object["metadata"]["ownerReferences"].as_array_mut();
    for reference in all.into_iter().flatten() {
        reference["blockOwnerDeletion"] = false.into();
    }
    object
}

/// The next steps for objects without owners or with owners that are deleted in the foreground, and for
/// objects that are being deleted and wait for their dependents. Empty once nothing is left to do.
/// `makes` says whether the first object created the second one without an owner reference.
pub fn collect(members: &[Member<'_>], makes: impl Fn(&Value, &Value) -> bool) -> Vec<Step> {
    let graph = Graph::new(members);
    let stored = members.iter().filter(|member| member.is_stored);
    let steps = stored.flat_map(|member| {
        if is_deleted(member.object) {
            graph.of_deleted(member, &makes)
        } else {
            graph.of_dependent(member)
        }
    });
    steps.collect()
}

#[cfg(test)]
mod tests;
