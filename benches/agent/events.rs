//! The Engine's event stream, the clock of every timed figure.

use std::time::Duration;

use anyhow::Context as _;
use futures::StreamExt;
use mirrorlet_docker::BollardEngine;
use mirrorlet_docker::engine::Engine;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// Longest wait for something that must come.
const PATIENCE: Duration = Duration::from_mins(3);

/// Something that happened to a container.
#[derive(Debug, Clone)]
pub struct Happened {
    /// Id of the container.
    pub id: String,
    /// Its name.
    pub name: String,
    /// `start`, `die`, `destroy` and the like.
    pub action: String,
    /// When, by the Engine's clock, in nanoseconds since 1970.
    pub nanos: i64,
}

/// The events of the containers of one owner.
pub struct Events {
    seen: watch::Receiver<Vec<Happened>>,
    task: JoinHandle<()>,
}

impl Events {
    /// Subscribes.
    pub async fn of(engine: &BollardEngine, owner: &str) -> anyhow::Result<Self> {
        let mut stream = engine.events(owner, None).await?;
        let (sender, seen) = watch::channel(Vec::new());
        let task = tokio::spawn(async move {
            while let Some(Ok(message)) = stream.next().await {
                let actor = message.actor.unwrap_or_default();
                let attributes = actor.attributes.unwrap_or_default();
                let happened = Happened {
                    id: actor.id.unwrap_or_default(),
                    name: attributes.get("name").cloned().unwrap_or_default(),
                    action: message.action.unwrap_or_default(),
                    nanos: message.time_nano.unwrap_or_default(),
                };
                sender.send_modify(|all| all.push(happened));
            }
        });
        Ok(Self { seen, task })
    }

    /// Waits for `count` events that match, and returns the time of the last of them.
    pub async fn last_of(
        &self,
        count: usize,
        what: &str,
        matches: impl Fn(&Happened) -> bool,
    ) -> anyhow::Result<Happened> {
        let mut seen = self.seen.clone();
        let enough = seen.wait_for(|all| all.iter().filter(|h| matches(h)).count() >= count);
        let all = tokio::time::timeout(PATIENCE, enough)
            .await
            .with_context(|| format!("waited in vain for {count} × {what}"))?
            .with_context(|| format!("the events ended before {count} × {what}"))?;
        let last = all.iter().filter(|h| matches(h)).max_by_key(|h| h.nanos);
        last.cloned().context("no event was asked for")
    }

    /// Waits for one event.
    pub async fn one(&self, action: &str, name_starts: &str) -> anyhow::Result<Happened> {
        self.last_of(1, &format!("{action} of {name_starts}"), |h| {
            h.action == action && h.name.starts_with(name_starts)
        })
        .await
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        self.task.abort();
    }
}
