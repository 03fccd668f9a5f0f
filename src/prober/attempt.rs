//! One attempt of a probe, with its retries, and the report of it.
//!
//! Upstream: `pkg/kubelet/prober/prober.go`.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::Shared;
use crate::store::board::PodView;
use mirrorlet_core::api::core::{Container, Probe};
use mirrorlet_core::api::{FullName, Pod, PodUid};
use mirrorlet_core::handler::{self, Handler, HandlerError};
use mirrorlet_core::observed::ContainerStatus;
use mirrorlet_core::probe::{ATTEMPTS_MAX, Outcome, ProbeKind, of_exec, of_http};
use mirrorlet_host::probe::{Health, ProbeError};
use mirrorlet_host::telemetry::occurrences;
use mirrorlet_runtime::RuntimeError;

/// Attempts a probe, and retries immediately if it could not be made at all.
///
/// # Errors
/// It could not be made, so it says nothing about the container.
pub(super) async fn attempt(
    shared: &Shared,
    view: &PodView,
    container: &Container,
    instance: &ContainerStatus,
    probe: &Probe,
    timeout: Duration,
) -> Result<Outcome, String> {
    let mut why = String::new();
    for _ in 0..ATTEMPTS_MAX {
        match attempt_once(shared, view, container, instance, probe, timeout).await {
            Ok(outcome) => return Ok(outcome),
            Err(error) => why = error,
        }
    }
    Err(why)
}

async fn attempt_once(
    shared: &Shared,
    view: &PodView,
    container: &Container,
    instance: &ContainerStatus,
    probe: &Probe,
    timeout: Duration,
) -> Result<Outcome, String> {
    let handler = handler::of_probe(probe, container, pod_ip(view))
        .map_err(|error: HandlerError| error.to_string())?;
    let client = || shared.client.of_namespace(&view.full_name.namespace);
    match handler {
        Handler::Exec(command) => {
            let run = shared
                .runtime
                .run_in_container(&instance.id, command, timeout);
            match run.await {
                Ok(output) => Ok(of_exec(output.exit_code, &output.output)),
                Err(RuntimeError::Timeout { after, .. }) => Ok(Outcome::Failure(format!(
                    "command timed out after {} s",
                    after.as_secs()
                ))),
                Err(error) => Err(error.to_string()),
            }
        }
        Handler::HttpGet(get) => {
            let asked = made(client().http_get(&get, timeout).await)?;
            Ok(match asked {
                Ok(answer) => of_http(answer.status, &answer.body),
                Err(error) => Outcome::Failure(format!("Get \"{get}\": {error}")),
            })
        }
        Handler::TcpSocket { host, port } => {
            let asked = made(client().tcp_socket(&host, port, timeout).await)?;
            Ok(match asked {
                Ok(()) => Outcome::Success,
                Err(ProbeError::Timeout(_)) => Outcome::Failure(format!(
                    "dial tcp {}: i/o timeout",
                    handler::authority(&host, port)
                )),
                Err(error) => Outcome::Failure(error.to_string()),
            })
        }
        Handler::Grpc(check) => {
            let asked = made(client().grpc(&check, timeout).await)?;
            Ok(match asked {
                Ok(Health::Serving) => Outcome::Success,
                Ok(health) => {
                    Outcome::Failure(format!("service unhealthy (responded with \"{health}\")"))
                }
                Err(error) => Outcome::Failure(error.to_string()),
            })
        }
        Handler::Sleep(_) => Err(HandlerError::Missing.to_string()),
    }
}

/// The server's answer, or the failure of a server that was contacted.
///
/// # Errors
/// It was not contacted, because this machine had no resources for that: this says nothing about the
/// container.
fn made<T>(asked: Result<T, ProbeError>) -> Result<Result<T, ProbeError>, String> {
    match asked {
        Err(error @ ProbeError::Exhausted { .. }) => Err(error.to_string()),
        asked => Ok(asked),
    }
}

/// The pod's primary address: in the host's network the node's.
fn pod_ip(view: &PodView) -> Option<IpAddr> {
    let ip = view.status.as_ref()?.pod_ip.as_ref()?;
    ip.parse().ok()
}

/// Reports the outcome of an attempt.
pub(super) fn report(
    shared: &Shared,
    pod: &Arc<Pod>,
    container: &str,
    kind: ProbeKind,
    done: &Result<Outcome, String>,
    began: Instant,
) {
    let (full_name, uid) = (FullName::of(pod), PodUid::of(pod));
    let probe = occurrences::Probed {
        pod: &full_name,
        uid: &uid,
        container,
        kind,
        took: began.elapsed(),
    };
    match done {
        Ok(outcome) => occurrences::probed(&shared.telemetry, &probe, outcome),
        Err(why) => occurrences::probe_erred(&shared.telemetry, &probe, why),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mirrorlet_host::shortage::WORDS;

    #[test]
    fn a_server_that_was_not_asked_has_no_result() {
        let (address, why) = ("10.0.0.1:80".to_owned(), "words".to_owned());
        let exhausted = ProbeError::Exhausted {
            address: address.clone(),
            why: why.clone(),
        };
        // pods 56
        assert_eq!(
            made::<()>(Err(exhausted)),
            Err(format!("dial tcp 10.0.0.1:80: {WORDS}: words"))
        );
        for asked in [
            Ok(()),
            Err(ProbeError::Connect { address, why }),
            Err(ProbeError::Timeout(Duration::from_secs(1))),
        ] {
            // pods 56
            assert_eq!(made(asked.clone()), Ok(asked));
        }
    }
}
