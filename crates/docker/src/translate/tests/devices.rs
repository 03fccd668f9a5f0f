use super::*;

/// The devices of the request of a container with those fields; `data` and `disk` are devices, of
/// which `disk` is not written to.
fn devices(container: &Value) -> Result<Value, String> {
    let volumes = VolumeMap {
        devices: [("data", "/dev/disk/by-id/a"), ("disk", "/dev/sdb")]
            .map(|(name, path)| (name.to_owned(), path.into()))
            .into(),
        read_only: ["disk".to_owned(), "cache".to_owned()].into(),
        ..volumes()
    };
    let pod = one(container, &json!({}));
    let request = container_with(&pod, |input| ContainerInput {
        volumes: Box::leak(Box::new(volumes)),
        ..input
    });
    let request = request.map_err(|error| error.to_string())?;
    Ok(host_config(&request, "Devices"))
}

#[test]
fn a_block_device_is_the_hosts_at_the_containers_path() {
    let device = |host: &str, path: &str, allowed: &str| json!({"PathOnHost": host, "PathInContainer": path, "CgroupPermissions": allowed});
    for (container, expected) in [
        // A container without one has the request that it had before there were any.
        (json!({}), Ok(Value::Null)),
        (json!({"volumeDevices": []}), Ok(Value::Null)),
        (
            json!({"volumeDevices": [{"name": "data", "devicePath": "/dev/xvda"}]}),
            Ok(json!([device("/dev/disk/by-id/a", "/dev/xvda", "rwm")])),
        ),
        (
            json!({"volumeDevices": [
                {"name": "disk", "devicePath": "/disk"},
                {"name": "data", "devicePath": "/dev/xvda"},
            ]}),
            Ok(json!([
                device("/dev/sdb", "/disk", "r"),
                device("/dev/disk/by-id/a", "/dev/xvda", "rwm"),
            ])),
        ),
        (
            json!({"volumeDevices": [{"name": "cache", "devicePath": "/dev/xvda"}]}),
            Err("cannot find volume \"cache\" to pass into container \"c\""),
        ),
        (
            json!({"volumeDevices": [{"name": "data", "devicePath": "dev/xvda"}]}),
            Err("error DevicePath `dev/xvda` must be an absolute path"),
        ),
    ] {
        let expected = expected.map_err(str::to_owned);
        // box 18
        assert_eq!(devices(&container), expected, "{container}");
    }
}

#[test]
fn devices_by_cdi_are_requested_of_an_engine_that_has_them() {
    let annotated = |source: &str, value: &str| {
        let mut pod = one(&json!({}), &json!({"initContainers": []}));
        let annotations = [
            ("kubernetes.io/config.source", source),
            ("cdi.k8s.io/gpu", value),
            ("cdi.k8s.io/more", "vendor.com/net=1"),
        ];
        let annotations = annotations.map(|(key, value)| (key.to_owned(), value.to_owned()));
        pod.metadata.annotations = Some(annotations.into());
        pod
    };
    let both = "nvidia.com/gpu=0,nvidia.com/gpu=1";
    let requested = json!([{
        "Driver": "cdi",
        "DeviceIDs": ["nvidia.com/gpu=0", "nvidia.com/gpu=1", "vendor.com/net=1"],
    }]);
    let ignored = "annotation cdi.k8s.io/gpu has no effect: only static pods can request CDI devices with annotations";
    for (source, value, cdi, api, expected, note) in [
        ("file", both, true, (1, 50), Ok(requested), None),
        (
            "file",
            both,
            false,
            (1, 41),
            Err(
                "CDI device \"nvidia.com/gpu=0\": CDI devices need Docker Engine 28.2 or newer, or 25 or newer with \"features\": {\"cdi\": true} in the Engine's daemon.json; this Engine has API 1.41",
            ),
            None,
        ),
        (
            "file",
            both,
            false,
            (1, 44),
            Err(
                "CDI device \"nvidia.com/gpu=0\": this Docker Engine has CDI turned off; set \"features\": {\"cdi\": true} in the Engine's daemon.json and restart it",
            ),
            None,
        ),
        (
            "file",
            "/dev/nvidia0",
            true,
            (1, 50),
            Err(
                "annotation cdi.k8s.io/gpu: must be names of CDI devices, such as nvidia.com/gpu=0, with commas and no spaces between them",
            ),
            None,
        ),
        ("api", both, true, (1, 50), Ok(Value::Null), Some(ignored)),
        ("api", both, false, (1, 41), Ok(Value::Null), Some(ignored)),
    ] {
        let engine = EngineFacts {
            cdi,
            api_version: api,
            ..engine()
        };
        let request = container_with(&annotated(source, value), |input| ContainerInput {
            engine: Box::leak(Box::new(engine)),
            ..input
        });
        let notes = request.as_ref().map(|request| request.notes.clone());
        let notes: Vec<_> = notes.unwrap_or_default();
        let notes: Vec<_> = notes.iter().map(|note| note.message.as_str()).collect();
        assert_eq!(notes, Vec::from_iter(note), "{source} {value}");
        let devices = request.map(|request| host_config(&request, "DeviceRequests"));
        let devices = devices.map_err(|error| error.to_string());
        // box 19
        assert_eq!(
            devices,
            expected.map_err(str::to_owned),
            "{source} {value} {cdi}"
        );
    }
    let plain = container_of(&one(&json!({}), &json!({}))).unwrap();
    // box 19
    assert_eq!(host_config(&plain, "DeviceRequests"), Value::Null);
}
