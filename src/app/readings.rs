//! The machine's data in our Node: facts, most of which are constant until the next boot, and current
//! readings. Unreadable data is left out.

use std::net::IpAddr;
use std::path::Path;

use tokio::sync::watch;

use super::facts::{Machine, text};
use crate::config::{ApiAccess, Config};
use crate::store::cell::{Reader, Writer};
use mirrorlet_core::api::report::EngineReport;
use mirrorlet_core::eviction::Pressures;
use mirrorlet_core::node::{ImageSeen, NodeFacts, Readings, RuntimeReach, go_arch};
use mirrorlet_host::volume::HostFiles;

/// The facts, but for those of the Engine.
pub(super) fn node_facts(
    config: &Config,
    owner: &str,
    machine: &Machine,
    node_api_port: Option<u16>,
) -> NodeFacts {
    let host = HostFiles::new(config.host_root.clone());
    // The host's directory, if the agent sees it.
    let of_host = |path: &str| match host.path(Path::new(path)) {
        Ok(Some(path)) => std::fs::read_to_string(path).unwrap_or_default(),
        _ => String::new(),
    };
    let first = |paths: &[&str]| {
        let mut read = paths.iter().map(|path| of_host(path).trim().to_owned());
        read.find(|text| !text.is_empty()).unwrap_or_default()
    };
    let machine_id = first(&["/etc/machine-id", "/var/lib/dbus/machine-id"]);
    NodeFacts {
        name: config.node_name.clone(),
        owner: owner.to_owned(),
        hostname: line("/proc/sys/kernel/hostname"),
        arch: go_arch(std::env::consts::ARCH).to_owned(),
        addresses: machine.ips.clone(),
        node_api_port,
        labels: config.node_labels.clone(),
        // Nothing is scheduled without an API server.
        taints: match config.kubeconfig {
            ApiAccess::None => Vec::new(),
            _ => config.register_with_taints.clone(),
        },
        capacity: machine.capacity,
        reserved: machine.reserved,
        max_pods: config.max_pods,
        system_uuid: first(&["/sys/class/dmi/id/product_uuid", "/etc/machine-id"]),
        machine_id,
        boot_id: line("/proc/sys/kernel/random/boot_id"),
        kernel_version: line("/proc/sys/kernel/osrelease"),
        os_image: os_image(&of_host("/etc/os-release")),
        engine_version: None,
        images: Vec::new(),
    }
}

/// Keeps facts and readings until cancelled.
pub(super) async fn keep(
    mut facts: Writer<NodeFacts>,
    mut readings: Writer<Readings>,
    mut reach: watch::Receiver<RuntimeReach>,
    mut engine: watch::Receiver<EngineReport>,
    mut images: Reader<Vec<ImageSeen>>,
    mut pressures: Reader<Pressures>,
    mut addresses: Reader<Vec<IpAddr>>,
) {
    loop {
        readings.publish(Readings {
            engine: reach.borrow_and_update().clone(),
            pressures: Pressures::clone(&pressures.get()),
        });
        let mut known = (*facts.get()).clone();
        if let Some(version) = engine.borrow_and_update().version.clone() {
            known.engine_version = Some(version);
        }
        known.images.clone_from(&images.get());
        known.addresses.clone_from(&addresses.get());
        facts.publish(known);
        let result = tokio::select! {
            result = reach.changed() => result,
            result = engine.changed() => result,
            Ok(_) = images.changed() => Ok(()),
            Ok(_) = pressures.changed() => Ok(()),
            // Not where they are configured.
            Ok(_) = addresses.changed() => Ok(()),
        };
        if result.is_err() {
            return;
        }
    }
}

/// `PRETTY_NAME` of an os-release file.
fn os_image(os_release: &str) -> String {
    let named = os_release
        .lines()
        .find_map(|line| line.strip_prefix("PRETTY_NAME="));
    named.unwrap_or("Linux").trim_matches('"').to_owned()
}

fn line(path: &str) -> String {
    text(path).trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_system_is_named_as_it_names_itself() {
        let text = "ID=debian\nPRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\n";
        assert_eq!(os_image(text), "Debian GNU/Linux 12 (bookworm)");
        assert_eq!(os_image(""), "Linux");
    }
}
