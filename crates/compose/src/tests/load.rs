//! Several files, what extends and includes others, and what is wrong with them.

use super::*;

pub(super) fn text_of(imported: &Imported) -> String {
    imported
        .files
        .iter()
        .map(|file| file.text.as_str())
        .collect()
}

/// The manifests of a base file with another file over it.
fn merged(base: &str, over: &str) -> String {
    let mut case = Case::new(&[("compose.yaml", base), ("over.yaml", over)]);
    case.options.files.push("/srv/shop/over.yaml".into());
    let imported = case.import();
    assert!(!imported.has_errors(), "{:#?}", lines(&imported));
    text_of(&imported)
}

#[test]
fn variables_of_an_included_file_are_those_of_its_directory() {
    let text = "include: [sub/inc.yaml]\nservices:\n  own: {image: i, environment: [A, HERE]}\n";
    let included = "services:\n  a:\n    image: i\n    environment: [A, HERE, GONE]\n    secrets: [s]\n    configs: [c]\nsecrets: {s: {environment: A}}\nconfigs: {c: {environment: HERE}}\n";
    let imported = Case::new(&[
        ("compose.yaml", text),
        (".env", "HERE=of-root\n"),
        ("sub/inc.yaml", included),
        ("sub/.env", "A=of-$$sub\nHERE=of-sub\n"),
    ])
    .import();
    assert!(!imported.has_errors(), "{:#?}", lines(&imported));
    let text = text_of(&imported);
    for (piece, times) in [
        ("- name: A\n          value: of-$sub\n", 1),
        ("- name: HERE\n          value: of-root\n", 2),
        ("s: of-$sub\n", 1),
        ("c: of-root\n", 1),
        ("of-sub", 0),
    ] {
        assert_eq!(text.matches(piece).count(), times, "{piece}\n{text}");
    }
    let said = lines(&imported);
    for field in ["services.own.environment.A", "services.a.environment.GONE"] {
        let words = format!("{field}: the variable isn't set here");
        assert!(said.iter().any(|line| line.contains(&words)), "{said:#?}");
    }
}

#[test]
fn files_are_merged_as_compose_merges_them() {
    let base = "services:\n  a:\n    image: img:1\n    command: [one, two]\n    environment: {A: 1, B: 2}\n    ports: ['80:80', '443:443']\n    volumes: ['./old:/d/', 'keep:/k']\n    cap_add: [NET_RAW]\n    labels: {l: old}\n    dns: [10.0.0.1]\n    tmpfs: /run\nvolumes: {keep: }\n";
    let over = "services:\n  a:\n    image: img:2\n    command: [three]\n    environment: [B=3, C=4]\n    ports: ['80:80', '8080:80']\n    volumes: ['./new:/d']\n    cap_add: [NET_RAW, CHOWN]\n    labels: [l=new]\n    dns: 10.0.0.2\n    tmpfs: ['/run:size=1m', /tmp]\nvolumes: {keep: {name: kept}}\n";
    let text = merged(base, over);
    for (piece, times) in [
        ("image: img:2", 1),
        ("- three", 1),
        ("- one", 0),
        ("- name: B\n          value: \"3\"", 1),
        ("- name: A\n", 1),
        ("hostPort: 80\n", 1),
        ("hostPort: 8080", 1),
        ("hostPort: 443", 1),
        ("path: /srv/shop/new", 1),
        ("/srv/shop/old", 0),
        ("mountPath: /k", 1),
        ("- NET_RAW", 1),
        ("- CHOWN", 1),
        ("l: new", 1),
        ("10.0.0.1", 1),
        ("10.0.0.2", 1),
        ("mountPath: /run", 1),
        ("sizeLimit: 1Mi", 1),
        ("mountPath: /tmp", 1),
        ("volume-name: kept", 1),
    ] {
        assert_eq!(text.matches(piece).count(), times, "{piece}\n{text}");
    }
    let tags = "services:\n  a:\n    ports: !override ['9:9']\n    environment: !reset {}\n    command: !reset null\n    cap_add: !reset []\n";
    let text = merged(base, tags);
    assert!(
        text.contains("hostPort: 9\n") && !text.contains("hostPort: 80\n"),
        "{text}"
    );
    for gone in ["name: A\n", "- one", "NET_RAW"] {
        assert!(!text.contains(gone), "{gone}\n{text}");
    }
}

/// The first case is `Test_VolumeUnicity` of compose-go's `override/uncity_test.go`.
#[test]
fn of_mounts_at_one_path_in_a_list_the_last_counts_and_a_note_names_the_others() {
    let beside = "volumes: {foo: {}, src: {}}\nconfigs: {c: {content: one}, d: {content: two}}\n";
    for (keys, noted, kept, gone) in [
        (
            "volumes: ['.:/foo', 'foo:/bar', 'src:/foo']",
            &["compose.yaml:4:15: services.a.volumes: "][..],
            &["claimName: src", "claimName: foo"][..],
            &["hostPath"][..],
        ),
        (
            "volumes: ['foo:/d', './x:/d/', {type: tmpfs, target: /d}]",
            &[
                "compose.yaml:4:15: services.a.volumes: ",
                "compose.yaml:4:25: services.a.volumes: ",
            ],
            &["medium: Memory"],
            &["hostPath", "claimName"],
        ),
        (
            "tmpfs: ['/t:size=1m', '/t:size=2m']",
            &["compose.yaml:4:13: services.a.tmpfs: "],
            &["sizeLimit: 2Mi"],
            &["sizeLimit: 1Mi"],
        ),
        (
            "configs: [{source: c, target: /e}, {source: d, target: /e}]",
            &["compose.yaml:4:"],
            &["mountPath: /e", "d: two"],
            &["c: one"],
        ),
        // The same twice says nothing else.
        (
            "volumes: ['foo:/d', 'foo:/d']",
            &[],
            &["claimName: foo"],
            &["hostPath"],
        ),
    ] {
        let text = format!(
            "services:\n  a:\n    image: i\n    {keys}\n    restart: always\n  b:\n    extends: a\n{beside}"
        );
        let imported = Case::new(&[("compose.yaml", &text)]).import();
        assert!(!imported.has_errors(), "{:#?}", lines(&imported));
        assert_eq!(rejected(&imported), Vec::<String>::new(), "{text}");
        let notes: Vec<String> = imported.notes.iter().map(ToString::to_string).collect();
        assert_eq!(notes.len(), noted.len(), "{notes:#?}");
        for (note, place) in notes.iter().zip(noted) {
            assert!(note.starts_with(place), "{notes:#?}");
            assert!(note.contains("the same path"), "{notes:#?}");
        }
        let all = text_of(&imported);
        for piece in kept {
            assert!(all.contains(piece), "{piece}\n{all}");
        }
        for piece in gone {
            assert!(!all.contains(piece), "{piece}\n{all}");
        }
    }
}

#[test]
fn a_service_extends_others_over_several_files() {
    let case = Case::new(&[
        (
            "compose.yaml",
            "services:\n  web:\n    extends: {service: mid, file: lib/mid.yaml}\n    environment: {C: 3}\n  other:\n    extends: web\n    command: [x]\n",
        ),
        (
            "lib/mid.yaml",
            "services:\n  mid:\n    extends: {service: base, file: deep/base.yaml}\n    environment: {B: 2}\n    env_file: mid.env\n",
        ),
        (
            "lib/deep/base.yaml",
            "services:\n  base:\n    image: img:1\n    environment: {A: 1, B: 1, C: 1}\n    volumes: ['.:/here']\n",
        ),
        ("lib/mid.env", "D=4\n"),
    ]);
    let imported = case.import();
    let text = text_of(&imported);
    assert_eq!(lines(&imported), Vec::<String>::new());
    assert_eq!(
        text.matches("path: /srv/shop/lib/deep\n").count(),
        2,
        "{text}"
    );
    for (variable, value) in [("A", 1), ("B", 2), ("C", 3)] {
        let piece = format!("name: {variable}\n          value: \"{value}\"");
        assert_eq!(text.matches(&piece).count(), 2, "{piece}\n{text}");
    }
    assert!(text.contains("D: \"4\""), "{text}");
}

#[test]
fn what_is_wrong_has_its_file_and_line() {
    let mut wrong = Vec::new();
    let one = |text: &str| format!("services:\n  a:\n    image: i\n    {text}\n");
    for (text, expected) in [
        ("services: [".to_owned(), "compose.yaml:1:"),
        (
            "a: 1\na: 2\n".to_owned(),
            "compose.yaml:2:1: this mapping has the same key twice",
        ),
        (
            "- a\n".to_owned(),
            "a compose file must be a mapping with services",
        ),
        (String::new(), "the project has no services"),
        (
            "a: 1\n---\nb: 2\n".to_owned(),
            "a compose file must have only one YAML document",
        ),
        (
            "services:\n  a: {}\n".to_owned(),
            "compose.yaml:2:3: services.a: a service needs an image",
        ),
        (
            one("extends: b"),
            "compose.yaml:4:14: extends: extends a service that doesn't exist: b",
        ),
        (
            one("extends: a"),
            "compose.yaml:4:5: extends: a service extends itself",
        ),
        (
            one("extends: {service: b, file: gone.yaml}"),
            "the file gone.yaml does not exist",
        ),
        (
            one("env_file: gone.env"),
            "compose.yaml:4:15: the file gone.env does not exist",
        ),
        (
            one("env_file: bad.env"),
            "bad.env: line 2: this is not a variable",
        ),
        (
            one("command: ${NEEDED:?set it}"),
            "compose.yaml:4:14: the variable NEEDED must be set: set it",
        ),
        (
            one("command: $"),
            "compose.yaml:4:14: this is not a valid variable expression",
        ),
        (
            one("ports: [http]"),
            "compose.yaml:4:13: this is not a port",
        ),
        (
            one("volumes: ['a:/b']"),
            "compose.yaml:4:15: services.a.volumes: the volume a is not defined below volumes",
        ),
        (
            one("configs: [c]"),
            "services.a.configs: c is not defined below configs",
        ),
        (
            one("mem_limit: many"),
            "services.a.mem_limit: this is not a size",
        ),
        (
            one("cpus: many"),
            "services.a.cpus: this is not a number of CPUs",
        ),
        (one("stop_grace_period: soon"), "this is not a duration"),
        (one("healthcheck: {test: [x]}"), "the list must begin with CMD"),
        (
            one("healthcheck: {test: a, interval: x}"),
            "healthcheck.interval: this is not a duration",
        ),
        (one("restart: sometimes"), "this is not a restart policy"),
        (
            one("volumes: ['v:/v']\nvolumes: {v: {driver: local, driver_opts: {type: nfs, o: addr=h, device: ':/e x'}}}"),
            "volumes.v.driver_opts.device: an option of a claim's volume can't have spaces: create the volume",
        ),
        (
            one("volumes: ['v:/v']\nvolumes: {v: {driver_opts: {type: none, o: 'bind, ro', device: /e}}}"),
            "volumes.v.driver_opts.o: an option of a claim's volume can't have spaces",
        ),
        (one("extra_hosts: [a]"), "this is not NAME=ADDRESS"),
        (one("extra_hosts: ['a:b']"), "this is not an IP address"),
        (one("command: a 'b"), "a quote of the command is not closed"),
        (
            one("secrets: [s]\nsecrets: {s: {file: gone}}"),
            "compose.yaml:5:11: the file gone does not exist",
        ),
        (
            one("secrets: [s]\nsecrets: {s: {environment: GONE}}"),
            "the variable GONE isn't set",
        ),
        (
            one("secrets: [s]\nsecrets: {s: {}}"),
            "has neither file, environment nor content",
        ),
        (
            "services: {a: {image: i}, A: {image: i}}\n".to_owned(),
            "the name in Kubernetes, a, is already that of the service a",
        ),
        (
            "include: [inc.yaml]\nservices: {b: {image: own}}\n".to_owned(),
            "an included file defines this with different content",
        ),
        (
            "include: [gone.yaml]\nservices: {b: {image: own}}\n".to_owned(),
            "compose.yaml:1:11: the file gone.yaml does not exist",
        ),
        (
            "services:\n  a: {image: i, network_mode: 'service:b'}\n  b: {image: i, network_mode: 'service:a'}\n"
                .to_owned(),
            "compose.yaml:2:3: services.a.network_mode: network_mode leads back to this service: one of these services needs a network of its own",
        ),
        (
            "include: [compose.yaml]\n".to_owned(),
            "files include one another too deeply",
        ),
    ] {
        let case = Case::new(&[
            ("compose.yaml", &text),
            ("bad.env", "A=1\nno variable\n"),
            ("inc.yaml", "services: {b: {image: i}}\n"),
        ]);
        let imported = case.import();
        let said = lines(&imported);
        let is_told = said.iter().any(|line| line.contains(expected));
        if !(imported.has_errors() && imported.files.is_empty() && is_told) {
            wrong.push(format!("{text}: {expected}: {said:#?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_value_that_cannot_be_read_is_told_how_to_write_it() {
    for (key, help) in [
        ("stop_grace_period: soon", "1m30s"),
        ("healthcheck: {test: a, interval: x}", "1m30s"),
        ("healthcheck: {test: [x]}", "write CMD before"),
        ("mem_limit: many", "512m"),
        ("shm_size: many", "512m"),
        ("cpus: many", "0.5"),
        ("restart: sometimes", "write no, always, unless-stopped or"),
        ("extra_hosts: [a]", "db=10.0.0.5"),
        ("extra_hosts: ['a:b']", "db=10.0.0.5"),
        ("expose: [http]", "53/udp"),
        ("command: a 'b", "as a list"),
        ("volumes: ['a:/b']", "define it below volumes"),
        ("configs: [c]", "define it below configs"),
    ] {
        let text = format!("services:\n  a:\n    image: i\n    {key}\n");
        let imported = Case::new(&[("compose.yaml", &text)]).import();
        let mut errors = imported.problems.iter().filter(|one| one.is_error());
        let told = errors.any(|one| one.help.as_ref().is_some_and(|words| words.contains(help)));
        assert!(told, "{key}: {:?}", imported.problems);
    }
}

#[test]
fn values_are_in_no_message() {
    let secret = "hunter2hunter2";
    let text = format!(
        "services:\n  a:\n    image: i\n    environment: {{PASSWORD: {secret}, B: $UNSET-{secret}}}\n    env_file: e.env\n    labels: ['[{secret}']\n    secrets: [s, t]\n    user: name\nsecrets: {{s: {{environment: P}}, t: {{file: e.env}}}}\n"
    );
    let mut case = Case::new(&[("compose.yaml", &text), ("e.env", &format!("A={secret}\n"))]);
    case.options
        .environment
        .insert("P".to_owned(), secret.to_owned());
    let imported = case.import();
    let said = lines(&imported);
    // The name of a label is none.
    let leaks: Vec<_> = said
        .iter()
        .filter(|line| line.contains(secret) && !line.contains("labels"))
        .collect();
    // box 4
    assert_eq!(leaks, Vec::<&String>::new());
    assert!(!said.is_empty());
    for file in imported.files.iter().filter(|file| file.is_secret) {
        assert_eq!(file.name, "shop.secrets.yaml");
    }
    // A broken file is not quoted either.
    for broken in [
        format!("a: [\"{secret}\n"),
        format!("a: {secret}: {secret}\n"),
    ] {
        let said = lines(&Case::new(&[("compose.yaml", &broken)]).import());
        assert!(
            !said.is_empty() && !said.concat().contains(secret),
            "{said:?}"
        );
    }
}

#[test]
fn names_profiles_and_namespaces_are_those_asked_for() {
    let text = "name: ${PROJECT:-fallback}\nservices:\n  a: {image: i, volumes: ['dd:/d']}\n  b: {image: i, profiles: [debug]}\n  c: {image: i, profiles: [x, y]}\nvolumes: {dd: {}}\n";
    let mut case = Case::new(&[
        ("compose.yaml", text),
        (
            ".env",
            "PROJECT=shop2\nCOMPOSE_PROFILES=debug\nCOMPOSE_FILE=other.yaml\n",
        ),
    ]);
    let imported = case.import();
    assert_eq!(imported.services, 2);
    let is_told = |line: &String| line.contains("COMPOSE_FILE is not read");
    assert!(lines(&imported).iter().any(is_told));
    assert!(text_of(&imported).contains("volume-name: shop2_dd"));
    assert_eq!(
        lines(&imported)
            .iter()
            .filter(|line| line.contains("left out"))
            .count(),
        1
    );
    case.options.profiles.insert("*".to_owned());
    case.options.project_name = Some("My Shop".to_owned());
    case.options.namespace = Some("shop".to_owned());
    let imported = case.import();
    assert_eq!(imported.services, 3);
    let text = text_of(&imported);
    assert!(text.contains("volume-name: myshop_dd"), "{text}");
    assert_eq!(text.matches("namespace: shop\n").count(), 7, "{text}");
    assert_eq!(rejected(&imported), Vec::<String>::new());
}

#[test]
fn no_service_is_dropped_whatever_waits_for_and_joins_what() {
    let condition = "{condition: service_completed_successfully}";
    let names = ["a", "b", "c"];
    let relations = |other: &str| {
        [
            String::new(),
            format!(", depends_on: {{{other}: {condition}}}"),
            format!(", network_mode: 'service:{other}'"),
        ]
    };
    for case in 0..27 * 8 {
        let mut links = [None; 3];
        let written = names.iter().enumerate().map(|(index, name)| {
            let power = u32::try_from(index).unwrap();
            let relation = case % 27 / 3_usize.pow(power) % 3;
            let step = 1 + case / 27 / 2_usize.pow(power) % 2;
            let other = (index + step) % 3;
            links[index] = (relation == 2).then_some(other);
            let relation = &relations(names[other])[relation];
            format!("  {name}: {{image: i{relation}}}\n")
        });
        let text = format!("services:\n{}", written.collect::<String>());
        let end = |start: usize| (0..3).try_fold(start, |at, _| links[at]);
        let has_circle = (0..3).any(|start| end(start).is_some());
        let imported = Case::new(&[("compose.yaml", &text)]).import();
        assert_eq!(imported.has_errors(), has_circle, "{text}");
        let all = text_of(&imported);
        for name in names.iter().filter(|_| !has_circle) {
            let container = format!("- name: {name}\n");
            assert_eq!(all.matches(&container).count(), 1, "{text}{all}");
        }
        assert_eq!(rejected(&imported), Vec::<String>::new(), "{text}");
    }
}

#[test]
fn services_share_pods_where_compose_joins_them() {
    let text = "services:\n  vpn: {image: vpn, ports: ['8080:80'], cap_add: [NET_ADMIN]}\n  torrent: {image: t, network_mode: 'service:vpn', depends_on: [vpn]}\n  migrate: {image: m, depends_on: [db]}\n  web: {image: w, depends_on: {migrate: {condition: service_completed_successfully}, db: {condition: service_started}}}\n  db: {image: d}\n  seed: {image: s}\n  one: {image: o, depends_on: {seed: {condition: service_completed_successfully}}}\n  two: {image: o, depends_on: {seed: {condition: service_completed_successfully}}}\n";
    let imported = Case::new(&[("compose.yaml", text)]).import();
    let all = text_of(&imported);
    assert_eq!(rejected(&imported), Vec::<String>::new());
    let file = |name: &str| {
        let found = imported.files.iter().find(|file| file.name == name);
        &found.unwrap_or_else(|| panic!("{name}\n{all}")).text
    };
    let vpn = file("vpn.yaml");
    assert!(
        vpn.contains("- name: vpn\n") && vpn.contains("- name: torrent\n"),
        "{vpn}"
    );
    assert!(vpn.contains("metadata:\n  name: torrent\n"), "{vpn}");
    let web = file("web.yaml");
    assert!(
        web.contains("initContainers:\n      - name: migrate\n"),
        "{web}"
    );
    // Several wait for it: it is done once.
    let seed = file("seed.yaml");
    assert!(seed.contains("kind: Job\n"), "{seed}");
    assert!(seed.contains("restartPolicy: OnFailure"), "{seed}");
    let waits: Vec<String> = lines(&imported);
    let fields = [
        ("torrent.depends_on.vpn", "containers of one pod start"),
        ("migrate.depends_on.db", "all pods start"),
        ("web.depends_on.db", "all pods start"),
        ("one.depends_on.seed", "all pods start"),
        ("two.depends_on.seed", "all pods start"),
    ];
    assert_eq!(waits.len(), fields.len(), "{waits:#?}");
    for (field, why) in fields {
        let piece = format!("services.{field}: not carried over: {why}");
        assert!(
            waits.iter().any(|line| line.contains(&piece)),
            "{field}: {waits:#?}"
        );
    }
}

#[test]
fn a_container_that_waits_for_another_one_of_its_pod_is_reported() {
    let join = "network_mode: 'service:vpn'";
    for (condition, how) in [
        (
            "service_healthy",
            " with restartPolicy: Always and a startupProbe",
        ),
        ("service_started", " with restartPolicy: Always"),
        ("service_completed_successfully", ""),
    ] {
        // The one that runs the pod, and one that joins it, too.
        for other in ["vpn", "side"] {
            let text = format!(
                "services:\n  vpn: {{image: v, healthcheck: {{test: x}}}}\n  side: {{image: s, {join}}}\n  app: {{image: a, {join}, depends_on: {{{other}: {{condition: {condition}}}}}}}\n"
            );
            let imported = Case::new(&[("compose.yaml", &text)]).import();
            assert_eq!(rejected(&imported), Vec::<String>::new(), "{text}");
            let [problem] = &imported.problems[..] else {
                panic!("{:#?}", imported.problems);
            };
            let line = problem.to_string();
            let why = format!(
                "services.app.depends_on.{other}: not carried over: containers of one pod start at the same time, so app doesn't wait for {other}"
            );
            assert!(line.starts_with("compose.yaml:4:"), "{line}");
            assert!(line.contains(&why), "{line}");
            let help = format!("to have it wait, make {other} an init container{how}");
            assert_eq!(problem.help.as_deref(), Some(help.as_str()));
        }
    }
}

/// Texts that YAML, a shell or Kubernetes might take for something else.
const NASTY: [&str; 34] = [
    "",
    " a",
    "a ",
    "a: b",
    "- x",
    "#c",
    "a #c",
    "yes",
    "null",
    "~",
    "1e3",
    "0x1f",
    "010",
    "1_000",
    "2026-01-01",
    "two\nlines\n",
    "\n",
    "a\n\n  b\n\n",
    "tab\t",
    "it's",
    "say \"x\"",
    "{}",
    "[a",
    "*a",
    "&b",
    "!t",
    "%d",
    "@x",
    "`y`",
    "back\\slash",
    "schön \u{1f600}",
    ":",
    "<<",
    "12:30:45",
];

#[test]
fn values_arrive_as_they_were_written() {
    let node_name = NodeName::from("box");
    for nasty in NASTY {
        let text = serde_json::to_string(nasty).unwrap();
        let compose = format!(
            "services:\n  a:\n    image: i\n    environment: {{V: {text}}}\n    command: [x, {text}]\n    labels: {{l: {text}}}\n    configs: [c]\nconfigs: {{c: {{content: {text}}}}}\n"
        );
        let imported = Case::new(&[("compose.yaml", &compose)]).import();
        assert_eq!(rejected(&imported), Vec::<String>::new(), "{text}");
        let mut found = Vec::new();
        for file in &imported.files {
            let ctx = ParseContext {
                node_name: &node_name,
                source: PodSource::File,
                location: &file.name,
            };
            for document in parse_manifest(file.text.as_bytes(), &ctx).documents {
                for pod in document.pods() {
                    let container = &pod.spec.as_ref().unwrap().containers[0];
                    found.push(
                        container.env.as_ref().unwrap()[0]
                            .value
                            .clone()
                            .unwrap_or_default(),
                    );
                    found.push(container.args.as_ref().unwrap()[1].clone());
                    found.push(pod.metadata.annotations.as_ref().unwrap()["l"].clone());
                }
            }
        }
        // box 14
        assert_eq!(found, [nasty; 3], "{text}");
        let config = imported
            .files
            .iter()
            .find(|file| file.name == "shop.configs.yaml");
        let config: serde_json::Value = serde_saphyr::from_str(&config.unwrap().text).unwrap();
        assert_eq!(config["data"]["c"], nasty);
    }
}
