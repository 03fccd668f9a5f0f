//! The keys of objects.

use std::cmp::Ordering;

use crate::resources::Resource;

/// Identifies an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Key {
    /// Its resource.
    pub resource: &'static Resource,
    /// The namespace; empty for cluster-scoped objects.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

impl Key {
    /// The key of an object.
    pub fn new(
        resource: &'static Resource,
        namespace: impl Into<String>,
        name: impl Into<String>,
    ) -> Self {
        Self {
            resource,
            namespace: namespace.into(),
            name: name.into(),
        }
    }

    fn parts(&self) -> (&str, &str, &str, &str) {
        let resource = self.resource;
        (resource.group, resource.plural, &self.namespace, &self.name)
    }
}

impl Ord for Key {
    fn cmp(&self, other: &Self) -> Ordering {
        self.parts().cmp(&other.parts())
    }
}

impl PartialOrd for Key {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
