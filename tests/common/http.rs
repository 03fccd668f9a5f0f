//! A client as simple as can be, for tests and benches.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// The answer of the server at `at` to a request for `/x`, on a connection of its own. `patience`
/// bounds the connection and each wait for a part of the answer.
pub fn ask(at: SocketAddr, patience: Duration) -> Result<String, String> {
    let stream = TcpStream::connect_timeout(&at, patience).map_err(|error| error.to_string())?;
    ask_on(stream, patience)
}

/// The same on a connection that is there.
pub fn ask_on(mut stream: TcpStream, patience: Duration) -> Result<String, String> {
    let failed = |error: std::io::Error| error.to_string();
    stream.set_read_timeout(Some(patience)).map_err(failed)?;
    stream
        .write_all(b"GET /x HTTP/1.0\r\n\r\n")
        .map_err(failed)?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).map_err(failed)?;
    match answer.split_once("\r\n\r\n") {
        Some((head, body)) if head.contains(" 200 ") => Ok(body.trim().to_owned()),
        _ => Err(format!("answered {answer:?}")),
    }
}
