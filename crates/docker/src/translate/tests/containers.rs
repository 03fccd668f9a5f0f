//! Create requests of app containers.

use proptest::prelude::*;

use super::*;

#[test]
fn namespaces_are_the_sandboxs() {
    let sandbox = json!("container:5a0dbox");
    let null = json!(null);
    for (spec, uts, pid) in [
        (json!({}), null.clone(), null.clone()),
        (json!({"hostNetwork": true}), json!("host"), null.clone()),
        (json!({"hostPID": true}), null.clone(), json!("host")),
        (
            json!({"shareProcessNamespace": true}),
            null.clone(),
            sandbox.clone(),
        ),
        (json!({"hostIPC": true}), null.clone(), null.clone()),
    ] {
        let request = container_of(&one(&json!({}), &spec)).unwrap();
        let modes =
            ["NetworkMode", "IpcMode", "UTSMode", "PidMode"].map(|k| host_config(&request, k));
        // docker 17
        assert_eq!(
            modes,
            [sandbox.clone(), sandbox.clone(), uts, pid],
            "{spec}"
        );
    }
}

#[test]
fn nothing_the_engine_refuses_beside_a_shared_network_is_sent() {
    let pod = one(
        &json!({"ports": [{"containerPort": 80, "hostPort": 80}]}),
        &json!({
            "hostname": "h", "subdomain": "s", "dnsPolicy": "None",
            "dnsConfig": {"nameservers": ["192.0.2.9"], "searches": ["x"], "options": [{"name": "o"}]},
            "hostAliases": [{"ip": "192.0.2.7", "hostnames": ["db"]}],
        }),
    );
    let request = container_of(&pod).unwrap();
    for key in ["Hostname", "Domainname", "ExposedPorts"] {
        // docker 16
        assert_eq!(json_of(&request)[key], json!(null), "{key}");
    }
    for key in [
        "Dns",
        "DnsSearch",
        "DnsOptions",
        "ExtraHosts",
        "Links",
        "PortBindings",
        "PublishAllPorts",
    ] {
        assert_eq!(host_config(&request, key), json!(null), "{key}");
    }
}

#[test]
fn command_args_and_env_are_expanded() {
    let request = container_of(&one(
        &json!({
            "command": ["run", "$(WHO)"], "args": ["$(IP)", "$$(WHO)", "$(NO)"],
            "workingDir": "/w", "tty": true, "stdin": true, "stdinOnce": true,
            "env": [
                {"name": "WHO", "value": "me"},
                {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
            ],
        }),
        &json!({}),
    ))
    .unwrap();
    let body = json_of(&request);
    assert_eq!(body["Entrypoint"], json!(["run", "me"]));
    assert_eq!(body["Cmd"], json!(["172.17.0.2", "$(WHO)", "$(NO)"]));
    assert_eq!(body["Env"], json!(["WHO=me", "IP=172.17.0.2"]));
    assert_eq!(body["WorkingDir"], "/w");
    for key in ["Tty", "OpenStdin", "StdinOnce"] {
        assert_eq!(body[key], true, "{key}");
    }
    for key in ["AttachStdin", "AttachStdout", "AttachStderr"] {
        assert_eq!(body[key], false, "{key}");
    }
    assert_eq!(body["Healthcheck"], json!({"Test": ["NONE"]}));
    let plain = json_of(&container_of(&one(&json!({}), &json!({}))).unwrap());
    for key in ["Entrypoint", "Cmd", "WorkingDir", "StopSignal"] {
        assert_eq!(plain[key], json!(null), "{key}");
    }
}

/// Environment and command share what a process can be started with.
#[test]
fn a_command_that_no_process_can_be_started_with_is_refused() {
    let value = "x".repeat(120 << 10);
    let of = |count: usize| {
        let env = json!([{"name": "V", "value": value}, {"name": "W", "value": "$(V)"}]);
        let args = vec!["$(V)"; count];
        container_of(&one(&json!({"env": env, "args": args}), &json!({})))
    };
    assert!(of(15).is_ok());
    // tenants H1
    assert_eq!(
        of(16).unwrap_err().to_string(),
        "environment and command exceed 2097152 bytes in total at args[15]"
    );
}

#[test]
fn in_the_hosts_network_the_pods_address_is_the_nodes() {
    let env = json!({"env": [
        {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
    ]});
    let request = container_with(&one(&env, &json!({"hostNetwork": true})), |input| {
        ContainerInput {
            pod_ips: &[],
            ..input
        }
    });
    assert_eq!(json_of(&request.unwrap())["Env"], json!(["IP=192.0.2.1"]));
}

#[test]
fn resources_become_limits() {
    for (resources, shares, quota, memory) in [
        (json!({}), 2, None, None),
        (json!({"requests": {"cpu": "0"}}), 2, None, None),
        (json!({"requests": {"cpu": "1m"}}), 2, None, None),
        (json!({"requests": {"cpu": "500m"}}), 512, None, None),
        (json!({"requests": {"cpu": "1000"}}), 262_144, None, None),
        (json!({"limits": {"cpu": "5m"}}), 5, Some(1000), None),
        (
            json!({"limits": {"cpu": "1500m"}}),
            1536,
            Some(150_000),
            None,
        ),
        (
            json!({"limits": {"cpu": "2", "memory": "64Mi"}, "requests": {"cpu": "1"}}),
            1024,
            Some(200_000),
            Some(64 << 20),
        ),
        (json!({"requests": {"memory": "64Mi"}}), 2, None, None),
        (
            json!({"limits": {"cpu": "0", "memory": "0"}}),
            2,
            None,
            None,
        ),
    ] {
        let request = container_of(&one(&json!({"resources": resources}), &json!({}))).unwrap();
        let memory: Value = memory.map_or(json!(null), |bytes: i64| json!(bytes));
        let period = quota.map_or(json!(null), |_| json!(100_000));
        for (key, expected) in [
            ("CpuShares", json!(shares)),
            ("CpuQuota", quota.map_or(json!(null), |q: i64| json!(q))),
            ("CpuPeriod", period),
            ("Memory", memory.clone()),
            ("MemorySwap", memory),
        ] {
            // docker 34, docker 35
            assert_eq!(host_config(&request, key), expected, "{key} {resources}");
        }
    }
}

#[test]
fn oom_scores_follow_class_and_request() {
    let guaranteed = json!({"limits": {"cpu": "1", "memory": "1Gi"}});
    let requests = |memory: &str| json!({"requests": {"memory": memory}});
    let critical = json!({"priorityClassName": "system-node-critical"});
    for (resources, spec, expected) in [
        (guaranteed, json!({}), -997),
        (json!({}), json!({}), 1000),
        (json!({}), critical, -997),
        (requests("4Gi"), json!({}), 500),
        (requests("1"), json!({}), 999),
        (requests("8Gi"), json!({}), 3),
        (requests("64Gi"), json!({}), 3),
        (json!({"requests": {"cpu": "1"}}), json!({}), 999),
    ] {
        let request = container_of(&one(&json!({"resources": resources}), &spec)).unwrap();
        // docker 34
        assert_eq!(
            host_config(&request, "OomScoreAdj"),
            expected,
            "{resources}"
        );
    }
    let pod = pod(&json!({
        "initContainers": [{"name": "s", "restartPolicy": "Always"}],
        "containers": [
            {"name": "a", "resources": {"requests": {"memory": "4Gi"}}},
            {"name": "b", "resources": {"requests": {"memory": "2Gi"}}},
        ],
    }));
    let (role, sidecar) = spec::find_container(&pod, "s").unwrap();
    assert_eq!(resources::oom_score_adj(&pod, sidecar, role, &node()), 750);
}

#[test]
fn users_come_from_the_spec_and_then_from_the_image() {
    let null = json!(null);
    for (pod_context, context, image_user, expected) in [
        (json!({}), json!({}), Some(""), json!("0")),
        (json!({}), json!({}), Some("1000"), json!("1000")),
        (json!({}), json!({}), Some("1000:1000"), json!("1000")),
        (json!({}), json!({}), Some("app:staff"), json!("app")),
        (json!({}), json!({}), None, null),
        (json!({}), json!({"runAsUser": 5}), Some("app"), json!("5")),
        (
            json!({"runAsUser": 4}),
            json!({"runAsUser": 5}),
            None,
            json!("5"),
        ),
        (
            json!({"runAsUser": 4, "runAsGroup": 6}),
            json!({}),
            Some("app"),
            json!("4:6"),
        ),
        (
            json!({"runAsGroup": 6}),
            json!({}),
            Some("app"),
            json!("app:6"),
        ),
        (
            json!({"runAsGroup": 6}),
            json!({"runAsGroup": 7}),
            Some(""),
            json!("0:7"),
        ),
        (json!({"runAsGroup": 6}), json!({}), None, json!("0:6")),
    ] {
        let pod = one(
            &json!({"securityContext": context}),
            &json!({"securityContext": pod_context}),
        );
        let request = container_with(&pod, |input| ContainerInput {
            image: image_user.map(|user| ImageFacts {
                id: "i",
                name: "n",
                user,
                status_id: "",
            }),
            ..input
        });
        // docker 19
        assert_eq!(
            json_of(&request.unwrap())["User"],
            expected,
            "{pod_context} {context} {image_user:?}"
        );
    }
}

#[test]
fn run_as_non_root_is_shown_to_hold_or_refused() {
    for (user, image_user, refusal) in [
        (
            json!(0),
            "1000",
            Some("container's runAsUser breaks non-root policy"),
        ),
        (json!(5), "", None),
        (
            null(),
            "",
            Some("container has runAsNonRoot and image will run as root"),
        ),
        (
            null(),
            "0",
            Some("container has runAsNonRoot and image will run as root"),
        ),
        (
            null(),
            "0:5",
            Some("container has runAsNonRoot and image will run as root"),
        ),
        (null(), "1000:0", None),
        (
            null(),
            "app:staff",
            Some(
                "container has runAsNonRoot and image has non-numeric user (app), cannot verify \
                 user is non-root",
            ),
        ),
    ] {
        let pod = one(
            &json!({"securityContext": {"runAsUser": user}}),
            &json!({"securityContext": {"runAsNonRoot": true}}),
        );
        let request = container_with(&pod, |input| ContainerInput {
            image: Some(ImageFacts {
                id: "i",
                name: "n",
                user: image_user,
                status_id: "",
            }),
            ..input
        });
        // By its id where its user was verified: a tag that moves can't swap it.
        if let Ok(request) = &request {
            let by_id = user.is_null();
            let named = request.body.image.as_deref();
            assert_eq!(named, Some(if by_id { "i" } else { "n" }), "{user}");
        }
        let refused = request.err().map(|e| e.to_string());
        let expected = refusal.map(|text| format!("{text} (container: c)"));
        // docker 37
        assert_eq!(refused, expected, "{user} {image_user:?}");
    }
    let overridden = one(
        &json!({"securityContext": {"runAsNonRoot": false}}),
        &json!({"securityContext": {"runAsNonRoot": true}}),
    );
    assert!(container_of(&overridden).is_ok());
    let unknown = one(
        &json!({"securityContext": {"runAsNonRoot": true}}),
        &json!({}),
    );
    let request = container_with(&unknown, |input| ContainerInput {
        image: None,
        ..input
    });
    assert!(matches!(request, Err(ConfigError::RunAsNonRoot(_))));
}

#[test]
fn strict_groups_are_refused_without_a_group() {
    for (policy, group, refused) in [
        ("Strict", null(), true),
        ("Strict", json!(0), false),
        ("Merge", null(), false),
    ] {
        let pod = one(
            &json!({"securityContext": {"runAsGroup": group}}),
            &json!({"securityContext": {"supplementalGroupsPolicy": policy}}),
        );
        let answer = container_of(&pod).err();
        let is_refused = answer == Some(ConfigError::GroupsOfImage("c".to_owned()));
        // tenants A6
        assert_eq!(is_refused, refused, "{policy} {group}: {answer:?}");
    }
}

fn null() -> Value {
    json!(null)
}

#[test]
fn a_container_that_names_no_seccomp_profile_has_the_nodes_default() {
    let unconfined = || json!({"type": "Unconfined"});
    let runtime_default = || json!({"type": "RuntimeDefault"});
    let local = json!({"type": "Localhost", "localhostProfile": "p.json"});
    let profile = "{\n  \"defaultAction\": \"SCMP_ACT_ALLOW\"\n}";
    let (builtin, open) = (json!([]), json!(["seccomp=unconfined"]));
    let file = json!(["seccomp={\"defaultAction\":\"SCMP_ACT_ALLOW\"}"]);
    for (of_pod, of_container, privileged, by_default, without_default) in [
        (null(), null(), false, &builtin, &open),
        (null(), null(), true, &open, &open),
        (unconfined(), null(), false, &open, &open),
        (runtime_default(), null(), false, &builtin, &builtin),
        (runtime_default(), null(), true, &builtin, &builtin),
        (runtime_default(), unconfined(), false, &open, &open),
        (unconfined(), runtime_default(), false, &builtin, &builtin),
        (null(), local.clone(), false, &file, &file),
    ] {
        let context = json!({"seccompProfile": of_container, "privileged": privileged});
        let pod = one(
            &json!({"securityContext": context}),
            &json!({"securityContext": {"seccompProfile": of_pod}}),
        );
        for (seccomp_default, expected) in [(true, by_default), (false, without_default)] {
            let node: &'static HostFacts = Box::leak(Box::new(HostFacts {
                seccomp_default,
                ..node()
            }));
            let request = container_with(&pod, |input| ContainerInput {
                seccomp_json: Some(profile),
                node,
                ..input
            });
            let of = (&of_pod, &of_container, privileged, seccomp_default);
            let options = host_config(&request.unwrap(), "SecurityOpt");
            // docker 36, tenants M7
            assert_eq!(&options, expected, "{of:?}");
        }
    }
}

#[test]
fn a_seccomp_profile_is_a_file_below_the_nodes_directory() {
    let local = json!({"type": "Localhost", "localhostProfile": "p.json"});
    let pod = one(
        &json!({"securityContext": {"seccompProfile": local}}),
        &json!({}),
    );
    let container = &spec::spec(&pod).containers[0];
    assert_eq!(
        seccomp_wanted(&pod, container, true),
        SeccompWanted::Localhost("p.json")
    );
    for outside in ["", "/etc/p.json", "../p.json", "a/../p.json"] {
        let profile = json!({"type": "Localhost", "localhostProfile": outside});
        let pod = one(
            &json!({"securityContext": {"seccompProfile": profile}}),
            &json!({}),
        );
        let request = container_with(&pod, |input| ContainerInput {
            seccomp_json: Some("{}"),
            ..input
        });
        // docker 36
        assert_eq!(
            request.unwrap_err().to_string(),
            format!("seccomp profile {outside:?}: must be a relative path without '..'")
        );
    }
    for (content, problem) in [
        (None, "cannot be loaded: no such file, or it can't be read"),
        (Some("{"), "cannot be loaded: it is not JSON"),
    ] {
        let request = container_with(&pod, |input| ContainerInput {
            seccomp_json: content,
            ..input
        });
        assert_eq!(
            request.unwrap_err().to_string(),
            format!("seccomp profile \"p.json\": {problem}")
        );
    }
}

#[test]
fn profiles_of_app_armor_are_sent_to_engines_that_enforce_them() {
    let refused = "Cannot enforce AppArmor: AppArmor is not enabled on the host";
    for (noted, enforced, without) in [
        ("unconfined", "apparmor=unconfined", "apparmor=unconfined"),
        ("runtime/default", "", refused),
        ("localhost/web", "apparmor=web", refused),
    ] {
        let mut pod = one(&json!({}), &json!({}));
        let key = "container.apparmor.security.beta.kubernetes.io/c".to_owned();
        pod.metadata.annotations = Some([(key, noted.to_owned())].into());
        for (app_armor, expected) in [(true, enforced), (false, without)] {
            let engine: &'static EngineFacts = Box::leak(Box::new(EngineFacts {
                app_armor,
                ..engine()
            }));
            let request = container_with(&pod, |input| ContainerInput { engine, ..input });
            let sent = match request {
                Ok(request) => host_config(&request, "SecurityOpt")[0]
                    .as_str()
                    .unwrap_or_default()
                    .to_owned(),
                Err(error) => error.to_string(),
            };
            // tenants A1
            assert_eq!(sent, expected, "{noted} {app_armor}");
        }
    }
}

#[test]
fn limits_of_logs_are_sent_to_drivers_that_rotate() {
    let limits = |max_size, max_files| {
        Some(LogLimits {
            max_size,
            max_files,
        })
    };
    let config = |driver, size, files| json!({"Type": driver, "Config": {"max-size": size, "max-file": files}});
    let own = json!({"mirrorlet.dev/container-log-max-size": "64Ki"});
    for (driver, node_limits, annotations, expected) in [
        (
            Some("json-file"),
            limits(10 << 20, 5),
            null(),
            config("json-file", "10485760", "5"),
        ),
        (
            Some("local"),
            limits(1 << 20, 2),
            null(),
            config("local", "1048576", "2"),
        ),
        (Some("json-file"), None, null(), null()),
        (
            Some("json-file"),
            None,
            own.clone(),
            config("json-file", "65536", "5"),
        ),
        (None, limits(10 << 20, 5), own, null()),
    ] {
        let mut pod = one(&json!({}), &json!({}));
        pod.metadata.annotations = serde_json::from_value(annotations).unwrap();
        let node: &'static HostFacts = Box::leak(Box::new(HostFacts {
            log_limits: node_limits,
            ..node()
        }));
        let engine: &'static EngineFacts = Box::leak(Box::new(EngineFacts {
            log_driver: driver,
            ..engine()
        }));
        let request = container_with(&pod, |input| ContainerInput {
            node,
            engine,
            ..input
        });
        let sent = host_config(&request.unwrap(), "LogConfig");
        // tenants M6
        assert_eq!(sent, expected, "{driver:?} {node_limits:?}");
    }
}

#[test]
fn proc_is_unmasked_by_empty_lists() {
    for (proc_mount, expected) in [
        (null(), null()),
        (json!("Default"), null()),
        (json!("Unmasked"), json!([])),
    ] {
        let pod = one(
            &json!({"securityContext": {"procMount": proc_mount}}),
            &json!({}),
        );
        let request = container_of(&pod).unwrap();
        for key in ["MaskedPaths", "ReadonlyPaths"] {
            // docker 36
            assert_eq!(host_config(&request, key), expected, "{key} {proc_mount}");
        }
    }
}

#[test]
fn mounts_are_binds_with_their_options() {
    let mount = |fields: Value, privileged: bool, api_version: (u16, u16)| {
        let mut mount = json!({"name": "data", "mountPath": "/d"});
        for (key, value) in fields.as_object().unwrap() {
            mount[key] = value.clone();
        }
        let pod = one(
            &json!({"volumeMounts": [mount], "securityContext": {"privileged": privileged}}),
            &json!({}),
        );
        let engine = EngineFacts {
            api_version,
            ..engine()
        };
        container_in(&pod, &engine).map(|request| host_config(&request, "Mounts")[0].clone())
    };
    let bound = |read_only: bool, options: Value| {
        let mut mount = json!({
            "Type": "bind", "Source": "/srv/data", "Target": "/d", "ReadOnly": read_only,
        });
        if options != json!({}) {
            mount["BindOptions"] = options;
        }
        mount
    };
    let new = (1, 44);
    for (fields, privileged, api, expected) in [
        (json!({}), false, new, bound(false, json!({}))),
        (
            json!({"readOnly": true}),
            false,
            new,
            bound(true, json!({"ReadOnlyNonRecursive": true})),
        ),
        (
            json!({"readOnly": true}),
            false,
            (1, 43),
            bound(true, json!({})),
        ),
        (
            json!({"readOnly": true, "recursiveReadOnly": "Enabled"}),
            false,
            new,
            bound(true, json!({"ReadOnlyForceRecursive": true})),
        ),
        (
            json!({"readOnly": true, "recursiveReadOnly": "IfPossible"}),
            false,
            new,
            bound(true, json!({})),
        ),
        (
            json!({"readOnly": true, "recursiveReadOnly": "IfPossible"}),
            false,
            (1, 43),
            bound(true, json!({})),
        ),
        (
            json!({"mountPropagation": "None"}),
            false,
            new,
            bound(false, json!({})),
        ),
        (
            json!({"mountPropagation": "HostToContainer"}),
            false,
            new,
            bound(false, json!({"Propagation": "rslave"})),
        ),
        (
            json!({"mountPropagation": "Bidirectional"}),
            true,
            new,
            bound(false, json!({"Propagation": "rshared"})),
        ),
        (
            json!({"mountPath": "d"}),
            false,
            new,
            bound(false, json!({})),
        ),
    ] {
        // docker 40
        assert_eq!(
            mount(fields.clone(), privileged, api).unwrap(),
            expected,
            "{fields}"
        );
    }
    for (fields, expected) in [
        (
            json!({"mountPropagation": "Bidirectional"}),
            "mount \"/d\": Bidirectional propagation needs a privileged container",
        ),
        (
            json!({"name": "gone"}),
            "volume \"gone\" of mount \"/d\" not found in the pod",
        ),
        (
            json!({"subPath": "x"}),
            "sub-path of volume \"data\" at mount \"/d\" is not prepared",
        ),
    ] {
        assert_eq!(mount(fields, false, new).unwrap_err().to_string(), expected);
    }
    let forced = json!({"readOnly": true, "recursiveReadOnly": "Enabled"});
    assert_eq!(
        mount(forced, false, (1, 43)).unwrap_err().to_string(),
        "mount \"/d\": recursiveReadOnly: Enabled needs Docker Engine 25 or newer (API 1.44); this one has API 1.43"
    );
}

fn container_in(pod: &Pod, engine: &EngineFacts) -> Result<Request, ConfigError> {
    let (node, volumes) = (node(), volumes());
    container_request(&ContainerInput {
        objects: &ObjectSet::default(),
        env_files: None,
        owner: OWNER,
        pod,
        container: &spec::spec(pod).containers[0],
        role: Role::App,
        restart_count: 0,
        pod_restarts: 0,
        sandbox_id: SANDBOX,
        target: None,
        pod_ips: &[],
        volumes: &volumes,
        image: None,
        seccomp_json: None,
        termination_log: None,
        etc_hosts: None,
        node: &node,
        engine,
    })
}

#[test]
fn a_volume_of_an_image_is_mounted_read_only_by_its_id() {
    let with = |fields: Value, api: (u16, u16)| {
        let mut mount = json!({"name": "site", "mountPath": "site"});
        mount
            .as_object_mut()
            .unwrap()
            .extend(fields.as_object().unwrap().clone());
        let pod = one(&json!({"volumeMounts": [mount]}), &json!({}));
        let mut volumes = volumes();
        volumes
            .images
            .insert("site".to_owned(), "sha256:5173".to_owned());
        let engine = EngineFacts {
            api_version: api,
            ..engine()
        };
        container_with(&pod, |input| ContainerInput {
            volumes: Box::leak(Box::new(volumes)),
            engine: Box::leak(Box::new(engine)),
            ..input
        })
        .map(|request| host_config(&request, "Mounts")[0].clone())
    };
    let mount =
        json!({"Target": "/site", "Source": "sha256:5173", "Type": "image", "ReadOnly": true});
    assert_eq!(with(json!({}), (1, 48)).unwrap(), mount);
    let mut below = mount;
    below["ImageOptions"] = json!({"Subpath": "html/en"});
    let fields = json!({"subPath": "html/en", "readOnly": false, "mountPropagation": "None"});
    assert_eq!(with(fields, (1, 52)).unwrap(), below);
    for (fields, api, expected) in [
        (
            json!({}),
            (1, 47),
            "volume \"site\" is an image volume, which needs Docker Engine 28 or newer (API 1.48); this Engine has API 1.47",
        ),
        (
            json!({"subPathExpr": "$(A)"}),
            (1, 48),
            "mount \"site\": image volumes do not support subPathExpr; use subPath",
        ),
        (
            json!({"mountPropagation": "HostToContainer"}),
            (1, 48),
            "mount \"site\": image volumes do not support mountPropagation and recursiveReadOnly",
        ),
    ] {
        assert_eq!(with(fields, api).unwrap_err().to_string(), expected);
    }
}

#[test]
fn what_the_engine_is_to_make_is_said_in_the_form_that_makes_it() {
    let mounts = json!([
        {"name": "data", "mountPath": "/d"},
        {"name": "data", "mountPath": "sub", "subPath": "x"},
        {"name": "data", "mountPath": "ro", "readOnly": true, "mountPropagation": "HostToContainer"},
        {"name": "cache", "mountPath": "/c"},
    ]);
    let pod = one(&json!({"volumeMounts": mounts}), &json!({}));
    let made_by_engine = |names: &[&str]| -> &'static VolumeMap {
        Box::leak(Box::new(VolumeMap {
            made_by_engine: names.iter().map(|name| (*name).to_owned()).collect(),
            ..volumes()
        }))
    };
    let with = |volumes| container_with(&pod, |input| ContainerInput { volumes, ..input }).unwrap();
    assert_eq!(
        host_config(&with(made_by_engine(&[])), "Binds"),
        Value::Null
    );
    let request = with(made_by_engine(&["data"]));
    let binds = json!(["/srv/data:/d:rw", "/srv/data:/ro:ro,rslave"]);
    // installed 1
    assert_eq!(host_config(&request, "Binds"), binds);
    // So is a claim that the pod has for reading only.
    let mut read_only = made_by_engine(&["data"]).clone();
    read_only.read_only.insert("data".to_owned());
    let binds = json!(["/srv/data:/d:ro", "/srv/data:/ro:ro,rslave"]);
    assert_eq!(
        host_config(&with(Box::leak(Box::new(read_only))), "Binds"),
        binds
    );
    let targets: Vec<_> = host_config(&request, "Mounts")
        .as_array()
        .unwrap()
        .iter()
        .map(|mount| mount["Target"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(targets[..2], ["/sub", "/c"]);
}

#[test]
fn our_own_mounts_come_last_and_give_way() {
    let targets = |container: &Value| -> Vec<String> {
        let request = container_of(&one(container, &json!({}))).unwrap();
        let mounts = host_config(&request, "Mounts");
        mounts
            .as_array()
            .unwrap()
            .iter()
            .map(|mount| format!("{}={}", mount["Target"], mount["Source"]).replace('"', ""))
            .collect()
    };
    let log = "/root/pods/u1/containers/c/0a1b2c3d";
    // docker 21
    assert_eq!(
        targets(&json!({"volumeMounts": [
            {"name": "data", "mountPath": "/d"},
            {"name": "cache", "mountPath": "/c", "subPath": "x"},
        ]})),
        [
            "/d=/srv/data".to_owned(),
            "/c=/root/pods/u1/sub".to_owned(),
            "/etc/hosts=/root/pods/u1/etc-hosts".to_owned(),
            format!("/dev/termination-log={log}"),
        ]
    );
    for own in ["/etc/hosts", "etc/hosts", "/etc/hosts/"] {
        assert_eq!(
            targets(&json!({
                "terminationMessagePath": "/t",
                "volumeMounts": [{"name": "data", "mountPath": own}],
            }))
            .iter()
            .filter(|text| text.contains("etc-hosts"))
            .count(),
            0,
            "{own}"
        );
    }
    let elsewhere = targets(&json!({"terminationMessagePath": "/t"}));
    assert_eq!(elsewhere.last().unwrap(), &format!("/t={log}"));
}

#[test]
fn requests_print_without_what_may_be_secret() {
    let pod = one(
        &json!({"env": [{"name": "KEY", "value": "hunter2"}]}),
        &json!({}),
    );
    let request = container_of(&pod).unwrap();
    assert!(json_of(&request).to_string().contains("hunter2"));
    assert_eq!(
        format!("{request:?}"),
        "Request { name: \"k8s_c_web_prod_u1_0\", notes: [], .. }"
    );
}

#[test]
fn resources_of_a_pod_are_shared_by_its_containers() {
    use mirrorlet_core::resources::CgroupLimits;

    let limits = |cpu_shares, cpu_quota, mib: Option<i64>| CgroupLimits {
        cpu_shares,
        cpu_quota,
        memory: mib.map(|mib| mib << 20),
    };
    // 8 GiB of memory: 819 MiB requested are 100 thousandths.
    for (own, first, of_pod, of_containers, scores) in [
        (
            json!({"limits": {"cpu": "2", "memory": "2Gi"}}),
            json!({"limits": {"cpu": "500m", "memory": "1Gi"}}),
            limits(2048, Some(200_000), Some(2048)),
            [
                limits(512, Some(50_000), Some(1024)),
                limits(2048, Some(200_000), Some(2048)),
            ],
            // Guaranteed, as a whole.
            [-997, -997],
        ),
        (
            json!({"requests": {"cpu": "1", "memory": "1638Mi"}, "limits": {"memory": "2Gi"}}),
            json!({"requests": {"cpu": "0", "memory": "0"}}),
            limits(1024, None, Some(2048)),
            [limits(2, None, Some(2048)), limits(2, None, Some(2048))],
            [901, 901],
        ),
        (
            json!({"limits": {"memory": "4Gi"}}),
            json!({"requests": {"cpu": "250m", "memory": "819Mi"}}),
            limits(256, None, Some(4096)),
            [limits(256, None, Some(4096)), limits(2, None, Some(4096))],
            [701, 800],
        ),
    ] {
        let spec = json!({
            "resources": own,
            "containers": [{"name": "a", "resources": first}, {"name": "b"}],
        });
        let pod = pod(&spec);
        let containers = &spec::spec(&pod).containers;
        assert_eq!(resources::pod_limits(&pod), Some(of_pod), "{own}");
        for (index, container) in containers.iter().enumerate() {
            let told = resources::container_limits(&pod, container);
            // docker 68
            assert_eq!(told, of_containers[index], "{own} {index}");
            let score = resources::oom_score_adj(&pod, container, Role::App, &node());
            assert_eq!(score, scores[index], "{own} {index}");
        }
        let engine = |cgroup_driver| EngineFacts {
            cgroup_driver,
            ..engine()
        };
        let parent = |driver| {
            let cgroup = resources::pod_cgroup_limits(&pod, "", driver);
            cgroup.map(|cgroup| cgroup.unwrap().0.join("/"))
        };
        let class = if scores[0] < 0 { "" } else { "burstable/" };
        for driver in [CgroupDriver::Cgroupfs, CgroupDriver::Systemd] {
            let expected = format!("mirrorlet/{class}podu1");
            assert_eq!(parent(driver).unwrap(), expected, "{driver:?}");
        }
        let refused = sandbox_on(&pod, &engine(CgroupDriver::None)).unwrap_err();
        assert!(
            refused.to_string().starts_with("spec.resources: "),
            "{refused}"
        );
    }
    let plain = one(
        &json!({"resources": {"limits": {"memory": "1Gi"}}}),
        &json!({}),
    );
    assert_eq!(resources::pod_limits(&plain), None);
}

proptest! {
    #[test]
    fn scores_and_shares_stay_in_their_range(
        request in "[1-9][0-9]{0,12}(m|k|Ki|Mi|Gi)?",
        limit in proptest::option::of("[1-9][0-9]{0,12}(m|k|Ki|Mi|Gi)?"),
        memory_bytes: u64,
    ) {
        let mut resources = json!({"requests": {"memory": request, "cpu": request}});
        if let Some(limit) = limit {
            resources["limits"] = json!({"memory": limit, "cpu": limit});
        }
        let pod = one(&json!({"resources": resources}), &json!({}));
        let node = HostFacts { memory_bytes, ..node() };
        let container = &spec::spec(&pod).containers[0];
        let score = resources::oom_score_adj(&pod, container, Role::App, &node);
        prop_assert!(score == -997 || (3..=999).contains(&score), "{}", score);
        let told = resources::container_limits(&pod, container);
        prop_assert!((2..=262_144).contains(&told.cpu_shares));
        prop_assert!(told.cpu_quota.is_none_or(|quota| quota >= 1000));
        prop_assert!(told.memory.is_none_or(|bytes| bytes > 0));
    }
}

#[test]
fn one_with_a_target_sees_the_targets_processes() {
    let pid = |over: &serde_json::Value, target| {
        let request = container_with(&one(&json!({}), over), |input| ContainerInput {
            target,
            ..input
        });
        json_of(&request.unwrap())["HostConfig"]["PidMode"].clone()
    };
    // docker 30, node-api 13
    assert_eq!(pid(&json!({}), Some("abc")), "container:abc");
    assert_eq!(
        pid(&json!({"shareProcessNamespace": true}), Some("abc")),
        "container:abc"
    );
    assert_eq!(pid(&json!({"hostPID": true}), None), "host");
}
