//! The certificates that a cluster's approver grants to agents.
//!
//! A user who may request `nodeclient` certificates may request one for any Node's name: RBAC can't
//! express "for your own host". The API server knows that host from every token that is bound to a pod,
//! and passes it on with the request. So a request is approved if it is for exactly the Node of the
//! host that its token is bound to; a renewal if it is for the requester's own Node; a serving
//! certificate if it contains only that Node and its host.
//!
//! Upstream: `pkg/controller/certificates/approver/sarapprove.go`,
//! `pkg/apis/certificates/helpers.go` (`ValidateKubeletClientCSR`, `ValidateKubeletServingCSR`).

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use super::{NODES_GROUP, node_user};
use crate::api::core::Node;
use crate::api::keys::NODE_LABEL;
use crate::small::SmallCollect;

/// The signer of certificates with which nodes authenticate to the API server.
pub const CLIENT_SIGNER: &str = "kubernetes.io/kube-apiserver-client-kubelet";
/// The signer of serving certificates that nodes show to the API server.
pub const SERVING_SIGNER: &str = "kubernetes.io/kubelet-serving";
/// Key of the user's extra fields: the node of the pod that the token is bound to. The API server
/// sets it.
///
/// Upstream: `k8s.io/apiserver/pkg/authentication/serviceaccount` (`util.go`).
pub const BOUND_NODE: &str = "authentication.kubernetes.io/node-name";
/// Key of the user's extra fields: the name of that pod.
pub const BOUND_POD: &str = "authentication.kubernetes.io/pod-name";

/// The contents of a certificate request.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Wanted {
    /// The common name of its subject.
    pub common_name: String,
    /// The organizations of its subject.
    pub organizations: Vec<String>,
    /// DNS names among its subject alternative names.
    pub names: Vec<String>,
    /// IP addresses among its subject alternative names.
    pub addresses: Vec<IpAddr>,
}

/// A certificate signing request. The API server sets the user, its groups and its extra fields;
/// everything else is the requester's claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SigningRequest {
    /// Name of the signer.
    pub signer: String,
    /// The user that created it.
    pub user: String,
    /// The groups of that user.
    pub groups: Vec<String>,
    /// Extra fields of that user.
    pub extra: BTreeMap<String, Vec<String>>,
    /// Requested key usages.
    pub usages: Vec<String>,
    /// Its contents, or why they are not those of a node's request.
    pub wanted: Result<Wanted, String>,
}

/// The facts about a Node that a decision needs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NodeSeen {
    /// Whether it is one of mirrorlet's; otherwise it is a kubelet's.
    pub is_ours: bool,
    /// The names among its addresses.
    pub names: BTreeSet<String>,
    /// Its IP addresses.
    pub addresses: BTreeSet<IpAddr>,
}

impl NodeSeen {
    /// Reads them from a Node.
    pub fn of(node: &Node) -> Self {
        let labels = node.metadata.labels.as_ref();
        let mut seen = Self {
            is_ours: labels.is_some_and(|labels| labels.contains_key(NODE_LABEL)),
            ..Self::default()
        };
        let status = node.status.iter();
        for one in status.flat_map(|status| status.addresses.iter().flatten()) {
            match one.address.parse() {
                Ok(address) => seen.addresses.insert(address),
                Err(_) => seen.names.insert(one.address.clone()),
            };
        }
        seen
    }
}

/// All Nodes of the cluster, by name.
pub type Nodes = BTreeMap<String, NodeSeen>;

/// The decision on a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// It is approved, for this reason.
    Approve(String),
    /// It is one of ours, but its contents are not allowed.
    Deny {
        /// The reason, one word.
        reason: &'static str,
        /// The problem, in a sentence.
        message: String,
    },
    /// It is left to other approvers.
    Ignore,
    /// It can't be decided before the Node of that name exists.
    Wait(String),
}

fn deny(reason: &'static str, message: impl Into<String>) -> Decision {
    Decision::Deny {
        reason,
        message: message.into(),
    }
}

/// The agents whose requests an approver decides.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Approver {
    /// The user of agents without a certificate: their `ServiceAccount`.
    pub account: String,
    /// Suffix of the Node's name: the Node of host `a` is `a-<suffix>`.
    pub suffix: String,
}

impl Approver {
    /// Returns an approver for the agents of that `ServiceAccount`, whose Nodes have that suffix.
    pub fn new(namespace: &str, account: &str, suffix: &str) -> Self {
        Self {
            account: format!("system:serviceaccount:{namespace}:{account}"),
            suffix: suffix.to_owned(),
        }
    }

    /// Name of the Node of that host.
    fn node_of(&self, host: &str) -> String {
        format!("{host}-{}", self.suffix)
    }

    /// The host of the Node that the user is, if it is named like one of ours.
    fn host_of<'a>(&self, user: &'a str) -> Option<&'a str> {
        let node = user.strip_prefix("system:node:")?;
        let host = node.strip_suffix(self.suffix.as_str())?.strip_suffix('-')?;
        (!host.is_empty()).then_some(host)
    }

    /// Whether a request of that user to that signer may be ours to decide.
    pub fn concerns(&self, signer: &str, user: &str) -> bool {
        matches!(signer, CLIENT_SIGNER | SERVING_SIGNER)
            && (user == self.account || self.host_of(user).is_some())
    }

    /// Decides a request. `nodes` were listed after it was created.
    pub fn decide(&self, request: &SigningRequest, nodes: &Nodes) -> Decision {
        if !self.concerns(&request.signer, &request.user) {
            return Decision::Ignore;
        }
        match self.host_of(&request.user) {
            None => self.first(request, nodes),
            Some(host) => self.of_a_node(request, host, nodes),
        }
    }

    /// A request by the `ServiceAccount` of the agents: the first certificate of a Node.
    fn first(&self, request: &SigningRequest, nodes: &Nodes) -> Decision {
        if request.signer != CLIENT_SIGNER {
            let words = "only a Node itself may request its serving certificate";
            return deny("NotANode", words);
        }
        let bound = |key: &str| match request.extra.get(key).map(Vec::as_slice) {
            Some([value]) if !value.is_empty() => Some(value.as_str()),
            Some(_) | None => None,
        };
        let (Some(host), Some(pod)) = (bound(BOUND_NODE), bound(BOUND_POD)) else {
            let words = "the requester's token is not bound to a pod on a Node";
            return deny("TokenNotBound", words);
        };
        match nodes.get(host) {
            None => return Decision::Wait(host.to_owned()),
            Some(seen) if seen.is_ours => {
                let words =
                    format!("pod {pod} runs on {host}, which is a Node that mirrorlet manages");
                return deny("NotAHost", words);
            }
            Some(_) => {}
        }
        let node = self.node_of(host);
        // A name that a kubelet has is the kubelet's.
        if nodes.get(&node).is_some_and(|seen| !seen.is_ours) {
            let words = format!("Node {node} exists and is not managed by mirrorlet");
            return deny("NameTaken", words);
        }
        match client(request, &node) {
            Err(denied) => denied,
            Ok(()) => Decision::Approve(format!(
                "it is for the Node of host {host}, where pod {pod} runs"
            )),
        }
    }

    /// A request by a Node that is named like one of ours.
    fn of_a_node(&self, request: &SigningRequest, host: &str, nodes: &Nodes) -> Decision {
        let name = self.node_of(host);
        if !request.groups.iter().any(|group| group == NODES_GROUP) {
            return Decision::Ignore;
        }
        let Some(node) = nodes.get(&name) else {
            return Decision::Wait(name);
        };
        if !node.is_ours {
            return Decision::Ignore;
        }
        // The Node of another release, or of a machine that is no Node otherwise.
        let Some(own) = nodes.get(host).filter(|seen| !seen.is_ours) else {
            return Decision::Ignore;
        };
        if request.signer == CLIENT_SIGNER {
            return match client(request, &name) {
                Err(denied) => denied,
                Ok(()) => Decision::Approve(format!("Node {name} renews its own certificate")),
            };
        }
        let wanted = match subject(request, &name) {
            Err(denied) => return denied,
            Ok(wanted) => wanted,
        };
        if !are_usages(&request.usages, "server auth") {
            return usages_denied(&request.usages);
        }
        if wanted.names.is_empty() && wanted.addresses.is_empty() {
            return deny("NoNames", "it contains no DNS name and no IP address");
        }
        let is_its = |dns: &str| {
            dns == name || dns == host || node.names.contains(dns) && own.names.contains(dns)
        };
        let foreign = wanted.names.iter().find(|dns| !is_its(dns));
        let foreign = foreign.cloned().or_else(|| {
            let is_its = |ip: &&IpAddr| node.addresses.contains(ip) && own.addresses.contains(ip);
            let mut addresses = wanted.addresses.iter();
            Some(addresses.find(|ip| !is_its(ip))?.to_string())
        });
        if let Some(foreign) = foreign {
            let words =
                format!("{foreign} is not an address of both Node {name} and its host {host}");
            return deny("ForeignAddress", words);
        }
        // A Node writes its own addresses, and so does an attacker who stole its host: an address that
        // another host also has proves nothing.
        let others = nodes
            .iter()
            .filter(|(other, seen)| *other != host && !seen.is_ours);
        for (other, seen) in others {
            let is_theirs = |dns: &String| dns == other || seen.names.contains(dns);
            if wanted.names.iter().any(is_theirs)
                || wanted
                    .addresses
                    .iter()
                    .any(|ip| seen.addresses.contains(ip))
            {
                let words = format!("Node {other} also has one of the requested addresses");
                return deny("ForeignAddress", words);
            }
        }
        Decision::Approve(format!("the addresses are those of Node {name}"))
    }
}

/// Checks that the request is for the client certificate of that Node and nothing else.
fn client(request: &SigningRequest, node: &str) -> Result<(), Decision> {
    let wanted = subject(request, node)?;
    if !wanted.names.is_empty() || !wanted.addresses.is_empty() {
        let words = "a client certificate can't have DNS names or IP addresses";
        return Err(deny("UnexpectedNames", words));
    }
    if are_usages(&request.usages, "client auth") {
        Ok(())
    } else {
        Err(usages_denied(&request.usages))
    }
}

/// Returns the contents of the request if its subject is that Node.
fn subject<'a>(request: &'a SigningRequest, node: &str) -> Result<&'a Wanted, Decision> {
    let wanted = match &request.wanted {
        Ok(wanted) => wanted,
        Err(words) => return Err(deny("Unreadable", words.clone())),
    };
    let user = node_user(node);
    if wanted.common_name != user {
        let words = format!(
            "its common name is {:?}, expected {user}",
            wanted.common_name
        );
        return Err(deny("WrongNode", words));
    }
    if wanted.organizations != [NODES_GROUP] {
        let words = format!("its organizations are not exactly {NODES_GROUP}");
        return Err(deny("WrongGroup", words));
    }
    Ok(wanted)
}

/// Whether the usages are those of a node's certificate. `key encipherment` is what RSA keys need.
fn are_usages(usages: &[String], purpose: &str) -> bool {
    let mut rest: BTreeSet<&str> = usages.iter().map(String::as_str).collect_set();
    rest.remove("key encipherment");
    rest == ["digital signature", purpose].collect_set()
}

fn usages_denied(usages: &[String]) -> Decision {
    let words = format!(
        "its usages are not those of a node's certificate: {}",
        usages.join(", ")
    );
    deny("WrongUsages", words)
}

#[cfg(test)]
mod tests;
