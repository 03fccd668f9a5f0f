//! The images on the Engine, for users.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::View;
use super::pods::wanted;
use crate::server::view::{ViewError, ViewErrorKind};
use mirrorlet_core::api::report::{ImageReport, ImagesReport};
use mirrorlet_core::api::{FullName, Pod};
use mirrorlet_core::desired::{SourceState, SourceWorkload};
use mirrorlet_core::reference::{Reference, is_id_of};
use mirrorlet_core::small::{SmallCollect, SmallSort};
use mirrorlet_core::spec;
use mirrorlet_core::status::all_container_statuses;
use mirrorlet_core::workload::WorkloadKey;
use mirrorlet_core::workload::images::template_images;
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
        let states = self.sources.iter().map(|source| source.state.get());
        let states: Vec<Arc<SourceState>> = states.collect();
        let sets = states.iter().filter_map(|state| state.set());
        Ok(report(listed, &pods, sets.flat_map(|set| &set.workloads)))
    }
}

/// The users of an image.
#[derive(Default)]
struct Users {
    pods: BTreeSet<String>,
    workloads: BTreeSet<String>,
}

/// The images, with the pods that name them in their specs or run them, and the workloads that name them
/// and have no such pod: a `CronJob` between two runs, a Deployment that is scaled to 0.
fn report<'a>(
    listed: Vec<ListedImage>,
    pods: &[Arc<Pod>],
    workloads: impl Iterator<Item = &'a SourceWorkload>,
) -> ImagesReport {
    let mut users = BTreeMap::<String, Users>::new();
    let mut by_pods = BTreeSet::new();
    for pod in pods {
        let FullName { namespace, name } = FullName::of(pod);
        let statuses = pod.status.iter().flat_map(all_container_statuses);
        let ids = statuses.map(|container| container.image_id.clone());
        let owner = WorkloadKey::of(pod);
        // Also in its original form: it may be an id.
        let written = spec::image_names(pod).map(str::to_owned);
        let names = spec::image_names(pod).filter_map(full);
        for image in written.chain(names).chain(ids) {
            by_pods.insert((image.clone(), owner.clone()));
            let of_image = users.entry(image).or_default();
            of_image.pods.insert(format!("{namespace}/{name}"));
        }
    }
    for workload in workloads {
        let Some(key) = workload.key() else {
            continue;
        };
        for written in template_images(workload) {
            let name = full(&written);
            for image in name.into_iter().chain([written]) {
                if !by_pods.contains(&(image.clone(), Some(key.clone()))) {
                    let of_image = users.entry(image).or_default();
                    of_image.workloads.insert(key.typed());
                }
            }
        }
    }
    let mut images: Vec<_> = listed.into_iter().map(|image| one(image, &users)).collect();
    images.small_sort_by(|a, b| {
        (a.names.is_empty(), &a.names, &a.id).cmp(&(b.names.is_empty(), &b.names, &b.id))
    });
    ImagesReport { images }
}

fn one(image: ListedImage, users: &BTreeMap<String, Users>) -> ImageReport {
    let names = image.tags.iter().filter_map(|tag| full(tag));
    let by_name = names.chain(image.digests.iter().filter_map(|digest| full(digest)));
    let keys = by_name.chain(image.image_ids());
    let by_id = users.iter().filter(|(name, _)| is_id_of(name, &image.id));
    let of_image = keys.filter_map(|key| users.get(&key));
    let of_image: Vec<&Users> = of_image.chain(by_id.map(|(_, users)| users)).collect();
    let names = |of: fn(&Users) -> &BTreeSet<String>| -> Vec<String> {
        let names = of_image.iter().flat_map(|users| of(users));
        names.collect_set().into_iter().cloned().collect()
    };
    ImageReport {
        pods: names(|users| &users.pods),
        workloads: names(|users| &users.workloads),
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
    use mirrorlet_core::api::keys;
    use serde_json::json;

    use super::super::volumes::tests::workload_of;
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
        let report = report(listed, &pods, std::iter::empty());
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

    fn workload(owner: &str, image: &str) -> SourceWorkload {
        workload_of(
            owner,
            &json!({"containers": [{"name": "c", "image": image}]}),
        )
    }

    #[test]
    fn an_image_is_used_by_workloads_without_a_pod_that_uses_it() {
        let listed = ["dump:1", "old:1", "web:1"].map(|tag| ListedImage {
            id: format!("sha256:{tag}"),
            tags: vec![tag.to_owned()],
            ..ListedImage::default()
        });
        // One of its pods is there.
        let mut web = pod("web-0", "web:1", "");
        let annotations = &mut Arc::make_mut(&mut web).metadata.annotations;
        let (key, owner) = (keys::WORKLOAD.to_owned(), "Deployment/web".to_owned());
        annotations.get_or_insert_default().insert(key, owner);
        let workloads = [
            workload("CronJob/dump", "docker.io/library/dump:1"),
            workload("Deployment/web", "web:1"),
            workload("Deployment/off", "web:1"),
        ];
        let report = report(listed.into(), &[web], workloads.iter());
        let told = report.images.iter().map(|image| {
            let users: Vec<_> = image.users().collect();
            (image.names.join(" "), users.join(" "))
        });
        let told: Vec<_> = told.collect();
        let expected = [
            ("dump:1", "cronjob/default/dump"),
            ("old:1", ""),
            ("web:1", "default/web-0 deployment/default/off"),
        ];
        let expected = expected.map(|(name, users)| (name.to_owned(), users.to_owned()));
        assert_eq!(told, expected);
    }
}
