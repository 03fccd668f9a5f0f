//! Where a pod refers to objects.

use super::{Object, ObjectKey, ObjectKind};
use crate::api::core::{Container, KeyToPath, Volume};
use crate::api::{Code, Diagnostic, FullName, Pod, Severity};
use crate::path::Path;
use crate::spec;

/// One place where a pod refers to an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectUse {
    /// The object.
    pub key: ObjectKey,
    /// The values of it that are wanted by name, with the place of each.
    entries: Vec<(String, Path)>,
    /// Severity of the problem when it is missing; none where it is optional.
    missing: Option<Severity>,
    /// The place of the object's name.
    path: Path,
}

/// A reference that leads nowhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unmet {
    /// The object.
    pub key: ObjectKey,
    /// The place.
    path: Path,
    severity: Severity,
    message: String,
    help: &'static str,
}

impl Unmet {
    /// It as a problem of a manifest.
    #[must_use]
    pub fn diagnostic(self, location: &str) -> Diagnostic {
        Diagnostic::new(self.severity, Code::MissingObject, location, self.message)
            .field(self.path.to_string())
            .help(self.help)
    }
}

impl ObjectUse {
    /// The pod's fields that name the object, or values of it.
    pub(crate) fn paths(&self) -> impl Iterator<Item = &Path> {
        std::iter::once(&self.path).chain(self.entries.iter().map(|(_, path)| path))
    }

    /// Whether its values become variables or files of the pod; pull secrets don't.
    pub(super) fn is_config(&self) -> bool {
        matches!(self.key.kind, ObjectKind::ConfigMap | ObjectKind::Secret)
            && !self.path.contains_key("imagePullSecrets")
    }

    /// Whether the pod can't start without the object.
    pub(super) fn is_required(&self) -> bool {
        self.missing == Some(Severity::Error)
    }

    /// The problems that it has with what `find` gives for its key.
    fn unmet(&self, find: impl Fn(&ObjectKey) -> Option<Object>, into: &mut Vec<Unmet>) {
        let Some(severity) = self.missing else { return };
        let words = self.key.words();
        let Some(object) = find(&self.key) else {
            into.push(Unmet {
                key: self.key.clone(),
                path: self.path.clone(),
                severity,
                message: format!("no manifest defines {words}"),
                help: match self.key.kind {
                    ObjectKind::ConfigMap | ObjectKind::Secret => {
                        "add a document of this kind, name and namespace, or make the reference optional"
                    }
                    ObjectKind::Service | ObjectKind::Claim | ObjectKind::Volume => {
                        "add a document of this kind, name and namespace"
                    }
                },
            });
            return;
        };
        let for_variable = self.path.contains_key("env");
        for (entry, path) in &self.entries {
            if !object.has(entry, for_variable) {
                into.push(Unmet {
                    key: self.key.clone(),
                    path: path.clone(),
                    severity,
                    message: format!("{words} has no key {entry:?}"),
                    help: "add the key to the object, or correct it here",
                });
            }
        }
    }
}

/// The unresolved references of a pod. `find` returns an object by its key.
pub fn unmet(pod: &Pod, find: impl Fn(&ObjectKey) -> Option<Object>) -> Vec<Unmet> {
    let mut found = Vec::new();
    for used in uses(pod) {
        used.unmet(&find, &mut found);
    }
    found
}

/// Every place where a pod refers to an object by name.
pub fn uses(pod: &Pod) -> Vec<ObjectUse> {
    let mut found = Uses {
        namespace: FullName::of(pod).namespace.to_string(),
        uses: Vec::new(),
    };
    let at = Path::of("spec");
    let Some(spec) = &pod.spec else {
        return Vec::new();
    };
    for (index, secret) in spec.image_pull_secrets.iter().flatten().enumerate() {
        let path = at.key("imagePullSecrets").index(index).key("name");
        found.add(ObjectKind::Secret, &secret.name, None, Vec::new(), path);
    }
    for used in &mut found.uses {
        // As on a kubelet: the image may be public, or be there.
        used.missing = Some(Severity::Warning);
    }
    let inits = spec.init_containers.as_deref().unwrap_or_default();
    let added: Vec<Container> = spec::ephemeral_containers(pod).collect();
    for (list, containers) in [
        ("initContainers", inits),
        ("containers", &spec.containers),
        ("ephemeralContainers", &added),
    ] {
        for (index, container) in containers.iter().enumerate() {
            found.container(container, &at.key(list).index(index));
        }
    }
    for (index, volume) in spec.volumes.iter().flatten().enumerate() {
        found.volume(pod, volume, &at.key("volumes").index(index));
    }
    found.uses
}

struct Uses {
    namespace: String,
    uses: Vec<ObjectUse>,
}

impl Uses {
    /// An empty name is that of an optional reference to nothing.
    fn add(
        &mut self,
        kind: ObjectKind,
        name: &str,
        optional: Option<bool>,
        entries: Vec<(String, Path)>,
        path: Path,
    ) {
        if name.is_empty() {
            return;
        }
        self.uses.push(ObjectUse {
            key: ObjectKey {
                kind,
                namespace: self.namespace.clone(),
                name: name.to_owned(),
            },
            entries,
            missing: (optional != Some(true)).then_some(Severity::Error),
            path,
        });
    }

    /// A volume's source: the keys that it names, or everything.
    fn files(
        &mut self,
        kind: ObjectKind,
        name: (&str, &str),
        optional: Option<bool>,
        items: Option<&[KeyToPath]>,
        at: &Path,
    ) {
        let items = items.unwrap_or_default().iter().enumerate();
        let place = |index| at.key("items").index(index).key("key");
        let entries = items.map(|(index, item)| (item.key.clone(), place(index)));
        let (field, name) = name;
        self.add(kind, name, optional, entries.collect(), at.key(field));
    }

    fn volume(&mut self, pod: &Pod, volume: &Volume, at: &Path) {
        const MAP: ObjectKind = ObjectKind::ConfigMap;
        const SECRET: ObjectKind = ObjectKind::Secret;
        if let Some(v) = &volume.config_map {
            let (name, at) = (("name", v.name.as_str()), at.key("configMap"));
            self.files(MAP, name, v.optional, v.items.as_deref(), &at);
        }
        if let Some(v) = &volume.secret {
            let name = v.secret_name.as_deref().unwrap_or_default();
            let (name, at) = (("secretName", name), at.key("secret"));
            self.files(SECRET, name, v.optional, v.items.as_deref(), &at);
        }
        if let Some(claim) = spec::claim_name(pod, volume) {
            let path = match &volume.persistent_volume_claim {
                Some(_) => at.dotted("persistentVolumeClaim.claimName"),
                None => at.key("ephemeral"),
            };
            self.add(ObjectKind::Claim, &claim, None, Vec::new(), path);
        }
        let projected = volume.projected.as_ref();
        let sources = projected.and_then(|p| p.sources.as_deref());
        for (index, source) in sources.unwrap_or_default().iter().enumerate() {
            let at = at.dotted("projected.sources").index(index);
            if let Some(v) = &source.config_map {
                let (name, at) = (("name", v.name.as_str()), at.key("configMap"));
                self.files(MAP, name, v.optional, v.items.as_deref(), &at);
            }
            if let Some(v) = &source.secret {
                let (name, at) = (("name", v.name.as_str()), at.key("secret"));
                self.files(SECRET, name, v.optional, v.items.as_deref(), &at);
            }
        }
    }

    fn container(&mut self, container: &Container, at: &Path) {
        for (index, from) in container.env_from.iter().flatten().enumerate() {
            let at = at.key("envFrom").index(index);
            if let Some(source) = &from.config_map_ref {
                let (kind, path) = (ObjectKind::ConfigMap, at.dotted("configMapRef.name"));
                self.add(kind, &source.name, source.optional, Vec::new(), path);
            }
            if let Some(source) = &from.secret_ref {
                let (kind, path) = (ObjectKind::Secret, at.dotted("secretRef.name"));
                self.add(kind, &source.name, source.optional, Vec::new(), path);
            }
        }
        for (index, variable) in container.env.iter().flatten().enumerate() {
            let at = at.key("env").index(index).key("valueFrom");
            let from = variable.value_from.as_ref();
            if let Some(source) = from.and_then(|from| from.config_map_key_ref.as_ref()) {
                let at = at.key("configMapKeyRef");
                let entries = vec![(source.key.clone(), at.key("key"))];
                let (kind, name) = (ObjectKind::ConfigMap, &source.name);
                self.add(kind, name, source.optional, entries, at.key("name"));
            }
            if let Some(source) = from.and_then(|from| from.secret_key_ref.as_ref()) {
                let at = at.key("secretKeyRef");
                let entries = vec![(source.key.clone(), at.key("key"))];
                let (kind, name) = (ObjectKind::Secret, &source.name);
                self.add(kind, name, source.optional, entries, at.key("name"));
            }
        }
    }
}
