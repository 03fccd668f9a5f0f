//! Writes take turns, and each runs to its end: aborting one when its client disconnects would leave
//! the disk and the known state inconsistent.

use std::sync::Arc;

use mirrorlet_apimachinery::status::Status;
use tokio::sync::{Mutex, OwnedMutexGuard};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// The turn of a write. The next one begins once it is dropped.
pub(super) struct Turn(#[expect(dead_code, reason = "held")] OwnedMutexGuard<()>);

/// The turns of writes, one at a time.
#[derive(Clone)]
pub(super) struct Turns {
    one: Arc<Mutex<()>>,
    /// The current write.
    running: TaskTracker,
    cancel: CancellationToken,
}

impl Turns {
    /// Turns of writes that are cut off by `cancel`.
    pub(super) fn new(cancel: CancellationToken) -> Self {
        Self {
            one: Arc::default(),
            running: TaskTracker::new(),
            cancel,
        }
    }

    /// Waits for a turn. Cancel-safe.
    pub(super) async fn next(&self) -> Turn {
        Turn(Arc::clone(&self.one).lock_owned().await)
    }

    /// Runs a write in a task of its own, which keeps its turn until then.
    ///
    /// # Errors
    /// The errors of the write, or it was aborted.
    ///
    /// # Cancel safety
    /// The write continues.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        turn: Turn,
        write: impl Future<Output = Result<T, Status>> + Send + 'static,
    ) -> Result<T, Status> {
        let cancel = self.cancel.clone();
        let task = self.running.spawn(async move {
            let _turn = turn;
            cancel.run_until_cancelled_owned(write).await
        });
        match task.await {
            Ok(Some(written)) => written,
            Ok(None) => Err(Status::unavailable("the agent stops")),
            // A panic is logged by the panic hook.
            Err(_) => Err(Status::internal("the write was cut off")),
        }
    }

    /// Waits until the current write has ended, which the token triggers.
    pub(super) async fn ended(&self) {
        self.running.close();
        self.running.wait().await;
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use futures::FutureExt as _;
    use mirrorlet_apimachinery::cache::Key;
    use mirrorlet_apimachinery::garbage::{self, Propagation};
    use mirrorlet_apimachinery::resources::{CONFIG_MAPS, PODS};
    use mirrorlet_core::api::{Code, Diagnostic};
    use serde_json::{Value, json};

    use crate::server::embedded::bed::Bed;
    use crate::server::embedded::files;

    const POD: &str = "/api/v1/namespaces/default/pods/web";
    const MAPS: &str = "/api/v1/namespaces/default/configmaps";

    fn pod(finalizers: &[&str]) -> (Key, Value) {
        let object = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "web", "namespace": "default", "uid": "o-1", "finalizers": finalizers},
            "spec": {"containers": [{"name": "c", "image": "i"}]},
        });
        (Key::new(&PODS, "default", "web"), object)
    }

    #[tokio::test]
    async fn a_deletion_whose_client_goes_away_is_whole() {
        let bed = Bed::new();
        let (key, object) = pod(&["example.com/keep"]);
        bed.store(&key, &object);
        let held = files::path(bed.api.store.held_directory(), &key);
        let nothing = Value::Null;
        let deletion = bed.ask("DELETE", POD, &nothing);
        assert!(deletion.now_or_never().is_none());
        // Its turn comes after the deletion: the pod goes with its last finalizer.
        let edit = json!({"metadata": {"finalizers": null}});
        let (code, edited) = bed.ask("PATCH", POD, &edit).await;
        // embedded 70
        assert_eq!(code, 200, "{edited}");
        assert!(garbage::is_deleted(&edited), "{edited}");
        assert!(!bed.file(&key).exists() && !held.exists());
    }

    #[tokio::test]
    async fn a_deletion_leaves_nothing_that_comes_back() {
        let bed = Bed::new();
        let (key, object) = pod(&[]);
        bed.store(&key, &object);
        // An earlier deletion ended with an error, and its finalizer was removed.
        let (_, mut former) = pod(&["example.com/keep"]);
        garbage::mark(
            &mut former,
            Propagation::Background,
            "2026-01-02T03:04:05Z",
            30,
        );
        let directory = bed.api.store.held_directory();
        files::write(directory, &key, &files::text(&former).unwrap()).unwrap();
        let (code, answer) = bed.ask("DELETE", POD, &Value::Null).await;
        assert_eq!(code, 200, "{answer}");
        // embedded 70
        assert!(!files::path(directory, &key).exists());
    }

    #[tokio::test]
    async fn the_deletion_of_a_namespace_leaves_nothing_that_comes_back() {
        let bed = Bed::new();
        let shop = json!({"metadata": {"name": "shop"}});
        let (code, answer) = bed.ask("POST", "/api/v1/namespaces", &shop).await;
        assert_eq!(code, 201, "{answer}");
        let key = Key::new(&CONFIG_MAPS, "shop", "cfg");
        let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "cfg", "namespace": "shop"}});
        bed.store(&key, &object);
        bed.api.store.touch();
        // An earlier deletion ended with an error, and its finalizer was removed.
        let mut former = object;
        former["metadata"]["finalizers"] = json!(["example.com/keep"]);
        garbage::mark(
            &mut former,
            Propagation::Background,
            "2026-01-02T03:04:05Z",
            30,
        );
        let directory = bed.api.store.held_directory();
        files::write(directory, &key, &files::text(&former).unwrap()).unwrap();
        let path = "/api/v1/namespaces/shop";
        let (code, answer) = bed.ask("DELETE", path, &json!({})).await;
        assert_eq!(code, 200, "{answer}");
        // embedded 70
        assert!(!files::path(directory, &key).exists());
        assert!(!bed.file(&key).exists());
    }

    #[tokio::test]
    async fn the_deletion_of_a_namespace_ends_what_a_failed_deletion_left() {
        let bed = Bed::new();
        let shop = json!({"metadata": {"name": "shop"}});
        let (code, answer) = bed.ask("POST", "/api/v1/namespaces", &shop).await;
        assert_eq!(code, 201, "{answer}");
        let (_, mut object) = pod(&["example.com/keep"]);
        object["metadata"]["namespace"] = "shop".into();
        let key = Key::new(&PODS, "shop", "web");
        bed.store(&key, &object);
        bed.api.store.touch();
        // The disk takes the mark, and keeps the file.
        let file = bed.file(&key);
        let text = fs::read_to_string(&file).unwrap();
        fs::remove_file(&file).unwrap();
        fs::create_dir(&file).unwrap();
        let path = "/api/v1/namespaces/shop";
        let nothing = Value::Null;
        let (code, answer) = bed
            .ask("DELETE", &format!("{path}/pods/web"), &nothing)
            .await;
        assert_eq!(code, 500, "{answer}");
        fs::remove_dir(&file).unwrap();
        fs::write(&file, text).unwrap();
        let (code, answer) = bed.ask("DELETE", path, &nothing).await;
        assert_eq!(code, 200, "{answer}");
        // embedded 70
        assert!(!file.exists());
        // Its finalizer holds it, and so its namespace.
        let directory = bed.api.store.held_directory();
        assert!(files::path(directory, &key).exists());
        let (_, shown) = bed.ask("GET", path, &nothing).await;
        assert_eq!(shown["status"]["phase"], "Terminating");
    }

    #[tokio::test]
    async fn a_write_whose_client_goes_away_does_not_stay_if_it_is_not_loaded() {
        let bed = Bed::new();
        let map = |name: &str| {
            let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "default"}, "data": {"a": "1"}});
            (Key::new(&CONFIG_MAPS, "default", name), object)
        };
        let (key, object) = map("cfg");
        bed.store(&key, &object);
        let file = bed.file(&key);
        let before = fs::read_to_string(&file).unwrap();
        let words = "the manifests of this directory would have too many values";
        let problem = Diagnostic::error(Code::TooLarge, file.to_string_lossy().into_owned(), words);
        *bed.view.problem.lock().unwrap() = Some(problem);
        let (path, edit) = (format!("{MAPS}/cfg"), json!({"data": {"a": "2"}}));
        let write = bed.ask("PATCH", &path, &edit);
        assert!(write.now_or_never().is_none());
        let (_, next) = map("next");
        // It has its turn after that.
        let (_, answer) = bed.ask("POST", MAPS, &next).await;
        // embedded 70
        assert_eq!(fs::read_to_string(&file).unwrap(), before, "{answer}");
    }
}
