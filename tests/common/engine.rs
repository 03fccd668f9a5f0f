//! Looks at the Engine by its API: tests look often, and the docker client is a program to start.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use serde_json::{Value, json};

/// Longest wait for a part of an answer.
pub const PATIENCE: Duration = Duration::from_mins(5);

/// The answer of the Engine at `docker` to a GET, or why there is none. `patience` bounds each wait
/// for a part of it.
pub fn get(docker: &str, path: &str, patience: Duration) -> Result<Value, String> {
    find(docker, path, patience)?.ok_or_else(|| format!("GET {path} of {docker}: not found"))
}

/// The same of something that may not be there: `None` where the Engine answers 404.
pub fn find(docker: &str, path: &str, patience: Duration) -> Result<Option<Value>, String> {
    let failed = |error: &dyn std::fmt::Display| format!("GET {path} of {docker}: {error}");
    let answer = if let Some(socket) = docker.strip_prefix("unix://") {
        UnixStream::connect(socket).and_then(|stream| {
            stream.set_read_timeout(Some(patience))?;
            ask(stream, path)
        })
    } else {
        let address = docker.trim_start_matches("tcp://");
        TcpStream::connect(address).and_then(|stream| {
            stream.set_read_timeout(Some(patience))?;
            ask(stream, path)
        })
    };
    let answer = answer.map_err(|error| failed(&error))?;
    let end = answer.windows(4).position(|part| part == b"\r\n\r\n");
    let (head, body) = answer.split_at(end.ok_or_else(|| failed(&"it is cut off"))?);
    let head = String::from_utf8_lossy(head);
    let status = head.lines().next().unwrap_or_default();
    if status.contains(" 404 ") {
        return Ok(None);
    }
    if !status.contains(" 200 ") {
        return Err(failed(&String::from_utf8_lossy(&answer)));
    }
    let value = serde_json::from_slice(&body[4..]).map_err(|error| failed(&error))?;
    Ok(Some(value))
}

/// Asks in a version of HTTP in which the end of an answer is that of its connection.
fn ask(mut stream: impl Read + Write, path: &str) -> std::io::Result<Vec<u8>> {
    write!(stream, "GET {path} HTTP/1.0\r\nHost: docker\r\n\r\n")?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    Ok(answer)
}

/// Names and ids of an owner's containers: of those that run, or of all.
pub fn containers(
    docker: &str,
    owner: &str,
    all: bool,
    patience: Duration,
) -> Result<Vec<(String, String)>, String> {
    let query = owned_by(owner)
        .append_pair("all", if all { "1" } else { "0" })
        .finish();
    let listed = get(docker, &format!("/containers/json?{query}"), patience)?;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let containers = listed.as_array().into_iter().flatten();
    let containers = containers.map(|one| {
        let name = text(&one["Names"][0]);
        (name.trim_start_matches('/').to_owned(), text(&one["Id"]))
    });
    Ok(containers.collect())
}

/// Names of an owner's volumes.
pub fn volumes(docker: &str, owner: &str, patience: Duration) -> Result<Vec<String>, String> {
    let query = owned_by(owner).finish();
    let listed = get(docker, &format!("/volumes?{query}"), patience)?;
    let volumes = listed["Volumes"].as_array().into_iter().flatten();
    Ok(volumes
        .filter_map(|one| one["Name"].as_str().map(str::to_owned))
        .collect())
}

/// The filter for what has the label of that owner.
fn owned_by(owner: &str) -> form_urlencoded::Serializer<'static, String> {
    let filters = json!({"label": [format!("mirrorlet.dev/owner={owner}")]});
    let mut query = form_urlencoded::Serializer::new(String::new());
    query.append_pair("filters", &filters.to_string());
    query
}
