//! Lists and inspects: answers whose size depends on the authors of images and pods.
//!
//! Not through bollard, which decodes them whole, including the labels of images. Here the body is
//! [pruned](Pruner) as it arrives, and only then decoded into bollard's models; unused fields are empty
//! in them. Labels of images are dropped, so that an image with 20 MiB of labels costs the agent no
//! memory, however many containers use it.

use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Full};
use serde::de::DeserializeOwned;
use serde_json::json;

use super::BollardEngine;
use super::pruner::{Keep, Pruner, TooMuch};
use super::streams::refused;
use crate::engine::{EngineError, READ_DEADLINE, Result};
use crate::operation::Operation;
use crate::translate::labels::READ_BACK;
use mirrorlet_core::small::SmallCollect;

/// Most bytes kept of a list: tens of thousands of containers, or of names of images. Beyond it the
/// list fails.
const LIST_MAX: usize = 64 << 20;
/// Maximum number of bytes kept of the Engine's answer about one container or image. A larger one can't
/// be inspected.
const INSPECT_MAX: usize = 1 << 20;
/// Maximum size of an answer about an image. Each container of the image has its labels, in each answer
/// and event about it, and the Engine writes them again each time. So an image with more is not used at
/// all: otherwise lists would eventually take longer than their deadline, and events exceed the maximum
/// line length. Real images have some ten KiB.
const IMAGE_MAX: usize = 2 << 20;

/// The parts of an answer that are decoded, and their limits.
#[derive(Debug)]
pub(super) struct Answer {
    keep: &'static Keep,
    /// Most bytes kept.
    kept_max: usize,
    /// Most bytes read.
    read_max: usize,
    /// The name of the answer in the error of one that is too large.
    what: &'static str,
}

const fn list(keep: &'static Keep) -> Answer {
    Answer {
        keep,
        kept_max: LIST_MAX,
        read_max: usize::MAX,
        what: "the Docker Engine's list",
    }
}

/// The list of our containers.
pub(super) static CONTAINERS: Answer = list(&Keep::Each(&Keep::Fields(
    &["Id", "Names", "Image", "ImageID", "Created", "State"],
    &[
        ("HostConfig", Keep::Fields(&["NetworkMode"], &[])),
        (
            "NetworkSettings",
            Keep::Fields(
                &[],
                &[("Networks", Keep::Each(&Keep::Fields(&["NetworkID"], &[])))],
            ),
        ),
        ("Labels", Keep::Fields(&READ_BACK, &[])),
    ],
)));

/// The list of containers that publish a port.
pub(super) static PUBLISHERS: Answer = list(&Keep::Each(&Keep::Fields(
    &["Id", "Names", "Ports"],
    &[("Labels", Keep::Fields(&READ_BACK, &[]))],
)));

/// The images of all containers.
pub(super) static USERS: Answer = list(&Keep::Each(&Keep::Fields(
    &["ImageID"],
    &[("Mounts", Keep::Each(&Keep::Fields(&["Type", "Name"], &[])))],
)));

/// The list of images. The model requires labels.
pub(super) static IMAGES: Answer = list(&Keep::Each(&Keep::Fields(
    &[
        "Id",
        "ParentId",
        "RepoTags",
        "RepoDigests",
        "Created",
        "Size",
        "SharedSize",
        "Containers",
    ],
    &[("Labels", Keep::Fields(&[], &[]))],
)));

/// The state of a container, without its health.
const STATE: Keep = Keep::Fields(
    &[
        "Status",
        "Running",
        "Paused",
        "Restarting",
        "OOMKilled",
        "Dead",
        "Pid",
        "ExitCode",
        "Error",
        "StartedAt",
        "FinishedAt",
    ],
    &[],
);
const CONFIG: Keep = Keep::Fields(
    &["Image", "Tty", "OpenStdin"],
    &[("Labels", Keep::Fields(&READ_BACK, &[]))],
);
const NETWORK: Keep = Keep::Fields(&["NetworkID", "IPAddress", "GlobalIPv6Address"], &[]);

/// A container.
pub(super) static CONTAINER: Answer = Answer {
    keep: &Keep::Fields(
        &[
            "Id",
            "Created",
            "Name",
            "Image",
            "LogPath",
            "ResolvConfPath",
        ],
        &[
            ("State", STATE),
            (
                "HostConfig",
                Keep::Fields(&["NetworkMode", "OomScoreAdj"], &[]),
            ),
            (
                "Mounts",
                Keep::Each(&Keep::Fields(&["Source", "Destination"], &[])),
            ),
            ("Config", CONFIG),
            (
                "NetworkSettings",
                Keep::Fields(&["Ports"], &[("Networks", Keep::Each(&NETWORK))]),
            ),
        ],
    ),
    kept_max: INSPECT_MAX,
    read_max: usize::MAX,
    what: "the Docker Engine's description of the container",
};

/// An image.
pub(super) static IMAGE: Answer = Answer {
    keep: &Keep::Fields(
        &["Id", "RepoTags", "RepoDigests", "Size", "RootFS"],
        &[("Config", Keep::Fields(&["User"], &[]))],
    ),
    kept_max: INSPECT_MAX,
    read_max: IMAGE_MAX,
    what: "the configuration of the image, with its labels and variables,",
};

impl Answer {
    fn too_large(&self, max: usize) -> EngineError {
        EngineError::TooLarge {
            what: self.what,
            max,
        }
    }
}

impl BollardEngine {
    /// Sends a request, and decodes the needed parts of the answer.
    pub(super) async fn fetch<T: DeserializeOwned>(
        &self,
        operation: Operation,
        target: &str,
        path: String,
        answer: &Answer,
    ) -> Result<T> {
        let work = async {
            let request: Request<Full<Bytes>> = Request::get(path).body(Full::default())?;
            let response = self.transport.send(request).await?;
            if response.status() != StatusCode::OK {
                return Err(refused(response).await);
            }
            let mut body = response.into_body();
            let mut pruner = Pruner::new(answer.keep, answer.kept_max);
            let mut left = answer.read_max;
            while let Some(frame) = body.frame().await {
                let Ok(data) = frame?.into_data() else {
                    continue;
                };
                let Some(rest) = left.checked_sub(data.len()) else {
                    return Ok(Err(answer.too_large(answer.read_max)));
                };
                left = rest;
                if let Err(TooMuch) = pruner.push(&data) {
                    return Ok(Err(answer.too_large(answer.kept_max)));
                }
            }
            Ok(Ok(serde_json::from_slice(&pruner.into_kept())?))
        };
        self.call(operation, target, READ_DEADLINE, work).await?
    }
}

/// The path of a list of containers with these filters.
pub(super) fn containers_path(all: bool, filters: &[(&str, &[String])]) -> String {
    let mut query = form_urlencoded::Serializer::new(String::new());
    query.append_pair("all", if all { "1" } else { "0" });
    if !filters.is_empty() {
        let filters = filters.iter().map(|(name, values)| (*name, json!(values)));
        let filters: serde_json::Map<_, _> =
            filters.map(|(n, v)| (n.to_owned(), v)).collect_object();
        query.append_pair("filters", &json!(filters).to_string());
    }
    format!("/containers/json?{}", query.finish())
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;
    use std::sync::Arc;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{UnixListener, UnixStream};

    use super::*;
    use crate::engine::{Engine, SharedEngine};
    use crate::facts::Facts;
    use crate::image::{ImagePuller, PullerOptions};
    use crate::index::{Created, Index};
    use crate::translate::labels::sandbox_labels;
    use crate::translate::{parse_ours, sandbox_name};
    use mirrorlet_core::api::{FullName, Pod, PodUid, Timestamp, keys};
    use mirrorlet_host::telemetry::Metrics;

    /// Where a label of 20 MiB stands in an answer.
    const LARGE: &str = "LARGE";
    /// Pieces of 64 KiB in it.
    const PIECES: usize = 320;

    /// An Engine that gives these answers to requests whose target ends so.
    fn scripted(answers: Vec<(&'static str, String)>) -> (tempfile::TempDir, BollardEngine) {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("s");
        let listener = UnixListener::bind(&socket).unwrap();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(answer(stream, answers.clone()));
            }
        });
        let engine = BollardEngine::connect(&format!("unix://{}", socket.display())).unwrap();
        (directory, engine)
    }

    async fn answer(mut stream: UnixStream, answers: Vec<(&'static str, String)>) {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.unwrap());
        }
        let head = String::from_utf8(head).unwrap();
        let target = head.split(' ').nth(1).unwrap();
        let version = (
            "/version",
            r#"{"Version":"t","ApiVersion":"1.41"}"#.to_owned(),
        );
        let mut all = answers.iter().chain([&version]);
        let (_, body) = all.find(|(end, _)| target.ends_with(end)).expect(target);
        let filler = "x".repeat(64 << 10);
        let head = "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n";
        // Who has read enough closes its end.
        if stream.write_all(head.as_bytes()).await.is_err() {
            return;
        }
        for (index, part) in body.split(LARGE).enumerate() {
            for _ in 0..if index > 0 { PIECES } else { 0 } {
                if stream.write_all(filler.as_bytes()).await.is_err() {
                    return;
                }
            }
            if stream.write_all(part.as_bytes()).await.is_err() {
                return;
            }
        }
    }

    fn labels() -> serde_json::Value {
        json!({keys::OWNER: "me", keys::POD_UID: "u", "of.image": LARGE})
    }

    #[tokio::test]
    async fn labels_of_images_cost_no_memory_in_lists_and_inspects() {
        let container = |id: &str| {
            json!({
                "Id": id, "Names": ["/n"], "ImageID": "i", "State": "running", "Labels": labels(),
                "Ports": [{"PublicPort": 80, "PrivatePort": 80, "Type": "tcp"}],
                "Mounts": [{"Type": "image", "Name": "m"}],
            })
        };
        let image = json!({
            "Id": "i", "ParentId": "", "RepoTags": ["a:1"], "RepoDigests": null, "Created": 1,
            "Size": 2, "SharedSize": -1, "Containers": -1, "Labels": labels(),
        });
        let list = json!([container("1"), container("2"), container("3")]).to_string();
        let inspect = json!({
            "Id": "1", "State": {"Running": true, "Status": "running"},
            "Config": {"Tty": true, "Env": [LARGE], "Labels": labels()},
            "HostConfig": {"NetworkMode": "host", "OomScoreAdj": -998, "Binds": [LARGE]},
            "NetworkSettings": {"Networks": {"n": {"IPAddress": "10.0.0.1", "Aliases": [LARGE]}}},
        });
        let (_directory, engine) = scripted(vec![
            (
                "/containers/json?all=1&filters=%7B%22label%22%3A%5B%22mirrorlet.dev%2Fowner%3Dme%22%5D%7D",
                list.clone(),
            ),
            (
                "/containers/json?all=0&filters=%7B%22publish%22%3A%5B%2280%2Ftcp%22%2C%2280%2Fudp%22%2C%2280%2Fsctp%22%5D%7D",
                list.clone(),
            ),
            ("/containers/json?all=1", list),
            ("/containers/1/json", inspect.to_string()),
            ("/images/json?digests=1&all=1", json!([image]).to_string()),
        ]);
        let is_ours = |labels: &std::collections::HashMap<String, String>| {
            labels.len() == 2 && labels[keys::POD_UID] == "u"
        };
        for listed in [
            engine.list_containers("me").await.unwrap(),
            engine.list_publishers(80).await.unwrap(),
        ] {
            let ids: Vec<_> = listed.iter().filter_map(|c| c.id.as_deref()).collect();
            // tenants H3
            assert_eq!(ids, ["1", "2", "3"]);
            assert!(
                listed
                    .iter()
                    .all(|c| c.labels.as_ref().is_some_and(is_ours))
            );
        }
        let used = engine.images_in_use().await.unwrap();
        assert_eq!(used.into_iter().collect::<Vec<_>>(), ["i", "m"]);
        let images = engine.list_images(true).await.unwrap();
        assert_eq!(images[0].repo_tags, ["a:1"]);
        assert!(images[0].labels.is_empty());
        let found = engine.inspect_container("1").await.unwrap();
        let config = found.config.unwrap();
        assert_eq!((config.tty, config.env), (Some(true), None));
        assert!(is_ours(&config.labels.unwrap()));
        assert_eq!(found.host_config.unwrap().oom_score_adj, Some(-998));
        let networks = found.network_settings.unwrap().networks.unwrap();
        assert_eq!(networks["n"].ip_address.as_deref(), Some("10.0.0.1"));
    }

    #[tokio::test]
    async fn a_list_has_the_names_and_ids_of_the_networks_of_its_containers() {
        let list = json!([{
            "Id": "1", "Names": ["/n"], "ImageID": "i", "State": "running", "Labels": {},
            "HostConfig": {"NetworkMode": "d00"},
            "NetworkSettings": {"Networks": {"db": {"NetworkID": "d00", "IPAddress": "10.0.0.1"}}},
        }]);
        let (_directory, engine) = scripted(vec![(
            "/containers/json?all=1&filters=%7B%22label%22%3A%5B%22mirrorlet.dev%2Fowner%3Dme%22%5D%7D",
            list.to_string(),
        )]);
        let listed = engine.list_containers("me").await.unwrap();
        let settings = listed[0].network_settings.as_ref().unwrap();
        let networks = settings.networks.as_ref().unwrap();
        assert_eq!(networks["db"].network_id.as_deref(), Some("d00"));
        assert_eq!(networks["db"].ip_address, None);
    }

    #[tokio::test]
    async fn the_version_that_a_call_asks_for_first_is_counted() {
        let (_directory, engine) = scripted(vec![("/containers/json?all=1", "[]".to_owned())]);
        let metrics = Metrics::new();
        engine.meter().count_in(metrics.clone(), None);
        engine.images_in_use().await.unwrap();
        engine.images_in_use().await.unwrap();
        engine.version().await.unwrap();
        let text = metrics.encode();
        for line in [
            "operations_total{operation=\"version\"} 2",
            "operations_total{operation=\"images_in_use\"} 2",
        ] {
            let line = format!("mirrorlet_engine_{line}\n");
            assert!(text.contains(&line), "{line} is not in\n{text}");
        }
    }

    #[tokio::test]
    async fn an_engine_with_an_unknown_cgroup_driver_is_refused() {
        for (driver, refused) in [
            ("systemd", None),
            ("", None),
            ("other", Some("unknown variant `other`")),
        ] {
            let info = json!({"ID": "1", "CgroupDriver": driver}).to_string();
            let (_directory, engine) = scripted(vec![("/info", info)]);
            let engine: SharedEngine = Arc::new(engine);
            let images = ImagePuller::new(Arc::clone(&engine), PullerOptions::default());
            let facts = Facts::new(engine, Arc::new(images), None);
            let answer = facts.engine_facts().await;
            let error = answer.err().map(|error| error.to_string());
            let is_expected = match (&error, refused) {
                (Some(error), Some(words)) => error.contains(words),
                (error, words) => error.is_none() && words.is_none(),
            };
            // docker 65
            assert!(is_expected, "{driver}: {error:?}");
        }
    }

    /// `--network` may name it so, and the Engine names networks by their names.
    #[tokio::test]
    async fn the_network_of_a_pod_may_be_named_by_its_id() {
        let inspect = json!({
            "Id": "1", "State": {"Running": true, "Status": "running"},
            "HostConfig": {"NetworkMode": "d00"},
            "NetworkSettings": {"Networks": {
                "bridge": {"NetworkID": "b00", "IPAddress": "172.17.0.2"},
                "db": {"NetworkID": "d00", "IPAddress": "172.18.0.2"},
            }},
        });
        let (_directory, engine) = scripted(vec![("/containers/1/json", inspect.to_string())]);
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "web", "namespace": "default", "uid": "u"},
            "spec": {"containers": []},
        }))
        .unwrap();
        let name = sandbox_name(&FullName::of(&pod), &PodUid::of(&pod), 0);
        let labels = sandbox_labels("me", &pod, 0);
        let index = Index::default();
        index.created(Created {
            id: "1".into(),
            ours: parse_ours("me", [name.as_str()], &labels).unwrap(),
            image: "i".into(),
            at: Timestamp::UNIX_EPOCH,
        });
        index.started("1", Timestamp::UNIX_EPOCH);
        let found = engine.inspect_container("1").await.unwrap();
        index.inspected("1", u64::MAX, &found, "");
        let record = index.get("1").unwrap();
        let expected: IpAddr = "172.18.0.2".parse().unwrap();
        // docker 22a
        assert_eq!(record.ips(), [expected]);
    }

    #[tokio::test]
    async fn an_image_that_is_too_large_is_an_error_of_its_own() {
        let image = |label: &str| {
            json!({"Id": "i", "Config": {"User": "7", "Labels": {"l": label}}}).to_string()
        };
        let (_directory, engine) = scripted(vec![
            ("/images/large:1/json", image(LARGE)),
            ("/images/small:1/json", image("s")),
        ]);
        let error = engine.inspect_image("large:1").await.unwrap_err();
        assert_eq!(
            error.to_string(),
            "the configuration of the image, with its labels and variables, is larger than 2 MiB"
        );
        let small = engine.inspect_image("small:1").await.unwrap();
        assert_eq!(small.config.unwrap().user.as_deref(), Some("7"));
    }
}
