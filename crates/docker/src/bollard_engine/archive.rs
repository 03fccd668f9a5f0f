//! Files of containers: the Engine's own archive calls, which need no program in the image and also
//! work for containers that don't run.
//!
//! Not through bollard, whose uploads don't notice when the Engine stops reading.

use std::io;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures::{StreamExt, TryStreamExt};
use http::header::CONTENT_TYPE;
use http::{Request, Response};
use http_body_util::StreamBody;
use hyper::body::{Frame, Incoming};
use serde::Deserialize;
use tokio::sync::oneshot;

use super::BollardEngine;
use super::errors::unavailable;
use super::lines::chunks;
use super::streams::refused;
use crate::engine::{CALL_DEADLINE, EngineError, EngineTar, READ_DEADLINE, Result};
use crate::operation::Operation;
use mirrorlet_runtime::copy::{PathKind, PathStat, TarInput};

/// Header in which the Engine describes what is at a path.
const PATH_STAT: &str = "X-Docker-Container-Path-Stat";

/// Bits of Go's `fs.FileMode`, in which the Engine gives the type of a file.
const MODE_DIR: u32 = 1 << 31;
const MODE_SYMLINK: u32 = 1 << 27;
/// Devices, pipes, sockets, and what has no name.
const MODE_OTHER: u32 = 1 << 26 | 1 << 25 | 1 << 24 | 1 << 21 | 1 << 19;

impl BollardEngine {
    pub(super) async fn look_at_path(&self, id: &str, path: &str) -> Result<PathStat> {
        let request = Request::head(archive_uri(id, path));
        match self
            .open(Operation::StatPath, id, READ_DEADLINE, request)
            .await
        {
            Ok(response) => path_stat(&response),
            // An answer to HEAD has no words.
            Err(EngineError::Api { status: 404, .. }) => {
                Err(EngineError::api(404_u16, missing(path)))
            }
            // Only an answer to GET says why.
            Err(error @ EngineError::Api { status: 500.., .. }) => {
                let download = self.open_download(id, path).await;
                Err(download.err().unwrap_or(error))
            }
            Err(error) => Err(error),
        }
    }

    pub(super) async fn open_download(&self, id: &str, path: &str) -> Result<EngineTar> {
        let request = Request::get(archive_uri(id, path));
        let response = self
            .open(Operation::Download, id, CALL_DEADLINE, request)
            .await?;
        let endpoint = self.endpoint.clone();
        Ok(chunks(response.into_body())
            .map_err(move |error| unavailable(&endpoint, &error))
            .boxed())
    }

    /// Sends an archive without a time limit; the Engine's answer to it has a deadline.
    pub(super) async fn send_upload(&self, id: &str, path: &str, tar: TarInput) -> Result<()> {
        let (sent, all_sent) = oneshot::channel();
        let ending = futures::stream::once(async move {
            // The reader was dropped with the call.
            let _ = sent.send(());
            None
        });
        let frames = tar
            .map(Some)
            .chain(ending)
            .filter_map(std::future::ready)
            .map_ok(Frame::data);
        let uri = format!("{}&noOverwriteDirNonDir=true", archive_uri(id, path));
        let request = Request::put(uri)
            .header(CONTENT_TYPE, "application/x-tar")
            .body(StreamBody::new(frames.boxed()));
        let work = async {
            // The version is agreed on before anything is sent.
            if self.transport.agreed().is_none() {
                self.negotiate().await?;
            }
            let response = self.transport.send(request?).await?;
            if response.status().is_success() {
                return Ok(());
            }
            Err(refused(response).await)
        };
        let late = async {
            // An aborted upload counts as sent: there may never be an answer to it.
            let _ = all_sent.await;
            tokio::time::sleep(CALL_DEADLINE).await;
        };
        // On the heap: it is large.
        let call = Box::pin(async {
            tokio::select! {
                answered = work => {
                    answered.map_err(|e| self.failed(Operation::Upload, CALL_DEADLINE, e))
                }
                () = late => Err(EngineError::Timeout {
                    operation: Operation::Upload.as_str(),
                    after: CALL_DEADLINE,
                }),
            }
        });
        self.meter.call(Operation::Upload, id, call).await
    }
}

fn archive_uri(id: &str, path: &str) -> String {
    let path: String = form_urlencoded::byte_serialize(path.as_bytes()).collect();
    format!("/containers/{id}/archive?path={path}")
}

/// The message about a path that the Engine doesn't find. It reads the container's file systems from
/// outside, where those of the kernel are not mounted.
fn missing(path: &str) -> String {
    let is_below = |kernel: &&str| {
        let rest = path.strip_prefix(*kernel);
        rest.is_some_and(|rest| rest.starts_with('/'))
    };
    match ["/proc", "/sys", "/dev"].into_iter().find(is_below) {
        Some(kernel) => format!(
            "{path} can't be copied: the Engine doesn't see files below {kernel}; use exec with cat"
        ),
        None => format!("{path} does not exist in the container"),
    }
}

fn path_stat(response: &Response<Incoming>) -> Result<PathStat> {
    let header = response.headers().get(PATH_STAT);
    let text = header.map(http::HeaderValue::as_bytes).unwrap_or_default();
    parse_path_stat(text).map_err(|error| EngineError::Decode {
        operation: Operation::StatPath.as_str(),
        cause: error.to_string(),
    })
}

pub(super) fn parse_path_stat(header: &[u8]) -> io::Result<PathStat> {
    #[derive(Deserialize)]
    struct Wire {
        mode: u32,
        #[serde(rename = "linkTarget", default)]
        link_target: String,
    }
    let json = STANDARD.decode(header).map_err(io::Error::other)?;
    let wire: Wire = serde_json::from_slice(&json)?;
    let kind = match wire.mode {
        mode if mode & MODE_DIR != 0 => PathKind::Dir,
        mode if mode & MODE_SYMLINK != 0 => PathKind::Symlink,
        mode if mode & MODE_OTHER != 0 => PathKind::Other,
        _ => PathKind::File,
    };
    Ok(PathStat {
        kind,
        link_target: wire.link_target,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_engine_says_of_a_path_is_understood() {
        let stat = |mode: u32, link: &str| {
            let json = format!(r#"{{"name":"x","size":1,"mode":{mode},"linkTarget":"{link}"}}"#);
            parse_path_stat(STANDARD.encode(json).as_bytes()).unwrap()
        };
        for (mode, kind) in [
            (0o644, PathKind::File),
            (MODE_DIR | 0o755, PathKind::Dir),
            (MODE_SYMLINK | 0o777, PathKind::Symlink),
            // A character device has two bits.
            (1 << 26 | 1 << 21 | 0o666, PathKind::Other),
        ] {
            assert_eq!(stat(mode, "").kind, kind, "{mode:o}");
        }
        assert_eq!(stat(MODE_SYMLINK, "/a").link_target, "/a");
        for bad in [&b""[..], b"!", b"e30="] {
            assert!(parse_path_stat(bad).is_err());
        }
    }

    #[test]
    fn a_path_that_only_the_kernel_has_is_named_as_such() {
        for (path, below) in [
            ("/proc/cpuinfo", Some("/proc")),
            ("/dev/shm/x", Some("/dev")),
            ("/process", None),
            ("/srv/proc/x", None),
        ] {
            let words = missing(path);
            match below {
                Some(kernel) => assert!(words.contains(&format!("below {kernel};")), "{words}"),
                None => assert_eq!(words, format!("{path} does not exist in the container")),
            }
        }
    }

    #[test]
    fn a_path_addresses_nothing_but_itself() {
        assert_eq!(
            archive_uri("4f", "/a b&path=/c?d#e"),
            "/containers/4f/archive?path=%2Fa+b%26path%3D%2Fc%3Fd%23e"
        );
    }
}
