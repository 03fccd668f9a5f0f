//! All parsers of the Engine's answers, as functions of bytes, for the fuzzer.

use bollard::models::{
    ContainerInspectResponse, ContainerSummary, ImageInspect, ImageSummary, NetworkInspect,
};
use bytes::BytesMut;
use mirrorlet_core::api::PodUid;
use serde::de::DeserializeOwned;
use tokio_util::codec::Decoder;

use super::archive::parse_path_stat;
use super::host_side;
use super::streams::{event, pull_message};
use crate::events;
use crate::image::ImageFacts;
use crate::image::facts::seen;
use crate::index::Index;
use crate::logs::FrameDecoder;
use crate::translate::parse_ours;

/// The answers of an Engine, read into one index.
pub struct Answers {
    owner: String,
    index: Index,
}

fn read<T: DeserializeOwned>(json: &str) -> Option<T> {
    serde_json::from_str(json).ok()
}

impl Answers {
    /// Nothing is known yet.
    pub fn new(owner: &str) -> Self {
        Self {
            owner: owner.to_owned(),
            index: Index::default(),
        }
    }

    /// A list of containers.
    ///
    /// # Panics
    /// The index is incomplete afterwards.
    pub fn list(&self, json: &str) {
        let began = self.index.begin_list();
        let Some(listed) = read::<Vec<ContainerSummary>>(json) else {
            return;
        };
        let ours = listed.into_iter().filter_map(|summary| {
            let names = summary.names.iter().flatten().map(String::as_str);
            let ours = parse_ours(&self.owner, names, summary.labels.as_ref()?)?;
            Some((summary, ours))
        });
        self.index.apply_list(began, ours.collect());
        assert!(self.index.is_complete(), "a list completes the index");
    }

    /// The known state of a container.
    pub fn inspect(&self, json: &str) {
        let Some(found) = read::<ContainerInspectResponse>(json) else {
            return;
        };
        let id = found.id.clone().unwrap_or_default();
        let asked = self.index.get(&id).map_or(0, |record| record.touched);
        self.index.inspected(&id, asked, &found, "ended");
    }

    /// An event.
    pub fn event(&self, json: &str) {
        if let Some(message) = event(json) {
            let _ = events::apply(&self.index, &self.owner, &message);
        }
    }

    /// Events may have been missed.
    pub fn gap(&self) {
        self.index.begin_gap();
    }

    /// A message of a pull.
    pub fn pull(&self, json: &str) {
        let _ = pull_message(json);
    }

    /// A network.
    pub fn network(&self, json: &str) {
        if let Some(network) = read::<NetworkInspect>(json) {
            let _ = host_side(network);
        }
    }

    /// An image, alone or in a list.
    pub fn image(&self, json: &str) {
        if let Some(image) = read::<ImageInspect>(json) {
            let _ = ImageFacts::from(image).image_id();
        }
        if let Some(image) = read::<ImageSummary>(json) {
            let _ = seen(image);
        }
    }

    /// The header with the metadata of a path.
    pub fn path_stat(&self, header: &str) {
        let _ = parse_path_stat(header.as_bytes());
    }

    /// Asserts that the index is consistent.
    ///
    /// # Panics
    /// It is inconsistent.
    pub fn check(&self) {
        for status in self.index.statuses() {
            let uid: &PodUid = &status.uid;
            let records = self.index.of_pod(uid).len();
            let shown = status.containers.len() + status.sandboxes.len();
            assert_eq!(records, shown, "each container is shown once");
        }
        assert!(self.index.pods(false).len() <= self.index.pods(true).len());
    }

    /// Decodes the frames of a log, in one piece and byte by byte.
    ///
    /// # Panics
    /// The results differ.
    pub fn log(bytes: &[u8]) {
        let whole = frames(bytes.chunks(bytes.len().max(1)));
        assert_eq!(whole, frames(bytes.chunks(1)), "pieces make no difference");
    }
}

/// The data of the frames, up to the first invalid one.
fn frames<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> Vec<String> {
    let mut decoder = FrameDecoder;
    let mut buffer = BytesMut::new();
    let mut read = Vec::new();
    for piece in pieces {
        buffer.extend_from_slice(piece);
        loop {
            match decoder.decode(&mut buffer) {
                Ok(Some(chunk)) => read.push(format!("{chunk:?}")),
                Ok(None) => break,
                Err(error) => {
                    read.push(error.to_string());
                    return read;
                }
            }
        }
    }
    read
}
