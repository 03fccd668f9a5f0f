//! Occurrences of exec, attach and probes in containers.

use mirrorlet_core::api::ContainerId;

/// The access review of a node API caller failed. Call it when that begins.
pub fn access_unknown(error: &str) {
    tracing::warn!(
        error,
        "rejected a request to the node API: the API server could not authenticate or authorize it"
    );
}

/// The node API shows another certificate from now on.
pub fn node_certificate_replaced() {
    tracing::info!("the certificate of the node API was replaced");
}

/// The node API's certificate was signed for another name or other addresses of the Node; a new one is
/// requested.
pub fn node_certificate_outdated() {
    tracing::warn!(
        "the serving certificate of the node API is not for the Node's current name and addresses; requesting another one"
    );
}

/// The node API keeps using its current certificate. Call it when that begins, or its cause changes.
pub fn node_certificate_unusable(error: &str) {
    tracing::warn!(
        error,
        "failed to replace the serving certificate of the node API; keeping the current one"
    );
}

/// The node API listens.
pub fn node_api_served(address: std::net::SocketAddr) {
    tracing::info!("serving the node API on {address}");
}

/// Reports that the embedded API is served.
pub fn embedded_api_served(address: std::net::SocketAddr, kubeconfig: &std::path::Path) {
    tracing::info!(
        kubeconfig = %kubeconfig.display(),
        "serving the embedded API on {address}"
    );
}

/// Reports that the kubeconfig of the embedded API can't be written. The one of an earlier start stays,
/// and clients still find the API with it.
pub fn embedded_api_kubeconfig_kept(error: &str) {
    tracing::warn!(
        error,
        "failed to write the kubeconfig of the embedded API; the earlier one stays in use"
    );
}

/// Reports that the certificates of the embedded API and its client were replaced.
pub fn embedded_api_renewed(kubeconfig: &std::path::Path) {
    tracing::info!(
        kubeconfig = %kubeconfig.display(),
        "replaced the certificates of the embedded API"
    );
}

/// Reports that the certificates of the embedded API can't be replaced. Call it when that begins, or
/// its cause changes.
pub fn embedded_api_not_renewed(error: &str) {
    tracing::error!(
        error,
        "failed to replace the certificates of the embedded API; retrying"
    );
}

/// Reports that the CAs of client certificates were reloaded.
pub fn client_authorities_replaced(from: &str) {
    tracing::info!(
        source = from,
        "the node API trusts client certificates signed by these CAs"
    );
}

/// Reports that the CAs of client certificates can't be read. Call it when that begins, or its
/// cause changes.
pub fn client_authorities_unusable(from: &str, error: &str) {
    tracing::warn!(
        source = from,
        error,
        "failed to read the CAs of client certificates: the API server can't call the node API (kubectl logs, exec, top) until they are known; set --client-ca-file"
    );
}

/// A link to a log could not be made or removed.
pub fn log_link_failed(container: Option<&ContainerId>, why: &str) {
    tracing::warn!(
        container_id = container.map(ContainerId::short),
        "failed to create or remove a link under --pod-logs-dir: {why}"
    );
}

/// An exec session's process could not be killed after its client left.
pub fn exec_goes_on(container: &ContainerId, why: &str) {
    tracing::warn!(
        container_id = container.short(),
        "failed to kill a command in the container after its client disconnected: {why}"
    );
}
