//! Security contexts: users, groups, security options, masked paths.
//!
//! Upstream: `pkg/kubelet/kuberuntime/security_context.go`, cri-dockerd
//! `core/security_context.go`.

use std::path::{Component, Path};

use mirrorlet_core::api::Pod;
use mirrorlet_core::api::core::{
    AppArmorProfile, Container, PodSecurityContext, SELinuxOptions, SecurityContext,
};
use mirrorlet_core::{app_armor, spec};

use super::{ConfigError, EngineFacts};

/// Security option that keeps a process from gaining privileges.
pub const NO_NEW_PRIVILEGES: &str = "no-new-privileges";
const UNCONFINED: &str = "unconfined";
const LOCALHOST: &str = "Localhost";
const RUNTIME_DEFAULT: &str = "RuntimeDefault";

/// The seccomp profile of a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SeccompWanted<'a> {
    /// None.
    Unconfined,
    /// The Engine's own.
    RuntimeDefault,
    /// A file below the node's seccomp directory.
    Localhost(&'a str),
}

fn of_pod(pod: &Pod) -> Option<&PodSecurityContext> {
    spec::spec(pod).security_context.as_ref()
}

fn of_container(container: &Container) -> Option<&SecurityContext> {
    container.security_context.as_ref()
}

/// Whether the container is privileged.
pub fn is_privileged(container: &Container) -> bool {
    of_container(container).and_then(|s| s.privileged) == Some(true)
}

/// The seccomp profile of a container: its own, its pod's, or else the node's default. The caller reads
/// the content of a [`SeccompWanted::Localhost`] file.
///
/// Upstream: `getSeccompProfile` of `pkg/kubelet/kuberuntime/helpers.go`.
pub fn seccomp_wanted<'a>(
    pod: &'a Pod,
    container: &'a Container,
    seccomp_default: bool,
) -> SeccompWanted<'a> {
    let profile = of_container(container)
        .and_then(|s| s.seccomp_profile.as_ref())
        .or_else(|| of_pod(pod).and_then(|s| s.seccomp_profile.as_ref()));
    match profile {
        Some(profile) if profile.type_ == RUNTIME_DEFAULT => SeccompWanted::RuntimeDefault,
        Some(profile) if profile.type_ == LOCALHOST => {
            SeccompWanted::Localhost(profile.localhost_profile.as_deref().unwrap_or_default())
        }
        // A runtime leaves privileged containers unconfined, whatever the kubelet's default is.
        None if seccomp_default && !is_privileged(container) => SeccompWanted::RuntimeDefault,
        _ => SeccompWanted::Unconfined,
    }
}

/// Security options of an app container. `seccomp_json` is the content of the profile's file.
pub(super) fn security_opts(
    pod: &Pod,
    container: &Container,
    seccomp_default: bool,
    seccomp_json: Option<&str>,
    engine: &EngineFacts,
) -> Result<Vec<String>, ConfigError> {
    let mut opts = Vec::new();
    let own = of_container(container);
    if own.and_then(|s| s.allow_privilege_escalation) == Some(false) {
        opts.push(NO_NEW_PRIVILEGES.to_owned());
    }
    match seccomp_wanted(pod, container, seccomp_default) {
        SeccompWanted::RuntimeDefault => {}
        SeccompWanted::Unconfined => opts.push(format!("seccomp={UNCONFINED}")),
        SeccompWanted::Localhost(profile) => {
            opts.push(format!(
                "seccomp={}",
                compact_seccomp(profile, seccomp_json)?
            ));
        }
    }
    let apparmor = app_armor::profile(pod, container);
    if !engine.app_armor && apparmor.as_deref().is_some_and(app_armor::needs_host) {
        return Err(ConfigError::AppArmor);
    }
    opts.extend(apparmor.as_deref().and_then(apparmor_opt));
    let se_linux = own
        .and_then(|s| s.se_linux_options.as_ref())
        .or_else(|| of_pod(pod).and_then(|s| s.se_linux_options.as_ref()));
    opts.extend(se_linux.into_iter().flat_map(se_linux_opts));
    Ok(opts)
}

/// Security options of a sandbox: our own process works with the Engine's defaults.
pub(super) fn sandbox_security_opts(pod: &Pod) -> Vec<String> {
    let mut opts = vec![NO_NEW_PRIVILEGES.to_owned()];
    let se_linux = of_pod(pod).and_then(|s| s.se_linux_options.as_ref());
    opts.extend(se_linux.into_iter().flat_map(se_linux_opts));
    opts
}

/// The Engine takes the profile itself, not its path.
fn compact_seccomp(profile: &str, json: Option<&str>) -> Result<String, ConfigError> {
    let fail = |problem| ConfigError::Seccomp {
        profile: profile.to_owned(),
        problem,
    };
    let path = Path::new(profile);
    let inside = path
        .components()
        .all(|c| matches!(c, Component::Normal(_) | Component::CurDir));
    if profile.is_empty() || !inside {
        return Err(fail("must be a relative path without '..'"));
    }
    let json = json.ok_or_else(|| fail("cannot be loaded: no such file, or it can't be read"))?;
    let value: serde_json::Value =
        serde_json::from_str(json).map_err(|_| fail("cannot be loaded: it is not JSON"))?;
    Ok(value.to_string())
}

fn apparmor_opt(profile: &AppArmorProfile) -> Option<String> {
    match profile.type_.as_str() {
        "Unconfined" => Some(format!("apparmor={UNCONFINED}")),
        LOCALHOST => profile
            .localhost_profile
            .as_ref()
            .map(|name| format!("apparmor={name}")),
        _ => None,
    }
}

fn se_linux_opts(options: &SELinuxOptions) -> Vec<String> {
    [
        ("user", &options.user),
        ("role", &options.role),
        ("type", &options.type_),
        ("level", &options.level),
    ]
    .into_iter()
    .filter_map(|(field, value)| {
        let value = value.as_deref().filter(|value| !value.is_empty())?;
        Some(format!("label={field}:{value}"))
    })
    .collect()
}

/// Groups beside the primary one: the pod's supplemental groups and its fsGroup.
pub(super) fn group_add(pod: &Pod) -> Option<Vec<String>> {
    let security = of_pod(pod)?;
    let mut groups: Vec<i64> = security.supplemental_groups.clone().unwrap_or_default();
    groups.extend(security.fs_group);
    let mut texts: Vec<String> = Vec::new();
    for group in groups {
        let text = group.to_string();
        if !texts.contains(&text) {
            texts.push(text);
        }
    }
    (!texts.is_empty()).then_some(texts)
}

/// `Config.User` of a sandbox. A group without a user gets user 0.
pub(super) fn sandbox_user(pod: &Pod) -> Option<String> {
    let security = of_pod(pod)?;
    match (security.run_as_user, security.run_as_group) {
        (Some(user), Some(group)) => Some(format!("{user}:{group}")),
        (Some(user), None) => Some(user.to_string()),
        (None, Some(group)) => Some(format!("0:{group}")),
        (None, None) => None,
    }
}

/// `Config.User` of an app container: the spec's user, otherwise the image's; `image_user` is none if
/// the image is not known, and then the Engine decides.
pub(super) fn container_user(
    pod: &Pod,
    container: &Container,
    image_user: Option<&str>,
) -> Option<String> {
    let user = match (run_as_user(pod, container), image_user) {
        (Some(user), _) => user.to_string(),
        (None, Some(image_user)) => match user_part(image_user) {
            "" => "0".to_owned(),
            user => user.to_owned(),
        },
        (None, None) if run_as_group(pod, container).is_some() => "0".to_owned(),
        (None, None) => return None,
    };
    Some(match run_as_group(pod, container) {
        Some(group) => format!("{user}:{group}"),
        None => user,
    })
}

fn run_as_user(pod: &Pod, container: &Container) -> Option<i64> {
    of_container(container)
        .and_then(|s| s.run_as_user)
        .or_else(|| of_pod(pod).and_then(|s| s.run_as_user))
}

fn run_as_group(pod: &Pod, container: &Container) -> Option<i64> {
    of_container(container)
        .and_then(|s| s.run_as_group)
        .or_else(|| of_pod(pod).and_then(|s| s.run_as_group))
}

/// Checks that a container of a pod with `supplementalGroupsPolicy: Strict` has a group: only then the
/// Engine ignores the image's groups. Containers that are added to a running pod are checked only here.
pub(super) fn verify_groups(pod: &Pod, container: &Container) -> Result<(), ConfigError> {
    let policy = of_pod(pod).and_then(|s| s.supplemental_groups_policy.as_deref());
    if policy == Some("Strict") && run_as_group(pod, container).is_none() {
        return Err(ConfigError::GroupsOfImage(container.name.clone()));
    }
    Ok(())
}

fn user_part(image_user: &str) -> &str {
    image_user.split(':').next().unwrap_or_default()
}

fn wants_non_root(pod: &Pod, container: &Container) -> bool {
    let non_root = of_container(container)
        .and_then(|s| s.run_as_non_root)
        .or_else(|| of_pod(pod).and_then(|s| s.run_as_non_root));
    non_root == Some(true)
}

/// Whether only the image's user prevents the container from running as root.
pub(super) fn relies_on_image_user(pod: &Pod, container: &Container) -> bool {
    wants_non_root(pod, container) && run_as_user(pod, container).is_none()
}

/// Checks `runAsNonRoot` before the container is created.
///
/// Upstream: `verifyRunAsNonRoot` of `pkg/kubelet/kuberuntime/security_context.go`.
pub(super) fn verify_run_as_non_root(
    pod: &Pod,
    container: &Container,
    image_user: Option<&str>,
) -> Result<(), ConfigError> {
    if !wants_non_root(pod, container) {
        return Ok(());
    }
    let fail = |what: String| {
        Err(ConfigError::RunAsNonRoot(format!(
            "{what} (container: {})",
            container.name
        )))
    };
    match run_as_user(pod, container) {
        Some(0) => {
            return fail("container's runAsUser breaks non-root policy".to_owned());
        }
        Some(_) => return Ok(()),
        None => {}
    }
    let Some(image_user) = image_user else {
        return fail("container has runAsNonRoot and the image's user is not known".to_owned());
    };
    match (user_part(image_user), user_part(image_user).parse::<i64>()) {
        ("", _) | (_, Ok(0)) => {
            fail("container has runAsNonRoot and image will run as root".to_owned())
        }
        (_, Ok(_)) => Ok(()),
        (name, Err(_)) => fail(format!(
            "container has runAsNonRoot and image has non-numeric user ({name}), cannot verify \
             user is non-root"
        )),
    }
}

/// `MaskedPaths` and `ReadonlyPaths`: empty lists unmask, none selects the Engine's defaults.
pub(super) fn masked_paths(container: &Container) -> Option<Vec<String>> {
    let proc_mount = of_container(container).and_then(|s| s.proc_mount.as_deref());
    (proc_mount == Some("Unmasked")).then(Vec::new)
}
