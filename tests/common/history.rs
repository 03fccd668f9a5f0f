//! The real history of the containers of a bed: the Engine's own event stream, followed from before
//! the first agent, and the invariants that hold over all of it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use futures::StreamExt;
use mirrorlet_docker::BollardEngine;
use mirrorlet_docker::engine::Engine;
use tokio::task::JoinHandle;

use super::Bed;

/// One thing that happened to a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Happened {
    /// `create`, `start`, `die`, `destroy`.
    pub action: String,
    /// Name of the container.
    pub name: String,
    /// Its id.
    pub id: String,
}

impl Happened {
    /// Name in the spec, and UID of the pod.
    fn of(&self) -> (String, String) {
        let parts: Vec<&str> = self.name.split('_').collect();
        (parts[1].to_owned(), parts[4].to_owned())
    }
}

/// Everything that happened since it was made.
pub struct History {
    seen: Arc<Mutex<Vec<Happened>>>,
    follower: JoinHandle<()>,
}

impl Drop for History {
    fn drop(&mut self) {
        self.follower.abort();
    }
}

impl History {
    /// Follows what happens to the bed's containers from now on.
    pub async fn of(bed: &Bed) -> Self {
        let owner = mirrorlet::app::owner::owner_id(bed.path()).unwrap();
        let engine = BollardEngine::connect(&bed.docker).unwrap();
        let mut events = engine.events(&owner, None).await.unwrap();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let writing = Arc::clone(&seen);
        let follower = tokio::spawn(async move {
            while let Some(Ok(event)) = events.next().await {
                let (Some(action), Some(actor)) = (event.action, event.actor) else {
                    continue;
                };
                let name = actor
                    .attributes
                    .and_then(|mut attributes| attributes.remove("name"));
                if matches!(&*action, "create" | "start" | "die" | "destroy") {
                    writing.lock().unwrap().push(Happened {
                        action,
                        name: name.unwrap(),
                        id: actor.id.unwrap(),
                    });
                }
            }
        });
        Self { seen, follower }
    }

    pub fn all(&self) -> Vec<Happened> {
        self.seen.lock().unwrap().clone()
    }

    /// How often a container of that name in the spec was started.
    pub fn starts(&self, container: &str) -> usize {
        let prefix = format!("k8s_{container}_");
        self.all()
            .iter()
            .filter(|h| h.action == "start" && h.name.starts_with(&prefix))
            .count()
    }

    /// Ids of the containers of that name in the spec that were created, and not started so far.
    pub fn not_started(&self, container: &str) -> Vec<String> {
        let prefix = format!("k8s_{container}_");
        let all = self.all();
        let of = |action: &str| {
            let happened = all.iter().filter(|h| h.action == action);
            happened
                .filter(|h| h.name.starts_with(&prefix))
                .map(|h| &h.id)
                .collect::<Vec<_>>()
        };
        let (created, started) = (of("create"), of("start"));
        let without = created.into_iter().filter(|id| !started.contains(id));
        without.cloned().collect()
    }

    /// Fails if two containers of that name in the spec ever ran at a time, of whichever pods.
    pub fn assert_one_at_a_time(&self, container: &str) {
        let all = self.all();
        let mut running = std::collections::BTreeSet::new();
        for happened in all.iter().filter(|happened| happened.of().0 == container) {
            match happened.action.as_str() {
                "start" => {
                    running.insert(happened.id.as_str());
                    assert_eq!(running.len(), 1, "{happened:?} beside another: {all:#?}");
                }
                "die" => {
                    running.remove(happened.id.as_str());
                }
                _ => {}
            }
        }
    }

    /// Fails if two instances of one container of one pod ever ran at a time, or if an instance
    /// was started a second time.
    pub fn assert_nothing_ran_twice(&self) {
        let all = self.all();
        let mut running: BTreeMap<(String, String), String> = BTreeMap::new();
        let mut started = std::collections::BTreeSet::new();
        for happened in &all {
            match happened.action.as_str() {
                "start" => {
                    assert!(
                        started.insert(happened.id.clone()),
                        "{happened:?} was started a second time: {all:#?}"
                    );
                    let other = running.insert(happened.of(), happened.id.clone());
                    assert_eq!(other, None, "{happened:?} beside another: {all:#?}");
                }
                "die" => {
                    running.remove(&happened.of());
                }
                _ => {}
            }
        }
    }
}
