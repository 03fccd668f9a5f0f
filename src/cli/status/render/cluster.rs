//! The lines about the API server and our Node.

use std::fmt::Write as _;
use std::time::Duration;

use super::{line, styled};
use crate::cli::table::{BAD, BOLD, GOOD, PENDING, one_line};
use mirrorlet_core::api::Timestamp;
use mirrorlet_core::api::report::{ApiReport, CredentialsFault, NodeReport, StatusReport};
use mirrorlet_core::clock::{age, elapsed};

/// The duration of our Lease. A cluster counts a Node as not ready when its Lease has not been
/// renewed for that long, or ten seconds later.
const LEASE: Duration = Duration::from_secs(40);

/// Writes, above everything else, why the API server can't be called.
pub(super) fn banner(out: &mut String, api: Option<&ApiReport>, now: Timestamp) {
    let Some(api) = api else {
        return;
    };
    let server = one_line(&api.server);
    let text = match (api.unreachable_since, api.rejected_since) {
        (Some(since), _) => unreachable(api, &server, since, now),
        (None, Some(since)) => {
            let since = age(since, now);
            let why = certificate(api, now).unwrap_or_else(|| {
                "401 Unauthorized; replace the token or certificate of the kubeconfig".to_owned()
            });
            format!("The API server at {server} rejects the credentials (for {since}): {why}")
        }
        (None, None) => return,
    };
    let style = if api.rejected_since.is_some() {
        BAD
    } else {
        PENDING
    };
    line(out, &styled(&text, style));
    line(
        out,
        "Running pods continue. Static pods are started and stopped as usual.\n",
    );
}

fn unreachable(api: &ApiReport, server: &str, since: Timestamp, now: Timestamp) -> String {
    let since = age(since, now);
    let is_unknown = api.certificate_ends.is_none() && api.certificate_error.is_some();
    let mut text = if is_unknown {
        format!("No client certificate for the API server at {server} for {since}")
    } else {
        format!("The API server at {server} has not been reachable for {since}")
    };
    if let Some(error) = &api.error {
        let _ = write!(text, ": {}", one_line(error));
    }
    text
}

/// The problem with the client certificate, if there is one.
fn certificate(api: &ApiReport, now: Timestamp) -> Option<String> {
    let ends = api.certificate_ends?;
    let error = api.certificate_error.as_deref().map(one_line);
    if ends <= now {
        let help = error.map(|error| format!("; {error}")).unwrap_or_default();
        return Some(format!(
            "client certificate expired {} ago{help}",
            age(ends, now)
        ));
    }
    error.map(|error| format!("client certificate expires at {ends}, renewal failed: {error}"))
}

/// The Node, and the API server that has it.
pub(super) fn node(out: &mut String, report: &StatusReport, now: Timestamp) {
    if let Some(node) = &report.node {
        line(out, &format!("\n{}", styled("NODE", BOLD)));
        let state = node_state(node, report, now);
        line(out, &format!("  {}: {state}", node.name));
        if let Some(error) = &node.node_api_error {
            let error = one_line(error);
            let words = format!(
                "node API: the API server can't call it (kubectl logs, exec, top): {error}"
            );
            line(out, &format!("  {}", styled(&words, BAD)));
            line(
                out,
                "    help: set --client-ca-file to the API server's own --client-ca-file",
            );
        }
    }
    let Some(api) = &report.api else {
        return;
    };
    let state = match (api.reachable, api.unreachable_since) {
        (true, _) if api.rejected_since.is_some() => styled("rejects the credentials", BAD),
        (true, _) => "reachable".to_owned(),
        (false, Some(since)) => {
            styled(&format!("not reachable (for {})", age(since, now)), PENDING)
        }
        (false, None) => styled("not reached yet", PENDING),
    };
    let server = one_line(&api.server);
    line(out, &format!("  API server {server}: {state}"));
    if let Some(words) = certificate(api, now) {
        line(out, &format!("  {}", styled(&words, BAD)));
    }
    if let Some(words) = credentials(api) {
        line(out, &format!("  {}", styled(&words, BAD)));
    }
}

/// The problem with the credentials on disk or the credential plug-in, if there is one.
fn credentials(api: &ApiReport) -> Option<String> {
    let error = one_line(api.credentials_error.as_deref()?);
    Some(match api.credentials_fault {
        Some(CredentialsFault::Plugin) => {
            format!("no new credentials: {error}; the credential plug-in is run again")
        }
        Some(CredentialsFault::Missing) => format!("no credentials: {error}; retrying"),
        Some(CredentialsFault::Replaced) | None => format!(
            "new credentials are not used: {error}; the previous credentials are used until the agent restarts"
        ),
    })
}

fn node_state(node: &NodeReport, report: &StatusReport, now: Timestamp) -> String {
    if let Some(error) = &node.error {
        let words = one_line(error);
        return styled(&format!("registration failed: {words}"), BAD);
    }
    if !node.registered {
        let words = match &report.api {
            Some(api) if api.rejected_since.is_some() => {
                "not known while the API server rejects the credentials"
            }
            Some(api) if api.unreachable_since.is_some() => {
                "not known while the API server is unreachable"
            }
            _ if !report.engine.reachable => {
                "not registered: the Docker Engine has not answered yet"
            }
            _ => "not registered",
        };
        return styled(words, PENDING);
    }
    let mut words = vec![ready(node, now)];
    // Every other condition is good while it is False, but for ours.
    let worrying = node.conditions.iter().filter(|c| {
        let ours = ["MirrorPodsHealthy", "RolloutsHealthy"];
        let good = if ours.contains(&c.condition.as_str()) {
            "True"
        } else {
            "False"
        };
        c.condition != "Ready" && c.status != good
    });
    for condition in worrying {
        let text = format!("{}={}", condition.condition, condition.status);
        words.push(styled(&one_line(&text), BAD));
    }
    words.push(match node.lease_renewed {
        Some(at) => format!("Lease renewed {} ago", age(at, now)),
        None => styled("Lease not renewed yet", PENDING),
    });
    words.join(", ")
}

/// Whether it is ready: what it says itself counts for the cluster only while its Lease is renewed.
fn ready(node: &NodeReport, now: Timestamp) -> String {
    if node
        .lease_renewed
        .is_some_and(|at| elapsed(at, now) > LEASE)
    {
        return styled("the cluster counts this Node as NotReady", BAD);
    }
    match node.conditions.iter().find(|c| c.condition == "Ready") {
        Some(ready) if ready.status == "True" => styled("Ready", GOOD),
        Some(ready) => {
            let message = one_line(&ready.message);
            styled(&format!("not Ready ({message})"), BAD)
        }
        None => styled("not Ready yet", PENDING),
    }
}
