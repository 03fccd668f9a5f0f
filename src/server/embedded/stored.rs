//! Stores objects as files. A write is answered once the agent has loaded the file; a file that the
//! agent doesn't load is removed, or replaced by the previous one. Until the agent has loaded a file,
//! no other one is written.

use std::path::Path;
use std::{fs, io};

use mirrorlet_apimachinery::cache::Key;
use mirrorlet_apimachinery::resources::{LEASES, Resource};
use mirrorlet_apimachinery::status::Status;
use mirrorlet_core::api::{Code, Diagnostic};
use mirrorlet_core::sizes::BYTES_TOTAL_MAX;
use mirrorlet_host::disk::{self, IfThere as _};
use serde_json::Value;

use super::turns::Turn;
use super::{Api, files};

/// When a client may retry a write that was refused because the previous one isn't loaded yet.
const RETRY_AFTER_SECONDS: u32 = 1;

pub(super) fn unstored(error: &io::Error) -> Status {
    Status::internal(format!("failed to store the object: {error}"))
}

/// The text of an object's file.
pub(super) fn text_of(object: &Value) -> Result<String, Status> {
    files::text(object).map_err(|error| Status::internal(error.to_string()))
}

/// The refusal of an object because of a problem of its file.
fn not_loaded(problem: &Diagnostic) -> Status {
    let message = &problem.message;
    if problem.code == Code::TooLarge {
        return Status::too_costly(format!("Request entity too large: {message}"));
    }
    Status::internal(format!(
        "the object is not stored, because the agent doesn't load it: {message}"
    ))
}

/// Checks that a text of that size fits beside all others. `former` is the size of the one that it
/// replaces: one that is not larger always fits.
fn check_room(present: u64, former: u64, size: u64) -> Result<(), Status> {
    let max = u64::try_from(BYTES_TOTAL_MAX).unwrap_or(u64::MAX);
    let next = present.saturating_sub(former).saturating_add(size);
    if size <= former || next <= max {
        return Ok(());
    }
    Err(Status::too_costly(format!(
        "Request entity too large: the stored objects take {present} bytes, and would take {next} with this one; at most {max} are loaded"
    )))
}

impl Api {
    /// Stores a document, and returns the object once the agent has loaded it.
    pub(super) async fn store(&self, key: &Key, object: &Value) -> Result<Value, Status> {
        if key.resource == &LEASES {
            self.store
                .leases(|leases| leases.put(key, object.clone()))?;
            self.store.touch();
            return self.find(key);
        }
        let text = text_of(object)?;
        let size = text.len();
        if size > files::TEXT_BYTES_MAX {
            let max = files::TEXT_BYTES_MAX;
            return Err(Status::too_costly(format!(
                "Request entity too large: the object would take {size} bytes, more than {max}"
            )));
        }
        let directory = self.store.directory();
        let (all, path) = (directory.to_owned(), files::path(directory, key));
        let location = path.to_string_lossy().into_owned();
        let known = disk::blocking(move || {
            Ok((files::bytes(&all)?, fs::read_to_string(&path).if_there()?))
        });
        let (present, former) = known.await.map_err(|error| unstored(&error))?;
        let of_former = former.as_ref().map_or(0, String::len);
        let bytes = |size: usize| u64::try_from(size).unwrap_or(u64::MAX);
        check_room(present, bytes(of_former), bytes(size))?;
        self.write_file(directory, key, text).await?;
        self.loaded().await?;
        if let Some(problem) = self.store.view().problem_of(&location) {
            self.put_back(key, former).await?;
            return Err(not_loaded(&problem));
        }
        self.find(key).map_err(|_| {
            let message =
                "the object is stored, but the agent has not loaded it yet: see mirrorlet status";
            Status::internal(message)
        })
    }

    /// Makes the file of an object what it was.
    async fn put_back(&self, key: &Key, former: Option<String>) -> Result<(), Status> {
        self.store.set_behind(true);
        let (directory, key) = (self.store.directory().to_owned(), key.clone());
        let put_back = disk::blocking(move || match former {
            Some(former) => files::write(&directory, &key, &former),
            None => files::remove(&directory, &key),
        });
        put_back.await.map_err(|error| unstored(&error))?;
        self.taken_in().await;
        Ok(())
    }

    /// Writes the file of an object with that text to that directory.
    pub(super) async fn write_file(
        &self,
        directory: &Path,
        key: &Key,
        text: String,
    ) -> Result<(), Status> {
        self.store.set_behind(true);
        let (directory, written) = (directory.to_owned(), key.clone());
        disk::blocking(move || files::write(&directory, &written, &text))
            .await
            .map_err(|error| unstored(&error))
    }

    /// Waits until a write of that resource has its turn.
    ///
    /// # Errors
    /// The agent doesn't load what was stored before.
    async fn turn_of(&self, resource: &Resource) -> Result<Turn, Status> {
        if resource == &LEASES {
            // They are in memory.
            return Ok(self.writing.next().await);
        }
        self.turn().await
    }

    /// Waits for the turn of a write of that resource, and runs it to its end, even if its client is
    /// gone.
    ///
    /// # Errors
    /// The errors of the write, or the agent doesn't load an earlier one.
    pub(super) async fn in_turn<T, F>(
        &self,
        resource: &Resource,
        write: impl FnOnce(Self) -> F,
    ) -> Result<T, Status>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Status>> + Send + 'static,
    {
        let turn = self.turn_of(resource).await?;
        self.writing.run(turn, write(self.clone())).await
    }

    /// Waits for the turn of a write, and until the agent has loaded earlier ones: the next version of
    /// an object is based on the shown one.
    ///
    /// # Errors
    /// It doesn't load it.
    pub(super) async fn turn(&self) -> Result<Turn, Status> {
        let turn = self.writing.next().await;
        if self.store.is_behind() && !self.taken_in().await {
            let message = "the agent has not loaded the stored objects yet; try again in a moment";
            return Err(Status::unavailable_for(message, RETRY_AFTER_SECONDS));
        }
        Ok(turn)
    }

    /// Waits until the agent has loaded everything that was stored.
    ///
    /// # Errors
    /// It hasn't: shown objects may be older.
    pub(super) async fn loaded(&self) -> Result<(), Status> {
        if self.taken_in().await {
            return Ok(());
        }
        let message = "the change is stored, but the agent has not loaded it yet; get the object again in a moment";
        Err(Status::timeout(message))
    }

    /// Waits until the agent has loaded everything that was stored. Returns whether it has.
    pub(super) async fn taken_in(&self) -> bool {
        // A client that goes away ends the wait.
        self.store.set_behind(true);
        let taken_in = self.store.view().refresh_stored().await;
        self.store.set_behind(!taken_in);
        self.store.touch();
        taken_in
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use mirrorlet_apimachinery::resources::CONFIG_MAPS;
    use serde_json::json;

    use super::*;
    use crate::server::embedded::answer;
    use crate::server::embedded::bed::Bed;

    const MAPS: &str = "/api/v1/namespaces/default/configmaps";

    fn map(name: &str) -> (Key, Value) {
        let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "default"}, "data": {"a": "1"}});
        (Key::new(&CONFIG_MAPS, "default", name), object)
    }

    #[test]
    fn a_text_has_room_or_is_no_larger() {
        let max = u64::try_from(BYTES_TOTAL_MAX).unwrap();
        for (present, former, size, fits) in [
            (0, 0, 10, true),
            (max - 10, 0, 10, true),
            (max - 10, 0, 11, false),
            (max, 10, 10, true),
            (max, 10, 11, false),
            (max + 100, 10, 9, true),
            (max + 100, 0, 1, false),
        ] {
            let refused = check_room(present, former, size).err();
            let code = refused.map(|status| status.code);
            assert_eq!(code, (!fits).then_some(413), "{present} {former} {size}");
        }
    }

    #[tokio::test]
    async fn an_object_without_room_is_not_written() {
        let bed = Bed::new();
        let ((large, object), (key, next)) = (map("large"), map("next"));
        bed.store(&large, &object);
        let file = fs::File::options()
            .write(true)
            .open(bed.file(&large))
            .unwrap();
        file.set_len(32 << 20).unwrap();
        let (code, refused) = bed.ask("POST", MAPS, &next).await;
        assert_eq!(code, 413, "{refused}");
        let words = refused["message"].as_str().unwrap();
        assert!(words.contains("take 33554432 bytes"), "{words}");
        assert!(!bed.file(&key).exists());
    }

    #[tokio::test]
    async fn a_file_that_the_agent_does_not_load_does_not_stay() {
        let bed = Bed::new();
        let ((key, object), (new, other)) = (map("cfg"), map("new"));
        bed.store(&key, &object);
        let before = fs::read_to_string(bed.file(&key)).unwrap();
        let refuse = |key: &Key| {
            let location = bed.file(key).to_string_lossy().into_owned();
            let words = "the manifests of this directory would have too many values";
            let problem = Diagnostic::error(Code::TooLarge, location, words);
            *bed.view.problem.lock().unwrap() = Some(problem);
        };
        refuse(&new);
        let (code, refused) = bed.ask("POST", MAPS, &other).await;
        assert_eq!(code, 413, "{refused}");
        let words =
            "Request entity too large: the manifests of this directory would have too many values";
        assert_eq!(refused["message"], words);
        assert!(!bed.file(&new).exists());
        refuse(&key);
        let edit = json!({"data": {"a": "2"}});
        let (code, refused) = bed.ask("PATCH", &format!("{MAPS}/cfg"), &edit).await;
        assert_eq!(code, 413, "{refused}");
        assert_eq!(fs::read_to_string(bed.file(&key)).unwrap(), before);
    }

    #[tokio::test]
    async fn a_write_that_is_not_loaded_yet_is_not_erased_by_the_next() {
        let bed = Bed::new();
        let (key, object) = map("cfg");
        bed.store(&key, &object);
        let path = format!("{MAPS}/cfg");
        let is_slow = |is_slow: bool| *bed.view.is_slow.lock().unwrap() = is_slow;
        let file = || fs::read_to_string(bed.file(&key)).unwrap();
        is_slow(true);
        let (code, answer) = bed.ask("PATCH", &path, &json!({"data": {"b": "2"}})).await;
        // embedded 64
        assert_eq!((code, &answer["reason"]), (504, &"Timeout".into()));
        let stored: Value = serde_saphyr::from_str(&file()).unwrap();
        assert_eq!(stored["data"], json!({"a": "1", "b": "2"}));
        // What is shown is the object before.
        let text = file();
        let edit = json!({"data": {"c": "3"}});
        for (method, body) in [("PATCH", &edit), ("PUT", &object), ("DELETE", &Value::Null)] {
            let (code, answer) = bed.ask(method, &path, body).await;
            // embedded 64
            assert_eq!(code, 503, "{answer}");
            assert_eq!(answer["details"]["retryAfterSeconds"], 1);
            assert_eq!(file(), text, "{method}");
        }
        let lease = json!({"metadata": {"name": "leader"}});
        let leases = "/apis/coordination.k8s.io/v1/namespaces/default/leases";
        let (code, answer) = bed.ask("POST", leases, &lease).await;
        assert_eq!(code, 201, "{answer}");
        is_slow(false);
        bed.view.shown.lock().unwrap().objects.clear();
        bed.store(&key, &stored);
        let (code, answer) = bed.ask("PATCH", &path, &edit).await;
        assert_eq!(code, 200, "{answer}");
        let stored: Value = serde_saphyr::from_str(&file()).unwrap();
        assert_eq!(stored["data"], json!({"a": "1", "b": "2", "c": "3"}));
    }

    #[tokio::test]
    async fn a_deletion_that_is_not_loaded_yet_stays_one() {
        let bed = Bed::new();
        let (key, object) = map("cfg");
        bed.store(&key, &object);
        let path = format!("{MAPS}/cfg");
        *bed.view.is_slow.lock().unwrap() = true;
        let (code, answer) = bed.ask("DELETE", &path, &Value::Null).await;
        // embedded 64
        assert_eq!(code, 504, "{answer}");
        let edit = json!({"data": {"c": "3"}});
        let (code, answer) = bed.ask("PATCH", &path, &edit).await;
        assert_eq!(code, 503, "{answer}");
        assert!(!bed.file(&key).exists());
        *bed.view.is_slow.lock().unwrap() = false;
        bed.view.shown.lock().unwrap().objects.clear();
        let (code, answer) = bed.ask("PATCH", &path, &edit).await;
        // embedded 64
        assert_eq!(code, 404, "{answer}");
        let refused = answer::refused(&Status::unavailable_for("later", 7));
        assert_eq!(refused.headers()["retry-after"], "7");
    }
}
