//! The agent's own servers: its socket, and the port of metrics, health and statistics.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::Context as _;
use tokio::net::{TcpListener, UnixListener};
use tokio_util::sync::CancellationToken;

use super::{Parts, spawn};
use crate::config::Config;
use crate::server::health::Served;
use crate::server::{admin, health};
use mirrorlet_host::telemetry::occurrences;

/// The socket, and the port of metrics if there is one.
pub(super) struct Listeners {
    socket: UnixListener,
    metrics: Option<TcpListener>,
}

/// Binds them, before anything is started, so that the agent doesn't start if an address is in use.
pub(super) async fn bind(config: &Config) -> anyhow::Result<Listeners> {
    let metrics = match config.metrics_address {
        Some(address) => Some(bind_metrics(address).await?),
        None => None,
    };
    Ok(Listeners {
        socket: admin::bind(&config.socket())?,
        metrics,
    })
}

/// Binds the port of metrics and health.
pub(super) async fn bind_metrics(address: SocketAddr) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address).await.with_context(|| {
        format!(
            "failed to serve metrics and health on {address}; choose another with --metrics-address IP:PORT, or none"
        )
    })
}

/// Starts them.
pub(super) fn start(
    listeners: Listeners,
    served: Served,
    parts: &mut Parts,
    cancel: &CancellationToken,
) {
    let Listeners { socket, metrics } = listeners;
    let (serving, stop) = (Arc::clone(&served.view), cancel.clone());
    spawn(parts, "socket", async move {
        if let Err(error) = admin::serve(socket, serving, stop).await {
            occurrences::server_failed("the agent's socket", &error.to_string());
        }
    });
    if let Some(listener) = metrics {
        let stop = cancel.clone();
        spawn(parts, "metrics", async move {
            if let Err(error) = health::serve(listener, served, stop).await {
                occurrences::server_failed("metrics", &error.to_string());
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_address_in_use_is_a_clear_error() {
        let first = bind_metrics(([127, 0, 0, 1], 0).into()).await.unwrap();
        let address = first.local_addr().unwrap();
        let error = bind_metrics(address).await.unwrap_err();
        assert!(error.to_string().contains("--metrics-address"), "{error}");
        assert!(error.to_string().contains(&address.to_string()), "{error}");
    }
}
