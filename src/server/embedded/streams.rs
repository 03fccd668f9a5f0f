//! `log`, `exec`, `attach` and `portforward` of a pod: the node API's own, with an API server's paths
//! and errors.
//!
//! Upstream: `pkg/registry/core/pod/strategy.go` (`LogLocation`, `streamLocation`).

use axum::body::to_bytes;
use axum::extract::Request;
use axum::http::Uri;
use axum::response::Response;
use mirrorlet_apimachinery::status::Status;
use mirrorlet_core::select::choose_container;
use mirrorlet_core::spec;
use mirrorlet_streaming::Kind;

use super::{Api, Call};
use crate::server::node::{logs, streams};
use mirrorlet_core::api::Pod;

/// Longest error of the node API that is passed on, in bytes.
const WORDS_MAX: usize = 4096;

impl Api {
    /// Answers a subresource that is a stream.
    pub(super) async fn stream(&self, call: &Call, request: Request) -> Result<Response, Status> {
        let (target, name) = (&call.target, call.name());
        let pod = self.store.view().pod_by_name(&target.namespace, name);
        let pod = pod.ok_or_else(|| Status::not_found(target.resource, name))?;
        let said = |wanted: &str| {
            let mut query = call.query.iter();
            query
                .find(|(key, _)| key == wanted)
                .map(|(_, value)| value.as_str())
        };
        let user = call.user.name.as_str();
        let container = || {
            let wanted = said("container").filter(|name| !name.is_empty());
            choose_container(&pod, wanted).map_err(|error| Status::bad_request(error.to_string()))
        };
        let answer = match target.subresource.as_deref() {
            Some("log") => {
                let container = container()?;
                let uri = request.uri().clone();
                logs::log_of(&self.streams, &pod, &container, user, &uri).await
            }
            Some("portforward") => streams::forward_to(&self.streams, &pod, user, request),
            Some(command) => {
                let container = container()?;
                let kind = match command {
                    "attach" => Kind::Attach,
                    _ => Kind::Exec,
                };
                if kind == Kind::Attach && said("stdin").is_some_and(is_on) {
                    check_stdin(&pod, &container)?;
                }
                let query = node_query(request.uri());
                let shared = &self.streams;
                streams::command_in(shared, &pod, container, user, &query, request, kind)
            }
            None => return Err(Status::no_such_path()),
        };
        match answer {
            Ok(answer) => Ok(answer),
            Err(refused) => Err(as_status(refused).await),
        }
    }
}

/// The query as a node reads it, made of an API server's.
fn node_query(uri: &Uri) -> String {
    let query = uri.query().unwrap_or_default();
    let mut out = form_urlencoded::Serializer::new(String::new());
    for (key, value) in form_urlencoded::parse(query.as_bytes()) {
        let key = match key.as_ref() {
            "stdin" => "input",
            "stdout" => "output",
            "stderr" => "error",
            "tty" => "tty",
            "command" => {
                out.append_pair("command", &value);
                continue;
            }
            _ => continue,
        };
        out.append_pair(key, if is_on(&value) { "1" } else { "0" });
    }
    out.finish()
}

/// Whether a parameter says yes.
fn is_on(value: &str) -> bool {
    !matches!(value, "false" | "0" | "False" | "f")
}

/// Checks that a container has a standard input to attach to. The Engine reports that only once the
/// connection is a stream, where clients take any error for one of the server.
fn check_stdin(pod: &Pod, container: &str) -> Result<(), Status> {
    let has_stdin = spec::containers(pod)
        .map(|(_, container)| container.clone())
        .chain(spec::ephemeral_containers(pod))
        .filter(|known| known.name == container)
        .any(|known| known.stdin == Some(true));
    if has_stdin {
        return Ok(());
    }
    Err(Status::bad_request(
        "the container has no standard input: its manifest does not set stdin: true",
    ))
}

/// An error of the node API, as an API server says it.
async fn as_status(refused: Response) -> Status {
    let code = refused.status().as_u16();
    let words = to_bytes(refused.into_body(), WORDS_MAX).await;
    let words = String::from_utf8_lossy(&words.unwrap_or_default())
        .trim()
        .to_owned();
    match code {
        429 => Status::too_many_requests(&words, 5),
        500.. => Status::internal(words),
        _ => Status::bad_request(words),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_container_with_stdin_is_attached_to_with_it() {
        let pod = serde_json::json!({"spec": {
            "containers": [{"name": "a"}, {"name": "b", "stdin": true}, {"name": "c", "stdin": false}],
            "initContainers": [{"name": "i", "stdin": true}],
        }});
        let pod: Pod = serde_json::from_value(pod).unwrap();
        for (name, has) in [("a", false), ("b", true), ("c", false), ("i", true)] {
            let code = check_stdin(&pod, name).map_err(|status| status.code);
            assert_eq!(code, if has { Ok(()) } else { Err(400) }, "{name}");
        }
    }

    #[test]
    fn queries_of_an_api_server_are_read() {
        let uri: Uri = "/x?command=sh&command=-c&container=web&stdin=true&stdout=true&tty=false"
            .parse()
            .unwrap();
        // embedded 4
        assert_eq!(
            node_query(&uri),
            "command=sh&command=-c&input=1&output=1&tty=0"
        );
    }
}
