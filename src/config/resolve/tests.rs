use super::*;
use crate::config::ApiAccess;

/// Four valid values of each setting, one for each rung but the default.
fn samples(key: Key) -> [&'static str; 3] {
    match key {
        Key::Root
        | Key::Manifests
        | Key::ManifestUrlCa
        | Key::DockerConfig
        | Key::ResolvConf
        | Key::PodLogsDir
        | Key::ClientCaFile
        | Key::HostRoot => ["/flag", "/env", "/file"],
        Key::ManifestUrls => ["http://flag/", "http://env/", "http://file/"],
        Key::ManifestUrlHeaders => ["Flag: 1", "Env: 2", "File: 3"],
        Key::UrlPeriod | Key::RescanPeriod | Key::SweepPeriod | Key::MaxContainerBackoff => {
            ["11s", "12s", "13s"]
        }
        Key::Settle => ["1ms", "2ms", "3ms"],
        Key::Docker => ["unix:///flag", "unix:///env", "unix:///file"],
        Key::NodeName
        | Key::ClusterDomain
        | Key::Network
        | Key::CgroupRoot
        | Key::PodInfraImage => ["flag", "env", "file"],
        Key::NodeIps | Key::ClusterDns => ["10.0.0.1", "10.0.0.2", "10.0.0.3"],
        Key::Kubeconfig => ["/flag", "in-cluster", "none"],
        Key::NodeLabels => ["a=flag", "a=env", "a=file"],
        Key::RegisterWithTaints => ["a=flag:NoSchedule", "none", "a:NoExecute"],
        Key::SystemReserved => ["cpu=1m", "memory=2Gi", "ephemeral-storage=3Mi"],
        Key::ContainerLogMaxSize => ["1Mi", "64Ki", "none"],
        Key::ContainerLogMaxFiles => ["2", "3", "4"],
        Key::MaxPods
        | Key::PodMetricsMax
        | Key::ImageGcLowThreshold
        | Key::EvictionMaxPodGracePeriod => ["1", "2", "3"],
        Key::MetricsAddress | Key::ApiAddress => ["127.0.0.1:1", "127.0.0.1:2", "none"],
        Key::NodeApiAddress => ["10.0.0.1", "::", "127.0.0.1"],
        Key::NodeApiPort => ["1", "0", "65535"],
        // None can be set alone: see below.
        Key::TlsCertFile
        | Key::TlsPrivateKeyFile
        | Key::BootstrapKubeconfig
        | Key::EvictionSoft
        | Key::PreloadedImagesVerificationAllowlist => ["", "", ""],
        Key::EvictionHard => ["memory.available<1Mi", "nodefs.available<12.5%", "none"],
        Key::EvictionSoftGracePeriod => [
            "pid.available=1m",
            "memory.available=2s",
            "imagefs.available=3h",
        ],
        Key::EvictionMinimumReclaim => [
            "memory.available=1Mi",
            "nodefs.available=5%",
            "nodefs.inodesFree=10",
        ],
        Key::EvictionPressureTransitionPeriod => ["1s", "2m", "0s"],
        Key::ImagePullCredentialsVerificationPolicy => {
            ["AlwaysVerify", "NeverVerify", "NeverVerifyPreloadedImages"]
        }
        Key::EngineConcurrency | Key::PullConcurrency => ["1", "2", "4"],
        Key::ImageGc => ["pulled", "all", "off"],
        Key::ImageGcHighThreshold => ["97", "98", "99"],
        Key::MinimumImageTtlDuration | Key::MaximumImageGcAge => ["1m", "2m", "3m"],
        Key::MinimumContainerTtlDuration => ["1s", "2m", "3h"],
        Key::MaximumDeadContainersPerContainer => ["-1", "0", "2"],
        Key::MaximumDeadContainers => ["0", "-1", "240"],
        Key::RotateServerCertificates
        | Key::SerializeImagePulls
        | Key::SeccompDefault
        | Key::PodNames
        | Key::Dns
        | Key::RolloutRestore => ["true", "false", "true"],
        Key::LogFormat => ["text", "json", "text"],
        Key::LogLevel => ["trace", "debug", "warn"],
    }
}

fn file_with(key: Key, value: &str) -> LocatedFile {
    let row = key.row();
    let text = match row.arity {
        Arity::One => format!("{}: {value}\n", row.name),
        Arity::Many(_) => format!("{}: [\"{value}\"]\n", row.name),
    };
    LocatedFile::parse("c.yaml", &text).unwrap()
}

fn expect(key: Key, value: &str) -> Vec<String> {
    match key {
        Key::ManifestUrlHeaders => {
            let (name, _) = value.split_once(':').unwrap();
            vec![format!("{name}: <redacted>")]
        }
        _ => vec![value.to_owned()],
    }
}

#[test]
fn flag_beats_env_beats_file_beats_default_for_every_key() {
    let plain = Ambient {
        hostname: "Box".to_owned(),
        cwd: "/".into(),
        ..Ambient::default()
    };
    let default = resolve(&BTreeMap::new(), None, &plain).unwrap();
    let paired = [
        Key::TlsCertFile,
        Key::TlsPrivateKeyFile,
        Key::BootstrapKubeconfig,
        Key::PreloadedImagesVerificationAllowlist,
        Key::EvictionSoft,
    ];
    for row in ROWS.iter().filter(|row| !paired.contains(&row.key)) {
        let key = row.key;
        let [flag, env, file] = samples(key);
        let flags = BTreeMap::from([(key, Setting(vec![flag.to_owned()]))]);
        let mut with_env = plain.clone();
        with_env.env.insert(row.env.to_owned(), env.to_owned());
        let in_file = file_with(key, file);
        let none = BTreeMap::new();
        for (flags, ambient, file, value, origin) in [
            (
                &flags,
                &with_env,
                Some(&in_file),
                expect(key, flag),
                Origin::Flag,
            ),
            (
                &none,
                &with_env,
                Some(&in_file),
                expect(key, env),
                Origin::Env(row.env.to_owned()),
            ),
            (
                &none,
                &plain,
                Some(&in_file),
                expect(key, file),
                Origin::File("c.yaml:1".to_owned()),
            ),
            (
                &none,
                &plain,
                None,
                default.config.shown(key),
                Origin::Default,
            ),
        ] {
            let resolved = resolve(flags, file, ambient).unwrap();
            assert_eq!(resolved.config.shown(key), value, "{} {origin}", row.name);
            assert_eq!(resolved.provenance[&key], origin, "{}", row.name);
            for other in ROWS.iter().filter(|other| other.key != key) {
                assert_eq!(resolved.provenance[&other.key], Origin::Default);
            }
        }
    }
}

/// Resolves these flags alone.
fn given(settings: &[(Key, &str)]) -> Result<Resolved, ConfigFaults> {
    let flags = settings
        .iter()
        .map(|(key, value)| (*key, Setting(vec![(*value).to_owned()])))
        .collect();
    resolve(&flags, None, &Ambient::default())
}

#[test]
fn the_node_apis_certificate_has_one_origin_and_its_key() {
    let (cert, key, rotate) = (
        (Key::TlsCertFile, "/c"),
        (Key::TlsPrivateKeyFile, "/k"),
        (Key::RotateServerCertificates, "true"),
    );
    for good in [vec![], vec![rotate], vec![cert, key]] {
        assert!(given(&good).is_ok(), "{good:?}");
    }
    for (settings, words) in [
        (
            vec![cert],
            "--tls-cert-file: requires --tls-private-key-file",
        ),
        (
            vec![key],
            "--tls-private-key-file: requires --tls-cert-file",
        ),
        (
            vec![cert, key, rotate],
            "--rotate-server-certificates: can't be combined with --tls-cert-file",
        ),
        (
            vec![key, rotate],
            "--tls-private-key-file: requires --tls-cert-file\n\
             --rotate-server-certificates: can't be combined with --tls-private-key-file",
        ),
    ] {
        assert_eq!(given(&settings).unwrap_err().to_string(), words);
    }
}

#[test]
fn a_dns_server_of_ours_and_one_of_a_cluster_are_refused_together() {
    let dns = (Key::Dns, "true");
    let no_cluster = (Key::Kubeconfig, "none");
    for good in [
        vec![dns],
        vec![dns, no_cluster],
        vec![(Key::Dns, "false"), (Key::Kubeconfig, "/k")],
    ] {
        assert!(given(&good).is_ok(), "{good:?}");
    }
    for (other, words) in [
        (
            (Key::ClusterDns, "10.96.0.10"),
            "--dns: can't be combined with --cluster-dns",
        ),
        (
            (Key::Kubeconfig, "/k"),
            "--dns: can't be combined with --kubeconfig",
        ),
    ] {
        // names 19
        assert_eq!(given(&[dns, other]).unwrap_err().to_string(), words);
    }
}

#[test]
fn a_pair_of_settings_is_named_as_it_was_written() {
    let flags = BTreeMap::new();
    let env = |settings: &[(&str, &str)]| Ambient {
        env: settings
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect(),
        ..Ambient::default()
    };
    let cert = ("MIRRORLET_TLS_CERT_FILE", "/c");
    let told = |ambient: &Ambient, file: Option<&LocatedFile>| {
        resolve(&flags, file, ambient).unwrap_err().to_string()
    };
    assert_eq!(
        told(&env(&[cert]), None),
        "MIRRORLET_TLS_CERT_FILE: requires MIRRORLET_TLS_PRIVATE_KEY_FILE"
    );
    let file = LocatedFile::parse("/m.yaml", "tlsCertFile: /c\n").unwrap();
    assert_eq!(
        told(&Ambient::default(), Some(&file)),
        "/m.yaml:1: tlsCertFile: requires tlsPrivateKeyFile"
    );
    // Each of them where it stands.
    let file = LocatedFile::parse("/m.yaml", "tlsPrivateKeyFile: /k\n").unwrap();
    let ambient = env(&[cert, ("MIRRORLET_ROTATE_SERVER_CERTIFICATES", "true")]);
    assert_eq!(
        told(&ambient, Some(&file)),
        "MIRRORLET_ROTATE_SERVER_CERTIFICATES: can't be combined with MIRRORLET_TLS_CERT_FILE"
    );
    let soft = env(&[("MIRRORLET_EVICTION_SOFT", "memory.available<1Gi")]);
    assert_eq!(
        told(&soft, None),
        "MIRRORLET_EVICTION_SOFT: requires MIRRORLET_EVICTION_SOFT_GRACE_PERIOD with a time for memory.available"
    );
}

#[test]
fn the_list_of_images_needs_the_policy_that_reads_it() {
    let policy = Key::ImagePullCredentialsVerificationPolicy;
    let list = (Key::PreloadedImagesVerificationAllowlist, "r.io/*,r.io/app");
    let config = given(&[(policy, "NeverVerifyAllowlistedImages"), list]).unwrap();
    let shown = config.config.shown(list.0);
    assert_eq!(shown, ["r.io/*", "r.io/app"]);
    for other in [vec![list], vec![(policy, "AlwaysVerify"), list]] {
        let fault = given(&other).unwrap_err().to_string();
        let words = "--preloaded-images-verification-allowlist: requires \
                     --image-pull-credentials-verification-policy NeverVerifyAllowlistedImages";
        assert_eq!(fault, words);
    }
}

#[test]
fn variables_that_begin_as_ours_do_mean_something() {
    let given_as = |names: &[&str], value: &str| {
        let env = names
            .iter()
            .map(|name| ((*name).to_owned(), value.to_owned()));
        let ambient = Ambient {
            env: env.collect(),
            ..Ambient::default()
        };
        resolve(&BTreeMap::new(), None, &ambient)
    };
    let given = |names: &[&str]| given_as(names, "x");
    let faults = given(&["MIRRORLET_SETLE", "MIRRORLET_QQ"]).unwrap_err();
    assert_eq!(
        faults.to_string(),
        "MIRRORLET_QQ: unknown setting\nMIRRORLET_SETLE: unknown setting; did you mean MIRRORLET_SETTLE?"
    );
    // The variables that Kubernetes sets for Services called mirrorlet and mirrorlet-api; MIRRORLET_CONFIG is
    // read before.
    let links = [
        "MIRRORLET_CONFIG",
        "MIRRORLET_SERVICE_HOST",
        "MIRRORLET_SERVICE_PORT",
        "MIRRORLET_SERVICE_PORT_METRICS",
        "MIRRORLET_PORT",
        "MIRRORLET_PORT_10351_TCP",
        "MIRRORLET_PORT_10351_TCP_PROTO",
        "MIRRORLET_PORT_10351_TCP_PORT",
        "MIRRORLET_PORT_10351_TCP_ADDR",
        "MIRRORLET_API_SERVICE_HOST",
        "MIRRORLET_API_PORT_443_TCP",
    ];
    assert!(given(&links).is_ok(), "{:?}", given(&links));
    // A setting may end in _PORT, too: the value tells the two apart.
    for name in ["MIRRORLET_API_PORT", "MIRRORLET_WEB_UI_PORT"] {
        for value in ["tcp://10.0.0.1:80", "udp://10.0.0.1:53", "sctp://[::1]:9"] {
            let given = given_as(&[name], value);
            assert!(given.is_ok(), "{name}={value}: {given:?}");
        }
        let fault = given_as(&[name], "80").unwrap_err().to_string();
        let words = format!("{name}: unknown setting");
        assert!(fault.starts_with(&words), "{fault}");
    }
}

#[test]
fn a_bootstrap_kubeconfig_needs_one_to_write() {
    let given = |kubeconfig: Option<&str>, file: Option<&LocatedFile>| {
        let mut flags = BTreeMap::from([(
            Key::BootstrapKubeconfig,
            Setting(vec!["/bootstrap".to_owned()]),
        )]);
        if let Some(kubeconfig) = kubeconfig {
            flags.insert(Key::Kubeconfig, Setting(vec![kubeconfig.to_owned()]));
        }
        let resolved = resolve(&flags, file, &Ambient::default());
        resolved.map(|resolved| resolved.config.bootstrap_kubeconfig)
    };
    let in_file = file_with(Key::Kubeconfig, "/k");
    let file = ApiAccess::Kubeconfig("/bootstrap".into());
    assert_eq!(given(Some("/k"), None), Ok(file.clone()));
    assert_eq!(given(None, Some(&in_file)), Ok(file));
    for kubeconfig in [None, Some("none"), Some("in-cluster")] {
        // identity 3
        assert_eq!(
            given(kubeconfig, None).unwrap_err().to_string(),
            "--bootstrap-kubeconfig: requires --kubeconfig, the file to write",
        );
    }
}

#[test]
fn the_low_threshold_is_not_above_the_high_one() {
    let given = |high: Option<&str>, low: Option<&str>| {
        let mut flags = BTreeMap::new();
        let mut set = |key, value: Option<&str>| {
            if let Some(value) = value {
                flags.insert(key, Setting(vec![value.to_owned()]));
            }
        };
        set(Key::ImageGcHighThreshold, high);
        set(Key::ImageGcLowThreshold, low);
        resolve(&flags, None, &Ambient::default())
    };
    for (high, low, expected) in [
        (None, None, (85, 80)),
        (Some("90"), None, (90, 80)),
        (Some("50"), None, (50, 50)),
        (Some("50"), Some("40"), (50, 40)),
        (None, Some("85"), (85, 85)),
    ] {
        let config = given(high, low).unwrap().config;
        let found = (
            config.image_gc_high_threshold,
            config.image_gc_low_threshold,
        );
        assert_eq!(found, expected, "{high:?} {low:?}");
    }
    let faults = given(Some("50"), Some("60")).unwrap_err().to_string();
    assert_eq!(
        faults,
        "--image-gc-low-threshold: 60 is above the high threshold, 50"
    );
    let faults = given(Some("101"), None).unwrap_err().to_string();
    assert_eq!(
        faults,
        "--image-gc-high-threshold: \"101\" is not a whole number from 0 to 100"
    );
}

#[test]
fn defaults_are_those_of_the_manual() {
    let ambient = Ambient {
        hostname: "Box".to_owned(),
        cwd: "/w".into(),
        ..Ambient::default()
    };
    let shown = resolve(&BTreeMap::new(), None, &ambient).unwrap().show();
    let text: Vec<String> = shown
        .iter()
        .map(|row| {
            format!("{} = {}", row.key, row.values.join(" "))
                .trim_end()
                .to_owned()
        })
        .collect();
    insta::assert_snapshot!(text.join("\n"));
}

#[test]
fn docker_host_is_the_lower_half_of_the_env_rung() {
    let mut ambient = Ambient::default();
    ambient
        .env
        .insert("DOCKER_HOST".to_owned(), "tcp://a:2375".to_owned());
    let resolved = resolve(&BTreeMap::new(), None, &ambient).unwrap();
    assert_eq!(resolved.config.docker, "tcp://a:2375");
    assert_eq!(
        resolved.provenance[&Key::Docker],
        Origin::Env("DOCKER_HOST".to_owned())
    );
    ambient
        .env
        .insert("MIRRORLET_DOCKER".to_owned(), "unix:///b".to_owned());
    let resolved = resolve(&BTreeMap::new(), None, &ambient).unwrap();
    assert_eq!(resolved.config.docker, "unix:///b");
}

#[test]
fn an_engine_that_dockers_client_reaches_by_tls_is_refused() {
    for (host, verify, ours, refused) in [
        ("tcp://a:2376", "1", "", true),
        ("tcp://a:2376", "", "", false),
        ("unix:///a", "1", "", false),
        // A user who names the address to mirrorlet means it as it is.
        ("tcp://a:2376", "1", "tcp://a:2375", false),
    ] {
        let variables = [
            ("DOCKER_HOST", host),
            ("DOCKER_TLS_VERIFY", verify),
            ("MIRRORLET_DOCKER", ours),
        ];
        let set = variables.iter().filter(|(_, value)| !value.is_empty());
        let ambient = Ambient {
            env: set
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
                .collect(),
            ..Ambient::default()
        };
        let resolved = resolve(&BTreeMap::new(), None, &ambient);
        assert_eq!(resolved.is_err(), refused, "{host} {verify} {ours}");
        if let Err(faults) = resolved {
            let words = "DOCKER_HOST: DOCKER_TLS_VERIFY is set: TLS and ssh to the Docker Engine";
            assert!(faults.to_string().starts_with(words), "{faults}");
        }
    }
}

#[test]
fn every_fault_is_reported_at_once_with_its_place() {
    let flags = BTreeMap::from([(Key::Settle, Setting(vec!["1s".to_owned()]))]);
    let mut ambient = Ambient::default();
    ambient
        .env
        .insert("MIRRORLET_NODE_IP".to_owned(), "10.0.0.1, x ,y".to_owned());
    ambient
        .env
        .insert("MIRRORLET_NODE_IPS".to_owned(), String::new());
    let file = LocatedFile::parse(
        "/etc/m.yaml",
        "# one\nurlPeriod: soon\nmanifestUrlHeaders:\n- hunter2\nsetle: 1ms\nmaxPods: [1]\nnodeLabels: x\napiAddress: 0.0.0.0:80\nlogLevel: warning\n",
    )
    .unwrap();
    let faults = resolve(&flags, Some(&file), &ambient).unwrap_err();
    assert!(!faults.to_string().contains("hunter2"));
    insta::assert_snapshot!(faults.to_string());
}

#[test]
fn lists_may_be_written_with_commas_as_the_kubelets_are() {
    let flags = BTreeMap::from([
        (
            Key::NodeLabels,
            Setting(vec!["a=1,b=2".to_owned(), "c=3".to_owned()]),
        ),
        (
            Key::SystemReserved,
            Setting(vec!["cpu=500m,memory=1Gi".to_owned()]),
        ),
    ]);
    let config = resolve(&flags, None, &Ambient::default()).unwrap().config;
    assert_eq!(config.node_labels.len(), 3);
    assert_eq!(config.system_reserved.cpu_milli, 500);
    assert_eq!(config.system_reserved.memory_bytes, 1 << 30);
}

#[test]
fn a_taint_given_twice_is_a_fault() {
    let taints = Setting(vec!["a=1:NoSchedule,a=2:NoSchedule".to_owned()]);
    let flags = BTreeMap::from([(Key::RegisterWithTaints, taints)]);
    let faults = resolve(&flags, None, &Ambient::default()).unwrap_err();
    assert_eq!(
        faults.to_string(),
        "--register-with-taints: the taint a:NoSchedule is given twice"
    );
}

#[test]
fn relative_paths_count_from_the_current_directory() {
    let flags = BTreeMap::from([(Key::Root, Setting(vec!["r".to_owned()]))]);
    let ambient = Ambient {
        cwd: "/w".into(),
        ..Ambient::default()
    };
    let config = resolve(&flags, None, &ambient).unwrap().config;
    assert_eq!(config.root, PathBuf::from("/w/r"));
    assert_eq!(config.manifests, PathBuf::from("/w/r/manifests"));
    assert_eq!(resolve_root(&flags, None, &ambient).unwrap(), config.root);
}

#[test]
fn pods_are_validated_for_the_node_that_an_agent_would_be() {
    let mut ambient = Ambient {
        hostname: "vm".to_owned(),
        ..Ambient::default()
    };
    let of = |file: Option<&LocatedFile>, ambient: &Ambient| resolve_node_name(file, ambient).ok();
    assert_eq!(of(None, &ambient).as_deref(), Some("vm-docker"));
    let file = LocatedFile::parse("c", "nodeName: edge\nurlPeriod: soon\n").unwrap();
    assert_eq!(of(Some(&file), &ambient).as_deref(), Some("edge"));
    let mut set = |name: &str| {
        ambient
            .env
            .insert("MIRRORLET_NODE_NAME".to_owned(), name.to_owned())
    };
    set("box");
    assert_eq!(of(Some(&file), &ambient).as_deref(), Some("box"));
    ambient
        .env
        .insert("MIRRORLET_NODE_NAME".to_owned(), "Box".to_owned());
    let faults = resolve_node_name(None, &ambient).unwrap_err();
    assert!(
        faults.to_string().starts_with("MIRRORLET_NODE_NAME: "),
        "{faults}"
    );
}

#[test]
fn of_a_broken_file_commands_that_ask_the_agent_read_the_root() {
    let file = LocatedFile::parse("c", "root: /r\nsetle: 1ms\nurlPeriod: soon\n").unwrap();
    let ambient = Ambient::default();
    assert!(resolve(&BTreeMap::new(), Some(&file), &ambient).is_err());
    let root = resolve_root(&BTreeMap::new(), Some(&file), &ambient);
    assert_eq!(root.unwrap(), PathBuf::from("/r"));
}
