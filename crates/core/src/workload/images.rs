//! The images that the pods of a workload run, also while it has no pods.

use std::collections::BTreeSet;

use super::claims::template;
use crate::api::{self, Pod};
use crate::desired::SourceWorkload;
use crate::small::SmallCollect;
use crate::spec::image_names;

/// Returns the images that a workload's template names, as they are written there.
pub fn template_images(workload: &SourceWorkload) -> BTreeSet<String> {
    let spec = template(workload).and_then(|template| template.get("spec"));
    let pod = Pod {
        spec: spec.and_then(|spec| api::read(spec).ok()),
        ..Pod::default()
    };
    image_names(&pod).map(str::to_owned).collect_set()
}
