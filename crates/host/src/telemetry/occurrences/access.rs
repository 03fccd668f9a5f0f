//! What happens when somebody, or a probe, enters a container.

use mirrorlet_core::api::ContainerId;

/// It could not be found out whether somebody may ask the node API what they asked. Call it when
/// that begins.
pub fn access_unknown(error: &str) {
    tracing::warn!(
        error = error,
        "the API server did not say who asks the node API, or whether they may; they were refused"
    );
}

/// The node API shows another certificate from now on.
pub fn node_certificate_replaced() {
    tracing::info!("the certificate of the node API was replaced");
}

/// The node API goes on with the certificate it has. Call it when that begins, or its cause
/// changes.
pub fn node_certificate_unusable(error: &str) {
    tracing::warn!(
        error = error,
        "the certificate of the node API can't be replaced; the one in use stays"
    );
}

/// The node API listens.
pub fn node_api_served(address: std::net::SocketAddr) {
    tracing::info!("the node API is served on {address}");
}

/// Whose client certificates are believed was read anew.
pub fn client_authorities_replaced(from: &str) {
    tracing::info!(
        source = from,
        "the node API believes client certificates of these authorities"
    );
}

/// Whose client certificates are to be believed can't be read. Call it when that begins, or its
/// cause changes.
pub fn client_authorities_unusable(from: &str, error: &str) {
    tracing::warn!(
        source = from,
        error = error,
        "the authorities of client certificates can't be read: the API server can't call the node API (kubectl logs, exec, top) unless it was believed before; --client-ca-file names them"
    );
}

/// A link to a log could not be made or removed.
pub fn log_link_failed(container: Option<&ContainerId>, why: &str) {
    tracing::warn!(
        container_id = container.map(ContainerId::short),
        "a link under --pod-logs-dir could not be made or removed: {why}"
    );
}

/// The process of an exec that nobody waits for any more could not be ended.
pub fn exec_goes_on(container: &ContainerId, why: &str) {
    tracing::warn!(
        container_id = container.short(),
        "a command in the container goes on though nobody waits for it any more: {why}"
    );
}
