//! The images on the Engine, for people.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::View;
use super::pods::wanted;
use crate::server::view::{ViewError, ViewErrorKind};
use mirrorlet_core::api::report::{ImageReport, ImagesReport};
use mirrorlet_core::api::{FullName, Pod};
use mirrorlet_core::reference::{Reference, is_id_of};
use mirrorlet_core::small::{SmallCollect, SmallSort};
use mirrorlet_core::spec;
use mirrorlet_core::status::all_container_statuses;
use mirrorlet_docker::ListedImage;

impl View {
    /// See [`AgentView::images`](crate::server::view::AgentView::images).
    pub(super) async fn list_images(&self) -> Result<ImagesReport, ViewError> {
        let listed = self.images.list_all().await;
        let listed = listed.map_err(|error| ViewErrorKind::Unavailable.error(error.to_string()))?;
        let merged = self.merged.get();
        let wanted = wanted(&merged).map(|wanted| Arc::clone(&wanted.pod));
        let views = self.board.all().into_iter();
        // With the ids of the images that their containers run.
        let known = views.filter_map(|view| {
            let mut pod = Pod::clone(view.pod.as_deref()?);
            pod.status = view.status.as_deref().cloned();
            Some(Arc::new(pod))
        });
        let finished = merged.finished.pods().map(Arc::new);
        let pods: Vec<_> = wanted.chain(known).chain(finished).collect();
        Ok(report(listed, &pods))
    }
}

/// The images, with the pods that name them in their specs or run them.
fn report(listed: Vec<ListedImage>, pods: &[Arc<Pod>]) -> ImagesReport {
    let mut users = BTreeMap::<String, BTreeSet<String>>::new();
    for pod in pods {
        let FullName { namespace, name } = FullName::of(pod);
        let statuses = pod.status.iter().flat_map(all_container_statuses);
        let ids = statuses.map(|container| container.image_id.clone());
        // As it stands, too: it may be an id.
        let written = spec::image_names(pod).map(str::to_owned);
        let names = spec::image_names(pod).filter_map(full);
        for image in written.chain(names).chain(ids) {
            let of_image = users.entry(image).or_default();
            of_image.insert(format!("{namespace}/{name}"));
        }
    }
    let mut images: Vec<_> = listed.into_iter().map(|image| one(image, &users)).collect();
    images.small_sort_by(|a, b| {
        (a.names.is_empty(), &a.names, &a.id).cmp(&(b.names.is_empty(), &b.names, &b.id))
    });
    ImagesReport { images }
}

fn one(image: ListedImage, users: &BTreeMap<String, BTreeSet<String>>) -> ImageReport {
    let names = image.tags.iter().filter_map(|tag| full(tag));
    let by_name = names.chain(image.digests.iter().filter_map(|digest| full(digest)));
    let keys = by_name.chain(image.image_ids());
    let by_id = users.iter().filter(|(name, _)| is_id_of(name, &image.id));
    let pods: BTreeSet<&String> = keys
        .filter_map(|key| users.get(&key))
        .chain(by_id.map(|(_, pods)| pods))
        .flatten()
        .collect_set();
    ImageReport {
        pods: pods.into_iter().cloned().collect(),
        names: if image.tags.is_empty() {
            image.digests
        } else {
            image.tags
        },
        id: image.id,
        size_bytes: image.size_bytes,
        pulled_at: image.pulled_at,
    }
}

/// The whole name of an image.
fn full(name: &str) -> Option<String> {
    Some(Reference::parse(name).ok()?.full())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(name: &str, image: &str, id: &str) -> Arc<Pod> {
        let pod = serde_json::json!({
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"containers": [{"name": "c", "image": image}]},
            "status": {"containerStatuses": [{
                "name": "c", "image": image, "imageID": id, "ready": true, "restartCount": 0,
            }]},
        });
        Arc::new(serde_json::from_value(pod).unwrap())
    }

    #[test]
    fn images_have_the_pods_that_name_or_run_them() {
        let image = |id: &str, tags: &[&str], digests: &[&str]| ListedImage {
            id: format!("sha256:{id}"),
            tags: tags.iter().copied().map(str::to_owned).collect(),
            digests: digests.iter().copied().map(str::to_owned).collect(),
            ..ListedImage::default()
        };
        let digest = format!("nginx@sha256:{}", "a".repeat(64));
        let listed = vec![
            image("old", &[], &[&digest]),
            image("none", &[], &[]),
            image("tools", &["tools:1"], &[]),
            image("new", &["nginx:1", "nginx:latest"], &[]),
            image("built", &["app:1"], &[]),
        ];
        let debugged = serde_json::json!({
            "metadata": {"name": "debugged", "namespace": "default"},
            "spec": {"containers": []},
            "status": {"ephemeralContainerStatuses": [{
                "name": "sh", "image": "sh:1", "imageID": "docker://sha256:tools",
                "ready": false, "restartCount": 0,
            }]},
        });
        let pods = [
            pod("pinned", &digest.replace('@', ":0@"), ""),
            Arc::new(serde_json::from_value(debugged).unwrap()),
            pod("named", "docker.io/library/nginx", ""),
            pod("pulled", "nginx:0", &format!("docker-pullable://{digest}")),
            pod("both", "app:1", "docker://sha256:built"),
            pod("by-id", "sha256:tools", ""),
            pod("by-short-id", "sha256:too", ""),
        ];
        let report = report(listed, &pods);
        let told: Vec<_> = report
            .images
            .iter()
            .map(|image| (image.id.as_str(), image.pods.join(" ")))
            .collect();
        assert_eq!(
            told,
            [
                ("sha256:built", "default/both".to_owned()),
                ("sha256:new", "default/named".to_owned()),
                ("sha256:old", "default/pinned default/pulled".to_owned()),
                (
                    "sha256:tools",
                    "default/by-id default/by-short-id default/debugged".to_owned()
                ),
                ("sha256:none", String::new()),
            ]
        );
        assert_eq!(report.images[2].names, [digest]);
    }
}
