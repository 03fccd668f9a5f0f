//! Our client certificate for the API server, as a kubelet's: the first one is requested with the
//! identity of a bootstrap kubeconfig, and each renewal with the current one.
//!
//! Nothing waits for it: without a certificate, the API server counts as unavailable for all others.
//! The kubeconfig refers to the certificate's file, so that its readers find the newest one;
//! [`CredentialsTask`](super::CredentialsTask) starts to use it once it exists.
//!
//! Upstream: `pkg/kubelet/certificate/bootstrap/bootstrap.go`,
//! `pkg/kubelet/certificate/kubelet.go` (`NewKubeletClientCertificateManager`).

mod bootstrap;
mod kubeconfig;
#[cfg(test)]
mod tests;

use std::time::Duration;

use kube::config::Cluster;

use self::bootstrap::{Access, Bootstrap, Making, end_of, is_same};
use super::client::ClusterClient;
use super::connection::no_wire;
use super::credentials::{self, CredentialsTask};
use super::identity::{self, ConnectError, IdentityState, NodeIdentity};
use super::requests::CertificateRequests;
use crate::certificate::{Issued, Progress, Requested, renewal};
use crate::config::ApiAccess;
use crate::store::cell::{Reader, Writer, cell};
use mirrorlet_core::api::Timestamp;
use mirrorlet_core::certificate::{Held, Validity, Verdict, idle_pause, is_overdue, waiting_words};
use mirrorlet_host::disk;
use mirrorlet_host::telemetry::{Telemetry, occurrences};

/// Pause before an unusable bootstrap kubeconfig is read again, because a user may correct it.
const MENDED_PAUSE: Duration = Duration::from_secs(10);

impl ClusterClient {
    /// Returns a client with the node identity of a kubeconfig, whose certificate the agent requests
    /// and renews if that is its job, and the tasks that maintain its credentials. Without an identity
    /// every call fails with the reason. Makes no calls. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// The kubeconfig, or a file it refers to, can't be used, and there is no way to get another.
    pub fn open_node(
        options: NodeIdentity,
        telemetry: &Telemetry,
    ) -> Result<(Self, CredentialsTask, ClientCertificateTask), ConnectError> {
        let access = ApiAccess::Kubeconfig(options.kubeconfig.clone());
        let metrics = telemetry.metrics.clone();
        let (mut standing, reader) = cell(IdentityState::Given);
        let (client, mut credentials) = match (&options.bootstrap, options.verdict()) {
            (
                bootstrap @ (ApiAccess::Kubeconfig(_) | ApiAccess::InCluster),
                Verdict::Needed(words),
            ) => {
                let since = Timestamp::now();
                standing.publish(IdentityState::Needed { words, since });
                let problem = move || reader.get().problem().unwrap_or_default().to_owned();
                let (client, task) = Self::with(&access, no_wire(problem), None, metrics);
                // One that can't be read is complained of when it is needed.
                if let Ok(Some(identity)) = identity::read_bootstrap(bootstrap) {
                    client.shared.set_server(&credentials::server(&identity));
                }
                (client, task)
            }
            _ => match Self::open(&access, metrics)? {
                Some(opened) => opened,
                None => unreachable!("a kubeconfig is no lack of one"),
            },
        };
        let certificate = ClientCertificateTask::new(
            options.clone(),
            client.clone(),
            standing,
            telemetry.clone(),
        );
        credentials.own = Some(options);
        Ok((client, credentials, certificate))
    }
}

/// The certificate that an identity needs.
enum Need {
    /// A first one, for this reason.
    First(String),
    /// The one after that, which ends then.
    Next(Timestamp),
}

/// Has the node's client certificate requested and renewed.
pub struct ClientCertificateTask {
    options: NodeIdentity,
    client: ClusterClient,
    standing: Writer<IdentityState>,
    telemetry: Telemetry,
    requested: Requested,
    bootstrap: Option<Bootstrap>,
    /// The access with credentials from a plug-in that is running.
    making: Option<Making>,
    /// The result of the plug-in's run, until it is used or reported.
    made: Option<Result<Bootstrap, ConnectError>>,
    /// When the certificate of that validity is to be renewed: chosen once for each.
    renewal: Option<(Validity, Timestamp)>,
    /// The problem reported last.
    reported: Option<String>,
    /// The request reported last.
    asked: Option<String>,
    /// Whether the last check found that the current identity can't be used any more.
    is_doubted: bool,
}

impl ClientCertificateTask {
    pub(super) fn new(
        options: NodeIdentity,
        client: ClusterClient,
        standing: Writer<IdentityState>,
        telemetry: Telemetry,
    ) -> Self {
        Self {
            requested: options.requested(),
            options,
            client,
            standing,
            telemetry,
            bootstrap: None,
            making: None,
            made: None,
            renewal: None,
            reported: None,
            asked: None,
            is_doubted: false,
        }
    }

    /// How we stand.
    pub fn standing(&self) -> Reader<IdentityState> {
        self.standing.reader()
    }

    /// Runs until cancelled. A running plug-in is killed then.
    pub async fn run(mut self) {
        loop {
            let pause = self.look(Timestamp::now()).await;
            // All arms are cancel-safe.
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                // Their expiry is shown at once.
                () = self.client.shared.renewed.notified() => {}
                made = end_of(&mut self.making) => self.end_making(made),
            }
        }
    }

    /// Handles the end of a run of the plug-in.
    fn end_making(&mut self, made: Result<Bootstrap, ConnectError>) {
        self.making = None;
        self.made = Some(made);
    }

    /// Checks the identity once, and takes one step if another identity is due. Returns how long to
    /// wait before the next check.
    ///
    /// # Cancel safety
    /// A request in progress is repeated.
    async fn look(&mut self, now: Timestamp) -> Duration {
        let (options, ours) = (self.options.clone(), self.requested.file().to_owned());
        let (held, verdict) = disk::blocking(move || options.look(&ours, now)).await;
        if let Held::Certificate { validity, .. } = &held {
            self.telemetry.metrics.set_client_certificate(validity);
        }
        if !matches!(verdict, Verdict::Needed(_)) {
            (self.making, self.made) = (None, None);
        }
        match verdict {
            Verdict::Good => {
                self.good(&held);
                idle_pause()
            }
            Verdict::Ours(validity) if now < self.renew_at(validity) => {
                self.good(&held);
                idle_pause()
            }
            Verdict::Ours(validity) => {
                let signer = CertificateRequests::new(self.client.clone());
                let need = Need::Next(validity.not_after);
                self.step(&signer, &need, None, now).await
            }
            Verdict::Needed(words) => self.bootstrap(words, &held, now).await,
        }
    }

    fn good(&mut self, held: &Held) {
        self.reported = None;
        self.is_doubted = false;
        self.standing.publish(match held {
            Held::Certificate { validity, .. } => IdentityState::Certificate {
                ends: validity.not_after,
                problem: None,
            },
            Held::Missing | Held::Unusable(_) | Held::Other => IdentityState::Given,
        });
    }

    fn renew_at(&mut self, validity: Validity) -> Timestamp {
        match self.renewal {
            Some((known, at)) if known == validity => at,
            _ => {
                let at = renewal(&validity);
                self.renewal = Some((validity, at));
                at
            }
        }
    }

    /// Takes one step towards a first certificate.
    async fn bootstrap(&mut self, words: String, held: &Held, now: Timestamp) -> Duration {
        let access = self.options.bootstrap.clone();
        if access == ApiAccess::None {
            // The user of these files reports that they can't be used.
            if let Held::Certificate { validity, .. } = held {
                let need = Need::Next(validity.not_after);
                if validity.not_after > now {
                    self.problem(&need, &words);
                } else {
                    self.expired(&need, validity.not_after);
                }
            }
            return idle_pause();
        }
        // Files are replaced one after the other: what is in use is only given up when a second
        // look finds the same.
        let was_needed = matches!(&*self.standing.get(), IdentityState::Needed { .. });
        let is_sure = was_needed || matches!(held, Held::Certificate { .. });
        if !is_sure && !std::mem::replace(&mut self.is_doubted, true) {
            return MENDED_PAUSE;
        }
        let need = Need::First(words);
        let bootstrap = match self.access(access, now).await {
            Ok(Some(bootstrap)) => bootstrap,
            Ok(None) => {
                self.unanswered(&need);
                return MENDED_PAUSE;
            }
            Err(error) => {
                self.problem(&need, &error.to_string());
                return MENDED_PAUSE;
            }
        };
        let signer = bootstrap.signer.clone();
        let adopts = !matches!(held, Held::Certificate { is_ours: true, .. });
        let cluster = adopts.then(|| bootstrap.cluster.clone());
        self.bootstrap = Some(bootstrap);
        self.step(&signer, &need, cluster, now).await
    }

    /// Returns the access that a first certificate is requested with; none while a plug-in makes its
    /// credentials.
    async fn access(
        &mut self,
        access: ApiAccess,
        now: Timestamp,
    ) -> Result<Option<Bootstrap>, ConnectError> {
        let (made, known) = (self.made.take().transpose()?, self.bootstrap.take());
        let usable = disk::blocking(move || {
            // The API server judges what was just made: its clock may be another, and another run
            // would make nothing better.
            let made = made.filter(Bootstrap::is_of_its_files);
            made.or_else(|| known.filter(|known| known.is_fresh(now)))
        });
        let usable = usable.await;
        if usable.is_some() {
            return Ok(usable);
        }
        let files = self.making.as_ref().map(Making::files);
        if let Some(files) = files
            && disk::blocking(move || is_same(&files)).await
        {
            return Ok(None);
        }
        // A run for other files is killed.
        self.making = None;
        let metrics = self.telemetry.metrics.clone();
        Ok(match Access::read(access, metrics).await? {
            Access::Ready(bootstrap) => Some(*bootstrap),
            Access::Making(making) => {
                self.making = Some(making);
                None
            }
        })
    }

    /// Creates a request, or checks its outcome. A signed certificate is stored, and the kubeconfig is
    /// written for that `cluster` if required.
    async fn step(
        &mut self,
        signer: &CertificateRequests,
        need: &Need,
        cluster: Option<Cluster>,
        now: Timestamp,
    ) -> Duration {
        let (progress, pause) = self.requested.step(signer, now).await;
        match progress {
            // For a certificate that is still good, the client reports that.
            Progress::Away(cause) => match need {
                Need::First(why) => self.stands(need, &format!("{why}; {cause}")),
                Need::Next(ends) => self.standing_good(*ends),
            },
            Progress::Waiting { name, waited } => {
                let words = waiting_words(&name);
                if self.asked.as_ref() != Some(&name) {
                    occurrences::client_certificate_requested(&name);
                    self.asked = Some(name);
                }
                match need {
                    Need::First(why) => self.stands(need, &format!("{why}; {words}")),
                    // An approver that is a program takes seconds.
                    Need::Next(ends) if !is_overdue(waited) => self.standing_good(*ends),
                    Need::Next(_) => self.stands(need, &words),
                }
                if is_overdue(waited) {
                    self.report(words);
                }
            }
            Progress::Failed(error) => self.problem(need, &error.to_string()),
            Progress::Issued(issued) => {
                if let Err(cause) = self.adopt(&issued, cluster).await {
                    self.problem(need, &cause);
                    return pause;
                }
                let ends = issued.validity.not_after;
                let metrics = &self.telemetry.metrics;
                metrics.set_client_certificate(&issued.validity);
                occurrences::client_certificate_issued(&self.telemetry, ends);
                (self.reported, self.asked) = (None, None);
                self.standing_good(ends);
                self.client.credentials_changed();
                // So that its end is reported, and the next renewal known.
                return Duration::ZERO;
            }
        }
        pause
    }

    /// Keeps a certificate, behind a kubeconfig that names it.
    ///
    /// A certificate in the new one's place was for another kubeconfig, and so maybe for another
    /// cluster: it is removed before there is a kubeconfig that names it.
    async fn adopt(&mut self, issued: &Issued, cluster: Option<Cluster>) -> Result<(), String> {
        if let Some(cluster) = cluster {
            let file = self.requested.file().to_owned();
            let path = self.options.kubeconfig.clone();
            let text = kubeconfig::render(&cluster, &file);
            disk::blocking(move || {
                disk::remove(&file)
                    .map_err(|error| format!("failed to remove {}: {error}", file.display()))?;
                disk::replace(&path, text.as_bytes())
                    .map_err(|error| format!("failed to write {}: {error}", path.display()))
            })
            .await?;
        }
        let kept = self.requested.keep(issued).await;
        kept.map_err(|error| error.to_string())
    }

    /// Publishes how we stand.
    fn stands(&mut self, need: &Need, words: &str) {
        let words = words.to_owned();
        let standing = match need {
            Need::Next(ends) => IdentityState::Certificate {
                ends: *ends,
                problem: Some(words),
            },
            Need::First(_) => {
                let since = match &*self.standing.get() {
                    IdentityState::Needed { since, .. } => *since,
                    IdentityState::Given | IdentityState::Certificate { .. } => Timestamp::now(),
                };
                IdentityState::Needed { words, since }
            }
        };
        self.standing.publish(standing);
    }

    fn standing_good(&mut self, ends: Timestamp) {
        let problem = None;
        self.standing
            .publish(IdentityState::Certificate { ends, problem });
    }

    /// Publishes a problem, and reports it if it is a different one.
    fn problem(&mut self, need: &Need, words: &str) {
        match need {
            Need::First(why) if why != words => self.stands(need, &format!("{why}; {words}")),
            Need::First(_) | Need::Next(_) => self.stands(need, words),
        }
        self.report(words.to_owned());
    }

    /// Publishes that the plug-in has not answered yet. The problem of its last run stays meanwhile.
    fn unanswered(&mut self, need: &Need) {
        if self.reported.is_none()
            && let (Need::First(why), Some(making)) = (need, &self.making)
        {
            let words = format!("{why}; {}", making.unanswered);
            self.stands(need, &words);
        }
    }

    /// The certificate has expired, and there is nothing to get another with.
    fn expired(&mut self, need: &Need, ended: Timestamp) {
        let help = format!(
            "replace the kubeconfig {}",
            self.options.kubeconfig.display()
        );
        self.stands(need, &help);
        if self.reported.as_ref() != Some(&help) {
            occurrences::client_certificate_expired(&self.telemetry, ended, &help);
            self.reported = Some(help);
        }
    }

    fn report(&mut self, words: String) {
        if self.reported.as_ref() != Some(&words) {
            let is_needed = matches!(&*self.standing.get(), IdentityState::Needed { .. });
            occurrences::client_certificate_unissued(&self.telemetry, &words, is_needed);
            self.reported = Some(words);
        }
    }
}
