//! Docker networks that go with a test.

use std::net::IpAddr;
use std::sync::atomic::{AtomicU32, Ordering};

use super::{docker_client, docker_host, reaper};

/// Subnets that are tried for a network: other runs of the tests on this machine may have some.
const TRIES: u32 = 16;
/// Distance between the first subnets of two runs with adjacent process ids.
const STEP: u32 = 37;

/// A Docker network.
pub struct Network {
    pub name: String,
    /// The host's IPv4 address in it.
    pub gateway: String,
    /// The part of its subnets that no other network has.
    number: u8,
}

impl Network {
    /// A network with an IPv4 subnet.
    pub fn new(name: &str) -> Self {
        Self::create(name, false)
    }

    /// A network with an IPv4 and an IPv6 subnet.
    pub fn dual(name: &str) -> Self {
        Self::create(name, true)
    }

    /// The name that the Engine knows the network by.
    pub fn full_name(name: &str) -> String {
        format!("mirrorlet-test-{name}-{}", std::process::id())
    }

    /// Whether this is an address of the network.
    pub fn contains(&self, address: IpAddr) -> bool {
        match address {
            IpAddr::V4(ip) => ip.octets()[..3] == [10, 231, self.number],
            IpAddr::V6(ip) => ip.segments()[..3] == [0xfd00, 0x231, u16::from(self.number)],
        }
    }

    fn create(name: &str, is_dual: bool) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = Self::full_name(name);
        reaper::remember("network", &[&docker_host(), &name]);
        let first = std::process::id()
            .wrapping_mul(STEP)
            .wrapping_add(COUNT.fetch_add(1, Ordering::Relaxed));
        for attempt in 0..TRIES {
            let [.., number] = first.wrapping_add(attempt).to_be_bytes();
            let (subnet, gateway) = (
                format!("10.231.{number}.0/24"),
                format!("10.231.{number}.1"),
            );
            let mut create = docker_client();
            create
                .args(["network", "create", "--subnet", &subnet])
                .args(["--gateway", &gateway]);
            if is_dual {
                let subnet = format!("fd00:231:{number:x}::/64");
                create.args(["--ipv6", "--subnet", &subnet]);
            }
            let made = create.arg(&name).output().unwrap();
            if made.status.success() {
                return Self {
                    name,
                    gateway,
                    number,
                };
            }
            let said = String::from_utf8_lossy(&made.stderr);
            assert!(said.contains("overlap"), "{said}");
        }
        panic!("{TRIES} subnets for {name} are taken");
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        let _ = docker_client().args(["network", "rm", &self.name]).output();
    }
}
