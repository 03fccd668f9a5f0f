//! An address of its own for each cluster.
//!
//! The first address of the range of Service addresses is the `ClusterIP` of Service `kubernetes`,
//! at port 443. This cluster's API server listens exactly there, so a client in a container finds
//! it by `KUBERNETES_SERVICE_HOST` although no kube-proxy runs. The address is a /32 on `lo`,
//! out of the block that is set aside for benchmarks (RFC 2544): containers reach it by their
//! default route, nobody else does, and no port can be taken.

use std::net::Ipv4Addr;
use std::path::Path;
use std::process::{self, Command};

use crate::common::reaper;

/// Clusters on one machine at a time; hack/cluster-up.sh has 198.18.255.1.
const CLUSTERS: u8 = 254;

/// An address that belongs to this process until it is dropped.
#[derive(Debug)]
pub struct Address {
    third: u8,
}

impl Address {
    /// Takes a free address: the kernel gives each to one taker only.
    pub fn claim() -> Self {
        sweep();
        for third in 0..CLUSTERS {
            let address = Self { third };
            let label = format!("lo:{}", process::id());
            let added = ip(&["addr", "add", &address.cidr(), "dev", "lo", "label", &label]);
            match added {
                Ok(()) => {
                    reaper::remember("address", &[&address.cidr(), &label]);
                    return address;
                }
                Err(error) if error.contains("exists") || error.contains("assigned") => {
                    // Somebody else's: it is not given back by us.
                    std::mem::forget(address);
                }
                Err(error) => panic!("an address for a cluster needs root and iproute2: {error}"),
            }
        }
        panic!("all addresses for clusters are taken");
    }

    /// Where the API server listens.
    pub fn server(&self) -> Ipv4Addr {
        Ipv4Addr::new(198, 18, self.third, 1)
    }

    /// Where etcd listens: no container reaches it.
    pub fn etcd(&self) -> Ipv4Addr {
        Ipv4Addr::new(127, 18, self.third, 1)
    }

    /// The range of Service addresses.
    pub fn services(&self) -> String {
        format!("198.18.{}.0/24", self.third)
    }

    fn cidr(&self) -> String {
        format!("{}/32", self.server())
    }
}

impl Drop for Address {
    fn drop(&mut self) {
        let _ = ip(&["addr", "del", &self.cidr(), "dev", "lo"]);
    }
}

/// Gives back what processes that ended without a word had taken.
fn sweep() {
    let listed = Command::new("ip")
        .args(["-o", "-4", "addr", "show", "dev", "lo"])
        .output()
        .unwrap();
    for line in String::from_utf8_lossy(&listed.stdout).lines() {
        let mut words = line.split_whitespace();
        let address = words.find(|word| word.starts_with("198.18."));
        let label = words.find(|word| word.starts_with("lo:"));
        let label = label.map(|label| label.trim_end_matches('\\'));
        if let (Some(address), Some(label)) = (address, label)
            && let Ok(pid) = label["lo:".len()..].parse::<u32>()
            && !Path::new(&format!("/proc/{pid}")).exists()
        {
            // By its label: somebody else may have taken it meanwhile.
            let _ = ip(&["addr", "del", address, "dev", "lo", "label", label]);
        }
    }
}

fn ip(args: &[&str]) -> Result<(), String> {
    let output = Command::new("ip")
        .args(args)
        .output()
        .map_err(|error| error.to_string())?;
    if output.status.success() {
        return Ok(());
    }
    Err(String::from_utf8_lossy(&output.stderr).into_owned())
}
