//! The examples in Kubernetes' own documentation: which run here, and why the others don't.
//!
//! `manifests/documented` has one file per example of a workload, `manifests/documented-pods` per
//! example of anything else on concept pages, written from the shape of the documented one:
//! the same kinds, fields and names; scripts are shorter. Its first line is the page, its second
//! the file below `k8s.io/examples`, or what is written in the page itself. `docs/documented.md` is
//! made of them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use mirrorlet_core::admit::{AdmitInput, AdmitNode, Verdict, admit};
use mirrorlet_core::api::{NodeName, Pod};
use mirrorlet_core::desired::PodSource;
use mirrorlet_core::manifest::{Document, DocumentKey, ParseContext, parse_manifest};
use mirrorlet_core::objects::references;
use mirrorlet_core::workload::{WorkloadKey, WorkloadKind};

/// The labels that the pages ask for, and one that every Linux node has.
const LABELS: [(&str, &str); 4] = [
    ("kubernetes.io/os", "linux"),
    ("node-role.kubernetes.io/control-plane", ""),
    ("ssd", "true"),
    ("topology.kubernetes.io/zone", "antarctica-east1"),
];

const NODE_SELECTOR: &str = "nodeSelector";

/// Fields for which an example is refused.
const REFUSED: [(&str, &str); 4] = [
    (
        "serviceAccountToken",
        "a part of a cluster that asks for the API server's token",
    ),
    ("resourceClaims", "devices are not allocated"),
    ("windowsOptions", "for Windows"),
    (
        NODE_SELECTOR,
        "for Windows: a Node with the labels of Linux refuses it, as in every cluster",
    ),
];

/// Fields by which pods refer to config maps, Secrets and claims: no example is refused for one.
const OBJECT_FIELDS: [&str; 9] = [
    "configMap",
    "configMapKeyRef",
    "configMapRef",
    "envFrom",
    "imagePullSecrets",
    "persistentVolumeClaim",
    "secret",
    "secretKeyRef",
    "secretRef",
];

/// The fields of these that are for Windows.
const WINDOWS: [&str; 2] = ["windowsOptions", NODE_SELECTOR];

/// An example.
struct Example {
    page: String,
    source: String,
    key: WorkloadKey,
    /// The number of its pods; none of a Job or `CronJob`.
    pods: Option<usize>,
    /// The field for which it is refused.
    refused: Option<&'static str>,
    /// Whether it names a `ServiceAccount`, whose token its pods don't get.
    wants_token: bool,
    /// The other refusals of its file.
    besides: BTreeSet<String>,
}

/// A file: its page, what it is there, and its documents.
fn read(path: &Path) -> (String, String, Vec<Document>) {
    let text = fs::read_to_string(path).unwrap();
    let mut lines = text.lines().map(|line| line.strip_prefix("# ").unwrap());
    let (page, source) = (lines.next().unwrap(), lines.next().unwrap());
    let node = NodeName::from("node");
    let ctx = ParseContext {
        node_name: &node,
        source: PodSource::File,
        location: path.to_str().unwrap(),
    };
    let parsed = parse_manifest(text.as_bytes(), &ctx);
    assert_eq!(parsed.problems, [], "{}", path.display());
    (page.to_owned(), source.to_owned(), parsed.documents)
}

/// A page as a link, named by its path.
fn link(page: &str) -> String {
    let path = page.strip_prefix("https://kubernetes.io/docs/").unwrap();
    format!("[{}]({page})", path.trim_end_matches('/'))
}

/// An example of pods, or of objects that pods refer to.
struct Other {
    page: String,
    source: String,
    /// The documents of its file, each by its kind and name.
    names: Vec<String>,
    /// The fields for which some of them are refused.
    refused: BTreeSet<String>,
}

impl Other {
    fn read(path: &Path) -> Self {
        let (page, source, documents) = read(path);
        let mut refused = BTreeSet::new();
        for document in &documents {
            let errors = document.problems.iter().filter(|p| p.is_error());
            let fields = errors.map(|error| error.field.clone().unwrap());
            refused.extend(fields.map(|field| last_word(&field).to_owned()));
            if !admits(document) {
                refused.insert(NODE_SELECTOR.to_owned());
            }
        }
        let names = documents.iter().map(|document| {
            let (kind, name) = match document.key.as_ref().unwrap() {
                DocumentKey::Pod(name) => ("Pod", name.name.trim_end_matches("-node").to_owned()),
                DocumentKey::Object(key) => (key.kind.as_str(), key.name.clone()),
                DocumentKey::Workload(key) => panic!("{key}"),
            };
            format!("{kind} `{name}`")
        });
        Self {
            names: names.collect(),
            refused,
            page,
            source,
        }
    }

    fn row(&self) -> String {
        let fields: Vec<_> = self.refused.iter().map(|f| format!("`{f}`")).collect();
        let here = match fields.as_slice() {
            [] if self.names.iter().any(|name| name.starts_with("Pod ")) => "runs".to_owned(),
            [] => "read".to_owned(),
            fields => format!("refused: {}", fields.join(", ")),
        };
        let (names, page) = (self.names.join(", "), link(&self.page));
        format!("| {names} | {} | {page} | {here} |", self.source)
    }
}

/// The last word of a field's path, without what it is the index of.
fn last_word(field: &str) -> &str {
    let word = field.split_once("['").map_or_else(
        || field.rsplit('.').next().unwrap_or(field),
        |(_, rest)| rest.trim_end_matches("']"),
    );
    word.split('[').next().unwrap_or(word)
}

/// Whether the node of the pages admits a document's pods.
fn admits(document: &Document) -> bool {
    let labels = LABELS.map(|(key, value)| (key.to_owned(), value.to_owned()));
    let node = AdmitNode {
        labels: Some(BTreeMap::from(labels)),
        ..AdmitNode::default()
    };
    let others = &[];
    document.pods().iter().all(|pod| {
        let (pod, node) = (pod, &node);
        matches!(
            admit(&AdmitInput { pod, others, node }),
            Verdict::Admitted { .. }
        )
    })
}

impl Example {
    fn read(path: &Path) -> Self {
        let (page, source, documents) = read(path);
        let mut found = None;
        let mut besides = BTreeSet::new();
        for document in &documents {
            match &document.key {
                Some(DocumentKey::Workload(key)) => {
                    let before = found.replace((key.clone(), document));
                    assert!(before.is_none(), "{}: two workloads", path.display());
                }
                _ if document.accepted.is_none() => {
                    besides.insert(shown(document));
                }
                _ => {}
            }
        }
        let (key, document) = found.unwrap_or_else(|| panic!("{}: no workload", path.display()));
        let is_row = !matches!(key.kind, WorkloadKind::Job | WorkloadKind::CronJob);
        Self {
            page,
            source,
            pods: is_row.then(|| document.pods().len()),
            refused: refused(document),
            wants_token: document.problems.iter().any(|problem| {
                let field = problem.field.as_deref();
                field.is_some_and(|field| field.ends_with("serviceAccountName"))
            }),
            key,
            besides,
        }
    }

    /// Whether it is for Windows, so that no Linux node runs it.
    fn is_for_windows(&self) -> bool {
        self.refused.is_some_and(|field| WINDOWS.contains(&field))
    }

    /// Whether its page is one of the concepts.
    fn is_concept(&self) -> bool {
        self.page
            .starts_with("https://kubernetes.io/docs/concepts/")
    }

    fn row(&self) -> String {
        let here = match (self.refused, self.pods) {
            (Some(field), _) => format!("refused: `{field}`"),
            (None, None) => "runs".to_owned(),
            (None, Some(1)) => "1 pod".to_owned(),
            (None, Some(pods)) => format!("{pods} pods"),
        };
        let here = if self.wants_token && self.refused.is_none() {
            here + ", without a token"
        } else {
            here
        };
        let besides: Vec<&str> = self.besides.iter().map(String::as_str).collect();
        format!(
            "| {} `{}` | {} | {} | {here} | {} |",
            self.key.kind,
            self.key.name,
            self.source,
            link(&self.page),
            besides.join("; ")
        )
    }
}

/// The name of a rejected document of another kind: its kind, and the field if that is the cause.
fn shown(document: &Document) -> String {
    let errors = || document.problems.iter().filter(|p| p.is_error());
    if let Some(DocumentKey::Object(key)) = &document.key {
        let fields = errors().map(|error| format!("`{}`", error.field.as_deref().unwrap()));
        return format!(
            "{}: {}",
            key.kind.as_str(),
            fields.collect::<Vec<_>>().join(", ")
        );
    }
    let kinds: Vec<_> = errors().map(|error| error.message.as_str()).collect();
    let [message] = kinds.as_slice() else {
        panic!("{kinds:?}");
    };
    let kind = message.strip_prefix("documents of kind ");
    let kind = kind.and_then(|rest| rest.strip_suffix(" are not supported"));
    kind.unwrap_or_else(|| panic!("{message}")).to_owned()
}

/// The field for which a workload doesn't run here: its document is rejected, or no Linux node
/// takes its pods.
fn refused(document: &Document) -> Option<&'static str> {
    let known = |path: &str| REFUSED.iter().find(|(field, _)| path.ends_with(field));
    let errors = || document.problems.iter().filter(|p| p.is_error());
    let mut fields = errors().filter_map(|error| error.field.as_deref());
    if errors().next().is_some() {
        let (field, _) = fields
            .find_map(known)
            .unwrap_or_else(|| panic!("{:?}", document.problems));
        return Some(field);
    }
    assert!(
        !document.pods().is_empty(),
        "{:?} has no pods",
        document.key
    );
    (!admits(document)).then_some(NODE_SELECTOR)
}

fn files(directory: &str) -> impl Iterator<Item = PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/house/manifests");
    let files = fs::read_dir(root.join(directory)).unwrap();
    files.map(|file| file.unwrap().path())
}

fn examples() -> Vec<Example> {
    let mut examples: Vec<Example> = files("documented")
        .map(|file| Example::read(&file))
        .collect();
    examples.sort_by(|a, b| {
        let order = |e: &Example| (!e.is_concept(), e.page.clone(), e.source.clone());
        order(a).cmp(&order(b))
    });
    examples
}

fn others() -> Vec<Other> {
    let mut others: Vec<Other> = files("documented-pods")
        .map(|file| Other::read(&file))
        .collect();
    let order = |one: &Other| (one.page.clone(), one.source.clone());
    others.sort_by_key(order);
    others
}

/// How many of some examples run, and of how many.
fn share<'a>(examples: impl Iterator<Item = &'a Example>) -> (usize, usize) {
    let refused: Vec<bool> = examples.map(|example| example.refused.is_some()).collect();
    let runs = refused.iter().filter(|refused| !**refused).count();
    (runs, refused.len())
}

/// How many examples have pods that refer to config maps, Secrets or claims, and run.
fn with_objects() -> usize {
    let refers = |pod: &Arc<Pod>| !references(pod).objects.is_empty();
    let runs = |document: &Document| document.pods().iter().any(refers) && admits(document);
    files("documented")
        .chain(files("documented-pods"))
        .filter(|file| read(file).2.iter().any(runs))
        .count()
}

fn page(examples: &[Example], others: &[Other]) -> String {
    let (runs, all) = share(examples.iter());
    let (_, for_linux) = share(examples.iter().filter(|e| !e.is_for_windows()));
    let (runs_of_concepts, concepts) = share(examples.iter().filter(|e| e.is_concept()));
    let mut out = format!(
        "# The documented examples\n\n\
         ## Workloads\n\n\
         The Deployments, StatefulSets, DaemonSets, Jobs and CronJobs of Kubernetes' own pages, and what becomes of them as a file of a [manifest directory](workloads.md). Files are below `k8s.io/examples`; what a page has no file for is *inline*. Parts of documents, which no API server takes either, are left out. The list is kept by hand.\n\n\
         **{runs_of_concepts} of the {concepts} examples on concept pages run, and {runs} of all {all}, of which {for_linux} are for Linux.** A test reads each, expands it, and asks the node's admission about its pods; it doesn't pull the images. The others are refused for one of these fields:\n\n"
    );
    for (field, why) in REFUSED {
        let _ = writeln!(out, "- `{field}`: {why}");
    }
    let _ = write!(
        out,
        "\n*Without a token*: the pods run, and what they ask of an API server is refused there: a static pod has no ServiceAccount. `mirrorlet validate` warns.\n\n\
         The last column has what else of the file is refused, by its kind or its field: it is reported, and the rest of the file runs.\n\n\
         This page is made and checked by `cargo test --test house documented`.\n\n\
         | Workload | Example | Page | Here | Refused beside it |\n|---|---|---|---|---|\n"
    );
    for example in examples {
        let _ = writeln!(out, "{}", example.row());
    }
    let fine = others
        .iter()
        .filter(|other| other.refused.is_empty())
        .count();
    let _ = write!(
        out,
        "\n## Pods, and what they refer to\n\n\
         Pods, ConfigMaps, Secrets, claims, volumes and Services of the concept pages, in a manifest directory. **{fine} of {} run, or are read.** The others are refused by the field that the last column has. What they ask for is of a cluster (tokens, certificates, schedulers, device plugins), of Windows, or storage of a network, which a claim can have by [a driver of the Engine](storage.md#volumes-of-the-engine); Services have no address and translate no port, because [names](names.md) lead to pods.\n\n\
         | Documents | Example | Page | Here |\n|---|---|---|---|\n",
        others.len()
    );
    for other in others {
        let _ = writeln!(out, "{}", other.row());
    }
    out
}

/// Regenerate the page with `UPDATE_DOCS=1`.
#[test]
fn the_documented_examples_run_or_are_refused_by_name() {
    let (examples, others) = (examples(), others());
    let kinds: BTreeSet<WorkloadKind> = examples.iter().map(|e| e.key.kind).collect();
    assert_eq!(kinds, BTreeSet::from(WorkloadKind::ALL));
    let (runs, concepts) = share(examples.iter().filter(|e| e.is_concept()));
    let (runs_of_all, all) = share(examples.iter().filter(|e| !e.is_for_windows()));
    // box 15
    assert!(runs * 100 >= concepts * 95 && runs_of_all * 100 >= all * 95);
    // A node without these objects would refuse at least so many for them alone.
    let objects = with_objects();
    // box 15
    assert!(objects >= 25, "{objects} examples with objects run");
    let fields = examples.iter().filter_map(|example| example.refused);
    let mut fields = fields.chain(
        others
            .iter()
            .flat_map(|o| o.refused.iter().map(String::as_str)),
    );
    // box 15
    assert_eq!(fields.find(|field| OBJECT_FIELDS.contains(field)), None);
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/documented.md");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(&path, page(&examples, &others)).unwrap();
    }
    assert!(
        fs::read_to_string(&path).unwrap() == page(&examples, &others),
        "run: UPDATE_DOCS=1 cargo test --test house documented"
    );
}
