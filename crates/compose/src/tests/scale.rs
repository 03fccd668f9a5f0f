//! Services of which compose starts no container, or several, and several in one pod.

use super::*;

/// The text of a file of an import; empty without the file.
fn file<'a>(imported: &'a Imported, name: &str) -> &'a str {
    let mut files = imported.files.iter();
    let found = files.find(|file| file.name == name);
    found.map_or("", |file| file.text.as_str())
}

#[test]
fn a_service_of_scale_zero_runs_nothing_and_nobody_waits_for_it() {
    let (completed, healthy) = ("service_completed_successfully", "service_healthy");
    for (keys, condition, piece) in [
        ("scale: 0", completed, "suspend: true\n"),
        ("deploy: {replicas: 0}", completed, "suspend: true\n"),
        ("restart: 'no', scale: 0", completed, "suspend: true\n"),
        ("restart: always, scale: 0", completed, "replicas: 0\n"),
        ("scale: 0", healthy, "replicas: 0\n"),
        ("deploy: {mode: global}, scale: 0", healthy, "replicas: 0\n"),
        ("scale: 0", "service_started", "replicas: 0\n"),
    ] {
        let text = format!(
            "services:\n  seed: {{image: s, {keys}}}\n  web: {{image: w, depends_on: {{seed: {{condition: {condition}}}}}}}\n"
        );
        let imported = Case::new(&[("compose.yaml", &text)]).import();
        let seed = file(&imported, "seed.yaml");
        // box 14
        assert!(seed.contains(piece), "{text}{seed}");
        assert!(
            !file(&imported, "web.yaml").contains("image: s\n"),
            "{text}"
        );
        assert_eq!(lines(&imported), Vec::<String>::new(), "{text}");
        assert_eq!(rejected(&imported), Vec::<String>::new(), "{text}");
    }
    let text = "services: {once: {image: i, restart: 'no', scale: 0}}\n";
    let imported = Case::new(&[("compose.yaml", text)]).import();
    let once = file(&imported, "once.yaml");
    assert!(!once.contains("image: i\n"), "{once}");
}

#[test]
fn a_pod_has_the_longest_grace_period_that_compose_gives_one_of_its_services() {
    let of = |seconds: &str| format!("stop_grace_period: {seconds}");
    for (owner, joined, expected) in [
        (of("1s"), None, 1),
        (of("0s"), None, 0),
        ("tty: false".to_owned(), None, 10),
        (of("1s"), Some("tty: false".to_owned()), 10),
        ("tty: false".to_owned(), Some(of("1s")), 10),
        (of("1s"), Some(of("2s")), 2),
        ("tty: false".to_owned(), Some(of("1m")), 60),
    ] {
        let joined =
            joined.map(|keys| format!(", side: {{image: s, network_mode: 'service:web', {keys}}}"));
        let text = format!(
            "services: {{web: {{image: w, {owner}}}{}}}\n",
            joined.unwrap_or_default()
        );
        let imported = Case::new(&[("compose.yaml", &text)]).import();
        let web = file(&imported, "web.yaml");
        let grace = format!("terminationGracePeriodSeconds: {expected}\n");
        assert!(web.contains(&grace), "{text}{web}");
        assert_eq!(rejected(&imported), Vec::<String>::new(), "{text}");
    }
}

#[test]
fn a_service_joins_a_pod_as_often_as_there_are_pods_or_is_reported() {
    let left = "services.side.network_mode: not carried over: with a scale of 0 the service is left out of web's pod";
    for (owner, joined, is_inside, expected) in [
        ("tty: false", "tty: false", true, None),
        ("scale: 2", "deploy: {replicas: 2}", true, None),
        ("tty: false", "scale: 0", false, Some(left)),
        ("scale: 0", "deploy: {replicas: 0}", false, Some(left)),
        (
            "tty: false",
            "scale: 2",
            true,
            Some(
                "the scale of 2: each pod of web has one container of this service, and web has a scale of 1",
            ),
        ),
        (
            "scale: 3",
            "tty: false",
            true,
            Some(
                "the scale of 1: each pod of web has one container of this service, and web has a scale of 3",
            ),
        ),
    ] {
        let text = format!(
            "services:\n  web: {{image: w, {owner}}}\n  side: {{image: s, network_mode: 'service:web', {joined}}}\n"
        );
        let imported = Case::new(&[("compose.yaml", &text)]).import();
        assert_eq!(rejected(&imported), Vec::<String>::new(), "{text}");
        let web = file(&imported, "web.yaml");
        assert_eq!(web.contains("image: s\n"), is_inside, "{text}{web}");
        let side = file(&imported, "side.yaml");
        assert_eq!(side.contains("replicas: 0\n"), !is_inside, "{text}{side}");
        let said = lines(&imported);
        assert_eq!(said.len(), usize::from(expected.is_some()), "{said:#?}");
        let is_right = expected
            .is_none_or(|words| said[0].starts_with("compose.yaml:3:") && said[0].contains(words));
        assert!(is_right, "{said:#?}");
    }
}
