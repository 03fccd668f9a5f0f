//! The access for the request of a first certificate.
//!
//! Nothing blocks on its credential plug-in: [`Making`] is one run of it, which is awaited beside
//! everything else.

use futures::future::BoxFuture;
use kube::config::Cluster;

use crate::cluster::client::ClusterClient;
use crate::cluster::connection::wire;
use crate::cluster::error::chain;
use crate::cluster::identity::{self, ConnectError, Fingerprint, Identity};
use crate::cluster::plugin::{Credentials, Plugin};
use crate::cluster::requests::CertificateRequests;
use crate::config::ApiAccess;
use mirrorlet_core::api::Timestamp;
use mirrorlet_host::disk;
use mirrorlet_host::telemetry::Metrics;

/// The request for a first certificate.
pub(super) struct Bootstrap {
    /// The files it was read from.
    fingerprint: Fingerprint,
    pub(super) signer: CertificateRequests,
    /// The API server.
    pub(super) cluster: Cluster,
    /// When the credentials that a plug-in made end, if they do.
    ends: Option<Timestamp>,
}

/// A run of the plug-in that provides the credentials of a request. Dropping it kills the program.
pub(super) struct Making {
    /// The files that name the plug-in.
    fingerprint: Fingerprint,
    /// The problem while the plug-in has not answered.
    pub(super) unanswered: String,
    run: BoxFuture<'static, Result<Bootstrap, ConnectError>>,
}

/// The result of reading the bootstrap kubeconfig.
pub(super) enum Access {
    /// A request can be made.
    Ready(Box<Bootstrap>),
    /// Its credentials are being made.
    Making(Making),
}

impl Access {
    /// Reads the files, and starts the plug-in if the kubeconfig has one.
    ///
    /// # Errors
    /// The files can't be used.
    pub(super) async fn read(access: ApiAccess, metrics: Metrics) -> Result<Self, ConnectError> {
        let none = || {
            ConnectError::InCluster(
                "no credentials were found to request a certificate with".to_owned(),
            )
        };
        let from = access.clone();
        let identity = disk::blocking(move || identity::read_bootstrap(&from)).await?;
        let identity = identity.ok_or_else(none)?;
        let plugin = Plugin::of(&identity.config);
        let Some(plugin) = plugin.map_err(|cause| unusable(&access, cause))? else {
            let ready = Bootstrap::with(access, identity, None, metrics).await?;
            return Ok(Self::Ready(Box::new(ready)));
        };
        Ok(Self::Making(Making {
            fingerprint: identity.fingerprint.clone(),
            unanswered: unusable(&access, plugin.unanswered()).to_string(),
            run: Box::pin(async move {
                let made = plugin.run().await;
                let made = made.map_err(|cause| unusable(&access, cause))?;
                Bootstrap::with(access, identity, Some(made), metrics).await
            }),
        }))
    }
}

impl Making {
    /// The files that name the plug-in.
    pub(super) fn files(&self) -> Fingerprint {
        self.fingerprint.clone()
    }
}

/// Waits for the end of a run; forever without one.
///
/// # Cancel safety
/// The run continues, and its end can be awaited again.
pub(super) async fn end_of(making: &mut Option<Making>) -> Result<Bootstrap, ConnectError> {
    match making {
        Some(making) => making.run.as_mut().await,
        None => std::future::pending().await,
    }
}

impl Bootstrap {
    /// A request with that identity, and with the credentials that its plug-in made, if it has one.
    async fn with(
        access: ApiAccess,
        identity: Identity,
        made: Option<Credentials>,
        metrics: Metrics,
    ) -> Result<Self, ConnectError> {
        let Identity {
            config,
            mut fingerprint,
            token,
            cluster,
        } = identity;
        fingerprint.extend(token);
        let ends = made.as_ref().and_then(|made| made.ends);
        let wire = disk::blocking(move || wire(&config, made.as_ref())).await;
        let wire = wire.map_err(|error| unusable(&access, chain(&error)))?;
        let client = ClusterClient::over(wire, metrics);
        Ok(Self {
            fingerprint,
            signer: CertificateRequests::new(client),
            cluster: cluster.unwrap_or_default(),
            ends,
        })
    }

    /// Whether its files are unchanged, and its credentials have not expired. Blocks on the disk.
    pub(super) fn is_fresh(&self, now: Timestamp) -> bool {
        self.ends.is_none_or(|ends| now < ends) && self.is_of_its_files()
    }

    /// Whether its files are unchanged. Blocks on the disk.
    pub(super) fn is_of_its_files(&self) -> bool {
        is_same(&self.fingerprint)
    }
}

/// Whether these files have the same contents. Blocks on the disk.
pub(super) fn is_same(known: &Fingerprint) -> bool {
    identity::fingerprint(known.keys().cloned()) == *known
}

fn unusable(access: &ApiAccess, cause: String) -> ConnectError {
    match access {
        ApiAccess::Kubeconfig(path) => ConnectError::Bootstrap {
            path: path.clone(),
            cause,
        },
        ApiAccess::InCluster | ApiAccess::None => ConnectError::InCluster(cause),
    }
}
