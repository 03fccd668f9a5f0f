//! The images that this agent pulled: a small file in the root directory, so that after a restart the
//! agent doesn't take images for its own that users pulled, built or loaded.
//!
//! An image is ours if we pulled all its names. An image without a record, because the agent was killed
//! between a pull and the record, is nobody's and stays.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::PathBuf;

use bollard::models::ImageSummary;
use serde::{Deserialize, Serialize};

use super::noted::NotedFile;
use mirrorlet_core::api::Timestamp;
use mirrorlet_core::reference::Reference;
use mirrorlet_core::small::SmallCollect;
use mirrorlet_host::telemetry::occurrences;

/// An image that was pulled.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Pulled {
    /// The names it was pulled by, in full.
    names: BTreeSet<String>,
    /// When it was pulled last.
    at: Timestamp,
}

/// The images that were pulled. One writer at a time; written before a pull counts as complete.
#[derive(Debug, Default)]
pub(super) struct PulledImages {
    /// By the Engine's id.
    images: NotedFile<BTreeMap<String, Pulled>>,
}

impl PulledImages {
    pub(super) fn new(path: Option<PathBuf>) -> Self {
        Self {
            images: NotedFile::new(path),
        }
    }

    /// Notes that an image was pulled by that name.
    pub(super) async fn note(&self, id: &str, name: &Reference, at: Timestamp) {
        self.change(|images| {
            let pulled = images.entry(id.to_owned()).or_insert_with(|| Pulled {
                names: BTreeSet::new(),
                at,
            });
            pulled.at = at;
            pulled.names.insert(name.full());
        })
        .await;
    }

    /// Returns the images on the Engine that we pulled, by id, with the time. Forgets removed images,
    /// unless they were pulled after `listed_at`, when the list was requested.
    pub(super) async fn ours(
        &self,
        listed: &[ImageSummary],
        listed_at: Timestamp,
    ) -> BTreeMap<String, Timestamp> {
        let there: BTreeSet<&str> = listed.iter().map(|image| image.id.as_str()).collect_set();
        let mut ours = BTreeMap::new();
        self.change(|images| {
            images.retain(|id, pulled| there.contains(id.as_str()) || pulled.at >= listed_at);
            let pulled = |image: &ImageSummary| {
                let pulled = images.get(&image.id)?;
                has_only(image, &pulled.names).then(|| (image.id.clone(), pulled.at))
            };
            ours = listed.iter().filter_map(pulled).collect_map();
        })
        .await;
        ours
    }

    /// Changes the record, and the file with it. A failed write is logged; after a restart, the missing
    /// images will be nobody's.
    async fn change(&self, change: impl FnOnce(&mut BTreeMap<String, Pulled>)) {
        let unreadable = |error: &io::Error| {
            occurrences::pulled_images_forgotten(&error.to_string());
            BTreeMap::new()
        };
        let ((), written) = self.images.change(unreadable, change).await;
        not_noted(written);
    }

    /// Retries a failed write, if there was one.
    pub(super) async fn write_due(&self) {
        not_noted(self.images.write_due().await);
    }
}

fn not_noted(written: io::Result<()>) {
    if let Err(error) = written {
        occurrences::pulled_images_not_noted(&error.to_string());
    }
}

/// Whether an image has only names that it was pulled by. Digests don't count: every pull adds one, of
/// the repository it was pulled from.
fn has_only(image: &ImageSummary, names: &BTreeSet<String>) -> bool {
    let parsed = |text: &String| Reference::parse(text).ok();
    let repositories: BTreeSet<String> = names
        .iter()
        .filter_map(|name| Some(parsed(name)?.repository()))
        .collect_set();
    let tags = named(&image.repo_tags);
    let digests = named(&image.repo_digests);
    tags.map(parsed)
        .all(|tag| tag.is_some_and(|tag| names.contains(&tag.full())))
        && digests
            .map(parsed)
            .all(|digest| digest.is_some_and(|d| repositories.contains(&d.repository())))
}

/// Without the Engine's marks for no name.
pub(super) fn named(names: &[String]) -> impl Iterator<Item = &String> {
    names.iter().filter(|name| !name.contains("<none>"))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::noted::SET_ASIDE;
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + seconds).unwrap()
    }

    fn image(id: &str, tags: &[&str], digests: &[&str]) -> ImageSummary {
        ImageSummary {
            id: id.to_owned(),
            repo_tags: tags.iter().map(ToString::to_string).collect(),
            repo_digests: digests.iter().map(ToString::to_string).collect(),
            ..ImageSummary::default()
        }
    }

    fn name(text: &str) -> Reference {
        Reference::parse(text).unwrap()
    }

    const DIGEST: &str =
        "nginx@sha256:ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff";

    #[tokio::test]
    async fn an_image_is_ours_while_all_its_names_are() {
        let pulled = PulledImages::default();
        pulled.note("1", &name("nginx"), at(0)).await;
        pulled
            .note("1", &name("docker.io/library/nginx:1"), at(1))
            .await;
        let foreign = format!("other/{DIGEST}");
        for (tags, digests, ours) in [
            (&["nginx:latest"][..], &[DIGEST][..], true),
            (&["nginx:1", "nginx:latest"], &[], true),
            // Its tags have moved on.
            (&["<none>:<none>"], &["<none>@<none>"], true),
            (&[], &[DIGEST], true),
            (&["nginx:1", "mine:1"], &[], false),
            (&["nginx:2"], &[], false),
            (&["nginx:1"], &[&foreign], false),
        ] {
            let found = pulled.ours(&[image("1", tags, digests)], at(2)).await;
            assert_eq!(!found.is_empty(), ours, "{tags:?} {digests:?}");
        }
        let other = pulled.ours(&[image("2", &["nginx:1"], &[])], at(0)).await;
        assert!(other.is_empty());
    }

    #[tokio::test]
    async fn the_next_agent_knows_and_what_is_gone_is_forgotten() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pulled-images.json");
        let agent = || PulledImages::new(Some(path.clone()));
        agent().note("1", &name("a:1"), at(0)).await;
        agent().note("2", &name(DIGEST), at(5)).await;
        let one = image("1", &["a:1"], &[]);
        // The second came while the list was on its way.
        let found = agent().ours(std::slice::from_ref(&one), at(5)).await;
        assert_eq!(found, [("1".to_owned(), at(0))].into());
        let both = [one, image("2", &[], &[DIGEST])];
        assert_eq!(agent().ours(&both, at(6)).await.len(), 2);
        assert!(agent().ours(&[], at(7)).await.is_empty());
        assert!(agent().ours(&both, at(8)).await.is_empty());
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    #[tokio::test]
    async fn a_file_that_cannot_be_used_is_set_aside() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pulled-images.json");
        for text in ["{", "{\"version\":9,\"images\":{}}"] {
            fs::write(&path, text).unwrap();
            let pulled = PulledImages::new(Some(path.clone()));
            pulled.note("1", &name("a:1"), at(0)).await;
            let one = image("1", &["a:1"], &[]);
            assert_eq!(pulled.ours(&[one], at(1)).await.len(), 1);
            let aside = format!("{}{SET_ASIDE}", path.display());
            assert_eq!(fs::read_to_string(aside).unwrap(), text);
        }
    }

    #[tokio::test]
    async fn a_disk_that_takes_nothing_holds_nothing_up() {
        let pulled = PulledImages::new(Some("/proc/no/such/file".into()));
        pulled.note("1", &name("a:1"), at(0)).await;
        let one = image("1", &["a:1"], &[]);
        assert_eq!(pulled.ours(&[one], at(1)).await.len(), 1);
    }
}
