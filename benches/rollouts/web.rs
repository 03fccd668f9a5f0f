//! The server that edits replace: it answers with the edition of its image, on port 8080. Unlike
//! busybox's httpd, whose queue has nine places, it has room for every connection that waited. The bench
//! compiles it into a static program, and pods and Compose's containers mount that.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;

fn main() -> std::io::Result<()> {
    let edition = std::env::var("EDITION").unwrap_or_default();
    for client in TcpListener::bind(("0.0.0.0", 8080))?.incoming() {
        let edition = edition.clone();
        std::thread::spawn(move || -> std::io::Result<()> {
            let mut client = client?;
            client.read(&mut [0; 1024])?;
            let length = edition.len();
            write!(
                client,
                "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{edition}"
            )
        });
    }
    Ok(())
}
