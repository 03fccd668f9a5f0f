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
    let answer = exchange(docker, "GET", path, None, patience);
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

/// The answer of the Engine at `docker` to a POST, or why there is none.
pub fn post(
    docker: &str,
    path: &str,
    body: Option<&Value>,
    patience: Duration,
) -> Result<Value, String> {
    let failed = |error: &dyn std::fmt::Display| format!("POST {path} of {docker}: {error}");
    let body = body.map(Value::to_string);
    let answer = exchange(docker, "POST", path, body.as_deref(), patience);
    let answer = answer.map_err(|error| failed(&error))?;
    let end = answer.windows(4).position(|part| part == b"\r\n\r\n");
    let (head, body) = answer.split_at(end.ok_or_else(|| failed(&"it is cut off"))?);
    let head = String::from_utf8_lossy(head);
    if !head.lines().next().unwrap_or_default().contains(" 20") {
        return Err(failed(&String::from_utf8_lossy(&answer)));
    }
    match &body[4..] {
        [] => Ok(Value::Null),
        body => serde_json::from_slice(body).map_err(|error| failed(&error)),
    }
}

/// Sends a DELETE to the Engine at `docker` and waits for the answer, whatever it says.
pub fn delete(docker: &str, path: &str, patience: Duration) -> std::io::Result<()> {
    exchange(docker, "DELETE", path, None, patience).map(drop)
}

/// Returns the standard output so far of a container that has no terminal.
pub fn output(docker: &str, id: &str, patience: Duration) -> Result<String, String> {
    /// The head of a frame: in its second half is the length of what follows.
    const HEAD: usize = 8;
    let path = format!("/containers/{id}/logs?stdout=1");
    let answer = exchange(docker, "GET", &path, None, patience);
    let answer = answer.map_err(|error| format!("GET {path} of {docker}: {error}"))?;
    let failed = || format!("GET {path}: {}", String::from_utf8_lossy(&answer));
    let end = answer.windows(4).position(|part| part == b"\r\n\r\n");
    let (head, mut frames) = answer.split_at(4 + end.ok_or_else(failed)?);
    let head = String::from_utf8_lossy(head);
    if !head.lines().next().unwrap_or_default().contains(" 200 ") {
        return Err(failed());
    }
    let mut output = Vec::new();
    while let Some((&[_, _, _, _, length @ ..], rest)) = frames.split_first_chunk::<HEAD>() {
        let length = usize::try_from(u32::from_be_bytes(length)).unwrap();
        let (frame, rest) = rest.split_at_checked(length).ok_or_else(failed)?;
        output.extend_from_slice(frame);
        frames = rest;
    }
    Ok(String::from_utf8_lossy(&output).into_owned())
}

/// The answer of the Engine at `docker` to a request.
fn exchange(
    docker: &str,
    method: &str,
    path: &str,
    body: Option<&str>,
    patience: Duration,
) -> std::io::Result<Vec<u8>> {
    if let Some(socket) = docker.strip_prefix("unix://") {
        let stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(patience))?;
        ask(stream, method, path, body)
    } else {
        let stream = TcpStream::connect(docker.trim_start_matches("tcp://"))?;
        stream.set_read_timeout(Some(patience))?;
        ask(stream, method, path, body)
    }
}

/// Asks in a version of HTTP in which the end of an answer is that of its connection.
fn ask(
    mut stream: impl Read + Write,
    method: &str,
    path: &str,
    body: Option<&str>,
) -> std::io::Result<Vec<u8>> {
    write!(stream, "{method} {path} HTTP/1.0\r\nHost: docker\r\n")?;
    if let Some(body) = body {
        let length = body.len();
        write!(
            stream,
            "Content-Type: application/json\r\nContent-Length: {length}\r\n"
        )?;
    }
    write!(stream, "\r\n{}", body.unwrap_or_default())?;
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
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let containers = listed(docker, owner, all, patience)?.into_iter();
    let containers = containers.map(|one| {
        let name = text(&one["Names"][0]);
        (name.trim_start_matches('/').to_owned(), text(&one["Id"]))
    });
    Ok(containers.collect())
}

/// Names of an owner's containers that were created and never started.
pub fn created(docker: &str, owner: &str, patience: Duration) -> Result<Vec<String>, String> {
    let containers = listed(docker, owner, true, patience)?.into_iter();
    let created = containers.filter(|one| one["State"] == "created");
    Ok(created.map(|one| one["Names"][0].to_string()).collect())
}

/// An owner's containers as the Engine lists them: those that run, or all.
fn listed(docker: &str, owner: &str, all: bool, patience: Duration) -> Result<Vec<Value>, String> {
    let query = owned_by(owner)
        .append_pair("all", if all { "1" } else { "0" })
        .finish();
    let listed = get(docker, &format!("/containers/json?{query}"), patience)?;
    Ok(listed.as_array().cloned().unwrap_or_default())
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
