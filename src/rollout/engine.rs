//! Whether the runtime is available, and when it has come back.

use std::mem;

use tokio::sync::watch;

use mirrorlet_core::node::RuntimeReach;

/// The runtime as decisions see it.
pub(super) struct Engine {
    reach: watch::Receiver<RuntimeReach>,
    /// As it was at the last decision.
    last: RuntimeReach,
    /// Whether it has changed since.
    changed: bool,
}

/// How the runtime became available.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Return {
    /// For the first time.
    First,
    /// It was away.
    Again,
}

impl Engine {
    /// Returns a state in which nothing is known yet.
    pub(super) fn new(reach: watch::Receiver<RuntimeReach>) -> Self {
        Self {
            reach,
            last: RuntimeReach::Unknown,
            changed: false,
        }
    }

    /// Completes once it becomes available or unavailable.
    pub(super) async fn changed(&mut self) {
        if self.reach.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
        self.changed = true;
    }

    /// Checks whether it is available. Returns how it became so since the last call, even if its
    /// absence was too short to be noticed.
    pub(super) fn look(&mut self) -> Option<Return> {
        let (reach, is_news) = {
            let reach = self.reach.borrow_and_update();
            (reach.clone(), reach.has_changed())
        };
        let changed = mem::take(&mut self.changed) || is_news;
        match (mem::replace(&mut self.last, reach), &self.last) {
            (RuntimeReach::Unknown, RuntimeReach::Up) => Some(Return::First),
            (RuntimeReach::Down(_), RuntimeReach::Up) => Some(Return::Again),
            (RuntimeReach::Up, RuntimeReach::Up) if changed => Some(Return::Again),
            _ => None,
        }
    }

    /// Whether it was away at the last decision.
    pub(super) fn is_away(&self) -> bool {
        self.last != RuntimeReach::Up
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_runtime_that_went_and_came_back_between_two_decisions_is_back() {
        let (sender, reader) = watch::channel(RuntimeReach::Unknown);
        let gone = || RuntimeReach::Down("restarted".to_owned());
        let mut engine = Engine::new(reader);
        assert_eq!((engine.look(), engine.is_away()), (None, true));
        sender.send_replace(RuntimeReach::Up);
        assert_eq!(engine.look(), Some(Return::First));
        for waits in [false, true] {
            assert_eq!((engine.look(), engine.is_away()), (None, false));
            sender.send_replace(gone());
            sender.send_replace(RuntimeReach::Up);
            if waits {
                engine.changed().await;
            }
            // rollouts S10
            assert_eq!(engine.look(), Some(Return::Again), "{waits}");
        }
        sender.send_replace(gone());
        assert_eq!((engine.look(), engine.is_away()), (None, true));
        sender.send_replace(RuntimeReach::Up);
        assert_eq!(engine.look(), Some(Return::Again));
    }
}
