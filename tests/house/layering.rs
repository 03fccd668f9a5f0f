//! Holds what the compiler can't of the arrows in `docs/ARCHITECTURE.md`.
//!
//! Between crates the arrows are the dependencies in `Cargo.toml`; `crates.rs` holds those that a manifest
//! could still break. Read off the sources here: the arrows between the modules of the agent and of
//! `host`, which crates a module of the agent may name, that those of `core`, `compose`, `docker`,
//! `host` and `cluster` import one another in no circle, and that `core` and `compose` use nothing of
//! `std` that has a clock, a disk or a socket. A violation is printed as `file:line` with the rule
//! it breaks. Test code (`tests.rs`, `tests/`, and what follows
//! `#[cfg(test)]`) is exempt, as are comments.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

/// Modules of the agent and of `host`, and which others of the same crate each may name as
/// `crate::…`. A module that isn't here fails the test: decide its place before it grows.
const MAY_IMPORT: &[(&str, &[&str])] = &[
    ("crates/host/src/cgroups", &[]),
    ("crates/host/src/disk", &[]),
    ("crates/host/src/nat", &[]),
    // Only asks: what to ask, and what an answer means, is decided elsewhere.
    ("crates/host/src/probe", &["shortage"]),
    ("crates/host/src/program", &[]),
    ("crates/host/src/random", &[]),
    ("crates/host/src/shortage", &[]),
    ("crates/host/src/socket", &[]),
    ("crates/host/src/telemetry", &[]),
    (
        "crates/host/src/volume",
        &["cgroups", "disk", "random", "telemetry"],
    ),
    ("src/store", &[]),
    // Shared by the certificates of the cluster client and of the server.
    ("src/certificate", &[]),
    ("src/logging", &["config"]),
    ("src/config", &[]),
    ("src/prober", &["store"]),
    ("src/source", &["store", "config"]),
    ("src/rollout", &["store"]),
    ("src/jobs", &["store"]),
    ("src/names", &["store"]),
    ("src/observe", &["store", "config"]),
    ("src/worker", &["store", "config"]),
    // Reads files of the kernel's; of the Engine it is told no more than where its disk is.
    ("src/stats", &["store"]),
    ("src/eviction", &["store"]),
    ("src/cluster", &["store", "config", "certificate"]),
    ("src/server", &["store", "config", "certificate"]),
    // Of the server only what goes over the socket; of the app only its entry, and of the cluster
    // only the error that makes another exit code.
    (
        "src/cli",
        &[
            "config",
            "logging",
            "server::client",
            "server::admin",
            "server::frame",
            "app::approve",
            "app::cleanup",
            "app::run",
            "cluster::ConnectError",
        ],
    ),
    (
        "src/app",
        &[
            "store",
            "source",
            "names",
            "rollout",
            "jobs",
            "cluster",
            "observe",
            "worker",
            "prober",
            "stats",
            "eviction",
            "certificate",
            "server",
            "config",
        ],
    ),
];

/// Files that may name every module of their crate.
const ROOT_FILES: &[&str] = &["src/lib.rs", "src/main.rs", "crates/host/src/lib.rs"];

/// Crates that only files whose path starts with one of the prefixes may name.
const ONLY_IN: &[(&str, &[&str])] = &[
    // The wiring chooses the runtime; everybody else knows the trait.
    ("mirrorlet_docker", &["src/app", "crates/"]),
    ("mirrorlet_compose", &["src/cli"]),
    ("mirrorlet_dns", &["src/names", "src/cli"]),
    (
        "mirrorlet_streaming",
        &["crates/runtime", "src/cli", "src/server"],
    ),
    ("axum", &["src/server"]),
    ("kube", &["src/cluster", "src/source/apiserver"]),
    ("clap", &["src/config/args", "src/cli", "src/main.rs"]),
    (
        "clap_complete",
        &["src/config/args", "src/cli", "src/main.rs"],
    ),
    ("notify", &["src/source"]),
    ("prometheus_client", &["crates/host/src/telemetry"]),
    ("tracing_subscriber", &["src/logging"]),
];

/// Modules of `std` that `core` and `compose` must not use: clock, disk, network, threads, process.
const PURE_FORBIDS_STD: &[&str] = &[
    "std::time::Instant",
    "std::time::SystemTime",
    "Instant::now",
    "SystemTime::now",
    "Timestamp::now",
    "std::fs",
    "std::env",
    "std::process",
    "std::thread",
    "std::sync::Mutex",
    "std::sync::RwLock",
    "parking_lot::",
    "std::net::TcpStream",
    "std::net::TcpListener",
    "std::net::UdpSocket",
    "std::net::ToSocketAddrs",
    "std::os::unix::net",
];

/// Crates of decisions alone, with where they are.
pub(crate) const PURE: &[(&str, &str)] = &[
    ("core", "crates/core/src/"),
    ("compose", "crates/compose/src/"),
];

/// One broken arrow.
#[derive(Debug, PartialEq, Eq)]
struct Violation {
    file: String,
    line: usize,
    rule: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.file, self.line, self.rule)
    }
}

/// The crate's `src/` and the top-level module of a file.
fn module_of(file: &str) -> (&str, &str) {
    let (src, below) = file.split_at(file.find("src/").map_or(0, |at| at + "src/".len()));
    let first = below.split('/').next().unwrap_or(below);
    (src, first.strip_suffix(".rs").unwrap_or(first))
}

pub(crate) fn is_test_file(file: &str) -> bool {
    file.split('/')
        .any(|part| part == "tests.rs" || part == "tests" || part == "proptests.rs")
}

fn is_ident(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// The code of a line: without a trailing comment, and without what stands in string literals.
fn code_of(line: &str) -> String {
    let mut code = String::with_capacity(line.len());
    let mut in_string = false;
    let mut chars = line.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '\\' if in_string => {
                chars.next();
            }
            '\'' if !in_string && chars.peek() == Some(&'"') => {
                chars.next();
                chars.next();
            }
            '"' => in_string = !in_string,
            '/' if !in_string && chars.peek() == Some(&'/') => break,
            _ if in_string => {}
            _ => code.push(c),
        }
    }
    code
}

/// Whether `code` names `path` (`a::b`) as whole words, not as a part of a longer path's tail.
fn names(code: &str, path: &str) -> bool {
    code.match_indices(path).any(|(at, _)| {
        let before = code[..at].chars().next_back();
        let after = code[at + path.len()..].chars().next();
        !before.is_some_and(is_ident) && !after.is_some_and(is_ident)
    })
}

/// Whether `code` names the crate `name` as the head of a path: `name::…`, not `crate::name::…`.
fn names_crate(code: &str, name: &str) -> bool {
    code.match_indices(name).any(|(at, _)| {
        let before = &code[..at];
        let head = !before.ends_with("::") || before.ends_with(" ::");
        let whole = !before.chars().next_back().is_some_and(is_ident);
        let after = &code[at + name.len()..];
        let path = after.starts_with("::")
            || (before.trim_end().ends_with("use") && after.starts_with([';', ' ']));
        head && whole && path
    })
}

/// The `crate::…` paths a piece of code names, with groups (`crate::{a, b::c}`) taken apart.
fn crate_paths(code: &str) -> Vec<String> {
    let mut paths = Vec::new();
    for (at, _) in code.match_indices("crate::") {
        if code[..at].chars().next_back().is_some_and(is_ident) {
            continue;
        }
        let rest = &code[at + "crate::".len()..];
        if let Some(group) = rest.strip_prefix('{') {
            let mut depth = 0_usize;
            let mut item = String::new();
            for c in group.chars() {
                match c {
                    '{' => depth += 1,
                    '}' if depth == 0 => break,
                    '}' => depth -= 1,
                    ',' if depth == 0 => {
                        paths.push(std::mem::take(&mut item));
                        continue;
                    }
                    _ => {}
                }
                item.push(c);
            }
            paths.push(item);
        } else {
            paths.push(
                rest.chars()
                    .take_while(|c| is_ident(*c) || *c == ':')
                    .collect(),
            );
        }
    }
    paths
        .iter()
        .map(|p| p.trim().to_owned())
        .filter(|p| !p.is_empty())
        .collect()
}

/// Joins each `use …;` that spans lines into its first line, so that groups are seen whole.
pub(crate) fn statements(source: &str) -> Vec<(usize, String)> {
    let mut out: Vec<(usize, String)> = Vec::new();
    let mut open_use: Option<(usize, String)> = None;
    // Of an item for tests alone: how many of its braces are open, once one was.
    let mut test_item: Option<Option<usize>> = None;
    for (index, line) in source.lines().enumerate() {
        let code = code_of(line);
        let trimmed = code.trim_start();
        if trimmed.starts_with("#[cfg(test)]") {
            test_item = Some(None);
            continue;
        }
        if let Some(open) = &mut test_item {
            let count = |brace| code.matches(brace).count();
            let depth =
                open.unwrap_or(0) + count('{') - count('}').min(open.unwrap_or(0) + count('{'));
            if open.is_some() || code.contains('{') {
                *open = Some(depth);
            }
            let ends = if open.is_some() {
                depth == 0
            } else {
                code.contains(';')
            };
            if ends {
                test_item = None;
            }
            continue;
        }
        if let Some((first, mut joined)) = open_use.take() {
            joined.push(' ');
            joined.push_str(trimmed);
            if joined.contains(';') {
                out.push((first, joined));
            } else {
                open_use = Some((first, joined));
            }
        } else if (trimmed.starts_with("use ") || trimmed.starts_with("pub use "))
            && !trimmed.contains(';')
        {
            open_use = Some((index + 1, trimmed.to_owned()));
        } else {
            out.push((index + 1, code));
        }
    }
    out.extend(open_use);
    out
}

/// Returns the imports that a file may have: those of the row with the longest path that it lies
/// under.
fn allowed_in(file: &str) -> Option<&'static [&'static str]> {
    let path = file.strip_suffix(".rs").unwrap_or(file);
    MAY_IMPORT
        .iter()
        .filter(|(name, _)| {
            path.strip_prefix(name)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        })
        .max_by_key(|(name, _)| name.len())
        .map(|(_, allowed)| *allowed)
}

fn violations_in(file: &str, source: &str) -> Vec<Violation> {
    if is_test_file(file) {
        return Vec::new();
    }
    let mut found = Vec::new();
    let (src, module) = module_of(file);
    let mut report = |line: usize, rule: String| {
        found.push(Violation {
            file: file.to_owned(),
            line,
            rule,
        });
    };
    for (line, code) in statements(source) {
        for (word, homes) in ONLY_IN {
            if names_crate(&code, word) && !homes.iter().any(|home| file.starts_with(home)) {
                report(
                    line,
                    format!("`{word}` may be named only under {}", homes.join(", ")),
                );
            }
        }
        for (name, _) in PURE.iter().filter(|(_, home)| file.starts_with(home)) {
            for path in PURE_FORBIDS_STD.iter().filter(|path| names(&code, path)) {
                report(line, format!("`{name}` is pure and must not use `{path}`"));
            }
        }
        if ROOT_FILES.contains(&file) {
            continue;
        }
        let Some(allowed) = allowed_in(file) else {
            continue;
        };
        for path in crate_paths(&code) {
            let target = path.split("::").next().unwrap_or_default();
            let known = MAY_IMPORT
                .iter()
                .any(|(name, _)| *name == format!("{src}{target}"));
            let permitted = target == module
                || allowed
                    .iter()
                    .any(|a| *a == target || names_prefix(&path, a));
            if known && !permitted {
                report(line, format!("`{module}` must not import `crate::{path}`"));
            }
        }
    }
    found
}

/// Whether `path` is `prefix` or goes on below it.
fn names_prefix(path: &str, prefix: &str) -> bool {
    path.strip_prefix(prefix)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn rust_files(dir: &Path, into: &mut Vec<PathBuf>) {
    let mut entries: Vec<PathBuf> = fs::read_dir(dir)
        .unwrap_or_else(|e| panic!("{}: {e}", dir.display()))
        .map(|entry| entry.unwrap().path())
        .collect();
    entries.sort();
    for path in entries {
        if path.is_dir() {
            rust_files(&path, into);
        } else if path.extension().is_some_and(|ext| ext == "rs") {
            into.push(path);
        }
    }
}

/// Every source file of the crates that have arrows, with its text.
pub(crate) fn sources() -> Vec<(String, String)> {
    sources_of(&[
        "",
        "crates/compose",
        "crates/core",
        "crates/docker",
        "crates/host",
        "crates/runtime",
    ])
}

/// Every source file of the crates in these directories, with its text.
pub(crate) fn sources_of(crate_dirs: &[&str]) -> Vec<(String, String)> {
    let root = root();
    let mut files = Vec::new();
    for crate_dir in crate_dirs {
        let before = files.len();
        rust_files(&root.join(crate_dir).join("src"), &mut files);
        assert!(files.len() > before, "no file found in {crate_dir}/src");
    }
    let files = files.into_iter().map(|path| {
        let name = path
            .strip_prefix(&root)
            .unwrap()
            .to_string_lossy()
            .into_owned();
        (name, fs::read_to_string(&path).unwrap())
    });
    files.collect()
}

/// The modules that have arrows: those of the agent and of `host`, with their crate's `src/`.
fn modules() -> Vec<String> {
    let sources = sources();
    let with_arrows = sources
        .iter()
        .map(|(file, _)| file.as_str())
        .filter(|file| {
            let arrows = file.starts_with("src/") || file.starts_with("crates/host/");
            arrows && !ROOT_FILES.contains(file)
        });
    let mut modules: Vec<String> = with_arrows
        .map(|file| {
            let (src, module) = module_of(file);
            format!("{src}{module}")
        })
        .collect();
    modules.dedup();
    modules
}

/// Directories whose modules import one another in one direction only.
const WITHOUT_CIRCLES: &[&str] = &[
    "src/cluster/",
    "crates/compose/src/",
    "crates/core/src/",
    "crates/docker/src/",
    "crates/host/src/",
];

/// The modules of `dir` that one of its files names: by `crate::`, or by `super::`.
fn siblings(dir: &str, file: &str, source: &str) -> BTreeSet<String> {
    let inside = file.trim_start_matches(dir);
    let depth = inside.matches('/').count() + usize::from(!inside.ends_with("mod.rs"));
    let (_, above) = dir.split_at(dir.find("src/").unwrap_or(0) + "src/".len());
    let ways = [
        "super::".repeat(depth),
        format!("crate::{}", above.replace('/', "::")),
    ];
    let mut paths = Vec::new();
    for (_, code) in statements(source) {
        for way in &ways {
            for (at, _) in code.match_indices(way) {
                if !code[..at].ends_with("super::") {
                    let rest = &code[at + way.len()..];
                    paths.extend(crate_paths(&format!("crate::{rest}")));
                }
            }
        }
    }
    let heads = paths.iter().filter_map(|path| path.split("::").next());
    heads.map(str::to_owned).collect()
}

/// The modules of `dir` that lie on a circle of imports, or lead to one.
fn circles(dir: &str, sources: &[(String, String)]) -> Vec<String> {
    let mut imports: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (file, source) in sources {
        let inside = file.strip_prefix(dir).unwrap_or_default();
        let module = inside.split('/').next().unwrap_or_default();
        let module = module.trim_end_matches(".rs");
        if !is_test_file(file) && !["", "mod", "lib", "fake", "fake_engine"].contains(&module) {
            let named = siblings(dir, file, source);
            imports.entry(module.to_owned()).or_default().extend(named);
        }
    }
    loop {
        let known: BTreeSet<String> = imports.keys().cloned().collect();
        imports.retain(|module, named| {
            named.retain(|name| known.contains(name) && name != module);
            !named.is_empty()
        });
        if imports.len() == known.len() {
            return imports.into_keys().collect();
        }
    }
}

#[test]
fn modules_import_one_another_in_no_circle() {
    for dir in WITHOUT_CIRCLES {
        assert_eq!(circles(dir, &sources()), [""; 0], "{dir}");
    }
    let planted = |a: &str, b: &str| {
        let files = [("src/cluster/a.rs", a), ("src/cluster/b/mod.rs", b)];
        circles(
            "src/cluster/",
            &files.map(|(f, s)| (f.to_owned(), s.to_owned())),
        )
    };
    assert_eq!(planted("use super::b::X;", "use super::c::Y;"), [""; 0]);
    assert_eq!(planted("use super::b::X;", "use super::a::Y;"), ["a", "b"]);
    let by_name = "use crate::cluster::{a::Y, c};";
    assert_eq!(planted("use super::{b, c};", by_name), ["a", "b"]);
    let in_tests = "#[cfg(test)]\nmod tests { use super::super::a::Y; }";
    assert_eq!(planted("use super::b::X;", in_tests), [""; 0]);
}

#[test]
fn imports_follow_the_arrows() {
    let violations: Vec<String> = sources()
        .iter()
        .flat_map(|(file, text)| violations_in(file, text))
        .map(|violation| violation.to_string())
        .collect();
    assert!(
        violations.is_empty(),
        "broken arrows:\n{}",
        violations.join("\n")
    );
}

#[test]
fn every_module_has_its_arrows() {
    for module in modules() {
        assert!(
            MAY_IMPORT.iter().any(|(name, _)| *name == module),
            "{module} is not in MAY_IMPORT of tests/house/layering.rs: say what it may import"
        );
    }
}

#[test]
fn every_crate_and_module_is_in_the_architecture_tables() {
    let page = root().join("docs/ARCHITECTURE.md");
    let text = fs::read_to_string(&page).unwrap_or_else(|e| panic!("{}: {e}", page.display()));
    let modules = modules();
    let names = modules
        .iter()
        .filter_map(|module| module.rsplit('/').next());
    let crates = fs::read_dir(root().join("crates")).unwrap();
    let crates = crates.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    for name in names.map(str::to_owned).chain(crates) {
        assert!(
            text.lines()
                .any(|line| line.starts_with(&format!("| `{name}` |"))),
            "docs/ARCHITECTURE.md has no table row for `{name}`"
        );
    }
    assert!(
        text.lines().count() <= 200,
        "docs/ARCHITECTURE.md is longer than 200 lines"
    );
}

/// Rules that `source`, put at `file`, breaks.
fn rules(file: &str, source: &str) -> Vec<String> {
    violations_in(file, source)
        .into_iter()
        .map(|v| format!("{}: {}", v.line, v.rule))
        .collect()
}

#[test]
fn a_planted_violation_is_caught() {
    let caught: &[(&str, &str)] = &[
        ("crates/core/src/plan/x.rs", "use std::time::Instant;"),
        ("crates/core/src/x.rs", "let now = jiff::Timestamp::now();"),
        ("crates/core/src/lib.rs", "use std::fs;"),
        ("crates/compose/src/load.rs", "use std::fs;"),
        ("src/app/x.rs", "use mirrorlet_compose::import;"),
        ("crates/host/src/volume/x.rs", "use crate::nat::Nat;"),
        (
            "crates/host/src/telemetry/x.rs",
            "use crate::volume::Volumes;",
        ),
        ("src/worker/x.rs", "use crate::source::Files;"),
        ("src/worker/x.rs", "use mirrorlet_docker::DockerManager;"),
        (
            "src/source/x.rs",
            "use crate::{store::Reader, worker::Worker};",
        ),
        (
            "src/source/x.rs",
            "use crate::{\n    store::Reader,\n    cluster::Mirrors,\n};",
        ),
        ("src/observe/x.rs", "fn f() { crate::server::serve(); }"),
        ("src/app/x.rs", "use axum::Router;"),
        ("src/worker/x.rs", "use kube::Api;"),
        ("src/worker/x.rs", "use mirrorlet_streaming::Chunk;"),
        ("src/worker/x.rs", "use mirrorlet_dns::Table;"),
        ("src/config/file.rs", "use clap::Parser;"),
        ("src/cli/x.rs", "use crate::server::health;"),
        ("src/cli/x.rs", "use crate::app::wire;"),
        ("src/store/x.rs", "use crate::worker::Task;"),
        (
            "src/store/x.rs",
            "#[cfg(test)]\nmod tests;\nuse crate::worker::Task;",
        ),
        (
            "src/store/x.rs",
            "#[cfg(test)]\nmod a {\n}\nuse crate::worker::Task;",
        ),
    ];
    for (file, source) in caught {
        assert_eq!(
            rules(file, source).len(),
            1,
            "{file}: {source}: {:?}",
            rules(file, source)
        );
    }
    assert_eq!(
        rules(
            "src/store/x.rs",
            "//! docs\n\nuse crate::observe::Observer;"
        ),
        ["3: `store` must not import `crate::observe::Observer`"]
    );
}

#[test]
fn honest_code_is_left_alone() {
    let fine: &[(&str, &str)] = &[
        ("crates/core/src/x.rs", "use crate::api::{Pod, PodUid};"),
        (
            "crates/core/src/x.rs",
            "//! Knows no std::fs and no std::time::Instant.",
        ),
        (
            "crates/core/src/x.rs",
            "use std::time::Duration;\nuse std::net::IpAddr;",
        ),
        (
            "crates/core/src/x.rs",
            "fn f() {}\n#[cfg(test)]\nmod tests { use std::fs; }",
        ),
        (
            "crates/core/src/x.rs",
            "#[cfg(test)]\nmod tests {\n    fn f() {\n    }\n    use std::fs;\n}",
        ),
        ("crates/core/src/plan/tests.rs", "use std::fs;"),
        (
            "crates/host/src/volume/x.rs",
            "use crate::telemetry::occurrences;",
        ),
        ("src/worker/x.rs", "let why = \"crate::source said so\";"),
        ("src/app/x.rs", "use mirrorlet_docker::DockerManager;"),
        ("src/cli/status.rs", "use crate::server::client::Client;"),
        ("src/config/args.rs", "use clap::Parser;"),
        ("src/source/apiserver.rs", "use kube::runtime::watcher;"),
        ("src/worker/x.rs", "let http = 1; // axum::Router"),
        ("src/store/x.rs", "use super::cell::Writer;"),
    ];
    for (file, source) in fine {
        assert_eq!(
            rules(file, source),
            Vec::<String>::new(),
            "{file}: {source}"
        );
    }
}
