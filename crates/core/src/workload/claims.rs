//! The claims that the pods of a workload use, even while it has no pods.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::desired::SourceWorkload;
use crate::objects::claims::ClaimName;
use crate::small::SmallCollect;

/// Returns the template of a workload's pods.
pub(super) fn template(workload: &SourceWorkload) -> Option<&Value> {
    workload.key()?.kind.template_in(&workload.document)
}

/// Returns the claims in the volumes of a workload's template. Does not include the claims of a
/// `StatefulSet`'s individual pods.
pub fn template_claims(workload: &SourceWorkload) -> BTreeSet<ClaimName> {
    let volumes = template(workload)
        .and_then(|template| template.pointer("/spec/volumes"))
        .and_then(Value::as_array);
    let names = volumes.into_iter().flatten().filter_map(|volume| {
        let name = volume.pointer("/persistentVolumeClaim/claimName")?;
        name.as_str()
    });
    names
        .map(|name| ClaimName::new(&workload.namespace, name))
        .collect_set()
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;
    use crate::desired::{Origin, PodSource};

    /// A workload of that owner reference whose document has that spec.
    pub(in crate::workload) fn workload(owner: &str, spec: &Value) -> SourceWorkload {
        SourceWorkload {
            namespace: "shop".to_owned(),
            owner: owner.to_owned(),
            document: Arc::new(json!({"spec": spec})),
            pods: BTreeSet::new(),
            set: None,
            template_hash: String::new(),
            origin: Origin::whole(PodSource::File, "/m/w.yaml"),
            held: false,
        }
    }

    #[test]
    fn a_workload_without_pods_uses_the_claims_of_its_template() {
        let pod = json!({"spec": {"volumes": [
            {"name": "data", "persistentVolumeClaim": {"claimName": "a"}},
            {"name": "more", "persistentVolumeClaim": {"claimName": "b"}},
            {"name": "tmp", "emptyDir": {}},
        ]}});
        let of_job = json!({"spec": {"template": pod}});
        for (owner, spec, expected) in [
            ("CronJob/w", json!({"jobTemplate": of_job}), &["a", "b"][..]),
            ("Job/w", json!({"template": pod}), &["a", "b"]),
            ("Deployment/w", json!({"template": pod}), &["a", "b"]),
            ("StatefulSet/w", json!({"template": {}}), &[]),
            ("DaemonSet/w", json!({}), &[]),
            ("Other/w", json!({"template": pod}), &[]),
        ] {
            let workload = workload(owner, &spec);
            let expected = expected.iter().map(|name| ClaimName::new("shop", *name));
            // box 7
            assert_eq!(
                template_claims(&workload),
                expected.collect_set(),
                "{owner}"
            );
        }
    }
}
