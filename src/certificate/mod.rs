//! Certificates of this node: made, read, requested from the cluster, kept on disk.
//!
//! Two parts have theirs signed by the cluster: `cluster` the one it calls the API server with,
//! `server` the one it is called by. What they decide is in [`mirrorlet_core::certificate`]; this is
//! what both do about it.
//!
//! Upstream: `pkg/kubelet/certificate`, `k8s.io/client-go/util/certificate`.

mod authority;
mod der;
mod keys;
mod request;
mod requested;
#[cfg(test)]
mod tests;

use mirrorlet_core::api::Timestamp;
use mirrorlet_core::certificate::Validity;
use mirrorlet_host::random;

pub use self::authority::{Authority, CLOCKS_APART, Credential, SIGNED_FOR};
pub use self::der::Leaf;
pub use self::keys::{CertificateError, alternative_names, from_pem, split_pem};
pub use self::request::wanted;
pub use self::requested::{
    CertificateRequest, Issued, Order, Progress, Purpose, Requested, SignError, Signer,
};

/// Largest file of a certificate or key that is read, in MiB; honest ones have a few thousand bytes.
pub const FILE_MIB_MAX: u64 = 1;
/// Directory below the root with the certificates that the cluster signs, and their keys.
pub const DIRECTORY: &str = "pki";

/// When a certificate is to be renewed; another time each time it is asked.
pub fn renewal(validity: &Validity) -> Timestamp {
    validity.renew_at(random::fraction())
}
