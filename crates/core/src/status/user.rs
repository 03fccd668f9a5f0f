//! The user and the groups of a container's first process.
//!
//! They are known if the spec sets them completely: with `runAsUser` and `runAsGroup` the Engine adds
//! no groups of the image's `/etc/group`. Otherwise the image decides, and the Engine doesn't report
//! the result; then there is none, as with a kubelet whose runtime doesn't report it.
//!
//! Upstream: `convertContainerStatusUser` of `pkg/kubelet/kubelet_pods.go`, from what a CRI runtime
//! reports. Its groups begin with the primary one.

use crate::api::Pod;
use crate::api::core::{Container, ContainerUser, LinuxContainerUser};

/// The user of a container.
pub(super) fn user(pod: &Pod, container: &Container) -> Option<ContainerUser> {
    let of_pod = pod.spec.as_ref()?.security_context.as_ref();
    let own = container.security_context.as_ref();
    let uid = own
        .and_then(|own| own.run_as_user)
        .or(of_pod.and_then(|pod| pod.run_as_user))?;
    let gid = own
        .and_then(|own| own.run_as_group)
        .or(of_pod.and_then(|pod| pod.run_as_group))?;
    let added = of_pod.into_iter().flat_map(|pod| {
        let groups = pod.supplemental_groups.iter().flatten();
        groups.copied().chain(pod.fs_group)
    });
    let mut groups = vec![gid];
    for group in added {
        if !groups.contains(&group) {
            groups.push(group);
        }
    }
    Some(ContainerUser {
        linux: Some(LinuxContainerUser {
            uid,
            gid,
            supplemental_groups: Some(groups),
        }),
    })
}
