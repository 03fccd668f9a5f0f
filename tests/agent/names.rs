//! Names of pods and Services in hosts files, under a whole agent.

use crate::common::{Bed, IMAGE, eventually, unmount_all};
use mirrorlet_core::api::report::PodReport;

/// A pod that serves its name over HTTP on port 80, ready while `/ready` exists.
fn server(name: &str, annotations: &str, version: &str) -> String {
    format!(
        r#"apiVersion: v1
kind: Pod
metadata:
  name: {name}
  labels: {{app: server}}
  annotations: {{{annotations}}}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: {name}
    image: {IMAGE}
    command: ["sh", "-c", "mkdir /www; echo {name}-{version} > /www/index.html; exec httpd -f -p 80 -h /www"]
    readinessProbe: {{exec: {{command: [test, -e, /ready]}}, periodSeconds: 1, timeoutSeconds: 60}}
"#
    )
}

/// A pod from which others are called.
fn client(name: &str, spec: &str) -> String {
    format!(
        r#"apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec:
  terminationGracePeriodSeconds: 1
  {spec}
  containers:
  - name: {name}
    image: {IMAGE}
    command: ["sh", "-c", "trap 'exit 0' TERM; while :; do sleep 1 & wait $!; done"]
"#
    )
}

const SERVICE: &str = "apiVersion: v1\nkind: Service\nmetadata: {name: web}\n\
    spec: {selector: {app: server}, ports: [{port: 80}]}\n";

/// The addresses that the hosts file of a container has for a name.
fn addresses(bed: &Bed, container: &str, name: &str) -> Vec<String> {
    let hosts = bed.exec(container, "cat /etc/hosts");
    let lines = hosts.lines();
    let named = lines.filter(|line| line.split_whitespace().skip(1).any(|word| word == name));
    let found = named.filter_map(|line| line.split_whitespace().next());
    found.map(str::to_owned).collect()
}

fn ip_of(pod: &PodReport) -> String {
    pod.ips.first().unwrap().to_string()
}

async fn until_addresses(bed: &Bed, container: &str, name: &str, wanted: &[&str]) {
    let what = format!("{name} to lead to {wanted:?} in {container}");
    eventually(&what, || {
        (addresses(bed, container, name) == wanted).then_some(())
    })
    .await;
}

/// The answer of a pod that is called by a name.
fn call(bed: &Bed, from: &str, name: &str) -> String {
    let request = format!("printf 'GET / HTTP/1.0\\r\\n\\r\\n' | nc -w 5 {name} 80 | tail -n 1");
    bed.exec(from, &request)
}

/// Waits until a pod that is called by a name gives that answer: one that runs may not listen yet.
async fn until_called(bed: &Bed, from: &str, name: &str, answer: &str) {
    eventually(&format!("{name} to answer {from}"), || {
        let is_known = !addresses(bed, from, name).is_empty();
        (is_known && call(bed, from, name) == answer).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_call_one_another_by_their_names() {
    let bed = Bed::new();
    let agent = bed.agent().await;
    bed.write("shop.yaml", &server("shop", "", "1"));
    bed.write("client.yaml", &client("client", ""));
    bed.write("host.yaml", &client("host", "hostNetwork: true"));
    let shop = agent.until_container("shop", "shop", |c| c.state == "running");
    shop.await;
    for pod in ["client", "host"] {
        agent.until_running(pod).await;
        until_called(&bed, pod, "shop", "shop-1").await;
        let names = [
            "shop",
            "shop-box",
            "shop.default",
            "shop.default.svc.cluster.local",
        ];
        for name in names {
            eventually("the name to be known", || {
                (!addresses(&bed, pod, name).is_empty()).then_some(())
            })
            .await;
            // box 5
            assert_eq!(call(&bed, pod, name), "shop-1", "{name} from {pod}");
        }
    }

    // A Service leads to Ready pods alone.
    bed.write("service.yaml", SERVICE);
    bed.exec("shop", "touch /ready");
    let first = agent.until_running("shop").await;
    let ip = ip_of(&first);
    until_addresses(&bed, "client", "web.default.svc", &[ip.as_str()]).await;
    // box 5
    assert_eq!(call(&bed, "client", "web"), "shop-1");
    bed.exec("shop", "rm /ready");
    until_addresses(&bed, "client", "web", &[]).await;
    bed.exec("shop", "touch /ready");
    until_addresses(&bed, "client", "web", &[ip.as_str()]).await;

    // Names follow a pod that is replaced, most often to another address; a removed one has none.
    bed.write("shop.yaml", &server("shop", "", "2"));
    let replaced = agent.until_pod("shop", |pod| !pod.ips.is_empty() && pod.uid != first.uid);
    let new = ip_of(&replaced.await);
    until_addresses(&bed, "client", "shop", &[new.as_str()]).await;
    until_addresses(&bed, "host", "shop", &[new.as_str()]).await;
    bed.remove("shop.yaml");
    until_addresses(&bed, "client", "shop", &[]).await;
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn names_outlive_the_agent_and_are_mended_by_the_next() {
    let bed = Bed::new();
    let agent = bed.agent().await;
    bed.write("shop.yaml", &server("shop", "", "1"));
    bed.write("other.yaml", &client("other", ""));
    bed.write("client.yaml", &client("client", ""));
    let shop = agent.until_container("shop", "shop", |c| c.state == "running");
    shop.await;
    agent.until_running("client").await;
    let other = ip_of(&agent.until_running("other").await);
    until_addresses(&bed, "client", "other", &[other.as_str()]).await;
    let shop = ip_of(&agent.pod("shop").unwrap());
    until_addresses(&bed, "client", "shop", &[shop.as_str()]).await;
    until_called(&bed, "client", "shop", "shop-1").await;
    agent.kill();
    // box 5
    assert_eq!(call(&bed, "client", "shop"), "shop-1");

    // The container fills its file meanwhile, and a pod goes.
    bed.exec("client", "truncate -s 3G /etc/hosts");
    bed.remove("other.yaml");
    let agent = bed.agent().await;
    agent.until_gone("other").await;
    until_addresses(&bed, "client", "other", &[]).await;
    // box 6
    assert_eq!(call(&bed, "client", "shop"), "shop-1");
    // box 6
    assert_eq!(bed.exec("client", "wc -c </etc/hosts | wc -c"), "4");

    // The file is removed on the host: the next container has a new one.
    let hosts = bed
        .path()
        .join("pods")
        .join(agent.pod("client").unwrap().uid.as_str())
        .join("etc-hosts");
    std::fs::remove_file(&hosts).unwrap();
    let killed = bed.running_id("client");
    bed.docker(&["kill", &killed]);
    eventually("another instance of the client", || {
        let instances = bed.instances("client");
        let second = instances.get(&1)?;
        bed.running().values().any(|id| id == second).then_some(())
    })
    .await;
    // box 6
    assert_eq!(addresses(&bed, "client", "shop"), [shop]);

    // Without names there are none, of an earlier agent neither.
    agent.stop().await;
    let mut resolved = bed.resolved();
    resolved.config.pod_names = false;
    let agent = bed.agent_as(resolved).await;
    until_addresses(&bed, "client", "shop", &[]).await;
    // box 5
    assert_eq!(bed.exec("client", "grep -c localhost /etc/hosts"), "2");
    agent.stop().await;
    unmount_all(bed.path());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_leads_to_the_version_that_serves() {
    let bed = Bed::new();
    let agent = bed.agent().await;
    let start_first = "mirrorlet.dev/rollout: StartFirst";
    bed.write("client.yaml", &client("client", ""));
    bed.write("shop.yaml", &server("shop", start_first, "1"));
    let first = agent.until_container("shop", "shop", |c| c.state == "running");
    first.await;
    bed.exec("shop", "touch /ready");
    agent.until_running("client").await;
    let old = ip_of(&agent.until_running("shop").await);
    until_addresses(&bed, "client", "shop", &[old.as_str()]).await;
    let before = bed.running_id("shop");
    bed.write("shop.yaml", &server("shop", start_first, "2"));
    let new = eventually("the new version to run beside the old one", || {
        let mut running = bed.running().into_iter();
        let new = running.find(|(name, id)| name.starts_with("k8s_shop_") && *id != before);
        new.map(|(_, id)| id)
    })
    .await;
    // box 5
    assert_eq!(call(&bed, "client", "shop"), "shop-1");
    bed.docker(&["exec", &new, "touch", "/ready"]);
    eventually("the name to lead to the new version", || {
        let found = addresses(&bed, "client", "shop");
        (found.len() == 1 && found != [old.clone()]).then_some(())
    })
    .await;
    // box 5
    assert_eq!(call(&bed, "client", "shop"), "shop-2");
    agent.stop().await;
}
