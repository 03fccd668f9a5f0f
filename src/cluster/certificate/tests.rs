//! Content of kubeconfigs, read from disk. `tests/cluster/bootstrap.rs` shows on real servers that
//! they are made, kept and renewed.

use std::path::Path;
use std::pin::pin;

use rcgen::{CertificateParams, DnType, KeyPair};
use tokio::time::timeout;

use super::*;

/// A certificate of that name and its key, in PEM.
fn pair(name: &str) -> (String, String) {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    (params.self_signed(&key).unwrap().pem(), key.serialize_pem())
}

#[test]
fn what_a_kubeconfig_holds_is_told_apart() {
    use base64::Engine as _;
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str| dir.path().join(name);
    let (kubeconfig, ours) = (file("kubeconfig"), file("ours.pem"));
    let held = |user: &str| {
        let text = format!(
            "current-context: x\ncontexts: [{{name: x, context: {{cluster: c, user: u}}}}]\nclusters: [{{name: c, cluster: {{server: 'https://127.0.0.1:1'}}}}]\nusers: [{{name: u, user: {{{user}}}}}]\n"
        );
        std::fs::write(&kubeconfig, text).unwrap();
        identity::held(&kubeconfig, &ours)
    };
    assert_eq!(identity::held(&kubeconfig, &ours), Held::Missing);
    assert_eq!(held("token: secret"), Held::Other);

    let (chain, key) = pair("system:node:box");
    std::fs::write(&ours, format!("{chain}{key}")).unwrap();
    std::fs::write(file("chain.pem"), &chain).unwrap();
    std::fs::write(file("key.pem"), &key).unwrap();
    let data = |text: &str| base64::engine::general_purpose::STANDARD.encode(text);
    for (user, expected) in [
        (
            "client-certificate: ours.pem, client-key: ours.pem".to_owned(),
            true,
        ),
        (
            "client-certificate: chain.pem, client-key: key.pem".to_owned(),
            false,
        ),
        (
            format!(
                "client-certificate-data: {}, client-key-data: {}",
                data(&chain),
                data(&key)
            ),
            false,
        ),
    ] {
        let Held::Certificate { user, is_ours, .. } = held(&user) else {
            panic!("{user}: {:?}", held(&user))
        };
        // identity 3
        assert_eq!((user.as_str(), is_ours), ("system:node:box", expected));
    }

    std::fs::write(file("other.pem"), pair("other").1).unwrap();
    for (user, words) in [
        (
            "client-certificate: gone.pem, client-key: gone.pem",
            "gone.pem",
        ),
        (
            "client-certificate: chain.pem, client-key: other.pem",
            "keys",
        ),
        (
            "client-certificate: key.pem, client-key: key.pem",
            "no certificate",
        ),
        ("client-certificate: chain.pem", "its key is missing"),
    ] {
        let Held::Unusable(cause) = held(user) else {
            panic!("{user}")
        };
        assert!(cause.to_lowercase().contains(words), "{user}: {cause}");
        assert!(!cause.contains("PRIVATE"), "{cause}");
    }
    // What a broken file holds is told to nobody.
    for (text, expected) in [
        ("a: [", "line 1 column 4: it is not YAML"),
        (
            "users:\n- name: u\n  user: {token: hunter2\n",
            "line 3 column 9: it is not YAML",
        ),
        (
            "users:\n- name: u\n  user: {token: [hunter2]}\n",
            "users[0].user.token: expected a string, found a list",
        ),
        (
            "users:\n- name: u\n  user: {exec: {command: hunter2, interactiveMode: hunter2}}\n",
            "users[0].user.exec.interactiveMode: this value can't be used here",
        ),
    ] {
        std::fs::write(&kubeconfig, text).unwrap();
        let Held::Unusable(cause) = identity::held(&kubeconfig, &ours) else {
            panic!("{text}")
        };
        assert_eq!(cause, expected, "{text}");
    }
}

#[tokio::test]
async fn an_expired_certificate_of_others_is_to_be_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str| dir.path().join(name);
    let kubeconfig = file("kubeconfig");
    let key = KeyPair::generate().unwrap();
    let pem_until = |year| {
        let mut params = CertificateParams::default();
        params
            .distinguished_name
            .push(DnType::CommonName, "system:node:box");
        params.not_before = rcgen::date_time_ymd(2000, 1, 1);
        params.not_after = rcgen::date_time_ymd(year, 1, 1);
        params.self_signed(&key).unwrap().pem()
    };
    std::fs::write(file("key.pem"), key.serialize_pem()).unwrap();
    std::fs::write(file("chain.pem"), pem_until(2001)).unwrap();
    std::fs::write(&kubeconfig, "current-context: x\ncontexts: [{name: x, context: {cluster: c, user: u}}]\nclusters: [{name: c, cluster: {server: 'http://127.0.0.1:1'}}]\nusers: [{name: u, user: {client-certificate: chain.pem, client-key: key.pem}}]\n").unwrap();
    let options = NodeIdentity {
        kubeconfig: kubeconfig.clone(),
        bootstrap: ApiAccess::None,
        directory: file("pki"),
        node: "box".into(),
    };
    let telemetry = Telemetry::new();
    let (_client, _credentials, mut task) = ClusterClient::open_node(options, &telemetry).unwrap();
    let standing = task.standing();
    let certificate = |ends: &str, problem| IdentityState::Certificate {
        ends: ends.parse().unwrap(),
        problem,
    };
    let help = format!("replace the kubeconfig {}", kubeconfig.display());
    task.look(Timestamp::now()).await;
    // node 6c
    assert_eq!(
        *standing.get(),
        certificate("2001-01-01T00:00:00Z", Some(help))
    );
    std::fs::write(file("chain.pem"), pem_until(3000)).unwrap();
    task.look(Timestamp::now()).await;
    assert_eq!(*standing.get(), certificate("3000-01-01T00:00:00Z", None));
}

/// Writes a kubeconfig of that user, for a port that nobody listens on.
fn with_user(path: &Path, user: &str) {
    let text = format!(
        "current-context: x\ncontexts: [{{name: x, context: {{cluster: c, user: u}}}}]\nclusters: [{{name: c, cluster: {{server: 'http://127.0.0.1:1'}}}}]\nusers: [{{name: u, user: {{{user}}}}}]\n"
    );
    std::fs::write(path, text).unwrap();
}

/// A user whose credential plug-in is `sh -c`.
fn plug_in(script: &str) -> String {
    format!(
        "exec: {{apiVersion: client.authentication.k8s.io/v1, command: sh, args: [-c, '{script}'], interactiveMode: Never}}"
    )
}

/// The task of a node without an identity, and how it stands.
fn without_identity(
    directory: &Path,
    bootstrap: &Path,
) -> (ClientCertificateTask, Reader<IdentityState>) {
    let options = NodeIdentity {
        kubeconfig: directory.join("kubeconfig"),
        bootstrap: ApiAccess::Kubeconfig(bootstrap.to_owned()),
        directory: directory.join("pki"),
        node: "box".into(),
    };
    let opened = ClusterClient::open_node(options, &Telemetry::new());
    let (_client, _credentials, task) = opened.unwrap();
    let standing = task.standing();
    (task, standing)
}

#[tokio::test(start_paused = true)]
async fn a_bootstrap_plug_in_that_hangs_holds_up_no_replaced_kubeconfig() {
    let dir = tempfile::tempdir().unwrap();
    let bootstrap = dir.path().join("bootstrap");
    with_user(&bootstrap, &plug_in("exec sleep 1000"));
    let (task, standing) = without_identity(dir.path(), &bootstrap);
    let words = || standing.get().problem().unwrap_or_default().to_owned();
    let mut run = pin!(task.run());
    assert!(timeout(MENDED_PAUSE / 2, &mut run).await.is_err());
    let unanswered = format!(
        "the bootstrap kubeconfig {} can't be used: its credential plug-in sh has not answered yet",
        bootstrap.display()
    );
    // identity 14
    assert!(words().ends_with(&unanswered), "{}", words());
    with_user(&bootstrap, "token: t");
    // Long enough for a request that nobody answers.
    let ended = timeout(Duration::from_secs(50), &mut run).await;
    assert!(ended.is_err());
    // identity 14
    assert!(!words().contains("plug-in"), "{}", words());
}

#[tokio::test]
async fn a_bootstrap_plug_in_is_waited_for_beside_all_else() {
    let dir = tempfile::tempdir().unwrap();
    let bootstrap = dir.path().join("bootstrap");
    with_user(&bootstrap, &plug_in("exit 3"));
    let (mut task, standing) = without_identity(dir.path(), &bootstrap);
    let words = || standing.get().problem().unwrap_or_default().to_owned();
    let failed = "its credential plug-in sh failed: exit status: 3";
    for is_again in [false, true] {
        task.look(Timestamp::now()).await;
        assert_eq!(words().ends_with(failed), is_again, "{}", words());
        let made = end_of(&mut task.making).await;
        task.end_making(made);
        task.look(Timestamp::now()).await;
        // identity 14
        assert!(words().ends_with(failed), "{}", words());
    }
    with_user(&bootstrap, &plug_in(r#"echo "{status: {token: t}}""#));
    task.look(Timestamp::now()).await;
    let made = end_of(&mut task.making).await;
    task.end_making(made);
    task.look(Timestamp::now()).await;
    // identity 14
    assert!(task.bootstrap.is_some() && task.making.is_none());
    assert!(!words().contains("plug-in"), "{}", words());
    // An identity that somebody puts there meanwhile needs none.
    with_user(&bootstrap, &plug_in("exec sleep 1000"));
    task.look(Timestamp::now()).await;
    assert!(task.making.is_some());
    with_user(&dir.path().join("kubeconfig"), "token: t");
    task.look(Timestamp::now()).await;
    // identity 14
    assert!(task.making.is_none());
    assert_eq!(*standing.get(), IdentityState::Given);
}

#[tokio::test]
async fn a_bootstrap_plug_in_whose_credentials_have_ended_runs_once_for_each_attempt() {
    let dir = tempfile::tempdir().unwrap();
    let (bootstrap, runs) = (dir.path().join("bootstrap"), dir.path().join("runs"));
    let script = format!(
        r#"echo >> {}; echo "{{status: {{token: t, expirationTimestamp: 2001-01-01T00:00:00Z}}}}""#,
        runs.display()
    );
    with_user(&bootstrap, &plug_in(&script));
    let (mut task, standing) = without_identity(dir.path(), &bootstrap);
    let words = || standing.get().problem().unwrap_or_default().to_owned();
    for count in 1..=2 {
        task.look(Timestamp::now()).await;
        assert!(task.making.is_some());
        let made = end_of(&mut task.making).await;
        task.end_making(made);
        // What was made is asked with, and the next run waits for the next look.
        let pause = task.look(Timestamp::now()).await;
        // identity 14
        assert!(task.making.is_none() && pause > Duration::ZERO, "{pause:?}");
        assert!(!words().contains("plug-in"), "{}", words());
        // identity 14
        assert_eq!(std::fs::read(&runs).unwrap().len(), count);
    }
}
