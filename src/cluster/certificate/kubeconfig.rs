//! The kubeconfig that names a certificate of ours.

use std::path::Path;

use kube::config::Cluster;

/// A kubeconfig for that API server, which refers to the file with the certificate and key. It contains
/// no secrets.
///
/// Upstream: `writeKubeconfigFromBootstrapping` of `pkg/kubelet/certificate/bootstrap/bootstrap.go`.
pub(super) fn render(cluster: &Cluster, certificate: &Path) -> String {
    let text = |text: Option<&str>| text.map(|text| serde_json::Value::from(text).to_string());
    let server = [
        ("server", text(cluster.server.as_deref())),
        (
            "insecure-skip-tls-verify",
            cluster
                .insecure_skip_tls_verify
                .map(|skip| skip.to_string()),
        ),
        (
            "certificate-authority",
            text(cluster.certificate_authority.as_deref()),
        ),
        (
            "certificate-authority-data",
            text(cluster.certificate_authority_data.as_deref()),
        ),
        ("tls-server-name", text(cluster.tls_server_name.as_deref())),
    ];
    let lines = server
        .into_iter()
        .filter_map(|(key, value)| Some(format!("    {key}: {}\n", value?)));
    // A JSON string is a YAML string.
    let certificate = serde_json::Value::from(certificate.display().to_string());
    format!(
        "apiVersion: v1
kind: Config
clusters:
- name: default-cluster
  cluster:
{}users:
- name: default-auth
  user:
    client-certificate: {certificate}
    client-key: {certificate}
contexts:
- name: default-context
  context:
    cluster: default-cluster
    user: default-auth
    namespace: default
current-context: default-context
",
        lines.collect::<String>()
    )
}

#[cfg(test)]
mod tests {
    use kube::config::Kubeconfig;

    use super::*;

    #[test]
    fn all_that_is_said_of_the_server_is_read_back() {
        let cluster = Cluster {
            server: Some("https://10.0.0.1:6443".to_owned()),
            insecure_skip_tls_verify: Some(false),
            certificate_authority: Some("/etc/a \"b\": c/ca.crt".to_owned()),
            certificate_authority_data: Some("QUJD".to_owned()),
            tls_server_name: Some("kubernetes".to_owned()),
            ..Cluster::default()
        };
        let plain = Cluster {
            server: Some("https://a".to_owned()),
            ..Cluster::default()
        };
        for cluster in [cluster, plain] {
            let text = render(&cluster, Path::new("/r/pki/client-current.pem"));
            let read = Kubeconfig::from_yaml(&text).unwrap();
            let both = [read.clusters[0].cluster.as_ref(), Some(&cluster)]
                .map(|cluster| serde_json::to_value(cluster).unwrap());
            // identity 3
            assert_eq!(both[0], both[1], "{text}");
            let user = read.auth_infos[0].auth_info.as_ref().unwrap();
            let file = Some("/r/pki/client-current.pem");
            assert_eq!(user.client_certificate.as_deref(), file);
            assert_eq!(user.client_key.as_deref(), file);
            assert_eq!(read.current_context.as_deref(), Some("default-context"));
        }
    }
}
