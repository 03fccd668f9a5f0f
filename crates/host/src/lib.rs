//! The agent's work on its host besides the container runtime: small files ([`disk`]), the files that
//! pods mount ([`volume`]), the location of cgroups ([`cgroups`]), requests to pods' servers
//! ([`probe`]), helper programs ([`program`]), random numbers ([`random`]), errors that are caused by
//! the machine itself ([`shortage`]), socket options ([`socket`]), and the agent's logs, metrics and
//! journal ([`telemetry`]).

use std::path::Path;

pub mod cgroups;
pub mod disk;
pub mod nat;
pub mod probe;
pub mod program;
pub mod random;
pub mod shortage;
pub mod socket;
pub mod telemetry;
pub mod volume;

/// The kernel's word on `AppArmor`; a container sees it as the host does.
const APP_ARMOR: &str = "/sys/module/apparmor/parameters/enabled";

/// Whether the kernel enforces `AppArmor` profiles.
pub fn app_armor_is_enabled() -> bool {
    let read = disk::read_small(Path::new(APP_ARMOR), 1);
    read.is_ok_and(|text| text.starts_with(b"Y"))
}
