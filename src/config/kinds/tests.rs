use proptest::prelude::*;

use super::*;

fn read<T: 'static>(kind: &Kind<T>, text: &str) -> Result<T, Fault> {
    let faults = |faults: Vec<Fault>| faults.join("; ");
    kind.parse(&[text.to_owned()], Path::new("/w"))
        .map_err(faults)
}

#[test]
fn node_names_come_from_any_hostname() {
    for (hostname, name) in [
        ("box", "box-docker"),
        ("Box.Example.ORG", "box-docker"),
        ("my_host", "my-host-docker"),
        ("-", "localhost-docker"),
        ("", "localhost-docker"),
    ] {
        assert_eq!(default_node_name(hostname), name);
    }
}

proptest! {
    #[test]
    fn default_node_names_are_valid(hostname in ".*") {
        prop_assert!(subdomain(&default_node_name(&hostname)).is_ok());
    }
}

#[test]
fn a_text_that_names_no_image_is_refused() {
    for good in [
        "pause:3.10",
        "registry:5000/a/pause@sha256:1111111111111111111111111111111111111111111111111111111111111111",
    ] {
        assert_eq!(read(&image(), good), Ok(good.to_owned()));
    }
    for bad in ["UP:1", "", "a b", "a::b"] {
        let fault = read(&image(), bad).unwrap_err();
        assert!(fault.contains("invalid reference format"), "{bad}: {fault}");
    }
}

#[test]
fn values_that_mean_nothing_are_refused() {
    assert!(read(&url(), "ftp://x/").is_err());
    assert!(read(&url(), "https://").is_err());
    let fault = read(&url(), "https://me:hunter2@host/").unwrap_err();
    assert!(!fault.contains("hunter2"), "{fault}");
    let fault = read(&header(), "hunter2").unwrap_err();
    assert!(!fault.contains("hunter2"), "{fault}");
    assert!(read(&header(), "bad name: x").is_err());
    assert!(read(&header(), "A: b\r\nC: d").is_err());
    assert!(read(&docker(), "unix://").is_err());
    assert!(read(&docker(), "unix://run/d.sock").is_err());
    for address in ["ssh://box", "https://box:2376"] {
        let fault = read(&docker(), address).unwrap_err();
        assert!(fault.ends_with(UNENCRYPTED), "{fault}");
    }
    let fault = read(&docker(), "npipe://box").unwrap_err();
    assert!(
        fault.contains("is not the address of a Docker Engine"),
        "{fault}"
    );
    let socket = read(&docker(), "/run/d.sock");
    assert_eq!(socket.as_deref(), Ok("unix:///run/d.sock"));
    assert!(read(&cgroup(), "../x").is_err());
    assert!(subdomain("Box").is_err());
    assert!(subdomain("a..b").is_err());
    assert!(read(&address(), "10351").is_err());
    assert_eq!(read(&address().or(NONE), "none"), Ok(None));
    assert!(read(&number::<usize>("N", 1..=4), "0").is_err());
    assert!(read(&number::<u8>("N", 0..=255), "256").is_err());
    assert_eq!(read(&port(), "0"), Ok(None));
    assert!(read(&path("DIR"), "").is_err());
    assert_eq!(read(&path("DIR"), "a"), Ok(PathBuf::from("/w/a")));
    assert_eq!(read(&network(), "default"), Ok(None));
    assert!(read(&network(), "host").is_err());
}

#[test]
fn a_log_filter_has_levels_and_directives() {
    for good in ["off", "trace", "mirrorlet=debug", "warn,hyper::proto=info"] {
        assert_eq!(read(&log_filter(), good).as_deref(), Ok(good));
    }
    for (bad, words) in [
        ("warning", "did you mean warn?"),
        ("debgu", "did you mean debug?"),
        (
            "loud",
            "use off, error, warn, info, debug, trace, or TARGET=LEVEL",
        ),
        ("info,hyper", "\"hyper\" is not a log level"),
        ("hyper=inf", "\"inf\" is not a log level"),
        ("=info", "\"=info\" is not TARGET=LEVEL"),
        ("a=b=info", "\"a=b=info\" is not TARGET=LEVEL"),
        ("a b=info", "\"a b=info\" is not TARGET=LEVEL"),
        ("info,", "\"\" is not a log level"),
        ("", "\"\" is not a log level"),
    ] {
        let fault = read(&log_filter(), bad).unwrap_err();
        assert!(fault.contains(words), "{bad}: {fault}");
    }
}

#[test]
fn the_embedded_api_listens_on_loopback() {
    for good in ["127.0.0.1:0", "127.1.2.3:80", "[::1]:19355"] {
        assert!(read(&loopback_address(), good).is_ok(), "{good}");
    }
    let fault = read(&loopback_address(), "0.0.0.0:80").unwrap_err();
    let words = "0.0.0.0:80 is not a loopback address: use 127.0.0.1:80, or none";
    assert_eq!(fault, words);
}

#[test]
fn lists_take_commas_and_name_every_fault() {
    let kind = ip().list(',');
    let ips = read(&kind, "10.0.0.1, ::1").unwrap();
    assert_eq!(kind.show(&ips), ["10.0.0.1", "::1"]);
    let faults = read(&kind, "x,10.0.0.1,y").unwrap_err();
    assert_eq!(
        faults,
        "\"x\" is not an IP address; \"y\" is not an IP address"
    );
}

fn pattern(schema: &Value) -> regex::Regex {
    regex::Regex::new(schema["pattern"].as_str().unwrap()).unwrap()
}

#[test]
fn the_schema_of_a_duration_has_its_bounds() {
    let (ms, hour) = (Duration::from_millis, 3_600_000);
    for (from, to) in [(0, 50), (1000, 300_000), (5000, hour), (0, 24 * hour)] {
        let kind = period(ms(from), ms(to));
        let (whole, short) = (pattern(&kind.schema), kind.schema.get("not").map(pattern));
        let takes = |text: &str| {
            whole.is_match(text) && !short.as_ref().is_some_and(|short| short.is_match(text))
        };
        let near = [0, from, 59_999, hour, to].map(|at| at.saturating_sub(3)..at + 3);
        for number in near.into_iter().flatten() {
            for text in [format!("{number}ms"), duration::render(ms(number))] {
                let is_read = read(&kind, &text).is_ok();
                assert!(takes(&text) || !is_read, "{text}: from {from} to {to}");
            }
        }
        assert!(
            from == 0 || !takes(&duration::render(ms(from - 1))),
            "{from}"
        );
        for long in [
            format!("{}h", to / hour + 1),
            format!("{}m", to / 60_000 + 1),
        ] {
            assert!(!takes(&long), "{long}: to {to}");
        }
        for bad in ["10", "1.5s", "s", "1d"] {
            assert!(!takes(bad), "{bad}");
        }
    }
}

#[test]
fn the_schema_of_an_allowlist_takes_what_is_read() {
    let kind = allowed_images().list(',');
    let pattern = pattern(&kind.schema["items"]);
    for good in [
        "docker.io/library/nginx",
        "registry:5000/team/*",
        "a.b/c, d.e/f/*",
    ] {
        assert!(read(&kind, good).is_ok(), "{good}");
        assert!(pattern.is_match(good), "{good}");
    }
    for bad in ["", "nginx", "/*", "a/*/b", "*", "a.b/c d", "a.b/c,"] {
        assert!(read(&kind, bad).is_err(), "{bad}");
        assert!(!pattern.is_match(bad), "{bad}");
    }
}
