//! Leader election by a Lease: of several candidates, its holder does the work.
//!
//! Upstream: `k8s.io/client-go/tools/leaderelection`.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::Api;
use kube::api::PostParams;
use tokio::time::Instant;

use super::client::ClusterClient;
use super::error::ApiError;
use mirrorlet_core::api::Timestamp;
use mirrorlet_core::api::meta::ObjectMeta;
use mirrorlet_host::random::stretched;

/// How long a Lease holds that isn't renewed, in seconds; upstream's default, as are the others.
const LEASE_SECONDS: i32 = 15;
/// How long the holder continues without a renewal: shorter than the Lease's duration.
const RENEW_DEADLINE: Duration = Duration::from_secs(10);
/// Pause between two tries to get or to renew it.
const RETRY_PERIOD: Duration = Duration::from_secs(2);
/// Maximum extension of a pause, as a share of it, so that candidates don't all try at once.
const JITTER: f64 = 0.2;
/// Deadline of one call.
const CALL_DEADLINE: Duration = Duration::from_secs(4);

/// A candidate for a Lease.
pub struct Election {
    client: ClusterClient,
    leases: Api<Lease>,
    namespace: String,
    name: String,
    /// Our identity in the Lease.
    candidate: String,
    /// The version of another's Lease, and when it was first seen: clocks of others don't count.
    seen: Option<(Option<String>, Instant)>,
}

impl Election {
    /// The candidate of that name for the Lease `namespace/name`.
    pub fn new(client: ClusterClient, namespace: &str, name: &str, candidate: String) -> Self {
        Self {
            leases: Api::namespaced(client.client(), namespace),
            client,
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            candidate,
            seen: None,
        }
    }

    /// Waits until we hold the Lease. `failed` is called with the error of each failed attempt.
    pub async fn won(&mut self, mut failed: impl FnMut(&ApiError)) {
        loop {
            match self.attempt().await {
                Ok(true) => return,
                Ok(false) => {}
                Err(error) => failed(&error),
            }
            tokio::time::sleep(stretched(RETRY_PERIOD, JITTER)).await;
        }
    }

    /// Renews the Lease until another candidate has it, or it could not be renewed in time.
    pub async fn lost(&mut self) {
        let mut renewed = Instant::now();
        loop {
            tokio::time::sleep(RETRY_PERIOD).await;
            // The Lease holds from the moment in its text on, which is before the answer.
            let began = Instant::now();
            // A server that doesn't answer must not keep us beyond the end of the Lease.
            let attempt = tokio::time::timeout_at(renewed + RENEW_DEADLINE, self.attempt());
            match attempt.await {
                Ok(Ok(true)) => renewed = began,
                Ok(Err(_)) if renewed.elapsed() < RENEW_DEADLINE => {}
                Ok(Ok(false) | Err(_)) | Err(_) => return,
            }
        }
    }

    /// Releases the Lease, so that the next candidate need not wait for its expiry.
    pub async fn resign(&mut self) {
        let call = self.leases.get_opt(&self.name);
        let Ok(Some(mut lease)) = self.client.read(CALL_DEADLINE, call).await else {
            return;
        };
        let spec = lease.spec.get_or_insert_with(LeaseSpec::default);
        if spec.holder_identity.as_ref() == Some(&self.candidate) {
            spec.holder_identity = None;
            let params = PostParams::default();
            let call = self.leases.replace(&self.name, &params, &lease);
            // A candidate that doesn't notice waits until the Lease has expired.
            let _ = self.client.heartbeat(CALL_DEADLINE, call).await;
        }
    }

    /// Takes or renews the Lease unless it is another's; whether we hold it.
    async fn attempt(&mut self) -> Result<bool, ApiError> {
        let call = self.leases.get_opt(&self.name);
        let found = self.client.read(CALL_DEADLINE, call).await?;
        let params = PostParams::default();
        let written = match found {
            None => {
                let lease = self.held(Lease {
                    metadata: ObjectMeta {
                        name: Some(self.name.clone()),
                        namespace: Some(self.namespace.clone()),
                        ..ObjectMeta::default()
                    },
                    spec: None,
                });
                let call = self.leases.create(&params, &lease);
                self.client.heartbeat(CALL_DEADLINE, call).await
            }
            Some(lease) if self.is_anothers(&lease) => return Ok(false),
            Some(lease) => {
                let lease = self.held(lease);
                // On the version that was read: of two that try, one gets it.
                let call = self.leases.replace(&self.name, &params, &lease);
                self.client.heartbeat(CALL_DEADLINE, call).await
            }
        };
        match written {
            Ok(_) => Ok(true),
            Err(ApiError::AlreadyExists(_) | ApiError::Conflict(_)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Whether another candidate holds it, and has renewed it within its duration by our clock.
    fn is_anothers(&mut self, lease: &Lease) -> bool {
        let spec = lease.spec.as_ref();
        let holder = spec.and_then(|spec| spec.holder_identity.as_deref());
        if holder.is_none_or(|holder| holder.is_empty() || holder == self.candidate) {
            return false;
        }
        let seconds = spec.and_then(|spec| spec.lease_duration_seconds);
        let seconds = seconds.and_then(|seconds| u64::try_from(seconds).ok());
        let holds = Duration::from_secs(seconds.unwrap_or_default());
        let version = &lease.metadata.resource_version;
        match &self.seen {
            Some((seen, since)) if seen == version => since.elapsed() <= holds,
            Some(_) | None => {
                self.seen = Some((version.clone(), Instant::now()));
                true
            }
        }
    }

    /// The Lease as we hold it from now on.
    fn held(&self, mut lease: Lease) -> Lease {
        let now = MicroTime(Timestamp::now());
        lease.metadata.managed_fields = None;
        let spec = lease.spec.get_or_insert_with(LeaseSpec::default);
        if spec.holder_identity.as_ref() != Some(&self.candidate) {
            spec.holder_identity = Some(self.candidate.clone());
            spec.acquire_time = Some(now.clone());
            spec.lease_transitions = Some(spec.lease_transitions.map_or(0, |times| times + 1));
        }
        spec.lease_duration_seconds = Some(LEASE_SECONDS);
        spec.renew_time = Some(now);
        lease
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use http::{Method, Response};
    use http_body_util::{BodyExt as _, Full};
    use kube::client::Body;
    use tower::service_fn;

    use super::*;
    use mirrorlet_host::telemetry::Metrics;

    /// A server with one Lease; it can't be reached while `away`, and takes requests without an answer
    /// while it `hangs`.
    #[derive(Default)]
    struct Server {
        lease: Option<Lease>,
        writes: u64,
        away: bool,
        hangs: bool,
    }

    impl Server {
        fn answer(&mut self, method: &Method, written: Option<Lease>) -> (u16, serde_json::Value) {
            let status = |code: u16, reason: &str| {
                let status = serde_json::json!({
                    "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code,
                    "reason": reason, "message": "no",
                });
                (code, status)
            };
            let found = self.lease.clone();
            match (method.as_str(), found, written) {
                ("GET", None, _) => status(404, "NotFound"),
                ("GET", Some(lease), _) => (200, serde_json::to_value(lease).unwrap()),
                ("POST", Some(_), _) => status(409, "AlreadyExists"),
                ("PUT", found, Some(next))
                    if found.as_ref().map(|found| &found.metadata.resource_version)
                        != Some(&next.metadata.resource_version) =>
                {
                    status(409, "Conflict")
                }
                (_, _, Some(mut next)) => {
                    self.writes += 1;
                    next.metadata.resource_version = Some(self.writes.to_string());
                    self.lease = Some(next.clone());
                    (200, serde_json::to_value(next).unwrap())
                }
                (_, _, None) => status(400, "BadRequest"),
            }
        }
    }

    fn client(server: &Arc<Mutex<Server>>) -> ClusterClient {
        let server = Arc::clone(server);
        let service = service_fn(move |request: http::Request<Body>| {
            let server = Arc::clone(&server);
            async move {
                let (head, body) = request.into_parts();
                let body = body.collect().await.unwrap().to_bytes();
                if server.lock().unwrap().away {
                    return Err(std::io::Error::other("no route"));
                }
                if server.lock().unwrap().hangs {
                    std::future::pending::<()>().await;
                }
                let written = serde_json::from_slice(&body).ok();
                let (code, value) = server.lock().unwrap().answer(&head.method, written);
                let mut answer = Response::new(Full::from(value.to_string()));
                *answer.status_mut() = code.try_into().unwrap();
                Ok(answer)
            }
        });
        ClusterClient::over_service(service, Metrics::new())
    }

    fn candidate(server: &Arc<Mutex<Server>>, name: &str) -> Election {
        Election::new(client(server), "kube-system", "approver", name.to_owned())
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_that_is_not_renewed_is_taken_over_after_it_has_ended() {
        let server = Arc::new(Mutex::new(Server::default()));
        let (mut a, mut b) = (candidate(&server, "a"), candidate(&server, "b"));
        a.won(|error| panic!("{error}")).await;
        assert!(!b.attempt().await.unwrap());
        // While it is renewed it stays.
        for _ in 0..20 {
            tokio::time::advance(RETRY_PERIOD).await;
            assert!(a.attempt().await.unwrap());
            // identity 9
            assert!(!b.attempt().await.unwrap());
        }
        // `a` is killed.
        let began = Instant::now();
        b.won(|error| panic!("{error}")).await;
        let took = began.elapsed().as_secs();
        assert!((15..=20).contains(&took), "{took}");
        let lease = server.lock().unwrap().lease.clone().unwrap().spec.unwrap();
        assert_eq!(lease.holder_identity.as_deref(), Some("b"));
        assert_eq!(lease.lease_transitions, Some(1));
        // Should it live after all, it hears of it.
        a.lost().await;
    }

    #[tokio::test(start_paused = true)]
    async fn who_can_not_renew_stops_before_another_begins() {
        let server = Arc::new(Mutex::new(Server::default()));
        let (mut a, mut b) = (candidate(&server, "a"), candidate(&server, "b"));
        a.won(|error| panic!("{error}")).await;
        server.lock().unwrap().away = true;
        let began = Instant::now();
        a.lost().await;
        // identity 9
        assert!(began.elapsed() < Duration::from_secs(15));
        server.lock().unwrap().away = false;
        a.resign().await;
        // Nobody waits for the end of a Lease that was given back.
        assert!(b.attempt().await.unwrap());
        // Only one's own is given back.
        a.resign().await;
        assert!(!a.attempt().await.unwrap());
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_hangs_keeps_nobody_beyond_the_end_of_the_lease() {
        let server = Arc::new(Mutex::new(Server::default()));
        let mut a = candidate(&server, "a");
        a.won(|error| panic!("{error}")).await;
        let began = Instant::now();
        let hanging = Arc::clone(&server);
        tokio::spawn(async move {
            // Between two renewals.
            tokio::time::sleep(RETRY_PERIOD * 3 / 2).await;
            hanging.lock().unwrap().hangs = true;
        });
        a.lost().await;
        let renewed = began + RETRY_PERIOD;
        // identity 9
        assert!(
            renewed.elapsed() <= RENEW_DEADLINE,
            "{:?}",
            renewed.elapsed()
        );
    }
}
