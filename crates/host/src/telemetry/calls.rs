//! The Engine calls of a pod's sync: recorded at the call, read at the end of the round.

use std::cell::RefCell;
use std::fmt;
use std::time::Duration;

/// Most calls noted of one round.
const CALLS_MAX: usize = 200;

/// One Engine call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineCall {
    /// A name out of the `Engine` trait's fixed list.
    pub operation: &'static str,
    /// How long it took.
    pub took: Duration,
    /// Whether it succeeded.
    pub ok: bool,
}

impl fmt::Display for EngineCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let failed = if self.ok { "" } else { ", failed" };
        write!(
            f,
            "{} ({} ms{failed})",
            self.operation,
            self.took.as_millis()
        )
    }
}

tokio::task_local! {
    static CALLS: RefCell<Vec<EngineCall>>;
}

/// Runs a round, and returns the Engine calls that it made itself, without those of other tasks that it
/// waited for.
pub async fn noted<T>(round: impl Future<Output = T>) -> (T, Vec<EngineCall>) {
    let both = async {
        let done = round.await;
        (
            done,
            CALLS.with(|calls| std::mem::take(&mut *calls.borrow_mut())),
        )
    };
    CALLS.scope(RefCell::default(), both).await
}

/// Notes a call, if it belongs to a round.
pub fn note(operation: &'static str, took: Duration, ok: bool) {
    // Outside of a round, calls are not recorded.
    let _ = CALLS.try_with(|calls| {
        let mut calls = calls.borrow_mut();
        if calls.len() < CALLS_MAX {
            calls.push(EngineCall {
                operation,
                took,
                ok,
            });
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn calls_belong_to_the_round_that_makes_them() {
        note("list_containers", Duration::ZERO, true);
        let round = async {
            let both = async {
                note("create_container", Duration::from_millis(5), true);
                tokio::task::yield_now().await;
                note("start_container", Duration::from_millis(7), false);
            };
            futures::future::join(both, tokio::task::yield_now()).await;
            3
        };
        let (done, calls) = noted(round).await;
        let told: Vec<String> = calls.iter().map(ToString::to_string).collect();
        assert_eq!(
            (done, told.join(", ").as_str()),
            (3, "create_container (5 ms), start_container (7 ms, failed)")
        );
    }
}
