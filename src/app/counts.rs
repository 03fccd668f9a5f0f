//! Pods by state, counted whenever a worker tells something new.

use std::collections::BTreeMap;

use tokio_util::sync::CancellationToken;

use crate::store::board::{Board, Phase, PodView};
use mirrorlet_host::telemetry::{Metrics, PodState};

/// Keeps the number of pods in each state until cancelled.
pub(super) async fn count_pods(board: Board, metrics: Metrics, cancel: CancellationToken) {
    let mut changed = board.changed();
    loop {
        changed.mark_unchanged();
        let mut counts = BTreeMap::new();
        for view in board.all() {
            *counts.entry(state(&view)).or_default() += 1;
        }
        metrics.set_pods(&counts);
        tokio::select! {
            () = cancel.cancelled() => return,
            told = changed.changed() => if told.is_err() { return },
        }
    }
}

fn state(view: &PodView) -> PodState {
    match view.phase {
        Phase::Terminating | Phase::Terminated => PodState::Terminating,
        Phase::WaitingToStart | Phase::Syncing | Phase::Finished => {
            let phase = view.status.as_ref().and_then(|s| s.phase.as_deref());
            PodState::of_phase(phase.unwrap_or_default())
        }
    }
}
