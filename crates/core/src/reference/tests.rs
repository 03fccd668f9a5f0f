//! Upstream's cases: `reference_test.go` (`TestReferenceParse`) and `normalize_test.go`
//! (`TestValidateReferenceName`, `TestValidateRemoteName`, `TestParseRepositoryInfo`,
//! `TestParseReferenceWithTagAndDigest`) of `github.com/distribution/reference`, as
//! `ParseNormalizedNamed` answers them; and ours.

use proptest::prelude::*;

use super::InvalidReference as E;
use super::*;

const ID: &str = "1a3f5e7d9c1b3a5f7e9d1c3b5a7f9e1d3c5b7a9f1e3d5d7c9b1a3f5e7d9c1b3a";

/// Text, domain, path, tag.
#[test]
fn good_references() {
    let f64 = "f".repeat(64);
    let f128 = "f".repeat(128);
    let by_digest = format!("test:5000/repo@sha256:{f64}");
    let by_both = format!("test:5000/repo:tag@sha256:{f64}");
    let punycode = format!("xn--7o8h.com/myimage:xn--7o8h.com@sha512:{f128}");
    let defaulted_both = format!("busybox:latest@sha256:{f64}");
    let sha384 = format!("a@sha384:{}", "0".repeat(96));
    let long_path = format!("{}a", "a/".repeat(127));
    let long = format!("{long_path}:tag-puts-this-over-max");
    let id_path = format!("docker.io/{ID}");
    let id_there = format!("library/{ID}");
    let long_word = "thisisthesongthatneverendsitgoesonandonandonthisisthesongthatnev";
    let long_there = format!("library/{long_word}");
    let hub = "docker.io";
    for (text, domain, path, tag) in [
        // reference_test.go
        ("test_com", hub, "library/test_com", None),
        ("test.com:tag", hub, "library/test.com", Some("tag")),
        ("test.com:5000", hub, "library/test.com", Some("5000")),
        ("test.com/repo:tag", "test.com", "repo", Some("tag")),
        ("test:5000/repo", "test:5000", "repo", None),
        ("test:5000/repo:tag", "test:5000", "repo", Some("tag")),
        (&by_digest, "test:5000", "repo", None),
        (&by_both, "test:5000", "repo", Some("tag")),
        (
            "lowercase:Uppercase",
            hub,
            "library/lowercase",
            Some("Uppercase"),
        ),
        (&long, hub, &long_path, Some("tag-puts-this-over-max")),
        (
            "sub-dom1.foo.com/bar/baz/quux",
            "sub-dom1.foo.com",
            "bar/baz/quux",
            None,
        ),
        (
            "sub-dom1.foo.com/bar/baz/quux:some-long-tag",
            "sub-dom1.foo.com",
            "bar/baz/quux",
            Some("some-long-tag"),
        ),
        (
            "b.gcr.io/test.example.com/my-app:test.example.com",
            "b.gcr.io",
            "test.example.com/my-app",
            Some("test.example.com"),
        ),
        (
            "xn--n3h.com/myimage:xn--n3h.com",
            "xn--n3h.com",
            "myimage",
            Some("xn--n3h.com"),
        ),
        (&punycode, "xn--7o8h.com", "myimage", Some("xn--7o8h.com")),
        ("foo_bar.com:8080", hub, "library/foo_bar.com", Some("8080")),
        ("foo/foo_bar.com:8080", hub, "foo/foo_bar.com", Some("8080")),
        ("192.168.1.1", hub, "library/192.168.1.1", None),
        ("192.168.1.1:tag", hub, "library/192.168.1.1", Some("tag")),
        ("192.168.1.1:5000", hub, "library/192.168.1.1", Some("5000")),
        ("192.168.1.1/repo", "192.168.1.1", "repo", None),
        ("192.168.1.1:5000/repo", "192.168.1.1:5000", "repo", None),
        (
            "192.168.1.1:5000/repo:5050",
            "192.168.1.1:5000",
            "repo",
            Some("5050"),
        ),
        ("[2001:db8::1]/repo", "[2001:db8::1]", "repo", None),
        (
            "[2001:db8:1:2:3:4:5:6]/repo:tag",
            "[2001:db8:1:2:3:4:5:6]",
            "repo",
            Some("tag"),
        ),
        (
            "[2001:db8::1]:5000/repo",
            "[2001:db8::1]:5000",
            "repo",
            None,
        ),
        (
            "[2001:db8::1]:5000/repo:tag",
            "[2001:db8::1]:5000",
            "repo",
            Some("tag"),
        ),
        ("[2001:db8::]:5000/repo", "[2001:db8::]:5000", "repo", None),
        ("[::1]:5000/repo", "[::1]:5000", "repo", None),
        // normalize_test.go
        ("docker/docker", hub, "docker/docker", None),
        ("library/debian", hub, "library/debian", None),
        ("debian", hub, "library/debian", None),
        (
            "localhost/library/debian",
            "localhost",
            "library/debian",
            None,
        ),
        ("localhost/debian", "localhost", "debian", None),
        (
            "LOCALDOMAIN/library/debian",
            "LOCALDOMAIN",
            "library/debian",
            None,
        ),
        ("LOCALDOMAIN/debian", "LOCALDOMAIN", "debian", None),
        ("docker.io/docker/docker", hub, "docker/docker", None),
        ("docker.io/library/debian", hub, "library/debian", None),
        ("docker.io/debian", hub, "library/debian", None),
        ("index.docker.io/docker/docker", hub, "docker/docker", None),
        (
            "index.docker.io/library/debian",
            hub,
            "library/debian",
            None,
        ),
        ("index.docker.io/debian", hub, "library/debian", None),
        (
            "127.0.0.1:5000/docker/docker",
            "127.0.0.1:5000",
            "docker/docker",
            None,
        ),
        ("192.168.0.1:80", hub, "library/192.168.0.1", Some("80")),
        ("192.168.0.1:8/debian", "192.168.0.1:8", "debian", None),
        (long_word, hub, &long_there, None),
        ("[fc00::1]:5000/docker", "[fc00::1]:5000", "docker", None),
        (
            "[fc00:1:2:3:4:5:6:7]:5000/library/debian",
            "[fc00:1:2:3:4:5:6:7]:5000",
            "library/debian",
            None,
        ),
        (&id_path, hub, &id_there, None),
        ("Docker/docker", "Docker", "docker", None),
        ("FOO/bar", "FOO", "bar", None),
        ("docker---rules/docker", hub, "docker---rules/docker", None),
        ("d/docker", hub, "d/docker", None),
        ("dock__er/docker", hub, "dock__er/docker", None),
        (
            "private-registry:8000/foo-bar",
            "private-registry:8000",
            "foo-bar",
            None,
        ),
        ("ubuntu-12.04-base", hub, "library/ubuntu-12.04-base", None),
        (&defaulted_both, hub, "library/busybox", Some("latest")),
        // Ours.
        ("a__b-c--d/x.y_z", hub, "a__b-c--d/x.y_z", None),
        (&sha384, hub, "library/a", None),
    ] {
        let found = Reference::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
        let parts = (found.domain.as_str(), found.path.as_str());
        assert_eq!(parts, (domain, path), "{text}");
        assert_eq!(found.repository(), format!("{domain}/{path}"), "{text}");
        let digest = text.split_once('@').map(|(_, digest)| digest);
        assert_eq!(found.digest(), digest, "{text}");
        if tag.is_none() && digest.is_none() {
            // Our own rule: without a tag the Engine would pull them all.
            // docker 48
            assert_eq!(found.as_str(), format!("{text}:latest"));
            assert_eq!(found.tag(), Some("latest"), "{text}");
        } else {
            assert_eq!(found.as_str(), text);
            assert_eq!(found.tag(), tag, "{text}");
        }
        assert_eq!(found.is_latest(), found.tag() == Some("latest"), "{text}");
    }
}

#[test]
fn bad_references() {
    let (f34, f36, f64) = ("f".repeat(34), "f".repeat(36), "f".repeat(64));
    let f128 = "f".repeat(128);
    let uppercase = |name: &str| E::Uppercase(name.to_owned());
    for (text, error) in [
        // reference_test.go
        ("", E::Format),
        (":justtag", E::Format),
        (&format!("@sha256:{f64}"), E::Format),
        (&format!("repo@sha256:{f34}"), E::DigestLength),
        (
            &format!("validname@invaliddigest:{f128}"),
            E::DigestAlgorithm,
        ),
        ("Uppercase:tag", uppercase("library/Uppercase")),
        (
            "test:5000/Uppercase/lowercase:tag",
            uppercase("Uppercase/lowercase"),
        ),
        (&format!("domain/{}:tag", "a".repeat(256)), E::NameTooLong),
        ("aa/asdf$$^/aa", E::Format),
        ("[2001:db8::1]", E::Format),
        ("[2001:db8::1]:5000", E::Format),
        ("[2001:db8::1]:tag", E::Format),
        ("[fe80::1%eth0]:5000/repo", E::Format),
        ("[fe80::1%@invalidzone]:5000/repo", E::Format),
        // normalize_test.go
        ("https://github.com/docker/docker", E::Format),
        ("docker/Docker", uppercase("docker/Docker")),
        ("-docker", E::Format),
        ("-docker/docker", E::Format),
        ("-docker.io/docker/docker", E::Format),
        ("docker///docker", E::Format),
        ("docker.io/docker/Docker", uppercase("docker/Docker")),
        ("docker.io/docker///docker", E::Format),
        ("[fc00::1]", E::Format),
        ("[fc00::1]:5000", E::Format),
        ("fc00::1:5000/debian", E::Format),
        ("[2001:db8:3:4::192.0.2.33]:5000/debian", E::Format),
        (ID, E::Id(ID.to_owned())),
        ("docker-/docker", E::Format),
        ("-docker-/docker", E::Format),
        ("____/____", E::Format),
        ("_docker/_docker", E::Format),
        ("dock..er/docker", E::Format),
        ("dock_.er/docker", E::Format),
        ("dock-.er/docker", E::Format),
        ("docker.", E::Format),
        ("dock.er./docker", E::Format),
        // Ours.
        ("a:", E::Format),
        ("a b", E::Format),
        ("/a", E::Format),
        ("a/", E::Format),
        ("a___b", E::Format),
        ("a:-x", E::Format),
        // Its first part reads as a host, and no host has underscores.
        ("a__b.c/x", E::Format),
        ("a:b:c", E::Format),
        ("a@b@c", E::Format),
        ("a@sha256:xyz", E::Format),
        ("h:port/x", E::Format),
        ("r.io/../x", E::Format),
        ("\u{fc}n\u{ef}", E::Format),
        (&format!("a@sha256:{f36}"), E::DigestLength),
        (&format!("a@sha256:{}", "F".repeat(64)), E::DigestFormat),
        (&format!("a:{}", "t".repeat(129)), E::Format),
    ] {
        assert_eq!(Reference::parse(text), Err(error), "{text}");
    }
}

#[test]
fn the_beginning_of_an_id_names_its_image() {
    let id = format!("sha256:{ID}");
    let other = format!("sha256:{}", "f".repeat(64));
    for (text, expected) in [
        (id.as_str(), true),
        (&id[..19], true),
        ("sha256:1", true),
        ("sha256:2", false),
        ("sha256:", false),
        ("sha256", false),
        (other.as_str(), false),
        // These are names.
        (ID, false),
        (&ID[..12], false),
        ("sha256:1a3f5e7d9c1b3a5f:1", false),
        ("r.io/sha256:1a3f", false),
        ("", false),
    ] {
        assert_eq!(is_id_of(text, &id), expected, "{text}");
    }
}

proptest! {
    #[test]
    fn never_panics_and_what_it_made_parses_to_the_same(
        text in "[a-zA-Z0-9.:/@_\\[\\] -]{0,40}|\\PC{0,20}",
    ) {
        if let Ok(reference) = Reference::parse(&text) {
            prop_assert_eq!(Reference::parse(reference.as_str()).unwrap(), reference);
        }
    }
}
