//! The images that the pods of a workload run, even while it has no pods.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::claims::template;
use crate::api::{self, Pod};
use crate::desired::{SourceState, SourceWorkload};
use crate::small::SmallCollect;
use crate::spec::image_names;

/// The images that workloads name in their templates.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NamedImages {
    /// Their names, as they are written there.
    pub names: BTreeSet<String>,
    /// Whether every source has delivered: workloads of the others may use more images.
    pub is_complete: bool,
}

impl NamedImages {
    /// Returns the images of the workloads that the sources currently deliver.
    pub fn of(states: &[Arc<SourceState>]) -> Self {
        let sets = states.iter().filter_map(|state| state.set());
        let workloads = sets.flat_map(|set| &set.workloads);
        Self {
            names: workloads.flat_map(template_images).collect_set(),
            is_complete: states.iter().all(|state| state.set().is_some()),
        }
    }
}

/// Returns the images in a workload's template, in their original form.
pub fn template_images(workload: &SourceWorkload) -> BTreeSet<String> {
    let spec = template(workload).and_then(|template| template.get("spec"));
    let pod = Pod {
        spec: spec.and_then(|spec| api::read(spec).ok()),
        ..Pod::default()
    };
    image_names(&pod).map(str::to_owned).collect_set()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::desired::SourceSet;
    use crate::workload::claims::tests::workload;

    #[test]
    fn a_workload_without_pods_names_the_images_of_its_template() {
        let pod = json!({"spec": {
            "initContainers": [{"name": "i", "image": "init:1"}],
            "containers": [{"name": "c", "image": "web:1"}, {"name": "d", "image": "web:1"}],
            "volumes": [
                {"name": "site", "image": {"reference": "site:7"}},
                {"name": "tmp", "emptyDir": {}},
            ],
        }});
        let all = &["init:1", "site:7", "web:1"][..];
        let of_job = json!({"spec": {"template": pod}});
        for (owner, spec, expected) in [
            ("CronJob/w", json!({"jobTemplate": of_job}), all),
            ("Job/w", json!({"suspend": true, "template": pod}), all),
            ("Deployment/w", json!({"replicas": 0, "template": pod}), all),
            (
                "StatefulSet/w",
                json!({"replicas": 0, "template": pod}),
                all,
            ),
            ("DaemonSet/w", json!({"template": pod}), all),
            ("Deployment/w", json!({"template": {}}), &[]),
            ("Other/w", json!({"template": pod}), &[]),
        ] {
            let names = template_images(&workload(owner, &spec));
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            // docker 51
            assert_eq!(names, expected, "{owner}");
        }
    }

    #[test]
    fn the_images_of_workloads_are_known_once_every_source_has_delivered() {
        let set = |owner: &str, image: &str| {
            let pod = json!({"spec": {"containers": [{"name": "c", "image": image}]}});
            Arc::new(SourceSet {
                workloads: vec![workload(owner, &json!({"template": pod}))],
                ..SourceSet::default()
            })
        };
        let synced = Arc::new(SourceState::Synced(set("Deployment/a", "a:1")));
        let last_known = Arc::new(SourceState::LastKnown(set("Job/b", "b:1")));
        let silent = Arc::new(SourceState::NotSynced);
        for (states, names, is_complete) in [
            (vec![synced.clone()], &["a:1"][..], true),
            (vec![synced.clone(), last_known], &["a:1", "b:1"], true),
            (vec![synced, silent], &["a:1"], false),
            (Vec::new(), &[], true),
        ] {
            let expected = NamedImages {
                names: names.iter().copied().map(str::to_owned).collect_set(),
                is_complete,
            };
            // docker 51
            assert_eq!(NamedImages::of(&states), expected);
        }
    }
}
