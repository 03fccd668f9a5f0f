//! kubectl's commands beyond apply, get and delete, with no cluster.

use serde_json::{Value, json};

use crate::common::{IMAGE, IMAGE_2, eventually};
use crate::embedded::{Box, STDIN, deployment};

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_explains_creates_and_pages() {
    let alone = Box::start().await;
    let fields = alone.kubectl(&["explain", "pod.spec.containers", "--recursive"]);
    for field in ["imagePullPolicy", "livenessProbe", "secretKeyRef"] {
        // embedded 22
        assert!(fields.contains(field), "{field}: {fields}");
    }
    let words = alone.kubectl(&["explain", "deployment.spec.strategy.rollingUpdate.maxSurge"]);
    assert!(words.contains("The maximum number of pods"), "{words}");
    let reference = "openapi/v3/apis/apps/v1";
    let document = json(&alone.kubectl(&["get", "--raw", &format!("/{reference}")]));
    assert!(document["components"]["schemas"].as_object().unwrap().len() > 100);

    // Commands that ask for ReplicationControllers, too.
    let all = alone.output(&["get", "rc,svc"], "");
    let said = String::from_utf8_lossy(&all.stderr).into_owned();
    assert!(
        all.status.success() && said.contains("No resources found"),
        "{said}"
    );
    let dumped = alone.kubectl(&["cluster-info", "dump"]);
    // embedded 22
    assert!(
        dumped.contains("ReplicationControllerList"),
        "nothing is dumped"
    );

    // Commands that send protobuf.
    for args in [
        &["service", "clusterip", "web", "--tcp=8080:8080"][..],
        &["configmap", "one", "--from-literal=a=b"],
        &["secret", "generic", "plain", "--from-literal=a=b"],
        &["namespace", "more"],
        &[
            "cronjob",
            "nightly",
            "--schedule=0 3 * * *",
            "--image",
            IMAGE,
            "--",
            "true",
        ],
        &[
            "deployment",
            "none",
            "--replicas=0",
            "--port=80",
            "--image",
            IMAGE,
        ],
    ] {
        let made = alone.kubectl(&[&["create"], args].concat());
        // embedded 13
        assert!(made.ends_with(" created\n"), "{made}");
    }
    let service = alone.object(&["service", "web"]);
    assert_eq!(service["spec"]["ports"][0]["targetPort"], 8080);
    assert_eq!(alone.object(&["deployment", "none"])["spec"]["replicas"], 0);
    alone.kubectl(&["create", "job", "now", "--from=cronjob/nightly"]);
    alone.kubectl(&[
        "wait",
        "--for=condition=complete",
        "job/now",
        "--timeout=240s",
    ]);

    // Pages of one list, while it changes.
    for name in ["two", "three"] {
        alone.kubectl(&["create", "configmap", name, "--from-literal=a=b"]);
        alone.kubectl(&["label", "configmap", name, "new=yes"]);
    }
    let path = "/api/v1/namespaces/default/configmaps?limit=2";
    let first = json(&alone.kubectl(&["get", "--raw", path]));
    let token = first["metadata"]["continue"].as_str().unwrap();
    assert_eq!(first["metadata"]["remainingItemCount"], 1);
    alone.kubectl(&[
        "delete",
        "--raw",
        "/api/v1/namespaces/default/configmaps?labelSelector=new",
    ]);
    let rest = json(&alone.kubectl(&["get", "--raw", &format!("{path}&continue={token}")]));
    let names: Vec<_> = [&first, &rest]
        .into_iter()
        .flat_map(|page| page["items"].as_array().unwrap())
        .map(|item| item["metadata"]["name"].as_str().unwrap())
        .collect();
    // embedded 28
    assert_eq!(names, ["one", "three", "two"]);
    assert_eq!(
        first["metadata"]["resourceVersion"],
        rest["metadata"]["resourceVersion"]
    );
    let left = alone.kubectl(&["get", "configmaps", "--chunk-size=1", "-o", "name"]);
    assert_eq!(left, "configmap/one\n");

    // A lease as programs make it, and the Node's.
    let lease = "apiVersion: coordination.k8s.io/v1\nkind: Lease\nmetadata: {name: leader}\nspec: {holderIdentity: a}\n";
    alone.kubectl_with(&STDIN, lease);
    alone.kubectl_with(&STDIN, &lease.replace(": a}", ": b}"));
    let row = alone.kubectl(&["get", "lease", "leader", "--no-headers"]);
    // embedded 33
    assert!(row.starts_with("leader   b "), "{row}");
    alone.kubectl(&["delete", "lease", "leader"]);
    let described = alone.kubectl(&["describe", "node", "box"]);
    assert!(described.contains("HolderIdentity:  box"), "{described}");

    // The differences are those of a dry run on the server.
    let config = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: one}\ndata: {a: c}\n";
    let differs = alone.output(&["diff", "-f", "-"], config);
    assert_eq!(differs.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&differs.stdout).contains("+  a: c"));
    alone.kubectl_with(&STDIN, config);

    // Attached to what it runs, until that ends.
    let run = [
        "run",
        "once",
        "-i",
        "--rm",
        "--quiet",
        "--restart=Never",
        "--image",
        IMAGE,
    ];
    let command = ["--", "sh", "-c", "read x; echo got $x"];
    let said = alone.kubectl_with(&[&run[..], &command].concat(), "it\n");
    // embedded 29
    assert_eq!(said, "got it\n");
    // `--rm` deletes it and doesn't wait until it is gone.
    alone.kubectl(&["wait", "--for=delete", "pod/once", "--timeout=240s"]);
}

fn looping(name: &str) -> String {
    format!(
        r#"apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: {IMAGE}
    command: ["sh", "-c", "trap 'exit 0' TERM; while :; do sleep 1 & wait $!; done"]
"#
    )
}

/// The containers that run, each as container, pod and namespace.
fn running(alone: &Box) -> Vec<String> {
    let names = alone.bed.running().into_keys();
    let mut names: Vec<_> = names
        .map(|name| {
            name.split('_')
                .skip(1)
                .take(3)
                .collect::<Vec<_>>()
                .join("_")
        })
        .filter(|name| !name.starts_with("POD_"))
        .collect();
    names.sort();
    names
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cordoned_node_has_new_pods_wait_and_is_drained() {
    let alone = Box::start().await;
    alone.kubectl_with(&STDIN, &deployment(1, IMAGE));
    alone.kubectl_with(&STDIN, &looping("bare"));
    alone.bed.write("static.yaml", &looping("static"));
    alone.kubectl(&["rollout", "status", "deployment/d", "--timeout=240s"]);
    let ready = ["wait", "--for=condition=Ready", "--timeout=240s"];
    alone.kubectl(&[&ready[..], &["pod/bare"]].concat());
    alone.agent.until_running("static").await;
    let image = format!("--image={IMAGE}");
    alone.kubectl(&["create", "job", "done", &image, "--", "true"]);
    alone.kubectl(&[
        "wait",
        "--for=condition=Complete",
        "--timeout=240s",
        "job/done",
    ]);
    alone.kubectl(&["label", "node", "box", "disk=fast"]);
    let refused = alone.kubectl_fails(&["taint", "node", "box", "a=b:NoSchedule"]);
    assert!(refused.contains("kubectl cordon"), "{refused}");
    let before = alone.object(&["pod", "d-0"])["metadata"]["uid"].clone();

    // Evicted are the pods of the API; the pod of a manifest runs on, as static pods do.
    alone.kubectl(&["drain", "box", "--force", "--timeout=240s"]);
    // embedded 30
    assert_eq!(running(&alone), ["main_static-box_default"]);
    let row = alone.kubectl(&["get", "node", "box", "--no-headers"]);
    assert!(row.contains("Ready,SchedulingDisabled"), "{row}");
    // What a workload wants, and what is new, waits.
    alone.kubectl_with(&STDIN, &looping("late"));
    for pod in ["d-0", "late"] {
        let object = alone.object(&["pod", pod]);
        assert_eq!(object["status"]["phase"], "Pending", "{object}");
        assert_eq!(object["status"]["conditions"][0]["reason"], "Unschedulable");
        assert_eq!(object["spec"]["nodeName"], Value::Null);
    }
    let evicted = alone.object(&["pod", "d-0"])["metadata"]["uid"].clone();
    assert_ne!(before, evicted);
    let described = alone.kubectl(&["describe", "pod", "late"]);
    assert!(described.contains("FailedScheduling"), "{described}");
    alone.kubectl_fails(&["get", "pod", "bare"]);
    // The pod of a Job that is done goes, what it has done stays.
    alone.kubectl_fails(&["get", "pod", "done-0"]);
    // embedded 55
    assert_eq!(alone.object(&["job", "done"])["status"]["succeeded"], 1);

    // An agent that is started anew still waits.
    let Box { bed, agent } = alone;
    agent.stop().await;
    let alone = Box::start_on(bed).await;
    alone.agent.until_running("static").await;
    assert_eq!(running(&alone), ["main_static-box_default"]);
    assert_eq!(
        alone.object(&["node", "box"])["metadata"]["labels"]["disk"],
        "fast"
    );
    alone.kubectl(&["uncordon", "box"]);
    alone.kubectl(&[&ready[..], &["pod/late", "pod/d-0"]].concat());
    // embedded 30
    assert_eq!(alone.object(&["pod", "d-0"])["metadata"]["uid"], evicted);
}

#[tokio::test(flavor = "multi_thread")]
async fn containers_are_added_for_debugging() {
    let alone = Box::start().await;
    alone.kubectl_with(&STDIN, &deployment(1, IMAGE));
    alone.bed.write("static.yaml", &looping("static"));
    alone.kubectl(&["rollout", "status", "deployment/d", "--timeout=240s"]);
    alone.agent.until_running("static").await;
    let id = alone.bed.running_id("web_d-0_default");
    for (pod, target) in [("d-0", "web"), ("static-box", "main")] {
        let image = format!("--image={IMAGE}");
        let targeted = format!("--target={target}");
        let command = ["--", "sh", "-c", "ps | grep -c 'while :' ; echo seen"];
        let args = [
            "debug",
            pod,
            "-c",
            "look",
            &image,
            &targeted,
            "--profile=general",
        ];
        alone.kubectl(&[&args[..], &command].concat());
        // embedded 31
        eventually("the words of the container", || {
            let output = alone.output(&["logs", pod, "-c", "look"], "");
            let said = String::from_utf8_lossy(&output.stdout).into_owned();
            said.ends_with("seen\n").then_some(())
        })
        .await;
        let object = alone.object(&["pod", pod]);
        assert_eq!(object["spec"]["ephemeralContainers"][0]["name"], "look");
    }
    // Nothing was restarted, and the next version has none.
    assert_eq!(alone.bed.running_id("web_d-0_default"), id);
    alone.kubectl(&["set", "env", "deployment/d", "A=B"]);
    alone.kubectl(&["rollout", "status", "deployment/d", "--timeout=240s"]);
    let object = alone.object(&["pod", "d-0"]);
    assert_eq!(object["spec"]["ephemeralContainers"], Value::Null);
    // Attached with input, and gone with the container.
    alone.kubectl_with(&STDIN, &looping("bare"));
    alone.kubectl(&[
        "wait",
        "--for=condition=Ready",
        "pod/bare",
        "--timeout=240s",
    ]);
    let image = format!("--image={IMAGE}");
    let args = [
        "debug",
        "bare",
        "-i",
        "-q",
        "-c",
        "ask",
        &image,
        "--",
        "sh",
        "-c",
        "read x; echo got $x",
    ];
    alone.kubectl_with(&args, "it\n");
    // embedded 29
    eventually("the input to arrive", || {
        let output = alone.output(&["logs", "bare", "-c", "ask"], "");
        (output.stdout == b"got it\n").then_some(())
    })
    .await;
    // A pod with such a container is stored without it.
    alone.kubectl(&["label", "pod", "bare", "a=b"]);
    let stored = std::fs::read_to_string(alone.bed.path().join("api/default/pods/bare.yaml"));
    assert!(!stored.unwrap().contains("ephemeral"));
    assert_eq!(
        alone.object(&["pod", "bare"])["spec"]["ephemeralContainers"][0]["name"],
        "ask"
    );
}

/// A row of pods, each with a claim that has a name of its own on the Engine.
fn stateful_set(template: &str, replicas: u32, image: &str) -> String {
    format!(
        r#"apiVersion: apps/v1
kind: StatefulSet
metadata: {{name: row}}
spec:
  replicas: {replicas}
  serviceName: row
  minReadySeconds: 0
  selector: {{matchLabels: {{app: row}}}}
  volumeClaimTemplates:
  - metadata: {{name: {template}}}
    spec: {{accessModes: [ReadWriteOnce], resources: {{requests: {{storage: 1Gi}}}}}}
  template:
    metadata: {{labels: {{app: row}}}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - name: web
        image: {image}
        command: ["sh", "-c", "trap 'exit 0' TERM; while :; do sleep 1 & wait $!; done"]
        volumeMounts: [{{name: {template}, mountPath: /data}}]
"#
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stateful_set_is_applied_scaled_and_updated_by_kubectl() {
    let alone = Box::start().await;
    let template = format!("kube{}", std::process::id());
    let made = alone.kubectl_with(&STDIN, &stateful_set(&template, 2, IMAGE));
    // embedded 39
    assert_eq!(made, "statefulset.apps/row created\n");
    let status = ["rollout", "status", "statefulset/row", "--timeout=240s"];
    alone.kubectl(&status);
    let row = |columns: usize| {
        let row = alone.kubectl(&["get", "sts", "row", "--no-headers"]);
        let all = row.split_whitespace().map(str::to_owned);
        all.take(columns).collect::<Vec<_>>()
    };
    assert_eq!(row(2), ["row", "2/2"]);
    let counts = alone.object(&["sts", "row"])["status"].clone();
    let whole = [
        "replicas",
        "readyReplicas",
        "currentReplicas",
        "updatedReplicas",
    ];
    for key in whole {
        // embedded 39
        assert_eq!(counts[key], 2, "{key}: {counts}");
    }
    assert_eq!(counts["currentRevision"], counts["updateRevision"]);
    let same = alone.kubectl_with(&STDIN, &stateful_set(&template, 2, IMAGE));
    assert_eq!(same, "statefulset.apps/row unchanged\n");
    let stored = alone.bed.path().join("api/default/statefulsets/row.yaml");
    assert!(stored.exists());
    let described = alone.kubectl(&["describe", "sts", "row"]);
    assert!(
        described.contains("Replicas:           2 desired | 2 total"),
        "{described}"
    );
    let ports = json!([{"name": "www", "port": 80}]);
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "row"},
        "spec": {"clusterIP": "None", "selector": {"app": "row"}, "ports": ports},
    });
    alone.kubectl_with(&STDIN, &service.to_string());
    let addresses = ["row-0", "row-1"].map(|pod| {
        let pod = alone.object(&["pod", pod]);
        pod["status"]["podIP"].as_str().unwrap().to_owned()
    });
    let reached = addresses.clone().map(|ip| format!("{ip}:80")).join(",");
    let described = alone.kubectl(&["describe", "service", "row"]);
    let mut lines = described.lines();
    // embedded 61
    assert!(
        lines.any(|line| line.starts_with("Endpoints:") && line.ends_with(&reached)),
        "{described}"
    );
    let endpoints = alone.kubectl(&["get", "endpoints", "row", "--no-headers"]);
    assert!(endpoints.contains(&reached), "{endpoints}");
    let of_service = ["-l", "kubernetes.io/service-name=row", "--no-headers"];
    let slices = alone.kubectl(&[&["get", "endpointslices"], of_service.as_slice()].concat());
    let slice: Vec<&str> = slices.split_whitespace().take(4).collect();
    assert_eq!(slice, ["row-ipv4", "IPv4", "80", &addresses.join(",")]);
    // Each pod has its claim, which is made of the set's file.
    let claim = format!("{template}-row-1");
    assert_eq!(alone.object(&["pvc", &claim])["status"]["phase"], "Bound");
    let refused = alone.kubectl_fails(&["label", "pvc", &claim, "a=b"]);
    assert!(refused.contains("statefulsets/row.yaml"), "{refused}");

    alone.kubectl(&["scale", "sts/row", "--replicas=3"]);
    alone.kubectl(&status);
    // embedded 39
    assert_eq!(row(2), ["row", "3/3"]);
    let owner = &alone.object(&["pod", "row-2"])["metadata"]["ownerReferences"][0];
    assert_eq!(
        (&owner["kind"], &owner["name"]),
        (&"StatefulSet".into(), &"row".into())
    );
    alone.kubectl(&["exec", "row-2", "--", "touch", "/data/kept"]);
    alone.kubectl(&["set", "image", "sts/row", &format!("web={IMAGE_2}")]);
    alone.kubectl(&status);
    for pod in ["row-0", "row-1", "row-2"] {
        let edition = alone.kubectl(&["exec", pod, "--", "sh", "-c", "echo $EDITION"]);
        // embedded 39
        assert_eq!(edition, "2\n", "{pod}");
    }
    alone.kubectl(&["exec", "row-2", "--", "test", "-e", "/data/kept"]);
    let after = alone.object(&["sts", "row"])["status"].clone();
    assert_ne!(after["updateRevision"], counts["updateRevision"]);

    alone.kubectl(&["delete", "statefulset", "row"]);
    for pod in ["row-0", "row-1", "row-2"] {
        alone.kubectl(&[
            "wait",
            "--for=delete",
            &format!("pod/{pod}"),
            "--timeout=240s",
        ]);
    }
    assert!(!stored.exists());
    // That of a manifest is shown, and changed in its file.
    let manifest = stateful_set(&template, 1, IMAGE);
    alone.bed.write("row.yaml", &manifest);
    alone.agent.until_running("row-0").await;
    alone.kubectl(&status);
    let refused = alone.kubectl_fails(&["scale", "sts/row", "--replicas=3"]);
    // embedded 39
    assert!(
        refused.contains("Forbidden") && refused.contains("row.yaml"),
        "{refused}"
    );
    // The claim of a volume that was removed is lost, until there is one again.
    let claim = format!("{template}-row-0");
    let volume = format!("mirrorlet_default_{claim}");
    let phases = |expected: &str| {
        let shown = alone.output(&["get", "pvc", &claim, "--no-headers"], "");
        let shown = String::from_utf8(shown.stdout).unwrap();
        (shown.split_whitespace().nth(1) == Some(expected)).then_some(())
    };
    alone.bed.remove("row.yaml");
    alone.agent.until_gone("row-0").await;
    for ended in alone.bed.containers().values() {
        alone.bed.docker(&["rm", "-f", ended]);
    }
    alone.bed.docker(&["volume", "rm", &volume]);
    alone.bed.write("row.yaml", &manifest);
    // embedded 39
    eventually("a lost claim", || phases("Lost")).await;
    alone.bed.docker(&["volume", "create", &volume]);
    alone.agent.until_running("row-0").await;
    eventually("a bound claim", || phases("Bound")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_versions_of_a_workload_are_listed_and_undone_by_kubectl() {
    let alone = Box::start().await;
    alone.kubectl_with(&STDIN, &deployment(2, IMAGE));
    let status = |what: &str| alone.kubectl(&["rollout", "status", what, "--timeout=240s"]);
    status("deployment/d");
    alone.bed.until_healthy(2).await;
    alone.kubectl(&["set", "image", "deployment/d", &format!("web={IMAGE_2}")]);
    alone.kubectl(&[
        "annotate",
        "deployment/d",
        "kubernetes.io/change-cause=a newer image",
    ]);
    status("deployment/d");
    let history =
        |what: &str, more: &[&str]| alone.kubectl(&[&["rollout", "history", what], more].concat());
    let revisions = |what: &str| {
        let listed = history(what, &[]);
        let lines = listed
            .lines()
            .filter(|line| line.starts_with(char::is_numeric));
        let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        lines.map(words).collect::<Vec<_>>()
    };
    // embedded 40
    assert_eq!(revisions("deployment/d"), ["1 <none>", "2 a newer image"]);
    let first = history("deployment/d", &["--revision=1"]);
    assert!(first.contains(&format!("Image:\t{IMAGE}\n")), "{first}");
    let sets = alone.object(&["rs", "-l", "app=d"])["items"].clone();
    let counts = sets.as_array().unwrap().iter().map(|set| {
        let number = &set["metadata"]["annotations"]["deployment.kubernetes.io/revision"];
        (
            number.as_str().unwrap(),
            set["status"]["replicas"].as_u64().unwrap(),
        )
    });
    let mut counts: Vec<_> = counts.collect();
    counts.sort_unstable();
    // embedded 40
    assert_eq!(counts, [("1", 0), ("2", 2)]);
    let pod = alone.object(&["pod", "d-0"]);
    let owner = &pod["metadata"]["ownerReferences"][0];
    let is_known = sets.as_array().unwrap().iter().any(|set| {
        set["metadata"]["uid"] == owner["uid"] && set["metadata"]["name"] == owner["name"]
    });
    assert!(is_known, "{owner}");
    let of_set = format!("rs/{}", owner["name"].as_str().unwrap());
    let selected =
        alone.object(&[&of_set])["spec"]["selector"]["matchLabels"]["pod-template-hash"].clone();
    assert_eq!(pod["metadata"]["labels"]["pod-template-hash"], selected);
    let refused = alone.kubectl_fails(&["label", "pod", "d-0", "a=b"]);
    assert!(refused.contains("it belongs to deployment d"), "{refused}");

    let undone = alone.kubectl(&["rollout", "undo", "deployment/d"]);
    assert_eq!(undone, "deployment.apps/d rolled back\n");
    status("deployment/d");
    let edition = |pod: &str| alone.kubectl(&["exec", pod, "--", "sh", "-c", "echo $EDITION"]);
    assert_eq!(edition("d-0"), "1\n");
    // It has the next number.
    let numbers = |what: &str| {
        let all = revisions(what).into_iter();
        all.map(|line| line.split(' ').next().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    // embedded 40
    assert_eq!(numbers("deployment/d"), ["2", "3"]);
    let skipped = alone.kubectl(&["rollout", "undo", "deployment/d", "--to-revision=3"]);
    assert!(skipped.contains("skipped rollback"), "{skipped}");
    let unknown = alone.kubectl_fails(&["rollout", "undo", "deployment/d", "--to-revision=9"]);
    assert!(
        unknown.contains("unable to find specified revision 9"),
        "{unknown}"
    );

    // The versions of a set.
    let template = format!("undo{}", std::process::id());
    alone.kubectl_with(&STDIN, &stateful_set(&template, 1, IMAGE));
    status("sts/row");
    alone.kubectl(&["set", "image", "sts/row", &format!("web={IMAGE_2}")]);
    status("sts/row");
    // embedded 41
    assert_eq!(numbers("sts/row"), ["1", "2"]);
    let first = history("sts/row", &["--revision=1"]);
    assert!(first.contains(&format!("Image:\t{IMAGE}\n")), "{first}");
    alone.kubectl(&["rollout", "undo", "sts/row", "--to-revision=1"]);
    status("sts/row");
    assert_eq!(edition("row-0"), "1\n");
    // embedded 41
    assert_eq!(numbers("sts/row"), ["2", "3"]);

    // And those of a DaemonSet.
    let daemon_set = |image: &str| {
        deployment(1, image)
            .replace("kind: Deployment", "kind: DaemonSet")
            .replace("  replicas: 1\n", "")
            .replace("{name: d}", "{name: ds}")
            .replace("app: d", "app: ds")
    };
    alone.kubectl_with(&STDIN, &daemon_set(IMAGE));
    status("ds/ds");
    alone.kubectl(&["set", "image", "ds/ds", &format!("web={IMAGE_2}")]);
    status("ds/ds");
    // embedded 43
    assert_eq!(numbers("ds/ds"), ["1", "2"]);
    let first = history("ds/ds", &["--revision=1"]);
    assert!(first.contains(&format!("Image:\t{IMAGE}\n")), "{first}");
    alone.kubectl(&["rollout", "undo", "ds/ds"]);
    status("ds/ds");
    assert_eq!(edition("ds"), "1\n");
    // embedded 43
    assert_eq!(numbers("ds/ds"), ["2", "3"]);

    // A Deployment of a manifest has a history, and is changed in its file.
    let manifest = |image: &str| {
        deployment(1, image)
            .replace("{name: d}", "{name: m}")
            .replace("app: d", "app: m")
    };
    alone.bed.write("m.yaml", &manifest(IMAGE));
    alone.agent.until_running("m-0").await;
    status("deployment/m");
    alone.bed.write("m.yaml", &manifest(IMAGE_2));
    eventually("the second version", || {
        (numbers("deployment/m") == ["1", "2"]).then_some(())
    })
    .await;
    let refused = alone.kubectl_fails(&["rollout", "undo", "deployment/m"]);
    // embedded 40
    assert!(
        refused.contains("is forbidden") && refused.contains("m.yaml"),
        "{refused}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_namespace_goes_with_all_that_is_in_it() {
    let alone = Box::start().await;
    let node = alone.object(&["node", "box", "--subresource=status"]);
    assert_eq!(node["metadata"]["name"], "box");
    // Nothing is scheduled here.
    assert!(node["spec"].get("taints").is_none(), "{}", node["spec"]);
    alone.kubectl(&["create", "namespace", "team"]);
    alone.kubectl(&["create", "namespace", "other"]);
    for namespace in ["team", "other"] {
        let of_it = ["-n", namespace];
        alone.kubectl(&[&of_it[..], &["create", "configmap", "one"]].concat());
        let apply = [&of_it[..], &STDIN].concat();
        alone.kubectl_with(&apply, &deployment(2, IMAGE));
    }
    // It ignores SIGTERM: while it stops the namespace is Terminating.
    let stubborn = looping("stubborn")
        .replace("trap 'exit 0' TERM", "trap '' TERM")
        .replace("GracePeriodSeconds: 1", "GracePeriodSeconds: 300");
    alone.kubectl_with(&[&["-n", "team"], &STDIN[..]].concat(), &stubborn);
    for pod in ["stubborn", "d-0", "d-1"] {
        let pod = format!("pod/{pod}");
        let ready = [
            "wait",
            "-n",
            "team",
            "--for=condition=Ready",
            "--timeout=240s",
            &pod,
        ];
        alone.kubectl(&ready);
    }
    // Its pods have no file any more, and still stop.
    alone.kubectl(&["delete", "-n", "team", "deployment", "d", "--wait=false"]);
    alone.kubectl(&["delete", "namespace", "team", "--wait=false"]);
    // Once more is no error.
    alone.kubectl(&["delete", "namespace", "team", "--wait=false"]);
    let ending = alone.object(&["namespace", "team"]);
    // embedded 42
    assert_eq!(ending["status"]["phase"], "Terminating");
    assert!(ending["metadata"]["deletionTimestamp"].is_string());
    let refused = alone.kubectl_fails(&["-n", "team", "create", "configmap", "two"]);
    assert!(
        refused.contains("namespace team because it is being terminated"),
        "{refused}"
    );
    let left = alone.kubectl(&["get", "-n", "team", "configmaps,deployments", "-o", "name"]);
    assert_eq!(left, "");
    alone.kubectl(&[
        "-n",
        "team",
        "delete",
        "pod",
        "stubborn",
        "--grace-period=1",
        "--wait=false",
    ]);
    alone.kubectl(&["wait", "--for=delete", "namespace/team", "--timeout=240s"]);
    assert!(!alone.bed.path().join("api/team").exists());
    eventually("the containers to be gone", || {
        let left = running(&alone);
        left.iter()
            .all(|name| name.ends_with("_other"))
            .then_some(())
    })
    .await;
    // A new one of that name begins anew.
    alone.kubectl(&["create", "namespace", "team"]);
    alone.kubectl(&["-n", "team", "create", "configmap", "two"]);
    assert_eq!(
        alone.object(&["namespace", "team"])["status"]["phase"],
        "Active"
    );
    let pods = alone.kubectl(&["get", "pods", "-n", "other", "-o", "name"]);
    assert_eq!(pods, "pod/d-0\npod/d-1\n");

    // What a manifest defines stays, and with it the namespace and all else in it.
    let mine = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: mine, namespace: team}\n";
    alone.bed.write("mine.yaml", mine);
    eventually("the manifest's object", || {
        let found = alone.output(&["get", "-n", "team", "configmap", "mine"], "");
        found.status.success().then_some(())
    })
    .await;
    let refused = alone.kubectl_fails(&["delete", "namespace", "team"]);
    assert!(
        refused.contains("mine.yaml; remove it there first"),
        "{refused}"
    );
    alone.kubectl(&["get", "-n", "team", "configmap", "two"]);
    let refused = alone.kubectl_fails(&["delete", "namespace", "default"]);
    assert!(refused.contains("is forbidden"), "{refused}");
}
