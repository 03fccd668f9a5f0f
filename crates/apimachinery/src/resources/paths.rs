//! The resource that the path of a request means.

use super::{RESOURCES, Resource};
use crate::status::Status;

/// The meaning of a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// The resource.
    pub resource: &'static Resource,
    /// The namespace; empty for all namespaces, or for a cluster-scoped resource.
    pub namespace: String,
    /// The object; none for the collection.
    pub name: Option<String>,
    /// The subresource, if the path has one.
    pub subresource: Option<String>,
}

/// Parses the path of a request for objects, `/api/v1/…` or `/apis/GROUP/VERSION/…`.
///
/// # Errors
/// Nothing is served at that path.
pub fn target(path: &str) -> Result<Target, Status> {
    let mut parts = path.split('/').filter(|part| !part.is_empty());
    let group = match parts.next() {
        Some("api") => "",
        Some("apis") => parts.next().ok_or_else(Status::no_such_path)?,
        Some(_) | None => return Err(Status::no_such_path()),
    };
    let version = parts.next().ok_or_else(Status::no_such_path)?;
    let rest: Vec<&str> = parts.collect();
    // A namespace is a resource of its own, and what others are in.
    let (namespace, rest) = match &rest[..] {
        ["namespaces", namespace, rest @ ..] if !matches!(rest, [] | ["status" | "finalize"]) => {
            (*namespace, rest)
        }
        rest => ("", rest),
    };
    let (plural, name, subresource) = match rest {
        [plural] => (*plural, None, None),
        [plural, name] => (*plural, Some(*name), None),
        [plural, name, subresource] => (*plural, Some(*name), Some(*subresource)),
        _ => return Err(Status::no_such_path()),
    };
    let mut all = RESOURCES.iter().copied();
    let resource = all
        .find(|r| (r.group, r.version, r.plural) == (group, version, plural))
        .filter(|r| r.namespaced || namespace.is_empty())
        .filter(|r| !r.namespaced || name.is_none() || !namespace.is_empty())
        .ok_or_else(Status::no_such_path)?;
    let known = |name: &str| resource.subresources.iter().any(|sub| sub.name == name);
    if subresource.is_some_and(|name| !known(name)) {
        return Err(Status::no_such_path());
    }
    Ok(Target {
        resource,
        namespace: namespace.to_owned(),
        name: name.map(str::to_owned),
        subresource: subresource.map(str::to_owned),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_mean_collections_objects_and_subresources() {
        for (path, expected) in [
            ("/api/v1/pods", Some(("pods", "", None, None))),
            ("/api/v1/namespaces/a/pods", Some(("pods", "a", None, None))),
            (
                "/api/v1/namespaces/a/pods/web/log",
                Some(("pods", "a", Some("web"), Some("log"))),
            ),
            (
                "/api/v1/namespaces/a",
                Some(("namespaces", "", Some("a"), None)),
            ),
            ("/api/v1/namespaces", Some(("namespaces", "", None, None))),
            (
                "/apis/apps/v1/namespaces/a/deployments/web/scale",
                Some(("deployments", "a", Some("web"), Some("scale"))),
            ),
            ("/api/v1/nodes/n", Some(("nodes", "", Some("n"), None))),
            // An object without its namespace, a namespace of what has none, a group that isn't.
            ("/api/v1/pods/web", None),
            ("/api/v1/namespaces/a/nodes", None),
            ("/apis/apps/v2/deployments", None),
            ("/api/v1/namespaces/a/pods/web/binding", None),
            ("/api/v1", None),
            ("/other", None),
        ] {
            let found = target(path).ok();
            let found = found.as_ref().map(|t| {
                let (name, sub) = (t.name.as_deref(), t.subresource.as_deref());
                (t.resource.plural, t.namespace.as_str(), name, sub)
            });
            // embedded 22
            assert_eq!(found, expected, "{path}");
        }
    }
}
