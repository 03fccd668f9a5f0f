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
