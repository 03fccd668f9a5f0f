//! Changes that users make to a Node that has no cluster.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Changes to the agent's version of its Node.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeEdits {
    /// Labels that the agent doesn't set itself.
    pub labels: BTreeMap<String, String>,
    /// Annotations that the agent doesn't set itself.
    pub annotations: BTreeMap<String, String>,
    /// Whether new pods wait.
    pub unschedulable: bool,
}
