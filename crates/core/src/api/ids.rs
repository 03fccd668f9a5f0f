//! Identifiers, parsed once.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::Pod;

/// `Debug` and serde of a type as the text that `Display` writes and `FromStr` reads.
macro_rules! as_text {
    ($name:ident) => {
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "\"{self}\"")
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = String::deserialize(deserializer)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}

macro_rules! string_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(Arc<str>);

        impl $name {
            /// Wraps a string that is known to be valid.
            pub fn new(text: impl Into<Arc<str>>) -> Self {
                Self(text.into())
            }

            /// The identifier as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }

            /// Whether the identifier is the empty text.
            pub fn is_empty(&self) -> bool {
                self.0.is_empty()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:?}", &*self.0)
            }
        }

        impl From<&str> for $name {
            fn from(text: &str) -> Self {
                Self(text.into())
            }
        }

        impl From<String> for $name {
            fn from(text: String) -> Self {
                Self(text.into())
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(&self.0)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                String::deserialize(deserializer).map(Self::from)
            }
        }
    };
}

string_id! {
    /// UID of any pod: static, mirror or API, depending on the context.
    PodUid
}
string_id! {
    /// UID of the pod that runs: a static pod's or an API pod's, never a mirror's.
    ResolvedPodUid
}
string_id! {
    /// UID the API server gave to a mirror pod.
    MirrorPodUid
}
string_id! {
    /// Name of the Node the pods are bound to.
    NodeName
}

impl From<PodUid> for ResolvedPodUid {
    fn from(uid: PodUid) -> Self {
        Self(uid.0)
    }
}

impl From<ResolvedPodUid> for PodUid {
    fn from(uid: ResolvedPodUid) -> Self {
        Self(uid.0)
    }
}

impl From<PodUid> for MirrorPodUid {
    fn from(uid: PodUid) -> Self {
        Self(uid.0)
    }
}

impl PodUid {
    /// UID of a pod object; empty if the object has none.
    pub fn of(pod: &Pod) -> Self {
        pod.metadata.uid.as_deref().unwrap_or_default().into()
    }
}

/// A pod's *full name*: `<name>_<namespace>`. Neither part can contain `_`.
///
/// Upstream: `pkg/kubelet/container/runtime.go` (`BuildPodFullName`, `ParsePodFullName`).
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct FullName {
    /// `metadata.name`.
    pub name: Arc<str>,
    /// `metadata.namespace`.
    pub namespace: Arc<str>,
}

impl FullName {
    /// Builds a full name from its two parts.
    pub fn new(name: impl Into<Arc<str>>, namespace: impl Into<Arc<str>>) -> Self {
        Self {
            name: name.into(),
            namespace: namespace.into(),
        }
    }

    /// Full name of a pod object.
    pub fn of(pod: &Pod) -> Self {
        Self::new(
            pod.metadata.name.as_deref().unwrap_or_default(),
            pod.metadata.namespace.as_deref().unwrap_or_default(),
        )
    }
}

/// Splits an object name that a user typed into name and optional namespace: `web`, `shop/web`.
pub fn split_name(text: &str) -> (Option<&str>, &str) {
    match text.split_once('/') {
        Some((namespace, name)) => (Some(namespace), name),
        None => (None, text),
    }
}

crate::display!(FullName, "{}_{}", name, namespace);

/// A string that is not `<name>_<namespace>` with exactly two non-empty parts.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("failed to parse the pod full name {0:?}: expected <name>_<namespace>")]
pub struct InvalidFullName(pub String);

impl FromStr for FullName {
    type Err = InvalidFullName;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut parts = text.split('_');
        match (parts.next(), parts.next(), parts.next()) {
            (Some(name), Some(namespace), None) if !name.is_empty() && !namespace.is_empty() => {
                Ok(Self::new(name, namespace))
            }
            _ => Err(InvalidFullName(text.to_owned())),
        }
    }
}

as_text!(FullName);

/// A container's identity: `<runtime type>://<id>`, for example `docker://4f1c…`.
///
/// Upstream: `pkg/kubelet/container/runtime.go` (`ContainerID`).
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ContainerId {
    /// Runtime type; `docker` for every container of `DockerManager`.
    pub kind: Arc<str>,
    /// The runtime's own identifier.
    pub id: Arc<str>,
}

/// A text that is not `<type>://<id>`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid container ID: {0:?}")]
pub struct InvalidContainerId(pub String);

impl ContainerId {
    /// Builds an identity (the seeds' `BuildContainerID`).
    pub fn new(kind: impl Into<Arc<str>>, id: impl Into<Arc<str>>) -> Self {
        Self {
            kind: kind.into(),
            id: id.into(),
        }
    }

    /// Identity of a container of the Docker Engine (the seeds' `DockerID`).
    pub fn docker(id: impl Into<Arc<str>>) -> Self {
        Self::new("docker", id)
    }

    /// Whether both parts are empty.
    pub fn is_empty(&self) -> bool {
        self.kind.is_empty() && self.id.is_empty()
    }

    /// The first twelve characters of the id, as `docker ps` prints it.
    pub fn short(&self) -> &str {
        self.id.get(..12).unwrap_or(&self.id)
    }
}

crate::display!(ContainerId, "{}://{}", kind, id);

impl FromStr for ContainerId {
    type Err = InvalidContainerId;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut parts = text.trim_matches('"').split("://");
        match (parts.next(), parts.next(), parts.next()) {
            (Some(kind), Some(id), None) => Ok(Self::new(kind, id)),
            _ => Err(InvalidContainerId(text.to_owned())),
        }
    }
}

as_text!(ContainerId);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_name_needs_exactly_two_parts() {
        assert_eq!("bar_foo".parse(), Ok(FullName::new("bar", "foo")));
        for bad in ["barfoo", "bar_foo_foo", "bar_", "_foo", ""] {
            assert!(bad.parse::<FullName>().is_err(), "{bad:?}");
        }
        assert_eq!(FullName::new("bar", "foo").to_string(), "bar_foo");
    }

    #[test]
    fn container_id_round_trips_as_text_and_json() {
        let id: ContainerId = "docker://abc".parse().unwrap();
        assert_eq!(id, ContainerId::docker("abc"));
        assert_eq!(id.to_string(), "docker://abc");
        // docker 1
        assert_eq!(serde_json::to_string(&id).unwrap(), "\"docker://abc\"");
        assert_eq!(
            serde_json::from_str::<ContainerId>("\"docker://abc\"").unwrap(),
            id
        );
        assert_eq!("\"docker://abc\"".parse::<ContainerId>().unwrap(), id);
        for bad in ["abc", "a://b://c"] {
            assert!(bad.parse::<ContainerId>().is_err(), "{bad:?}");
        }
        assert!(ContainerId::default().is_empty());
    }
}
