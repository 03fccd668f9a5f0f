//! The addresses of the DNS server that pods query.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;

use super::pod::{NAME, NAMESPACE};
use mirrorlet_core::api::keys;
use mirrorlet_docker::engine::{EngineError, SharedEngine};
use mirrorlet_docker::translate::ResolvConf;
use mirrorlet_host::disk;

/// Most MiB of a `resolv.conf`.
const MIB_MAX: u64 = 1;

/// Returns the addresses that running sandboxes of the owner have in their `resolv.conf`. A sandbox or
/// a file that can't be read counts as having them all.
///
/// # Errors
/// The Engine doesn't list containers.
pub(super) async fn queried(
    engine: &SharedEngine,
    owner: &str,
    servers: &[Ipv4Addr],
) -> Result<BTreeSet<Ipv4Addr>, EngineError> {
    let mut all = BTreeSet::new();
    for container in engine.list_containers(owner).await? {
        let labels = container.labels.unwrap_or_default();
        let label = |key| labels.get(key).map_or("", String::as_str);
        let is_sandbox = label(keys::KIND) == keys::KIND_SANDBOX;
        // It has the node's `resolv.conf`, which may name it, too.
        let is_server = label(keys::POD_NAMESPACE) == NAMESPACE
            && label(keys::POD_NAME).starts_with(&format!("{NAME}-"));
        let state = container.state.map(|state| state.to_string());
        let has_ended = matches!(state.as_deref(), Some("exited" | "dead"));
        let queries = is_sandbox && !is_server && !has_ended;
        let Some(id) = container.id.filter(|_| queries) else {
            continue;
        };
        let inspected = match engine.inspect_container(&id).await {
            Ok(inspected) => inspected,
            Err(error) if error.is_not_found() => continue,
            Err(_) => {
                all.extend(servers);
                continue;
            }
        };
        let Some(path) = inspected.resolv_conf_path.filter(|path| !path.is_empty()) else {
            continue;
        };
        let read = disk::blocking(move || disk::read_small(Path::new(&path), MIB_MAX)).await;
        match read {
            Ok(text) => all.extend(named(&String::from_utf8_lossy(&text), servers)),
            Err(_) => all.extend(servers),
        }
    }
    Ok(all)
}

/// Those of these servers that a `resolv.conf` has.
fn named(resolv_conf: &str, servers: &[Ipv4Addr]) -> Vec<Ipv4Addr> {
    let all = ResolvConf::parse(resolv_conf).servers;
    let parsed: Vec<IpAddr> = all
        .iter()
        .filter_map(|server| server.parse().ok())
        .collect();
    let servers = servers.iter().copied();
    servers
        .filter(|server| parsed.contains(&IpAddr::V4(*server)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_resolv_conf_with_another_server_does_not_hold_ours() {
        let own = [Ipv4Addr::new(172, 17, 0, 1)];
        // names 13
        assert_eq!(named("nameserver 172.17.0.1\nsearch a\n", &own), own);
        // names 13
        assert!(named("nameserver 172.17.0.11\n# 172.17.0.1\n", &own).is_empty());
    }
}
