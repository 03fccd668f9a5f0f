//! Facts about the machine, read at the start: for containers and for the Node. The addresses are read
//! repeatedly unless configured.

use std::net::{IpAddr, UdpSocket};
use std::path::Path;
use std::time::Duration;

use crate::config::{Config, DEFAULT_RESOLV_CONF};
use crate::store::cell::{Reader, Writer};
use mirrorlet_core::amounts::Amounts;
use mirrorlet_core::log_limits::LogLimits;
use mirrorlet_core::node::next_addresses;
use mirrorlet_docker::NodeIps;
use mirrorlet_docker::translate::{HostFacts, ResolvConf};
use mirrorlet_host::telemetry::occurrences;

/// An address of the documentation range: a route to it is the default route. Connecting a
/// datagram socket sends nothing.
const ANYWHERE_V4: &str = "192.0.2.1:9";
const ANYWHERE_V6: &str = "[2001:db8::1]:9";

/// How often the addresses are read: upstream's `nodeStatusUpdateFrequency`.
const ADDRESSES_PERIOD: Duration = Duration::from_secs(10);

/// The machine's hosts file.
const HOSTS_FILE: &str = "/etc/hosts";

/// Resources of the machine.
pub(super) struct Machine {
    /// Its addresses, primary first.
    pub(super) ips: Vec<IpAddr>,
    pub(super) capacity: Amounts,
    /// Part of the capacity that is not for pods.
    pub(super) reserved: Amounts,
}

impl Machine {
    /// Reads the facts about the machine. Unreadable ones stay empty, and the features that depend on
    /// them fall back.
    pub(super) fn read(config: &Config) -> Self {
        let memory = meminfo_bytes(&text("/proc/meminfo"), "MemTotal:");
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            ips: if config.node_ips.is_empty() {
                own_ips()
            } else {
                config.node_ips.clone()
            },
            capacity: Amounts {
                cpu_milli: u64::try_from(cpus).unwrap_or(1) * 1000,
                memory_bytes: memory.unwrap_or(0),
                ephemeral_storage_bytes: root_bytes(&config.root),
            },
            reserved: config.system_reserved,
        }
    }
}

/// The facts that containers are made by.
pub(super) fn for_containers(
    config: &Config,
    machine: &Machine,
    allocatable: Amounts,
    ips: Reader<Vec<IpAddr>>,
) -> HostFacts {
    HostFacts {
        node_ips: machine.ips.clone(),
        node_ips_now: Some(NodeIps::read_by(move || ips.get().to_vec())),
        memory_bytes: machine.capacity.memory_bytes,
        allocatable,
        resolv_conf: ResolvConf::parse(&text(&config.resolv_conf)),
        resolv_conf_path: Some(config.resolv_conf.clone()),
        own_resolv_conf: config.resolv_conf != Path::new(DEFAULT_RESOLV_CONF),
        hosts_file: text(HOSTS_FILE),
        hosts_path: Some(HOSTS_FILE.into()),
        network: config.network.clone(),
        cluster_dns: config.cluster_dns.clone(),
        dns_at_gateway: config.dns,
        cluster_domain: config.cluster_domain.clone(),
        cgroup_root: config.cgroup_root.clone(),
        seccomp_default: config.seccomp_default,
        log_limits: config.container_log_max_size.map(|max_size| LogLimits {
            max_size,
            max_files: config.container_log_max_files,
        }),
    }
}

/// Reads a file as text; empty if it can't be read.
pub(super) fn text(path: impl AsRef<Path>) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

/// A line of `/proc/meminfo`, in bytes.
pub(super) fn meminfo_bytes(meminfo: &str, name: &str) -> Option<u64> {
    let rest = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
    let kilobytes: u64 = rest.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kilobytes * 1024)
}

/// Size of the file system of the root directory; 0 if unknown.
fn root_bytes(root: &Path) -> u64 {
    rustix::fs::statvfs(root).map_or(0, |stat| stat.f_blocks.saturating_mul(stat.f_frsize))
}

/// Updates the addresses from `read` until cancelled.
pub(super) async fn keep_addresses(
    mut addresses: Writer<Vec<IpAddr>>,
    read: impl Fn() -> Vec<IpAddr>,
) {
    loop {
        tokio::time::sleep(ADDRESSES_PERIOD).await;
        let next = next_addresses(&addresses.get(), &read());
        if addresses.publish(next) {
            occurrences::addresses_changed(&words(&addresses.get()));
        }
    }
}

fn words(addresses: &[IpAddr]) -> String {
    let words: Vec<String> = addresses.iter().map(ToString::to_string).collect();
    words.join(", ")
}

/// The machine's addresses for outgoing traffic, IPv4 first.
pub(super) fn own_ips() -> Vec<IpAddr> {
    [("0.0.0.0:0", ANYWHERE_V4), ("[::]:0", ANYWHERE_V6)]
        .into_iter()
        .filter_map(|(from, to)| {
            let socket = UdpSocket::bind(from).ok()?;
            socket.connect(to).ok()?;
            Some(socket.local_addr().ok()?.ip())
        })
        .filter(|ip| !ip.is_loopback() && !ip.is_unspecified())
        .collect()
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::store::cell::cell;

    #[test]
    fn memory_is_read_in_bytes() {
        let text = "MemTotal:       24689764 kB\nMemFree: 1 kB\n";
        let read = |name| meminfo_bytes(text, name);
        assert_eq!(read("MemTotal:"), Some(24_689_764 * 1024));
        assert_eq!(read("MemFree:"), Some(1024));
        assert_eq!(read("Absent:"), None);
    }

    #[tokio::test(start_paused = true)]
    async fn addresses_follow_the_machine() {
        let seen = Arc::new(Mutex::new(Vec::<IpAddr>::new()));
        let (addresses, reader) = cell(Vec::new());
        let machine = Arc::clone(&seen);
        let read = move || machine.lock().unwrap().clone();
        let keeping = tokio::spawn(keep_addresses(addresses, read));
        let first: IpAddr = [10, 0, 0, 1].into();
        let second: IpAddr = [10, 0, 0, 2].into();
        // Started without a route; it comes, changes, and is gone for a while.
        for (now, expected) in [
            (vec![], vec![]),
            (vec![first], vec![first]),
            (vec![second], vec![second]),
            (vec![], vec![second]),
        ] {
            *seen.lock().unwrap() = now;
            tokio::time::sleep(ADDRESSES_PERIOD).await;
            // node 6m
            assert_eq!(*reader.get(), expected);
        }
        keeping.abort();
    }
}
