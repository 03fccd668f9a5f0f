//! Compose projects, imported by the program and run by a whole agent.

use std::path::Path;
use std::process::Command;

use crate::common::{Bed, IMAGE, eventually, free_port};

/// Imports a project into the manifest directory, and returns what was said about it.
fn import(bed: &Bed, project: &Path, more: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_mirrorlet"))
        .args(["import", "compose"])
        .arg(project)
        .arg("-o")
        .arg(bed.path().join("manifests"))
        .args(more)
        .output()
        .unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{said}");
    assert!(output.stdout.is_empty());
    said
}

/// The answer to a request for `/` on a port of this machine.
fn get(port: u16) -> Option<String> {
    use std::io::{Read as _, Write as _};
    let mut stream = std::net::TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.write_all(b"GET / HTTP/1.0\r\n\r\n").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    answer
        .split_once("\r\n\r\n")
        .map(|(_, body)| body.trim().to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_project_of_two_services_is_reached_by_its_port_and_its_names() {
    let bed = Bed::new();
    let project = bed.path().join("shop");
    std::fs::create_dir_all(project.join("www")).unwrap();
    std::fs::write(project.join("www/index.html"), "the shop\n").unwrap();
    std::fs::write(project.join(".env"), format!("PORT={}\n", free_port())).unwrap();
    let file = format!(
        r#"services:
  web:
    image: {IMAGE}
    command: ["httpd", "-f", "-p", "80", "-h", "/www"]
    ports: ["127.0.0.1:${{PORT}}:80"]
    volumes: ["./www:/www:ro"]
    stop_grace_period: 1s
  worker:
    image: {IMAGE}
    container_name: shop_worker
    environment: {{TARGET: web, PRICE: "$$5 $$(TARGET)"}}
    command: sh -c "trap 'exit 0' TERM; while :; do sleep 1 & wait $$!; done"
    stop_grace_period: 1s
    depends_on: [web]
"#
    );
    std::fs::write(project.join("compose.yaml"), file).unwrap();
    let said = import(&bed, &project, &[]);
    // Nothing is dropped in silence.
    for words in [
        "compose.yaml:10:5: services.worker.container_name",
        "compose.yaml:14:18: services.worker.depends_on.web",
    ] {
        assert!(said.contains(words), "{said}");
    }
    let port = std::fs::read_to_string(project.join(".env")).unwrap();
    let port: u16 = port.trim().trim_start_matches("PORT=").parse().unwrap();
    let agent = bed.agent().await;
    agent.until_running("web-0").await;
    agent.until_running("worker-0").await;
    let answer = eventually("the web server to answer", || get(port)).await;
    // box 14
    assert_eq!(answer, "the shop");
    let call = "printf 'GET / HTTP/1.0\\r\\n\\r\\n' | nc -w 5 $TARGET 80 | tail -n 1";
    let by_name = eventually("the web server to be known by its name", || {
        let answer = bed.exec("worker_worker-0-box", call);
        (!answer.is_empty()).then_some(answer)
    })
    .await;
    // box 14
    assert_eq!(by_name, "the shop");
    let price = bed.exec("worker_worker-0-box", "echo \"$PRICE\"");
    assert_eq!(price, "$5 $(TARGET)");
    agent.stop().await;
}
