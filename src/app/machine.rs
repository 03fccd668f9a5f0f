//! What our Node says of the machine: read once at start.

use std::collections::BTreeMap;
use std::path::Path;

use crate::config::Config;
use crate::pod::env::Allocatable;
use crate::pod::node::{Amounts, NodeFacts};

/// Facts of our Node. What can't be read stays empty; the Engine's version and its images are
/// filled in by who asks the Engine.
#[must_use]
pub fn node_facts(config: &Config, owner: &str, machine: &Machine<'_>) -> NodeFacts {
    let machine_id = first_line(&["/etc/machine-id", "/var/lib/dbus/machine-id"]);
    let reserved = &config.system_reserved;
    NodeFacts {
        name: config.node_name.clone(),
        owner: owner.to_owned(),
        hostname: first_line(&["/proc/sys/kernel/hostname"]),
        arch: go_arch(std::env::consts::ARCH).to_owned(),
        addresses: machine.addresses.to_vec(),
        labels: config.node_labels.clone(),
        taints: config.register_with_taints.clone(),
        capacity: Amounts {
            cpu_milli: machine.capacity.cpu_milli,
            memory_bytes: machine.capacity.memory_bytes,
            ephemeral_storage_bytes: machine.capacity.ephemeral_storage_bytes,
        },
        reserved: Amounts {
            cpu_milli: reserved.cpu_milli,
            memory_bytes: reserved.memory_bytes,
            ephemeral_storage_bytes: reserved.ephemeral_storage_bytes,
        },
        max_pods: config.max_pods,
        // Virtual machines without firmware tables have no UUID; upstream takes the id then.
        system_uuid: match first_line(&["/sys/class/dmi/id/product_uuid"]) {
            uuid if uuid.is_empty() => machine_id.clone(),
            uuid => uuid,
        },
        machine_id,
        boot_id: first_line(&["/proc/sys/kernel/random/boot_id"]),
        kernel_version: first_line(&["/proc/sys/kernel/osrelease"]),
        os_image: os_image(&read("/etc/os-release")),
        engine_version: None,
        images: Vec::new(),
    }
}

/// What is known of the machine already.
#[derive(Debug, Clone, Copy)]
pub struct Machine<'a> {
    /// Addresses, primary first.
    pub addresses: &'a [std::net::IpAddr],
    /// What the machine has.
    pub capacity: &'a Allocatable,
}

fn read(path: &str) -> String {
    std::fs::read_to_string(Path::new(path)).unwrap_or_default()
}

/// The first line of the first of these files that has one.
fn first_line(paths: &[&str]) -> String {
    let lines = paths.iter().map(|path| {
        let text = read(path);
        text.lines().next().unwrap_or_default().trim().to_owned()
    });
    lines
        .into_iter()
        .find(|line| !line.is_empty())
        .unwrap_or_default()
}

/// `PRETTY_NAME` of an os-release file, as upstream takes it.
fn os_image(os_release: &str) -> String {
    let settings: BTreeMap<&str, &str> = os_release
        .lines()
        .filter_map(|line| line.split_once('='))
        .collect();
    settings
        .get("PRETTY_NAME")
        .map_or("Linux", |name| name.trim_matches(['"', '\'']))
        .to_owned()
}

/// An architecture as Go, and so Kubernetes, names it.
fn go_arch(rust: &str) -> &str {
    match rust {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        "x86" => "386",
        "powerpc64" => "ppc64le",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_kubernetes_uses() {
        assert_eq!(go_arch("x86_64"), "amd64");
        assert_eq!(go_arch("aarch64"), "arm64");
        assert_eq!(go_arch("riscv64"), "riscv64");
        let debian = "NAME=\"Debian\"\nPRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\n";
        assert_eq!(os_image(debian), "Debian GNU/Linux 12 (bookworm)");
        assert_eq!(os_image(""), "Linux");
    }
}
