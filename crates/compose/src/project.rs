//! A resolved project: the services of the active profiles, with names and directory.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use mirrorlet_core::api::{Code, Diagnostic};

use crate::input::Content;
use crate::interpolate::{Variables, substitute};
use crate::load::Loader;
use crate::tree::{Entry, Node, Place, parse};

/// A project, as its files describe it.
#[derive(Debug)]
pub(crate) struct Project {
    /// Its name.
    pub(crate) name: String,
    /// The variables of its files.
    pub(crate) variables: Variables,
    /// Its files as one tree, in long forms.
    pub(crate) root: Node,
    /// Its active services, in the order of the files.
    pub(crate) services: Vec<Service>,
}

/// A service of a project.
#[derive(Debug, Clone)]
pub(crate) struct Service {
    /// Its name in the file.
    pub(crate) name: String,
    /// Its name as one of Kubernetes: a DNS label.
    pub(crate) id: String,
    /// Where its name is written.
    pub(crate) place: Place,
    /// Its keys.
    pub(crate) node: Node,
}

impl Project {
    /// Reads the project that the options describe.
    pub(crate) fn load(loader: &mut Loader<'_>) -> Self {
        let options = loader.options;
        let first = options.files.first().and_then(|file| file.parent());
        let dir = first.map_or_else(PathBuf::new, Path::to_owned);
        let mut variables = loader.variables(&options.environment, &options.env_files, &dir);
        let name = name_of(loader, &variables, &dir);
        variables.insert(PROJECT_NAME.to_owned(), name.clone());
        let root = loader.project(&dir, &variables);
        if variables.contains_key("COMPOSE_FILE") {
            let file = options.files.first().map(|file| loader.shown(file));
            let message = "the variable COMPOSE_FILE is not read";
            let problem = Diagnostic::warning(Code::Ignored, file.unwrap_or_default(), message)
                .help("pass the files of COMPOSE_FILE as arguments, in the same order");
            loader.problems.push(problem);
        }
        let mut active = options.profiles.clone();
        if let Some(profiles) = variables
            .get("COMPOSE_PROFILES")
            .filter(|_| active.is_empty())
        {
            active.extend(profiles.split(',').map(|name| name.trim().to_owned()));
        }
        let services = services(loader, &root, &active);
        Self {
            name,
            variables,
            root,
            services,
        }
    }

    /// The name of the object for an item of a section. Items whose names differ only in characters
    /// that a DNS label can't have get a number, in their order; external items keep their name.
    pub(crate) fn object_name(&self, section: &str, key: &str) -> Option<String> {
        let names = self.object_names(section);
        let mut found = names.into_iter().filter(|(known, _)| known == key);
        found.next().map(|(_, name)| name)
    }

    fn object_names(&self, section: &str) -> Vec<(String, String)> {
        let entries = self.root.entries_of(section);
        // The name of a volume's claim is ours in any case.
        let external = |entry: &Entry| external_name(entry).filter(|_| section != "volumes");
        let mut names: Vec<(String, String)> = entries
            .iter()
            .filter_map(|entry| Some((entry.key.clone(), label(&external(entry)?))))
            .collect();
        for entry in entries.iter().filter(|entry| external(entry).is_none()) {
            let name = free(&label(&entry.key), |name| {
                names.iter().any(|(_, known)| known == name)
            });
            names.push((entry.key.clone(), name));
        }
        names
    }

    /// The name of the `ConfigMap` with the variables that a service gets from files.
    pub(crate) fn env_name(&self, service: &Service) -> String {
        let mut taken: Vec<String> = self
            .object_names("configs")
            .into_iter()
            .map(|n| n.1)
            .collect();
        for other in &self.services {
            let is_taken = |name: &str| taken.iter().any(|known| known == name);
            let name = free(&format!("{}-env", other.id), is_taken);
            if other.name == service.name {
                return name;
            }
            taken.push(name);
        }
        format!("{}-env", service.id)
    }

    /// The active service of a name.
    pub(crate) fn service(&self, name: &str) -> Option<&Service> {
        self.services.iter().find(|service| service.name == name)
    }
}

/// The variable with the project's name, which its files can refer to.
const PROJECT_NAME: &str = "COMPOSE_PROJECT_NAME";

/// The name that the last file with one gives to the project. What is wrong with the files is reported
/// when they are read for their content.
fn written_name(loader: &Loader<'_>, variables: &Variables) -> Option<String> {
    let name = |file: &PathBuf| {
        let Some(Content::Bytes(bytes)) = loader.content(file) else {
            return None;
        };
        let root = parse(bytes, &Arc::from("")).ok()?;
        let text = root.set("name")?.text()?;
        substitute(&text, variables, &mut BTreeSet::new()).ok()
    };
    loader.options.files.iter().rev().find_map(name)
}

fn name_of(loader: &Loader<'_>, variables: &Variables, dir: &Path) -> String {
    let written = loader.options.project_name.clone();
    let written = written
        .or_else(|| variables.get(PROJECT_NAME).cloned())
        .filter(|name| !name.is_empty())
        .or_else(|| written_name(loader, variables));
    let name = written.unwrap_or_else(|| {
        let base = dir.file_name().unwrap_or_default();
        base.to_string_lossy().into_owned()
    });
    let is_allowed = |c: &char| c.is_ascii_alphanumeric() || *c == '_' || *c == '-';
    let name: String = name
        .to_ascii_lowercase()
        .chars()
        .filter(is_allowed)
        .collect();
    let name = name.trim_start_matches(['_', '-']);
    if name.is_empty() { "default" } else { name }.to_owned()
}

fn services(loader: &mut Loader<'_>, root: &Node, active: &BTreeSet<String>) -> Vec<Service> {
    let mut found: Vec<Service> = Vec::new();
    let all = root.entries_of("services");
    for entry in all {
        let profiles = entry
            .value
            .get("profiles")
            .map(Node::texts)
            .unwrap_or_default();
        let is_active = profiles.is_empty()
            || active.contains("*")
            || profiles.iter().any(|name| active.contains(name));
        if !is_active {
            let message = "left out: none of its profiles is active";
            let problem = Diagnostic::warning(Code::Ignored, "", message)
                .field(format!("services.{}", entry.key))
                .help(format!(
                    "to import it, add --profile {}",
                    profiles.join(" or --profile ")
                ));
            loader.problems.push(entry.place.mark(problem));
            continue;
        }
        let id = label(&entry.key);
        if let Some(other) = found.iter().find(|other| other.id == id) {
            let message = format!(
                "the name in Kubernetes, {id}, is already that of the service {}",
                other.name
            );
            loader.error(&entry.place, &format!("services.{}", entry.key), message);
            continue;
        }
        found.push(Service {
            name: entry.key.clone(),
            id,
            place: entry.place.clone(),
            node: entry.value.clone(),
        });
    }
    if all.is_empty() && loader.problems.iter().all(|problem| !problem.is_error()) {
        let file = loader.options.files.first();
        let file = file.map(|file| loader.shown(file)).unwrap_or_default();
        let problem = Diagnostic::error(Code::Required, file, "the project has no services");
        loader.problems.push(problem);
    }
    found
}

/// The name of an external volume, config or secret; none for all others.
pub(crate) fn external_name(entry: &Entry) -> Option<String> {
    let external = entry.value.set("external")?;
    if external.bool() == Some(false) {
        return None;
    }
    let name = entry.value.set("name").or_else(|| external.set("name"));
    Some(
        name.and_then(Node::text)
            .unwrap_or_else(|| entry.key.clone()),
    )
}

/// A name that isn't taken: itself, or with a number.
fn free(name: &str, is_taken: impl Fn(&str) -> bool) -> String {
    let mut numbers = 2_u32..;
    let mut found = name.to_owned();
    while is_taken(&found) {
        found = format!("{name}-{}", numbers.next().unwrap_or_default());
    }
    found
}

/// Longest name of a service: with a number and the node's name behind it, it is a pod's.
const LABEL_MAX: usize = 50;

/// The DNS label that is nearest to a name.
pub(crate) fn label(name: &str) -> String {
    let lower = name.to_ascii_lowercase();
    let sign = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
    let label: String = lower.chars().map(sign).take(LABEL_MAX).collect();
    let label = label.trim_matches('-');
    if label.is_empty() { "x" } else { label }.to_owned()
}

/// Whether a name is valid for a Kubernetes `Service`.
pub(crate) fn is_service_name(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_lowercase()) && label(name) == name
}
