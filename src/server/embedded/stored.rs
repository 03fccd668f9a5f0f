//! Stores objects as files. A write is answered once the agent has loaded the file; a file that the
//! agent doesn't load is removed, or replaced by the one before.

use std::io;
use std::path::Path;

use mirrorlet_apimachinery::cache::Key;
use mirrorlet_apimachinery::resources::LEASES;
use mirrorlet_apimachinery::status::Status;
use mirrorlet_core::api::{Code, Diagnostic};
use mirrorlet_core::manifest::BYTES_TOTAL_MAX;
use mirrorlet_host::disk;
use serde_json::Value;

use super::{Api, files};

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

/// Checks that a text of that size has room beside all others. `former` is the size of the one in the
/// place of which it comes: one that is no larger always has room.
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
    /// Stores a document, and returns the object once the agent has taken it in.
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
        let known = disk::blocking(move || Ok((files::bytes(&all)?, files::former(&path)?)));
        let (present, former) = known.await.map_err(|error| unstored(&error))?;
        let of_former = former.as_ref().map_or(0, String::len);
        let bytes = |size: usize| u64::try_from(size).unwrap_or(u64::MAX);
        check_room(present, bytes(of_former), bytes(size))?;
        self.write_file(directory, key, text).await?;
        let problem = self
            .taken_in()
            .await
            .then(|| self.store.view().problem_of(&location));
        if let Some(problem) = problem.flatten() {
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
        let (directory, key) = (self.store.directory().to_owned(), key.clone());
        let put_back = disk::blocking(move || match former {
            Some(former) => files::write(&directory, &key, &former),
            None => files::remove(&directory, &key),
        });
        put_back.await.map_err(|error| unstored(&error))?;
        self.taken_in().await;
        Ok(())
    }

    /// Writes the file of an object in that directory, with that text.
    pub(super) async fn write_file(
        &self,
        directory: &Path,
        key: &Key,
        text: String,
    ) -> Result<(), Status> {
        let (directory, written) = (directory.to_owned(), key.clone());
        disk::blocking(move || files::write(&directory, &written, &text))
            .await
            .map_err(|error| unstored(&error))
    }

    /// Waits until the agent has read what was stored. Returns whether it has.
    pub(super) async fn taken_in(&self) -> bool {
        let taken_in = self.store.view().refresh_stored().await;
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
}
