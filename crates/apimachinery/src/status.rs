//! Errors in the form that Kubernetes clients read: a `Status` object with a code, a reason and a
//! message.
//!
//! Upstream: `apimachinery/pkg/api/errors/errors.go`, with its words.

use std::fmt::Display;

use serde_json::{Value, json};

use crate::resources::Resource;

/// Why a request failed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{message}")]
pub struct Status {
    /// The HTTP status code.
    pub code: u16,
    /// The machine-readable reason.
    pub reason: &'static str,
    /// The problem, for users.
    pub message: String,
    /// The object concerned and the causes, if any.
    pub details: Option<Box<Value>>,
    /// A token with which an expired list can continue.
    pub token: Option<String>,
}

/// One field that is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cause {
    /// The kind of mistake, for example `FieldValueRequired`.
    pub reason: &'static str,
    /// The problem.
    pub message: String,
    /// Its path.
    pub field: String,
}

impl Cause {
    /// A value that isn't valid, and why.
    pub fn invalid(field: impl Into<String>, why: impl Display) -> Self {
        Self {
            reason: "FieldValueInvalid",
            message: format!("Invalid value: {why}"),
            field: field.into(),
        }
    }

    /// A value or a change that is forbidden, with the reason.
    pub fn forbidden(field: impl Into<String>, why: impl Display) -> Self {
        Self {
            reason: "FieldValueForbidden",
            message: format!("Forbidden: {why}"),
            field: field.into(),
        }
    }
}

impl Status {
    fn new(code: u16, reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            code,
            reason,
            message: message.into(),
            details: None,
            token: None,
        }
    }

    fn about(mut self, resource: &Resource, name: &str) -> Self {
        let mut details = json!({"name": name, "kind": resource.plural});
        if !resource.group.is_empty() {
            details["group"] = resource.group.into();
        }
        self.details = Some(details.into());
        self
    }

    /// The request can't be understood.
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(400, "BadRequest", message)
    }

    /// The object may not be changed in this way.
    pub fn forbidden(resource: &Resource, name: &str, why: &str) -> Self {
        let message = format!("{} {name:?} is forbidden: {why}", resource.qualified());
        Self::new(403, "Forbidden", message).about(resource, name)
    }

    /// There is no such object.
    pub fn not_found(resource: &Resource, name: &str) -> Self {
        let message = format!("{} {name:?} not found", resource.qualified());
        Self::new(404, "NotFound", message).about(resource, name)
    }

    /// There is nothing at that path.
    pub fn no_such_path() -> Self {
        let message = "the server could not find the requested resource";
        Self {
            // `kubectl debug` looks into the details without asking whether there are some.
            details: Some(json!({}).into()),
            ..Self::new(404, "NotFound", message)
        }
    }

    /// The verb is not one of the resource's.
    pub fn not_allowed(verb: &str, resource: &Resource) -> Self {
        let message = format!(
            "{verb} is not supported on resources of kind {:?}",
            resource.qualified()
        );
        Self::new(405, "MethodNotAllowed", message).about(resource, "")
    }

    /// The status of an object can't be written.
    pub fn status_is_read_only(verb: &str, resource: &Resource) -> Self {
        let message = format!(
            "{verb} is not supported on the status of {}: the agent sets it, and it can only be read",
            resource.qualified()
        );
        Self::new(405, "MethodNotAllowed", message).about(resource, "")
    }

    /// A request that impersonates a user, group, UID or extra field (`what`) of that name.
    ///
    /// Upstream: `WithImpersonation` of `apiserver/pkg/endpoints/filters/impersonation`.
    pub fn impersonation(what: &str, name: &str, user: &str) -> Self {
        let message = format!(
            "{what} {name:?} is forbidden: User {user:?} cannot impersonate resource {what:?} in API group \"\" at the cluster scope: users can't be impersonated here, because there is only one"
        );
        Self {
            details: Some(json!({"name": name, "kind": what}).into()),
            ..Self::new(403, "Forbidden", message)
        }
    }

    /// The client accepts none of the formats of the answer.
    pub fn not_acceptable() -> Self {
        let message = "only the following media types are accepted: application/json, application/json;as=Table;v=v1;g=meta.k8s.io";
        Self::new(406, "NotAcceptable", message)
    }

    /// The body is of a type that isn't read.
    pub fn unsupported_media_type(accepted: &str) -> Self {
        let message = format!(
            "the body of the request was in an unknown format - accepted media types include: {accepted}"
        );
        Self::new(415, "UnsupportedMediaType", message)
    }

    /// An object of that name exists.
    pub fn already_exists(resource: &Resource, name: &str) -> Self {
        let message = format!("{} {name:?} already exists", resource.qualified());
        Self::new(409, "AlreadyExists", message).about(resource, name)
    }

    /// An object of that name is still being deleted.
    pub fn being_deleted(resource: &Resource, name: &str) -> Self {
        let message = format!(
            "object is being deleted: {} {name:?} already exists",
            resource.qualified()
        );
        Self::new(409, "AlreadyExists", message).about(resource, name)
    }

    /// The object is not as the request supposes.
    pub fn conflict(resource: &Resource, name: &str, why: &str) -> Self {
        let message = format!(
            "Operation cannot be fulfilled on {} {name:?}: {why}",
            resource.qualified()
        );
        Self::new(409, "Conflict", message).about(resource, name)
    }

    /// An apply conflicts with other managers: each conflict's message, and its field.
    pub fn apply_conflict(conflicts: &[(String, String)]) -> Self {
        let each: Vec<_> = conflicts
            .iter()
            .map(|(why, field)| format!("{why}: {field}"))
            .collect();
        let plural = if conflicts.len() == 1 { "" } else { "s" };
        let message = format!(
            "Apply failed with {} conflict{plural}: {}",
            conflicts.len(),
            each.join(", ")
        );
        let causes: Vec<_> = conflicts
            .iter()
            .map(|(why, field)| {
                json!({"reason": "FieldManagerConflict", "message": why, "field": field})
            })
            .collect();
        Self {
            details: Some(json!({"causes": causes}).into()),
            ..Self::new(409, "Conflict", message)
        }
    }

    /// The object was changed since the client read it.
    pub fn modified(resource: &Resource, name: &str) -> Self {
        let why = "the object has been modified; please apply your changes to the latest version and try again";
        Self::conflict(resource, name, why)
    }

    /// The changes since that revision are no longer known.
    pub fn expired(asked: u64, oldest: u64) -> Self {
        let message = format!("too old resource version: {asked} ({oldest})");
        Self::new(410, "Expired", message)
    }

    /// A watch starts at a revision that isn't reached yet: it was issued by an agent whose revisions
    /// are lost. Clients list again, as after a revision that is too old.
    pub fn unknown_version(asked: u64, newest: u64) -> Self {
        let message = format!("unknown resource version: {asked}, current: {newest}");
        Self::new(410, "Expired", message)
    }

    /// The body is larger than is read.
    pub fn too_large(bytes_max: usize) -> Self {
        let message = format!("Request entity too large: limit is {bytes_max}");
        Self::new(413, "RequestEntityTooLarge", message)
    }

    /// Answering the request would take too much memory.
    pub fn too_costly(message: impl Into<String>) -> Self {
        Self::new(413, "RequestEntityTooLarge", message)
    }

    /// Fields of the object are wrong.
    pub fn invalid(resource: &Resource, name: &str, causes: &[Cause]) -> Self {
        Self::invalid_kind(resource.kind, resource.group, name, causes)
    }

    /// Options of a request are wrong.
    pub(crate) fn invalid_options(kind: &str, cause: Cause) -> Self {
        Self::invalid_kind(kind, "meta.k8s.io", "", &[cause])
    }

    fn invalid_kind(kind: &str, group: &str, name: &str, causes: &[Cause]) -> Self {
        let each: Vec<_> = causes
            .iter()
            .map(|cause| format!("{}: {}", cause.field, cause.message))
            .collect();
        let words = match &each[..] {
            [one] => one.clone(),
            all => format!("[{}]", all.join(", ")),
        };
        let message = format!("{} {name:?} is invalid: {words}", qualified(kind, group));
        let causes: Vec<_> = causes
            .iter()
            .map(|c| json!({"reason": c.reason, "message": c.message, "field": c.field}))
            .collect();
        let mut details = json!({"name": name, "kind": kind, "causes": causes});
        if !group.is_empty() {
            details["group"] = group.into();
        }
        Self {
            details: Some(details.into()),
            ..Self::new(422, "Invalid", message)
        }
    }

    /// A parameter of the request is wrong.
    pub fn invalid_option(field: &str, message: &str) -> Self {
        let cause = Cause {
            reason: "FieldValueInvalid",
            message: message.to_owned(),
            field: field.to_owned(),
        };
        Self::invalid_options("ListOptions", cause)
    }

    /// A revision that isn't reached yet.
    pub fn too_large_version(asked: u64, present: u64) -> Self {
        let message = format!("Too large resource version: {asked}, current: {present}");
        let cause =
            json!({"reason": "ResourceVersionTooLarge", "message": "Too large resource version"});
        Self {
            details: Some(json!({"causes": [cause], "retryAfterSeconds": 1}).into()),
            ..Self::timeout(message)
        }
    }

    /// Too much is asked at a time.
    pub fn too_many_requests(message: &str, retry_after_seconds: u32) -> Self {
        Self {
            details: Some(json!({"retryAfterSeconds": retry_after_seconds}).into()),
            ..Self::new(429, "TooManyRequests", message)
        }
    }

    /// Something failed here.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(500, "InternalError", message)
    }

    /// A dependency of the answer is itself unavailable.
    pub fn unavailable(message: impl Into<String>) -> Self {
        Self::new(503, "ServiceUnavailable", message)
    }

    /// The same, with the time after which the client may retry.
    pub fn unavailable_for(message: impl Into<String>, retry_after_seconds: u32) -> Self {
        Self {
            details: Some(json!({"retryAfterSeconds": retry_after_seconds}).into()),
            ..Self::unavailable(message)
        }
    }

    /// The request did not complete within its deadline.
    pub fn timeout(message: impl Into<String>) -> Self {
        Self::new(504, "Timeout", message)
    }

    /// The object that is sent.
    pub fn to_value(&self) -> Value {
        let mut status = json!({
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "code": self.code,
        });
        if let Some(details) = &self.details {
            status["details"] = (**details).clone();
        }
        if let Some(token) = &self.token {
            status["metadata"]["continue"] = token.as_str().into();
        }
        status
    }
}

/// The `Status` of a deletion that is done.
pub fn deleted(resource: &Resource, name: &str, uid: &str) -> Value {
    let mut details = json!({"name": name, "kind": resource.plural, "uid": uid});
    if !resource.group.is_empty() {
        details["group"] = resource.group.into();
    }
    json!({
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Success",
        "details": details,
    })
}

fn qualified(kind: &str, group: &str) -> String {
    if group.is_empty() {
        kind.to_owned()
    } else {
        format!("{kind}.{group}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resources::{DEPLOYMENTS, PODS};

    #[test]
    fn errors_have_upstreams_words() {
        for (status, code, words) in [
            (
                Status::not_found(&PODS, "web"),
                404,
                r#"pods "web" not found"#,
            ),
            (
                Status::not_found(&DEPLOYMENTS, "web"),
                404,
                r#"deployments.apps "web" not found"#,
            ),
            (
                Status::already_exists(&PODS, "web"),
                409,
                r#"pods "web" already exists"#,
            ),
            (
                Status::expired(3, 10),
                410,
                "too old resource version: 3 (10)",
            ),
            (
                Status::not_allowed("patch", &PODS),
                405,
                r#"patch is not supported on resources of kind "pods""#,
            ),
            (
                Status::too_large(3_145_728),
                413,
                "Request entity too large: limit is 3145728",
            ),
        ] {
            // embedded 16
            assert_eq!(
                (status.code, status.to_string()),
                (code, words.to_owned()),
                "{status:?}"
            );
        }
        let required = Cause {
            reason: "FieldValueRequired",
            message: "Required value".to_owned(),
            field: "spec.containers[0].image".to_owned(),
        };
        let invalid = Status::invalid(&PODS, "x", &[required]);
        assert_eq!(
            invalid.to_string(),
            r#"Pod "x" is invalid: spec.containers[0].image: Required value"#
        );
        assert_eq!(invalid.to_value()["details"]["kind"], "Pod");
    }
}
