//! Compose files of the shapes that public projects document, imported: the same images, ports,
//! names, volumes and variables are in the manifests, or a line says why not.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests fail loudly, as tests do"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use mirrorlet_compose::{Content, Disk, Import, Imported, Need, Options, PathKind, import};
use mirrorlet_core::api::NodeName;
use mirrorlet_core::desired::PodSource;
use mirrorlet_core::manifest::{Accepted, ParseContext, parse_manifest};
use mirrorlet_core::objects::{Object, ObjectKey, unmet};
use serde_json::Value;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/projects")
}

/// The names of the projects.
fn projects() -> Vec<String> {
    let entries = std::fs::read_dir(root()).unwrap();
    let mut names: Vec<String> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// The compose files of a project, the override last.
fn files(dir: &Path) -> Vec<PathBuf> {
    let names = [
        "compose.yaml",
        "compose.yml",
        "docker-compose.yml",
        "docker-compose.yaml",
        "stack.yml",
        "stack.yaml",
        "compose.override.yaml",
    ];
    let found = names.iter().map(|name| dir.join(name));
    found.filter(|path| path.exists()).collect()
}

fn imported(project: &str) -> Imported {
    imported_with(project, None)
}

/// A project, its first file with another content.
fn imported_with(project: &str, other: Option<&[u8]>) -> Imported {
    let dir = root().join(project);
    let options = Options {
        files: files(&dir),
        current_dir: dir.clone(),
        home: Some("/root".to_owned()),
        profiles: ["*".to_owned()].into(),
        ..Options::default()
    };
    assert!(!options.files.is_empty(), "{project} has no file");
    let mut disk = Disk::default();
    if let Some(other) = other {
        let content = Content::Bytes(other.to_vec());
        disk.contents.insert(options.files[0].clone(), content);
    }
    for _ in 0..20 {
        let needs = match import(&options, &disk) {
            Import::Done(imported) => return imported,
            Import::Needs(needs) => needs,
        };
        for need in needs {
            match need {
                Need::Content(path) => {
                    let content = std::fs::read(&path).map_or(Content::Missing, Content::Bytes);
                    disk.contents.insert(path, content);
                }
                // As on a machine where only the project is.
                Need::Kind(path) => {
                    let kind = if path.is_file() && path.starts_with(&dir) {
                        PathKind::File
                    } else {
                        PathKind::Missing
                    };
                    disk.kinds.insert(path, kind);
                }
            }
        }
    }
    panic!("{project} asks for ever more");
}

/// The documents of all files, as values.
fn documents(imported: &Imported) -> Vec<Value> {
    let texts = imported.files.iter().map(|file| file.text.as_str());
    texts
        .flat_map(|text| serde_saphyr::from_multiple::<Value>(text).unwrap())
        .collect()
}

fn is(document: &Value, kind: &str) -> bool {
    document["kind"] == kind
}

/// The container of a service, with its pod's spec.
fn container<'a>(documents: &'a [Value], service: &str) -> Option<&'a Value> {
    documents.iter().find_map(|document| {
        let template = document.pointer("/spec/template/spec");
        let spec = template.unwrap_or(&document["spec"]);
        let lists = ["containers", "initContainers"];
        let all = lists
            .iter()
            .filter_map(|list| spec[list].as_array())
            .flatten();
        let mut own = all.filter(|container| container["name"] == service);
        own.next()
    })
}

/// A service of a file as it is written, and what it has to be found by.
struct Written<'a> {
    project: &'a str,
    name: &'a str,
    id: String,
    keys: &'a Value,
}

impl Written<'_> {
    /// Adds what is neither in the manifests nor said; returns how many things were looked for.
    fn check(&self, documents: &[Value], said: &[String], wrong: &mut Vec<String>) -> usize {
        let Some(container) = container(documents, &self.id) else {
            wrong.push(format!("{}: {} has no container", self.project, self.name));
            return 0;
        };
        let is_said = |key: &str| {
            let words = format!(" services.{}.{key}", self.name);
            said.iter().any(|line| line.contains(&words))
        };
        let mut missing = |key: &str, what: &str| {
            if !is_said(key) {
                wrong.push(format!("{}: {}.{key}: {what}", self.project, self.name));
            }
        };
        if let Some(image) = self.keys["image"]
            .as_str()
            .filter(|image| !image.contains('$'))
            && container["image"] != image
        {
            missing("image", image);
        }
        for (host, port) in self.ports() {
            let ports = container["ports"].as_array().into_iter().flatten();
            let found = ports
                .clone()
                .any(|p| p["hostPort"] == host && p["containerPort"] == port);
            if !found && self.keys["network_mode"] != "host" {
                missing("ports", &format!("{host}:{port}"));
            }
        }
        for target in self.targets() {
            let mounts = container["volumeMounts"].as_array().into_iter().flatten();
            let mut paths = mounts.map(|mount| mount["mountPath"].as_str().unwrap());
            if !paths.any(|path| path == target) {
                missing("volumes", &target);
            }
        }
        let own = self.variables(documents);
        for variable in names(&self.keys["environment"]) {
            let env = container["env"].as_array().into_iter().flatten();
            let mut found = env.map(|variable| variable["name"].as_str().unwrap());
            if !found.any(|name| name == variable) && !own.contains(&variable) {
                missing(&format!("environment.{variable}"), "is no variable");
            }
        }
        let mut known = documents
            .iter()
            .filter(|d| is(d, "Service") || is(d, "Pod"));
        if !known.any(|document| document["metadata"]["name"] == self.id.as_str())
            && !documents
                .iter()
                .any(|d| d.pointer("/spec/template/spec/initContainers").is_some())
        {
            missing("", "has no name");
        }
        self.ports().len() + self.targets().len() + names(&self.keys["environment"]).len()
    }

    fn variables(&self, documents: &[Value]) -> BTreeSet<String> {
        let name = format!("{}-env", self.id);
        let maps = documents
            .iter()
            .filter(|document| is(document, "ConfigMap"));
        let own = maps.filter(|document| document["metadata"]["name"] == name.as_str());
        let keys = own.filter_map(|document| document["data"].as_object());
        keys.flat_map(|data| data.keys().cloned()).collect()
    }

    /// Host and container ports that are written with numbers.
    fn ports(&self) -> Vec<(u16, u16)> {
        let items = self.keys["ports"].as_array().into_iter().flatten();
        let short = items.filter_map(|item| {
            if let (Some(target), Some(published)) =
                (item["target"].as_u64(), item.get("published"))
            {
                let published = published.as_u64().map(|n| n.to_string());
                let published = published.or(item["published"].as_str().map(str::to_owned))?;
                return Some((published.parse().ok()?, u16::try_from(target).ok()?));
            }
            let text = item.as_str()?.split('/').next()?;
            let (rest, port) = text.rsplit_once(':')?;
            let host = rest.rsplit(':').next()?;
            Some((host.parse().ok()?, port.parse().ok()?))
        });
        short.collect()
    }

    fn targets(&self) -> Vec<String> {
        let items = self.keys["volumes"].as_array().into_iter().flatten();
        let targets = items.filter_map(|item| {
            let text = match item.as_str() {
                Some(text) if text.contains("${") => return None,
                Some(text) => text,
                None => return item["target"].as_str().map(str::to_owned),
            };
            text.split(':')
                .find(|part| part.starts_with('/') && !text.starts_with(*part))
                .or_else(|| text.split(':').nth(1))
                .or(Some(text))
                .map(str::to_owned)
        });
        targets.collect()
    }
}

/// The names of a mapping, or of a list of `name=value`.
fn names(node: &Value) -> Vec<String> {
    match node {
        Value::Object(map) => map.keys().cloned().collect(),
        Value::Array(items) => items
            .iter()
            .filter_map(Value::as_str)
            .map(|item| item.split('=').next().unwrap().to_owned())
            .collect(),
        _ => Vec::new(),
    }
}

#[test]
fn forty_projects_have_the_same_ports_names_volumes_and_variables() {
    let projects = projects();
    assert!(projects.len() >= 40, "{}", projects.len());
    let (mut wrong, mut looked_for) = (Vec::new(), 0);
    for project in &projects {
        let imported = imported(project);
        let said: Vec<String> = imported.problems.iter().map(ToString::to_string).collect();
        if imported.has_errors() {
            wrong.push(format!("{project}: {said:#?}"));
            continue;
        }
        let documents = documents(&imported);
        for file in files(&root().join(project)) {
            let text = std::fs::read_to_string(&file).unwrap();
            let written: Value = serde_saphyr::from_str(&text).unwrap();
            for (name, keys) in written["services"].as_object().unwrap() {
                let service = Written {
                    project,
                    name,
                    id: name.replace('_', "-"),
                    keys,
                };
                looked_for += service.check(&documents, &said, &mut wrong);
            }
        }
    }
    // box 14
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(looked_for > 300, "{looked_for}");
}

#[test]
fn every_manifest_is_accepted_and_refers_to_what_is_there() {
    let node_name = NodeName::from("box");
    for project in projects() {
        let imported = imported(&project);
        let mut objects: BTreeMap<ObjectKey, Object> = BTreeMap::new();
        let mut pods = Vec::new();
        let mut problems = Vec::new();
        for file in &imported.files {
            let ctx = ParseContext {
                node_name: &node_name,
                source: PodSource::File,
                location: &file.name,
            };
            let parsed = parse_manifest(file.text.as_bytes(), &ctx);
            problems.extend(parsed.problems);
            for document in parsed.documents {
                pods.extend(document.pods().to_vec());
                problems.extend(document.problems);
                if let Some(Accepted::Object(object)) = document.accepted {
                    objects.insert(object.key(), object);
                }
            }
        }
        let problems: Vec<String> = problems.iter().map(ToString::to_string).collect();
        // box 14
        assert_eq!(problems, Vec::<String>::new(), "{project}");
        assert!(!pods.is_empty(), "{project}");
        for pod in pods {
            let unmet = unmet(&pod, |key| objects.get(key).cloned());
            // External objects are reported.
            let external: Vec<_> = unmet.iter().map(|unmet| unmet.key.to_string()).collect();
            let is_told = imported
                .problems
                .iter()
                .any(|p| p.message.contains("it is external"));
            assert!(external.is_empty() || is_told, "{project}: {external:?}");
        }
    }
}

/// Bytes between two cuts of a file.
const STEP: usize = 61;

#[test]
fn a_file_that_is_cut_is_an_error_or_another_project() {
    for project in projects() {
        let file = files(&root().join(&project)).remove(0);
        let bytes = std::fs::read(&file).unwrap();
        for end in (0..bytes.len()).step_by(STEP) {
            let imported = imported_with(&project, Some(&bytes[..end]));
            assert_eq!(
                imported.is_unreadable(),
                imported.files.is_empty(),
                "{project}: {end}"
            );
        }
    }
}
