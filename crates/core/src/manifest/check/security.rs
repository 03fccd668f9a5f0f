//! Security contexts of pods and containers.

use std::collections::HashSet;

use crate::api::core::{
    AppArmorProfile, PodSecurityContext, PodSpec, SeccompProfile, SecurityContext,
};
use crate::manifest::problems::At;

use super::names;

/// Largest user and group id.
const ID_MAX: i64 = i32::MAX as i64;
/// Kinds of seccomp and `AppArmor` profiles.
const PROFILES: [&str; 3] = ["RuntimeDefault", "Unconfined", "Localhost"];

pub(super) fn check_pod_security(context: &PodSecurityContext, spec: &PodSpec, at: &At<'_>) {
    check_id(context.run_as_user, &at.key("runAsUser"));
    check_id(context.run_as_group, &at.key("runAsGroup"));
    check_id(context.fs_group, &at.key("fsGroup"));
    for (index, group) in context.supplemental_groups.iter().flatten().enumerate() {
        let path = at.key("supplementalGroups").index(index);
        check_id(Some(*group), &path);
    }
    at.key("supplementalGroupsPolicy").one_of(
        context.supplemental_groups_policy.as_deref(),
        &["Merge", "Strict"],
    );
    at.key("fsGroupChangePolicy").one_of(
        context.fs_group_change_policy.as_deref(),
        &["OnRootMismatch", "Always"],
    );
    check_seccomp(context.seccomp_profile.as_ref(), at);
    check_apparmor(context.app_armor_profile.as_ref(), at);
    check_sysctls(context, spec, &at.key("sysctls"));
}

fn check_sysctls(context: &PodSecurityContext, spec: &PodSpec, at: &At<'_>) {
    let mut seen = HashSet::new();
    for (index, sysctl) in context.sysctls.iter().flatten().enumerate() {
        let path = at.index(index).key("name");
        let name = sysctl.name.replace('/', ".");
        if name.is_empty() {
            path.required("a sysctl needs a name");
            continue;
        }
        if !names::is_sysctl(&sysctl.name) {
            path.invalid("this is not the name of a sysctl");
        }
        if spec.host_network == Some(true) && name.starts_with("net.") {
            path.invalid("can't be set in a pod with hostNetwork");
        }
        let is_ipc = ["kernel.shm", "kernel.msg", "kernel.sem", "fs.mqueue."]
            .iter()
            .any(|start| name.starts_with(start));
        if spec.host_ipc == Some(true) && is_ipc {
            path.invalid("can't be set in a pod with hostIPC");
        }
        if !seen.insert(name) {
            path.duplicate("this sysctl is already set");
        }
    }
}

pub(super) fn check_container_security(context: &SecurityContext, at: &At<'_>) {
    check_id(context.run_as_user, &at.key("runAsUser"));
    check_id(context.run_as_group, &at.key("runAsGroup"));
    at.key("procMount")
        .one_of(context.proc_mount.as_deref(), &["Default", "Unmasked"]);
    check_seccomp(context.seccomp_profile.as_ref(), at);
    check_apparmor(context.app_armor_profile.as_ref(), at);
    let escalates = context.privileged == Some(true) || adds_sys_admin(context);
    if context.allow_privilege_escalation == Some(false) && escalates {
        at.key("allowPrivilegeEscalation")
            .invalid("can't be false for a container that is privileged or adds CAP_SYS_ADMIN");
    }
    let Some(capabilities) = &context.capabilities else {
        return;
    };
    for (list, key) in [(&capabilities.add, "add"), (&capabilities.drop, "drop")] {
        for (index, name) in list.iter().flatten().enumerate() {
            let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
            if name.is_empty() || !name.chars().all(is_name) {
                let path = at.key("capabilities").key(key).index(index);
                path.invalid("this is not the name of a capability");
            }
        }
    }
}

fn adds_sys_admin(context: &SecurityContext) -> bool {
    let added = context.capabilities.as_ref().and_then(|c| c.add.as_ref());
    added
        .into_iter()
        .flatten()
        .any(|name| name == "CAP_SYS_ADMIN")
}

fn check_id(id: Option<i64>, at: &At<'_>) {
    if id.is_some_and(|id| !(0..=ID_MAX).contains(&id)) {
        at.invalid(format!("must be between 0 and {ID_MAX}"));
    }
}

fn check_seccomp(profile: Option<&SeccompProfile>, at: &At<'_>) {
    let Some(profile) = profile else { return };
    let at = at.key("seccompProfile");
    at.key("type").one_of(Some(&profile.type_), &PROFILES);
    let path = at.key("localhostProfile");
    let file = profile.localhost_profile.as_deref().unwrap_or_default();
    check_localhost(&profile.type_, file, &path);
    if file.starts_with('/') || file.split('/').any(|part| part == "..") {
        path.invalid("must be a relative path without `..`");
    }
}

fn check_apparmor(profile: Option<&AppArmorProfile>, at: &At<'_>) {
    let Some(profile) = profile else { return };
    let at = at.key("appArmorProfile");
    at.key("type").one_of(Some(&profile.type_), &PROFILES);
    let name = profile.localhost_profile.as_deref().unwrap_or_default();
    check_localhost(&profile.type_, name, &at.key("localhostProfile"));
}

fn check_localhost(kind: &str, profile: &str, at: &At<'_>) {
    if kind == "Localhost" && profile.trim().is_empty() {
        at.required("is required for profiles of type Localhost");
    } else if kind != "Localhost" && !profile.is_empty() {
        at.invalid("is allowed only for profiles of type Localhost");
    }
}
