//! Notifications to systemd: the agent is ready, alive, or stopping. Without systemd they do nothing.

use std::time::Duration;

use sd_notify::NotifyState;

/// Reports that the sources are read and the socket is served.
pub(super) fn ready() {
    notify(NotifyState::Ready);
}

/// Reports that the agent is stopping. Its containers keep running.
pub(super) fn stopping() {
    notify(NotifyState::Stopping);
}

/// Feeds the watchdog twice per period until cancelled. It runs as a task, so that a stuck runtime
/// misses the deadline.
pub(super) async fn keep_alive() {
    let Some(period) = sd_notify::watchdog_enabled().filter(|period| !period.is_zero()) else {
        return std::future::pending().await;
    };
    let mut half = tokio::time::interval((period / 2).max(Duration::from_millis(1)));
    loop {
        half.tick().await;
        notify(NotifyState::Watchdog);
    }
}

fn notify(state: NotifyState<'_>) {
    if let Err(error) = sd_notify::notify(&[state]) {
        tracing::debug!(error = %error, "failed to notify systemd");
    }
}
