//! Real files, and real programs as helpers.

use std::io::Write as _;

use super::*;

/// A shell script as a helper; its path. It is written by another process: a file that this one
/// has just written may be open in a child of another test for a moment, and can't be run then.
fn program(directory: &Path, script: &str) -> String {
    let path = directory.join("helper");
    let mut install = std::process::Command::new("install")
        .args(["-m", "755", "/dev/stdin"])
        .arg(&path)
        .stdin(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut text = install.stdin.take().unwrap();
    write!(text, "#!/bin/sh\n{script}\n").unwrap();
    drop(text);
    assert!(install.wait().unwrap().success());
    path.to_str().unwrap().to_owned()
}

async fn run(script: &str) -> Result<Option<RegistryAuth>, String> {
    let directory = tempfile::tempdir().unwrap();
    run_helper(&program(directory.path(), script), "r.io:5000").await
}

#[tokio::test]
async fn a_helper_is_asked_as_dockers_client_asks() {
    let script = r#"[ "$1" = get ] && read -r server || [ -n "$server" ] &&
        echo "{\"ServerURL\":\"$server\",\"Username\":\"me\",\"Secret\":\"for $server\"}""#;
    let auth = run(script).await.unwrap().unwrap();
    // docker 50
    assert_eq!(
        (auth.username.as_str(), auth.password.as_str()),
        ("me", "for r.io:5000")
    );
    assert_eq!(auth.server, "r.io:5000");
    let token = run(r#"echo '{"Username":"<token>","Secret":"t"}'"#).await;
    let token = token.unwrap().unwrap();
    assert_eq!(
        (token.username.as_str(), token.identity_token.as_str()),
        ("", "t")
    );
}

#[tokio::test]
async fn what_a_helper_can_not_tell_is_told_apart() {
    let unknown = "echo credentials not found in native keychain; exit 1";
    assert_eq!(run(unknown).await, Ok(None));
    let failed = run("echo s3cret; exit 3").await.unwrap_err();
    assert!(failed.ends_with("failed: exit status: 3"), "{failed}");
    let odd = run("echo s3cret").await.unwrap_err();
    assert_eq!(odd, "its output is not JSON with Username and Secret");
    // Far too much is cut, and no reader waits for more.
    let flood = run("yes s3cret").await.unwrap_err();
    assert!(!flood.contains("s3cret"), "{flood}");
    let node = NodeCredentials::default();
    let absent = node.ask("no-such-helper", "r.io").await.unwrap_err();
    let words =
        "credential helper \"no-such-helper\": docker-credential-no-such-helper can't be started: ";
    assert!(absent.to_string().starts_with(words), "{absent}");
    let path = node.ask("../../bin/sh", "r.io").await.unwrap_err();
    assert!(path.to_string().ends_with("must not be a path"), "{path}");
}

#[tokio::test]
async fn the_configuration_is_read_as_it_is_now() {
    let directory = tempfile::tempdir().unwrap();
    let node = NodeCredentials::new(Some(directory.path().to_owned()));
    let write = |name: &str, text: &str| std::fs::write(directory.path().join(name), text).unwrap();
    assert_eq!(node.config().await, DockerConfig::default());
    let of = async |registry: &str| node.config().await.auths.contains_key(registry);
    write(
        ".dockercfg",
        r#"{"old.io": {"username": "u", "password": "p"}}"#,
    );
    assert!(of("old.io").await);
    write(
        "config.json",
        r#"{"auths": {"new.io": {"username": "u", "password": "p"}}}"#,
    );
    assert!(of("new.io").await && !of("old.io").await);
    assert_eq!(node.problem(), None);
    write("config.json", "{\"auths\": s3cret");
    assert_eq!(node.config().await, DockerConfig::default());
    let problem = node.problem().unwrap();
    assert!(
        problem.ends_with("config.json: not valid JSON (line 1, column 11)"),
        "{problem}"
    );
    std::fs::remove_file(directory.path().join("config.json")).unwrap();
    std::fs::create_dir(directory.path().join("config.json")).unwrap();
    assert!(!of("old.io").await);
    assert!(node.problem().unwrap().ends_with("is not a file"));
    std::fs::remove_dir(directory.path().join("config.json")).unwrap();
    let large = " ".repeat(usize::try_from(CONFIG_MAX).unwrap() + 1);
    write("config.json", &large);
    assert!(!of("old.io").await);
    assert!(node.problem().unwrap().ends_with("is larger than 1 MiB"));
    std::fs::remove_file(directory.path().join("config.json")).unwrap();
    assert!(of("old.io").await);
    assert_eq!(node.problem(), None);
}
