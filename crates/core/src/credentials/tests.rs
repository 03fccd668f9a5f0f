use std::collections::BTreeMap;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};
use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::api::Pod;
use crate::objects::{ObjectError, ObjectSet};

fn auth(server: &str, username: &str, password: &str) -> RegistryAuth {
    RegistryAuth {
        username: username.into(),
        password: password.into(),
        server: server.into(),
        ..RegistryAuth::default()
    }
}

/// A keyring with one user a key, named like it.
fn keyring(keys: &[&str]) -> Keyring {
    let mut keyring = Keyring::default();
    for key in keys {
        keyring.add([((*key).to_owned(), auth(key, key, "p"))].into());
    }
    keyring
}

fn users(found: &[RegistryAuth]) -> Vec<&str> {
    found.iter().map(|auth| auth.username.as_str()).collect()
}

#[test]
fn a_key_is_for_its_host_port_labels_and_path() {
    for (key, image, matches) in [
        // Upstream: TestURLsMatch and TestDockerKeyringForGlob.
        ("r.io", "r.io/a/b", true),
        ("r.io", "r.io:5000/a", false),
        ("r.io:5000", "r.io:5000/a", true),
        ("r.io:5000", "r.io:5001/a", false),
        ("r.io:5000", "r.io/a", false),
        ("*.r.io", "eu.r.io/a", true),
        ("*.r.io", "r.io/a", false),
        ("*.r.io", "a.b.r.io/a", false),
        ("*.*.r.io", "a.b.r.io/a", true),
        ("eu*.r.io", "eu-west.r.io/a", true),
        ("e*t.r.io", "eu-west.r.io/a", true),
        ("e*w*t.r.io", "eu-west.r.io/a", true),
        ("e*x*t.r.io", "eu-west.r.io/a", false),
        ("eu*.r.io", "us.r.io/a", false),
        ("*.r.io:*", "eu.r.io:5000/a", false),
        ("r.*", "r.io/a", true),
        ("a*a.io", "a.io/x", false),
        ("r.io/team", "r.io/team/app", true),
        ("r.io/team", "r.io/teams/app", true),
        ("r.io/team/", "r.io/teams/app", false),
        ("r.io/team", "r.io/other", false),
        ("https://r.io", "r.io/a", true),
        ("http://r.io", "r.io/a", true),
        ("https://r.io/v1/", "r.io/a", true),
        ("https://r.io/v2/", "r.io/a", true),
        ("https://r.io/v1/team", "r.io/team/a", true),
        ("r.io/v3/", "r.io/a", false),
        ("https://me@r.io/?x=y#z", "r.io/a", true),
        ("[::1]:5000", "[::1]:5000/a", true),
        ("[::1]", "[::1]/a", true),
        ("[::1]", "[::2]/a", false),
        ("localhost", "localhost/a", true),
        ("", "r.io/a", false),
        ("/team", "r.io/team/a", false),
    ] {
        let found = keyring(&[key]).lookup(image);
        // docker 50
        assert_eq!(!found.is_empty(), matches, "{key} for {image}");
    }
}

#[test]
fn the_hub_has_a_fallback_that_others_have_not() {
    let hub = keyring(&["https://index.docker.io/v1/"]);
    // docker 50
    assert_eq!(hub.lookup("docker.io/library/nginx").len(), 1);
    assert!(hub.lookup("quay.io/nginx").is_empty());
    // An entry for the host itself replaces it.
    let both = keyring(&["https://index.docker.io/v1/", "docker.io/me"]);
    assert_eq!(users(&both.lookup("docker.io/me/app")), ["docker.io/me"]);
    assert_eq!(
        users(&both.lookup("docker.io/library/nginx")),
        ["https://index.docker.io/v1/"]
    );
}

#[test]
fn longer_paths_come_first_and_equal_ones_as_they_were_added() {
    let mut ring = keyring(&["r.io", "r.io/team/app", "r.io/team", "*.io"]);
    ring.add(
        [(
            "https://r.io/team".to_owned(),
            auth("r.io/team", "second", "p"),
        )]
        .into(),
    );
    // docker 50
    assert_eq!(
        users(&ring.lookup("r.io/team/app")),
        ["r.io/team/app", "r.io/team", "second", "r.io", "*.io"]
    );
}

#[test]
fn entries_are_decoded_in_every_form() {
    let text = json!({
        "auths": {
            "plain.io": {"username": "u", "password": "p"},
            "padded.io": {"auth": STANDARD.encode("me:a:b")},
            "bare.io": {"auth": STANDARD_NO_PAD.encode("me:a:b")},
            "wins.io": {"username": "u", "password": "p", "auth": STANDARD.encode("me:x")},
            "folded.io": {"auth": format!(" {}\n", STANDARD.encode("me:long password"))},
            "token.io": {"auth": STANDARD.encode("me:"), "identitytoken": "t"},
            "bearer.io": {"registrytoken": "b"},
            "kept-elsewhere.io": {},
            "email.io": {"email": "x@y", "auth": ""},
        },
        "credsStore": "pass",
        "credHelpers": {"r.io": "ecr-login"},
        "HttpHeaders": {"a": "b"},
    });
    let config = docker_config(text.to_string().as_bytes()).unwrap();
    let of = |registry: &str| {
        let auth = config.auths.get(registry)?;
        Some((auth.username.as_str(), auth.password.as_str()))
    };
    assert_eq!(of("plain.io"), Some(("u", "p")));
    // docker 50
    assert_eq!(of("padded.io"), Some(("me", "a:b")));
    assert_eq!(of("bare.io"), Some(("me", "a:b")));
    assert_eq!(of("wins.io"), Some(("me", "x")));
    assert_eq!(of("folded.io"), Some(("me", "long password")));
    assert_eq!(config.auths["token.io"].identity_token, "t");
    assert_eq!(config.auths["bearer.io"].registry_token, "b");
    assert_eq!(of("kept-elsewhere.io"), None);
    assert_eq!(of("email.io"), None);
    assert_eq!(config.creds_store.as_deref(), Some("pass"));
    assert_eq!(config.cred_helpers["r.io"], "ecr-login");
    assert_eq!(docker_config(b"{}"), Ok(DockerConfig::default()));
    let old = dockercfg(br#"{"r.io": {"username": "u", "password": "p"}}"#).unwrap();
    assert_eq!(old["r.io"], auth("r.io", "u", "p"));
}

#[test]
fn what_is_malformed_is_told_without_what_stands_there() {
    for (text, words) in [
        ("{\"auths\": s3cret", "not valid JSON (line 1, column 11)"),
        ("", "not valid JSON (line 1, column 0)"),
        (
            r#"{"auths": {"r.io": "s3cret"}}"#,
            "a value has the wrong type (line 1, column 27)",
        ),
        (
            r#"{"auths": {"r.io": {"auth": "s3cret!"}}}"#,
            "the auth of registry \"r.io\" is not base64 of username:password",
        ),
        (
            // It has no colon.
            r#"{"auths": {"r.io": {"auth": "czNjcmV0"}}}"#,
            "the auth of registry \"r.io\" is not base64 of username:password",
        ),
    ] {
        let error = docker_config(text.as_bytes()).unwrap_err();
        assert_eq!(error.to_string(), words, "{text}");
        assert!(!format!("{error:?}").contains("s3cret"), "{error:?}");
    }
}

#[test]
fn a_helper_is_named_for_its_host_or_for_all() {
    let config = DockerConfig {
        cred_helpers: BTreeMap::from([
            ("r.io".to_owned(), "mine".to_owned()),
            ("off.io".to_owned(), String::new()),
            ("https://index.docker.io/v1/".to_owned(), "hub".to_owned()),
        ]),
        creds_store: Some("all".to_owned()),
        ..DockerConfig::default()
    };
    for (image, expected) in [
        ("r.io/a", Some(("mine", "r.io"))),
        ("r.io:5000/a", Some(("all", "r.io:5000"))),
        ("off.io/a", None),
        ("docker.io/library/a", Some(("hub", HUB_SERVER))),
    ] {
        let expected = expected.map(|(helper, server)| Credential::Helper {
            helper: helper.to_owned(),
            server: server.to_owned(),
        });
        assert_eq!(config.helper(image), expected, "{image}");
    }
    assert_eq!(DockerConfig::default().helper("r.io/a"), None);
}

#[test]
fn a_pods_own_come_first_then_the_nodes_then_its_helper_each_once() {
    let shared = auth("r.io", "shared", "p");
    let pod = Keyring::of([("r.io".to_owned(), shared.clone())].into());
    let node = DockerConfig {
        auths: [
            ("r.io".to_owned(), shared.clone()),
            ("r.io/a".to_owned(), auth("r.io/a", "node", "p")),
        ]
        .into(),
        creds_store: Some("pass".to_owned()),
        ..DockerConfig::default()
    };
    let found = candidates(&pod, &node, "r.io/a");
    let [
        Credential::Known(first),
        Credential::Known(second),
        Credential::Helper { .. },
    ] = &found[..]
    else {
        panic!("{found:?}")
    };
    assert_eq!((first, second.username.as_str()), (&shared, "node"));
    let anonymous = candidates(&Keyring::default(), &DockerConfig::default(), "r.io/a");
    assert_eq!(anonymous, []);
}

fn secret(kind: &str, key: &str, content: &str) -> Arc<crate::api::core::Secret> {
    let data = STANDARD.encode(content);
    let secret = json!({"type": kind, "data": {key: data}});
    Arc::new(serde_json::from_value(secret).unwrap())
}

#[test]
fn a_pods_secrets_are_read_by_their_type() {
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {"name": "p", "namespace": "n"},
        "spec": {
            "containers": [],
            "imagePullSecrets": [
                {"name": "json"}, {"name": "old"}, {"name": "other"}, {"name": "gone"},
                {"name": "helped"}, {}, {"name": "away"},
            ],
        },
    }))
    .unwrap();
    let (json_type, cfg_type) = ("kubernetes.io/dockerconfigjson", "kubernetes.io/dockercfg");
    let mut objects = ObjectSet::default();
    let mut put = |name: &str, secret| objects.secrets.insert(name.to_owned(), secret);
    let in_json = r#"{"auths": {"r.io": {"username": "new", "password": "p"}}}"#;
    put("json", Ok(secret(json_type, ".dockerconfigjson", in_json)));
    let in_old = r#"{"r.io": {"username": "old", "password": "p"}}"#;
    put("old", Ok(secret(cfg_type, ".dockercfg", in_old)));
    put(
        "other",
        Ok(secret("Opaque", ".dockerconfigjson", "no json")),
    );
    let with_store = r#"{"credsStore": "evil"}"#;
    put(
        "helped",
        Ok(secret(json_type, ".dockerconfigjson", with_store)),
    );
    let away = ObjectError::Away {
        what: "it".into(),
        cause: "no answer".into(),
    };
    put("away", Err(away));
    let found = pull_secrets(&pod, &objects);
    assert_eq!(users(&found.keyring.lookup("r.io/a")), ["new", "old"]);
    assert_eq!(found.unreadable, ["gone", "away"]);
    assert_eq!(found.malformed, None);

    let mut put = |name: &str, secret| objects.secrets.insert(name.to_owned(), secret);
    put(
        "old",
        Ok(secret(cfg_type, ".dockercfg", "{\"r.io\": s3cret")),
    );
    let error = pull_secrets(&pod, &objects).malformed.unwrap();
    assert_eq!(
        error.to_string(),
        "pull secret \"old\", key \".dockercfg\": not valid JSON (line 1, column 10)"
    );
}

#[test]
fn nothing_secret_is_in_a_debug_text() {
    let auth = RegistryAuth {
        username: "s3cret-user".into(),
        password: "s3cret".into(),
        identity_token: "s3cret".into(),
        registry_token: "s3cret".into(),
        server: "r.io".into(),
    };
    let keyring = Keyring::of([("r.io".to_owned(), auth.clone())].into());
    let text = format!("{auth:?} {keyring:?} {:?}", Credential::Known(auth.clone()));
    assert!(text.contains("r.io") && !text.contains("s3cret"), "{text}");
}

proptest! {
    #[test]
    fn no_text_makes_the_parsers_panic(text in "\\PC{0,60}", key in "\\PC{0,30}", image in "[a-z0-9.:*/\\[\\]]{0,30}") {
        let _ = docker_config(text.as_bytes());
        let _ = dockercfg(text.as_bytes());
        let entry = json!({"auths": {&key: {"auth": text}}}).to_string();
        if let Ok(config) = docker_config(entry.as_bytes()) {
            let _ = Keyring::of(config.auths).lookup(&image);
        }
    }

    #[test]
    fn what_is_encoded_is_decoded(user in "[^:]{1,20}", password in "\\PC{0,20}", padded: bool) {
        let text = format!("{user}:{password}");
        let encoded = if padded { STANDARD.encode(text) } else { STANDARD_NO_PAD.encode(text) };
        let entry = json!({"auths": {"r.io": {"auth": encoded}}}).to_string();
        let config = docker_config(entry.as_bytes()).unwrap();
        prop_assert_eq!(&config.auths["r.io"], &auth("r.io", &user, &password));
    }

    #[test]
    fn a_host_with_its_labels_replaced_by_wildcards_still_matches(
        labels in prop::collection::vec("[a-z0-9]{1,5}", 1..5),
        stars in prop::collection::vec(any::<bool>(), 5),
        port in prop::option::of(1_u16..),
    ) {
        let port = port.map(|port| format!(":{port}")).unwrap_or_default();
        let host = labels.join(".");
        let globbed: Vec<&str> = labels.iter().zip(&stars)
            .map(|(label, star)| if *star { "*" } else { label.as_str() })
            .collect();
        let key = format!("{}{port}", globbed.join("."));
        prop_assert_eq!(keyring(&[&key]).lookup(&format!("{host}{port}/a")).len(), 1);
        let more = format!("x.{host}{port}/a");
        prop_assert!(keyring(&[&key]).lookup(&more).is_empty());
    }
}

#[test]
fn credentials_that_differ_have_other_hashes() {
    let auth = |user: &str, password: &str| RegistryAuth {
        username: user.into(),
        password: password.into(),
        ..RegistryAuth::default()
    };
    let hash = credential_hash(&auth("ab", "c"));
    assert_eq!(hash, credential_hash(&auth("ab", "c")));
    assert_ne!(hash, credential_hash(&auth("a", "bc")));
}
