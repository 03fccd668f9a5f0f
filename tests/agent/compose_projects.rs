//! The compose projects of `crates/compose/tests/projects`, imported by the program, started and
//! called: each in a namespace of its own, with `hack/stand-in` in the place of its programs.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::common::{Bed, free_port};
use mirrorlet_core::api::report::{PodReport, StatusReport};

/// Runs in the place of every program; built by `hack/images.sh`.
const STAND_IN: &str = "mirrorlet.test/stand-in:1";
/// The number of projects that run at a time.
const AT_A_TIME: usize = 7;
/// Paths of the machine that projects may mount as they are.
const AS_THEY_ARE: [&str; 3] = ["/proc", "/sys", "/dev/urandom"];
/// Ports of the real images that no project declares, each with a part of the image's name.
const PORTS: [(&str, u16); 7] = [
    ("postgres", 5432),
    ("pgvecto", 5432),
    ("redis", 6379),
    ("rabbitmq", 5672),
    ("metabase", 3000),
    ("syncthing", 8384),
    ("keycloak", 9000),
];

/// Something that listens in a container, and what it has to tell about it.
#[derive(Debug)]
struct Expected {
    /// The container's name.
    container: String,
    /// Its ports, with those of the host that lead to them.
    ports: BTreeMap<u16, Option<u16>>,
    variables: BTreeSet<String>,
    mounts: BTreeSet<String>,
    user: Option<String>,
}

impl Expected {
    /// Returns what an answer lacks; none if it is complete.
    fn wrong(&self, answer: &str) -> Option<String> {
        let lines: BTreeSet<&str> = answer.lines().map(str::trim).collect();
        let variables = self.variables.iter().map(|name| format!("variable {name}"));
        let mounts = self.mounts.iter().map(|path| format!("mount {path}"));
        let name = format!("name {}", self.container);
        let user = self.user.as_ref().map(|user| format!("user {user}"));
        let wanted = variables.chain(mounts).chain([name]).chain(user);
        let missing: Vec<String> = wanted.filter(|w| !lines.contains(w.as_str())).collect();
        (!missing.is_empty()).then(|| format!("{missing:?} are not in\n{answer}"))
    }
}

/// A project as it is run.
struct Project {
    name: String,
    /// The manifest file.
    text: String,
    /// The number of its pods.
    pods: usize,
    /// The containers that serve, by the label `app` of their pod. Pods that use the host's network or
    /// run to completion have none.
    expected: BTreeMap<String, Vec<Expected>>,
    /// Its Services, with the value of the label `app` that they select.
    services: BTreeMap<String, String>,
}

fn items<'a>(value: &'a Value, key: &str) -> impl Iterator<Item = &'a Value> {
    value[key].as_array().into_iter().flatten()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap().to_owned()
}

fn port(value: &Value) -> Option<u16> {
    value.as_u64().map(|port| u16::try_from(port).unwrap())
}

impl Project {
    /// Imports a project.
    fn import(bed: &Bed, name: &str) -> Self {
        let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("crates/compose/tests/projects");
        let dir = bed.path().join("projects").join(name);
        std::fs::create_dir_all(dir.parent().unwrap()).unwrap();
        let copied = Command::new("cp")
            .arg("-r")
            .args([&from.join(name), &dir])
            .status();
        assert!(copied.unwrap().success());
        let stacks = ["stack.yaml", "stack.yml"].map(|file| dir.join(file));
        let stack = stacks.into_iter().find(|file| file.exists());
        let volumes = format!("{}-{name}", bed.uid("compose").to_ascii_lowercase());
        let output = Command::new(env!("CARGO_BIN_EXE_mirrorlet"))
            .args(["import", "compose", "--profile", "*", "--namespace", name])
            .args(["--project-name", &volumes])
            .arg(stack.unwrap_or(dir))
            .env("HOME", bed.path().join("home"))
            .output()
            .unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{name}: {said}");
        let mut documents: Vec<Value> =
            serde_saphyr::from_multiple(std::str::from_utf8(&output.stdout).unwrap()).unwrap();
        // Adds what the import says has to be added.
        for line in said.lines() {
            if let Some(secret) = line.trim().strip_prefix("help: add a Secret ") {
                let (secret, key) = secret.split_once(" with the key ").unwrap();
                let metadata = json!({"name": secret, "namespace": name});
                let data = json!({key: "told apart"});
                let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": data});
                documents.push(secret);
            }
        }
        Self::of(bed, name, documents)
    }

    /// Puts the stand-in into the manifests, with ports and paths of the host that are the test's own;
    /// everything else stays as it was imported.
    fn of(bed: &Bed, name: &str, mut documents: Vec<Value>) -> Self {
        let mut project = Self {
            name: name.to_owned(),
            text: String::new(),
            pods: 0,
            expected: BTreeMap::new(),
            services: BTreeMap::new(),
        };
        let keys = |document: &Value| {
            let data = ["data", "binaryData", "stringData"].map(|key| document[key].as_object());
            let keys = data.into_iter().flatten().flat_map(|data| data.keys());
            let keys: BTreeSet<String> = keys.cloned().collect();
            (text(&document["metadata"]["name"]), keys)
        };
        let objects: BTreeMap<String, BTreeSet<String>> = documents.iter().map(keys).collect();
        for document in &mut documents {
            let kind = text(&document["kind"]);
            match kind.as_str() {
                "Service" => {
                    let own = text(&document["metadata"]["name"]);
                    let selected = text(&document["spec"]["selector"]["app"]);
                    project.services.insert(own, selected);
                }
                "Deployment" | "DaemonSet" | "Job" => {
                    let replicas = document["spec"]["replicas"].as_u64().unwrap_or(1);
                    project.pods += usize::try_from(replicas).unwrap();
                    project.put_in(bed, &mut document["spec"]["template"], &objects);
                }
                "PersistentVolumeClaim" => own_volume(bed, document),
                "Pod" => {
                    project.pods += 1;
                    project.put_in(bed, document, &objects);
                }
                _ => {}
            }
        }
        let texts = documents.iter().map(ToString::to_string);
        project.text = texts.collect::<Vec<_>>().join("\n---\n");
        project
    }

    fn put_in(&mut self, bed: &Bed, pod: &mut Value, objects: &BTreeMap<String, BTreeSet<String>>) {
        let label = pod["metadata"]["labels"]["app"].as_str().map(str::to_owned);
        let spec = &mut pod["spec"];
        for volume in spec["volumes"].as_array_mut().into_iter().flatten() {
            if let Some(source) = volume.get_mut("hostPath") {
                own_path(bed, source);
            }
        }
        let is_on_host = spec["hostNetwork"] == true;
        let ends = spec["restartPolicy"] == "OnFailure" || spec["restartPolicy"] == "Never";
        let mut taken = BTreeSet::new();
        let mut all = Vec::new();
        for (list, ends) in [("initContainers", true), ("containers", ends)] {
            for container in spec[list].as_array_mut().into_iter().flatten() {
                let mut expected = expected(container, objects);
                if is_on_host {
                    expected.ports.clear();
                } else if expected.ports.is_empty() {
                    let free = (80..1024).find(|port| !taken.contains(port)).unwrap();
                    expected.ports.insert(free, None);
                }
                taken.extend(expected.ports.keys().copied());
                stand_in(container, &expected, ends);
                if !ends {
                    all.push(expected);
                }
            }
        }
        if let Some(label) = label.filter(|_| !is_on_host) {
            self.expected.insert(label, all);
        }
    }

    /// Whether all its pods are there, and ready or done.
    fn is_up(&self, report: &StatusReport) -> bool {
        let own = report.pods.iter().filter(|pod| pod.namespace == self.name);
        let is_well = |pod: &PodReport| pod.is_ready() || pod.status == "Completed";
        let (well, ill): (Vec<_>, Vec<_>) = own.partition(|pod| is_well(pod));
        ill.is_empty() && well.len() == self.pods
    }

    /// Calls every container by every name of its Service, from a container of the project, and by
    /// the ports of the host. Returns how many calls there were.
    fn call(&self, bed: &Bed, wrong: &mut Vec<String>) -> usize {
        let mut calls: BTreeMap<String, &Expected> = BTreeMap::new();
        for (service, label) in &self.services {
            for expected in self.expected.get(label).into_iter().flatten() {
                for port in expected.ports.keys() {
                    calls.insert(format!("{service}:{port}"), expected);
                }
            }
        }
        let Some(caller) = self.expected.values().flatten().next() else {
            return 0;
        };
        let (prefix, own) = (
            format!("k8s_{}_", caller.container),
            format!("_{}_", self.name),
        );
        let running = bed.running();
        let (_, id) = running
            .iter()
            .find(|(name, _)| name.starts_with(&prefix) && name.contains(&own))
            .unwrap();
        let mut args = vec!["exec", id, "/stand-in/ask"];
        args.extend(calls.keys().map(String::as_str));
        let answers = bed.docker(&args);
        let answers: BTreeMap<&str, &str> = answers
            .split("== ")
            .filter_map(|answer| answer.split_once('\n'))
            .collect();
        for (address, expected) in &calls {
            let answer = answers.get(address.as_str()).copied().unwrap_or_default();
            if let Some(found) = expected.wrong(answer) {
                wrong.push(format!("{}: {address}: {found}", self.name));
            }
        }
        let mut count = calls.len();
        for expected in self.expected.values().flatten() {
            for host in expected.ports.values().flatten() {
                count += 1;
                let answer = until_answered(*host);
                if let Some(found) = expected.wrong(&answer) {
                    wrong.push(format!("{}: port of the host: {found}", self.name));
                }
            }
        }
        count
    }
}

/// The answer at a port of the host; empty if none comes in some seconds.
fn until_answered(port: u16) -> String {
    let mut tries = (0..50).map(|_| super::compose::get(port, "/"));
    let answered = tries.find_map(|answer| {
        if answer.is_none() {
            std::thread::sleep(std::time::Duration::from_millis(100));
        }
        answer
    });
    answered.unwrap_or_default()
}

/// Returns what a container of an imported manifest has to answer, and replaces its host ports by free
/// ones.
fn expected(container: &mut Value, objects: &BTreeMap<String, BTreeSet<String>>) -> Expected {
    let mut ports = BTreeMap::new();
    for item in container["ports"].as_array_mut().into_iter().flatten() {
        let own = port(&item["containerPort"]).unwrap();
        let host = item.get("hostPort").map(|_| free_port());
        if let Some(host) = host {
            item["hostPort"] = json!(host);
        }
        if item
            .get("protocol")
            .is_none_or(|protocol| protocol == "TCP")
        {
            ports.insert(own, host);
        }
    }
    let image = text(&container["image"]);
    let known = PORTS.iter().filter(|(part, _)| image.contains(part));
    for (_, port) in known {
        ports.entry(*port).or_insert(None);
    }
    let variables = items(container, "env").map(|variable| text(&variable["name"]));
    let from = items(container, "envFrom").flat_map(|source| {
        let [map, secret] = ["configMapRef", "secretRef"].map(|kind| source[kind]["name"].as_str());
        objects[map.or(secret).unwrap()].clone()
    });
    let variables = variables.chain(from).collect();
    let mounts = items(container, "volumeMounts")
        .map(|mount| text(&mount["mountPath"]).trim_end_matches('/').to_owned());
    let mounts = mounts.collect();
    let security = &container["securityContext"];
    let user = security["runAsUser"].as_u64();
    Expected {
        container: text(&container["name"]),
        ports,
        variables,
        mounts,
        user: user.map(|user| format!("{user}:{}", security["runAsGroup"].as_u64().unwrap_or(0))),
    }
}

/// Puts the stand-in in the place of the container's program, without privileges.
fn stand_in(container: &mut Value, expected: &Expected, ends: bool) {
    let command = container.as_object_mut().unwrap().remove("command");
    if let Some(Value::Array(mut words)) = command {
        words.extend(items(container, "args").cloned());
        container["args"] = Value::Array(words);
    }
    // Machines of tests may lack the capabilities that it gives.
    if let Some(security) = container["securityContext"].as_object_mut() {
        security.remove("privileged");
    }
    container["image"] = json!(STAND_IN);
    container["imagePullPolicy"] = json!("Never");
    if container.get("env").is_none() {
        container["env"] = json!([]);
    }
    let ports: Vec<String> = expected.ports.keys().map(ToString::to_string).collect();
    let env = container["env"].as_array_mut().unwrap();
    env.push(json!({"name": "STAND_IN_NAME", "value": expected.container}));
    env.push(json!({"name": "STAND_IN_PORTS", "value": ports.join(" ")}));
    if ends {
        env.push(json!({"name": "STAND_IN_ENDS", "value": "yes"}));
    }
}

/// Moves a path of the host below the bed, with something of its type there.
fn own_path(bed: &Bed, source: &mut Value) {
    let path = text(&source["path"]);
    if AS_THEY_ARE.contains(&path.as_str()) || Path::new(&path).starts_with(bed.path()) {
        return;
    }
    let own = bed.path().join("host").join(path.trim_start_matches('/'));
    std::fs::create_dir_all(own.parent().unwrap()).unwrap();
    match source["type"].as_str() {
        Some("File") => std::fs::write(&own, "").unwrap(),
        Some("Socket") if own.exists() => {}
        Some("Socket") => drop(UnixListener::bind(&own).unwrap()),
        _ => std::fs::create_dir_all(&own).unwrap(),
    }
    source["path"] = json!(own);
}

/// Moves the directory of a volume below the bed; a volume of a file server becomes one of this machine.
/// One that has to exist is created, with a name of its own.
fn own_volume(bed: &Bed, claim: &mut Value) {
    const OPTIONS: &str = "mirrorlet.dev/volume-options";
    let Some(annotations) = claim["metadata"]["annotations"].as_object_mut() else {
        return;
    };
    if annotations.contains_key("mirrorlet.dev/volume-must-exist") {
        let name = &mut annotations["mirrorlet.dev/volume-name"];
        let own = format!("{}-{}", name.as_str().unwrap(), std::process::id());
        bed.docker(&["volume", "create", &own]);
        *name = json!(own);
    }
    let Some(Value::String(options)) = annotations.remove(OPTIONS) else {
        return;
    };
    if let Some((before, path)) = options.split_once("device=/") {
        let own = bed.path().join("host").join(path);
        std::fs::create_dir_all(&own).unwrap();
        let options = format!("{before}device={}", own.display());
        annotations.insert(OPTIONS.to_owned(), json!(options));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn forty_projects_are_imported_started_and_called() {
    // A mount that is shared, as the root of most machines is: one of the projects asks for a slave of it.
    let bed = Bed::with_disk("256m");
    let shared = Command::new("mount")
        .arg("--make-shared")
        .arg(bed.path())
        .status();
    assert!(shared.unwrap().success());
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("crates/compose/tests/projects");
    let entries = std::fs::read_dir(directory).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    // Those of `compose.rs` have programs of their own.
    let mut names: Vec<String> = names.filter(|name| !name.starts_with("box-")).collect();
    names.sort();
    assert!(names.len() >= 40, "{names:?}");
    let agent = bed.agent().await;
    let (mut wrong, mut calls, mut pods) = (Vec::new(), 0, 0);
    for names in names.chunks(AT_A_TIME) {
        let projects: Vec<Project> = names
            .iter()
            .map(|name| Project::import(&bed, name))
            .collect();
        for project in &projects {
            bed.write(&format!("{}.yaml", project.name), &project.text);
        }
        let what = format!("{names:?} to be ready");
        let is_up = |report: &StatusReport| projects.iter().all(|project| project.is_up(report));
        agent.until(&what, is_up).await;
        for project in &projects {
            calls += project.call(&bed, &mut wrong);
            pods += project.pods;
            bed.remove(&format!("{}.yaml", project.name));
        }
    }
    // box 14
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(pods > 100 && calls > 200, "{pods} pods, {calls} calls");
    agent.stop().await;
}
