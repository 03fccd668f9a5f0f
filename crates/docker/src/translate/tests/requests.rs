//! Whole requests, pinned.

use super::*;

#[test]
fn plain_sandbox() {
    let mut pod = one(
        &json!({"ports": [{"containerPort": 80, "hostPort": 8080}]}),
        &json!({}),
    );
    pod.metadata.labels = Some([("app".to_owned(), "shop".to_owned())].into());
    pod.metadata.annotations = Some([("note".to_owned(), "hi".to_owned())].into());
    let request = sandbox_of(&pod).unwrap();
    assert_eq!(request.name, "k8s_POD_web_prod_u1_0");
    insta::assert_json_snapshot!(json_of(&request));
}

#[test]
fn host_network_sandbox() {
    let pod = one(
        &json!({"ports": [{"containerPort": 80, "hostPort": 80}]}),
        &json!({"hostNetwork": true, "dnsPolicy": "ClusterFirstWithHostNet"}),
    );
    let request = sandbox_request(&SandboxInput {
        network_mode: "default",
        gateway: None,
        owner: OWNER,
        pod: &pod,
        attempt: 1,
        image: "pause:1",
        node: &HostFacts {
            cluster_dns: vec!["10.96.0.10".parse().unwrap()],
            ..node()
        },
        engine: &EngineFacts {
            cgroup_driver: CgroupDriver::Systemd,
            ..engine()
        },
    });
    // docker 16
    insta::assert_json_snapshot!(json_of(&request.unwrap()));
}

#[test]
fn plain_container() {
    let request = container_of(&one(&json!({}), &json!({}))).unwrap();
    assert_eq!(request.name, "k8s_c_web_prod_u1_0");
    insta::assert_json_snapshot!(json_of(&request));
}

#[test]
fn rich_container() {
    let pod = one(
        &json!({
            "command": ["serve", "--as=$(NAME)"], "args": ["$(CPUS)"], "workingDir": "/srv",
            "env": [
                {"name": "NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
                {"name": "CPUS", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}},
            ],
            "resources": {
                "limits": {"cpu": "1500m", "memory": "256Mi"},
                "requests": {"cpu": "500m", "memory": "128Mi"},
            },
            "volumeMounts": [
                {"name": "data", "mountPath": "/data", "readOnly": true},
                {"name": "cache", "mountPath": "/cache", "subPath": "web"},
            ],
            "terminationMessagePath": "/run/last-words",
            "terminationMessagePolicy": "FallbackToLogsOnError",
            "lifecycle": {"stopSignal": "SIGQUIT"},
            "stdin": true, "tty": true,
        }),
        &json!({"shareProcessNamespace": true, "terminationGracePeriodSeconds": 5}),
    );
    let request = container_with(&pod, |input| ContainerInput {
        restart_count: 4,
        pod_restarts: 0,
        ..input
    })
    .unwrap();
    insta::assert_json_snapshot!(json_of(&request));
}

#[test]
fn locked_down_container() {
    let pod = one(
        &json!({"securityContext": {
            "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true,
            "capabilities": {"drop": ["ALL"], "add": ["NET_BIND_SERVICE"]},
            "seccompProfile": {"type": "RuntimeDefault"},
            "appArmorProfile": {"type": "Localhost", "localhostProfile": "web"},
            "seLinuxOptions": {"type": "web_t", "level": "s0:c1"},
            "procMount": "Unmasked",
        }}),
        &json!({"securityContext": {
            "runAsNonRoot": true, "runAsUser": 1000, "runAsGroup": 1000,
            "fsGroup": 2000, "supplementalGroups": [3000],
        }}),
    );
    insta::assert_json_snapshot!(json_of(&container_of(&pod).unwrap()));
}
