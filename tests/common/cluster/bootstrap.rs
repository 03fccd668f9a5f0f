//! Bootstrap tokens, and who approves what is requested with them.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime};

use serde_json::json;

use super::Cluster;
use super::accounts::{right, until_may};

/// The approver of the requests of a bootstrap token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Approval {
    /// Somebody with kubectl.
    UserActionRecord,
    /// The controller manager.
    Automatic,
}

impl Cluster {
    /// A kubeconfig with a new bootstrap token in a file beside it, once its rights are known.
    pub fn bootstrap_kubeconfig(&self, approval: Approval) -> PathBuf {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let id = format!("b{:05}", NEXT.fetch_add(1, Ordering::Relaxed));
        let secret = "0123456789abcdef";
        let group = format!("system:bootstrappers:{id}");
        let token = json!({
            "apiVersion": "v1", "kind": "Secret", "type": "bootstrap.kubernetes.io/token",
            "metadata": {"name": format!("bootstrap-token-{id}"), "namespace": "kube-system"},
            "stringData": {
                "token-id": id, "token-secret": secret, "usage-bootstrap-authentication": "true",
                "auth-extra-groups": group,
            },
        });
        self.apply(&token.to_string());
        self.bind(
            &format!("{id}-requests"),
            "system:node-bootstrapper",
            &group,
        );
        if approval == Approval::Automatic {
            let role = "system:certificates.k8s.io:certificatesigningrequests:nodeclient";
            self.bind(&format!("{id}-approved"), role, &group);
        }
        let kubeconfig = self
            .authority
            .token_kubeconfig(&id, &format!("{id}.{secret}"));
        let requests = "certificatesigningrequests.certificates.k8s.io";
        until_may(&kubeconfig, vec![right("create", requests, "")]);
        kubeconfig
    }

    /// Has the controller manager approve what nodes request to renew their own certificates.
    pub fn approve_renewals(&self) {
        let role = "system:certificates.k8s.io:certificatesigningrequests:selfnodeclient";
        self.bind("renewals", role, "system:nodes");
        let renewals = "certificatesigningrequests.certificates.k8s.io/selfnodeclient";
        let rights = vec![right("create", renewals, "")];
        self.until_user_may("system:node:any", &["system:nodes"], rights);
    }

    fn bind(&self, name: &str, role: &str, group: &str) {
        let binding = json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
            "metadata": {"name": name},
            "roleRef": {
                "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role,
            },
            "subjects": [
                {"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": group},
            ],
        });
        self.apply(&binding.to_string());
    }

    /// Chain and key of a node, in PEM: valid since ten hours ago, and for `left` from now, or
    /// ended that long ago.
    pub fn node_certificate(&self, node: &str, left: Result<Duration, Duration>) -> String {
        let now = SystemTime::now();
        let until = match left {
            Ok(left) => now + left,
            Err(ended) => now - ended,
        };
        let user = format!("system:node:{node}");
        let from = now - Duration::from_secs(36_000);
        self.authority
            .client_between(&user, "system:nodes", from, until)
    }

    /// A kubeconfig with that token, in a file beside it.
    pub fn token_kubeconfig(&self, name: &str, token: &str) -> PathBuf {
        self.authority.token_kubeconfig(name, token)
    }

    /// A kubeconfig that names a file of both certificate and key, which may not be there yet.
    pub fn joint_kubeconfig(&self, node: &str, file: &std::path::Path) -> PathBuf {
        let user = json!({"client-certificate": file, "client-key": file});
        self.authority.kubeconfig(&format!("joint-{node}"), &user)
    }
}
