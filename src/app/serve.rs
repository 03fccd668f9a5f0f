//! The agent's own servers: its socket, and the port of metrics, health and statistics.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::{Parts, spawn};
use crate::config::Config;
use crate::server::health::Served;
use crate::server::{admin, health};
use mirrorlet_host::telemetry::occurrences;

/// Binds and starts them.
pub(super) async fn start(
    config: &Config,
    served: Served,
    parts: &mut Parts,
    cancel: &CancellationToken,
) -> anyhow::Result<()> {
    let socket = admin::bind(&config.socket())?;
    let (serving, told) = (Arc::clone(&served.view), cancel.clone());
    spawn(parts, "socket", async move {
        if let Err(error) = admin::serve(socket, serving, told).await {
            occurrences::server_failed("the agent's socket", &error.to_string());
        }
    });
    if let Some(address) = config.metrics_address {
        let listener = health::bind(address).await?;
        let told = cancel.clone();
        spawn(parts, "metrics", async move {
            if let Err(error) = health::serve(listener, served, told).await {
                occurrences::server_failed("metrics", &error.to_string());
            }
        });
    }
    Ok(())
}
