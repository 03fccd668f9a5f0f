//! Certificates of this node: created, parsed, requested from the cluster, stored on disk.
//!
//! The cluster signs two of them: `cluster` uses one to call the API server, `server` serves the node
//! API with the other. The decisions are in [`mirrorlet_core::certificate`]; this module has the shared
//! I/O.
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

/// Maximum size of a certificate or key file, in MiB; real ones have a few thousand bytes.
pub const FILE_MIB_MAX: u64 = 1;
/// Directory below the root with the certificates that the cluster signs, and their keys.
pub const DIRECTORY: &str = "pki";

/// When to renew a certificate; a different time for each call.
pub fn renewal(validity: &Validity) -> Timestamp {
    validity.renew_at(random::fraction())
}
