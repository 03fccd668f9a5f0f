//! Create requests of sandboxes.

use super::*;

#[test]
fn a_sandbox_is_shared_cheap_and_hard_to_kill() {
    let request = sandbox_of(&one(&json!({}), &json!({}))).unwrap();
    for (key, expected) in [
        ("IpcMode", json!("shareable")),
        ("NetworkMode", json!("default")),
        ("OomScoreAdj", json!(-998)),
        ("CpuShares", json!(2)),
        ("ShmSize", json!(64 << 20)),
        ("SecurityOpt", json!(["no-new-privileges"])),
        ("RestartPolicy", json!({"Name": "no"})),
        ("Privileged", json!(false)),
        ("PidMode", json!(null)),
        ("PortBindings", json!(null)),
        ("Memory", json!(null)),
    ] {
        // docker 15
        assert_eq!(host_config(&request, key), expected, "{key}");
    }
    assert_eq!(json_of(&request)["Hostname"], "web");
    let privileged = one(
        &json!({"securityContext": {"privileged": true}}),
        &json!({}),
    );
    assert_eq!(
        host_config(&sandbox_of(&privileged).unwrap(), "Privileged"),
        true
    );
}

#[test]
fn host_namespaces_are_asked_for() {
    let request = sandbox_of(&one(
        &json!({"ports": [{"containerPort": 80, "hostPort": 80}]}),
        &json!({"hostNetwork": true, "hostPID": true, "hostIPC": true}),
    ))
    .unwrap();
    for (key, expected) in [
        ("NetworkMode", json!("host")),
        ("PidMode", json!("host")),
        ("IpcMode", json!("host")),
        ("PortBindings", json!(null)),
    ] {
        // docker 17
        assert_eq!(host_config(&request, key), expected, "{key}");
    }
    assert_eq!(json_of(&request)["Hostname"], json!(null));
    assert_eq!(json_of(&request)["ExposedPorts"], json!(null));
}

#[test]
fn host_ports_of_apps_and_sidecars_are_published() {
    let pod = pod(&json!({
        "initContainers": [
            {"name": "i", "ports": [{"containerPort": 1, "hostPort": 1}]},
            {"name": "s", "restartPolicy": "Always",
             "ports": [{"containerPort": 9000, "hostPort": 9000}]},
        ],
        "containers": [
            {"name": "a", "ports": [
                {"containerPort": 80, "hostPort": 8080},
                {"containerPort": 80, "hostPort": 8081, "hostIP": "127.0.0.1"},
                {"containerPort": 53, "hostPort": 53, "protocol": "UDP"},
                {"containerPort": 81},
                {"containerPort": 82, "hostPort": 0},
            ]},
            {"name": "b", "ports": [
                {"containerPort": 7, "hostPort": 7, "protocol": "SCTP"},
                {"containerPort": 8, "hostPort": 8, "protocol": "odd"},
            ]},
        ],
    }));
    let request = sandbox_of(&pod).unwrap();
    assert_eq!(
        host_config(&request, "PortBindings"),
        json!({
            "80/tcp": [{"HostPort": "8080"}, {"HostIp": "127.0.0.1", "HostPort": "8081"}],
            "53/udp": [{"HostPort": "53"}],
            "7/sctp": [{"HostPort": "7"}],
            "8/tcp": [{"HostPort": "8"}],
            "9000/tcp": [{"HostPort": "9000"}],
        })
    );
    assert_eq!(
        json_of(&request)["ExposedPorts"],
        json!({"80/tcp": {}, "53/udp": {}, "7/sctp": {}, "8/tcp": {}, "9000/tcp": {}})
    );
}

#[test]
fn the_pods_user_is_the_sandboxs() {
    for (context, expected) in [
        (json!({}), json!(null)),
        (json!({"runAsUser": 7}), json!("7")),
        (json!({"runAsUser": 7, "runAsGroup": 8}), json!("7:8")),
        (json!({"runAsGroup": 8}), json!("0:8")),
    ] {
        let pod = one(&json!({}), &json!({"securityContext": context}));
        assert_eq!(json_of(&sandbox_of(&pod).unwrap())["User"], expected);
    }
}

#[test]
fn sysctls_and_groups_are_passed() {
    let pod = one(
        &json!({}),
        &json!({"securityContext": {
            "supplementalGroups": [5, 6, 5], "fsGroup": 6,
            "sysctls": [
                {"name": "net.core.somaxconn", "value": "1024"},
                {"name": "net/ipv4/conf/eth0.1/forwarding", "value": "1"},
            ],
        }}),
    );
    let request = sandbox_of(&pod).unwrap();
    assert_eq!(
        host_config(&request, "Sysctls"),
        json!({"net.core.somaxconn": "1024", "net.ipv4.conf.eth0/1.forwarding": "1"})
    );
    assert_eq!(host_config(&request, "GroupAdd"), json!(["5", "6"]));
}

/// As Engines 27 and 28 have it, and those around them.
#[test]
fn sysctls_of_the_pods_interface_are_an_option_of_its_endpoint() {
    let sysctls = json!([
        {"name": "net.ipv4.conf.eth0.rp_filter", "value": "2"},
        {"name": "net/ipv6/conf/eth0/forwarding", "value": "1"},
        {"name": "net.ipv4.conf.all.rp_filter", "value": "0"},
        {"name": "net/ipv4/conf/eth0.1/forwarding", "value": "1"},
        {"name": "net.ipv4.ip_forward", "value": "1"},
    ]);
    let pod = one(
        &json!({}),
        &json!({"securityContext": {"sysctls": sysctls}}),
    );
    let own = json!({
        "net.ipv4.conf.eth0.rp_filter": "2",
        "net.ipv6.conf.eth0.forwarding": "1",
    });
    let others = json!({
        "net.ipv4.conf.all.rp_filter": "0",
        "net.ipv4.conf.eth0/1.forwarding": "1",
        "net.ipv4.ip_forward": "1",
    });
    let mut all = others.clone();
    for (name, value) in own.as_object().unwrap() {
        all[name] = value.clone();
    }
    let option = json!({"EndpointsConfig": {"default": {"DriverOpts": {
        "com.docker.network.endpoint.sysctls":
            "net.ipv4.conf.IFNAME.rp_filter=2,net.ipv6.conf.IFNAME.forwarding=1",
    }}}});
    for (api_version, of_container, of_endpoint) in [
        ((1, 41), &all, &json!(null)),
        ((1, 47), &all, &json!(null)),
        ((1, 48), &others, &option),
        ((1, 53), &others, &option),
        ((2, 0), &others, &option),
    ] {
        let engine = EngineFacts {
            api_version,
            ..engine()
        };
        let request = sandbox_on(&pod, &engine).unwrap();
        // docker 18a
        assert_eq!(host_config(&request, "Sysctls"), *of_container);
        let endpoint = &json_of(&request)["NetworkingConfig"];
        // docker 18a
        assert_eq!(endpoint, of_endpoint, "{api_version:?}");
        // A pod in the host's network has no endpoint.
        let mut in_host = pod.clone();
        in_host.spec.as_mut().unwrap().host_network = Some(true);
        let request = sandbox_on(&in_host, &engine).unwrap();
        // docker 18a
        assert_eq!(json_of(&request)["NetworkingConfig"], json!(null));
    }
    let alone = json!([{"name": "net.ipv4.conf.eth0.rp_filter", "value": "2"}]);
    let pod = one(&json!({}), &json!({"securityContext": {"sysctls": alone}}));
    let engine = EngineFacts {
        api_version: (1, 48),
        ..engine()
    };
    let request = sandbox_on(&pod, &engine).unwrap();
    assert_eq!(host_config(&request, "Sysctls"), json!(null));
}

#[test]
fn user_namespaces_are_refused() {
    let pod = one(&json!({}), &json!({"hostUsers": false}));
    // docker 18
    assert_eq!(sandbox_of(&pod).unwrap_err(), ConfigError::UserNamespace);
    assert_eq!(container_of(&pod).unwrap_err(), ConfigError::UserNamespace);
    let allowed = one(&json!({}), &json!({"hostUsers": true}));
    assert!(sandbox_of(&allowed).is_ok());
}

#[test]
fn inherited_dns_is_left_to_the_engine() {
    let dns = |spec: &Value, node: &HostFacts| {
        let request = sandbox_request(&SandboxInput {
            network_mode: "default",
            gateway: None,
            owner: OWNER,
            pod: &one(&json!({}), spec),
            attempt: 0,
            image: "pause:1",
            node,
            engine: &engine(),
        })
        .unwrap();
        ["Dns", "DnsSearch", "DnsOptions"].map(|key| host_config(&request, key))
    };
    let null = json!(null);
    let inherit = json!({"dnsPolicy": "Default"});
    assert_eq!(
        dns(&inherit, &node()),
        [null.clone(), null.clone(), null.clone()]
    );

    let cluster = HostFacts {
        cluster_dns: vec!["10.96.0.10".parse().unwrap()],
        ..node()
    };
    assert_eq!(
        dns(&json!({}), &cluster),
        [
            json!(["10.96.0.10"]),
            json!([
                "prod.svc.cluster.local",
                "svc.cluster.local",
                "cluster.local",
                "example.org"
            ]),
            json!(["ndots:5"]),
        ]
    );
    let own = json!({"dnsPolicy": "None", "dnsConfig": {"nameservers": ["192.0.2.9"]}});
    assert_eq!(
        dns(&own, &node()),
        [json!(["192.0.2.9"]), json!(["."]), null.clone()]
    );

    // A resolver on the node's loopback can't be reached from a network of the pod's own.
    let local = HostFacts {
        resolv_conf: ResolvConf::parse("nameserver 127.0.0.53\n"),
        ..node()
    };
    let more = json!({"dnsPolicy": "Default", "dnsConfig": {"searches": ["x.example"]}});
    assert_eq!(
        dns(&more, &local),
        [null.clone(), json!(["x.example"]), null.clone()]
    );
    let in_host = json!({
        "dnsPolicy": "Default", "hostNetwork": true, "dnsConfig": {"searches": ["x.example"]},
    });
    assert_eq!(
        dns(&in_host, &local),
        [json!(["127.0.0.53"]), json!(["x.example"]), null.clone()]
    );
    // One that the pod names may be a container of its own.
    let sidecar = json!({"dnsPolicy": "None", "dnsConfig": {"nameservers": ["127.0.0.1", "::1"]}});
    assert_eq!(
        dns(&sidecar, &local),
        [json!(["127.0.0.1", "::1"]), json!(["."]), null.clone()]
    );
    let both = json!({"dnsPolicy": "Default", "dnsConfig": {"nameservers": ["127.0.0.53"]}});
    assert_eq!(dns(&both, &local)[0], json!(["127.0.0.53"]));
}

#[test]
fn an_engine_without_negative_scores_gets_none() {
    let pod = one(&json!({}), &json!({}));
    let engine = EngineFacts {
        negative_oom_score: false,
        ..engine()
    };
    let request = sandbox_request(&SandboxInput {
        network_mode: "default",
        gateway: None,
        owner: OWNER,
        pod: &pod,
        attempt: 1,
        image: "pause:1",
        node: &node(),
        engine: &engine,
    })
    .unwrap();
    assert_eq!(host_config(&request, "OomScoreAdj"), 0);
    assert_eq!(request.name, "k8s_POD_web_prod_u1_1");
}

#[test]
fn cgroup_parents_follow_driver_and_class() {
    let limits = json!({"limits": {"cpu": "1", "memory": "1Gi"}});
    let requests = json!({"requests": {"cpu": "1"}});
    for (container, root, driver, expected) in [
        (
            &limits,
            "mirrorlet",
            CgroupDriver::Cgroupfs,
            Some("/mirrorlet/podu-1"),
        ),
        (
            &requests,
            "mirrorlet",
            CgroupDriver::Cgroupfs,
            Some("/mirrorlet/burstable/podu-1"),
        ),
        (
            &json!({}),
            "/mirrorlet/",
            CgroupDriver::Cgroupfs,
            Some("/mirrorlet/besteffort/podu-1"),
        ),
        (
            &limits,
            "mirrorlet",
            CgroupDriver::Systemd,
            Some("mirrorlet-podu_1.slice"),
        ),
        (
            &requests,
            "mirrorlet",
            CgroupDriver::Systemd,
            Some("mirrorlet-burstable-podu_1.slice"),
        ),
        (
            &json!({}),
            "mirrorlet.slice",
            CgroupDriver::Systemd,
            Some("mirrorlet-besteffort-podu_1.slice"),
        ),
        (
            &limits,
            "a-b/c",
            CgroupDriver::Systemd,
            Some("a_b-c-podu_1.slice"),
        ),
        (&limits, "", CgroupDriver::Systemd, None),
        (&limits, "/", CgroupDriver::Cgroupfs, None),
        (&limits, "mirrorlet", CgroupDriver::None, None),
    ] {
        let mut pod = one(&json!({"resources": container}), &json!({}));
        pod.metadata.uid = Some("u-1".to_owned());
        // docker 65
        assert_eq!(
            resources::cgroup_parent(&pod, root, driver).as_deref(),
            expected,
            "{container} {root} {driver:?}"
        );
    }
    for (named, expected) in [
        (None, CgroupDriver::Cgroupfs),
        (Some(Named::EMPTY), CgroupDriver::Cgroupfs),
        (Some(Named::CGROUPFS), CgroupDriver::Cgroupfs),
        (Some(Named::SYSTEMD), CgroupDriver::Systemd),
        (Some(Named::NONE), CgroupDriver::None),
    ] {
        assert_eq!(CgroupDriver::of(named), expected, "{named:?}");
    }
}

#[test]
fn a_name_too_long_matters_only_where_it_is_used() {
    let name = json!({
        "hostname": "a".repeat(60), "subdomain": "sub", "setHostnameAsFQDN": true,
    });
    let error = sandbox_of(&one(&json!({}), &name)).unwrap_err();
    assert!(matches!(error, ConfigError::FqdnTooLong { .. }), "{error}");
    let mut in_host = name;
    in_host["hostNetwork"] = json!(true);
    assert!(sandbox_of(&one(&json!({}), &in_host)).is_ok());
}
