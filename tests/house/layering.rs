//! Holds the import arrows of `docs/ARCHITECTURE.md`: who may know whom.
//!
//! The compiler guards one arrow (`--no-default-features` builds `api`, `pod` and `config`
//! alone); the rest are read off the sources here. A violation is printed as `file:line` with the
//! rule it breaks. Test code (`tests.rs`, `tests/`, and what follows `#[cfg(test)]`) is exempt,
//! as are comments.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

/// Modules of the crate, and which of the others each may name as `crate::…`.
/// A module that isn't here fails the test: decide its place before it grows.
const MAY_IMPORT: &[(&str, &[&str])] = &[
    ("api", &[]),
    ("disk", &[]),
    ("pod", &["api"]),
    // The Cache keeps why a look at a pod failed.
    ("store", &["api", "pod", "runtime::RuntimeError"]),
    ("runtime", &["api", "pod"]),
    // The real runtime, unlike the trait, has disks under its containers, counts what it does, and
    // sends the requests of hooks.
    (
        "runtime/docker",
        &[
            "api",
            "disk",
            "pod",
            "probe",
            "store",
            "volume",
            "telemetry",
        ],
    ),
    // What both the cluster's part and the server's do about their certificates.
    ("certificate", &["api", "disk", "pod"]),
    // Only asks: what to ask, and what an answer means, is decided elsewhere.
    ("probe", &["api", "pod"]),
    (
        "prober",
        &["api", "pod", "probe", "store", "runtime", "telemetry"],
    ),
    // Counts and names what others do, so it knows their reasons, and nobody's inside.
    ("telemetry", &["api", "pod", "runtime", "config"]),
    ("config", &["api"]),
    (
        "source",
        &["api", "disk", "pod", "store", "telemetry", "config"],
    ),
    (
        "observe",
        &["api", "pod", "store", "runtime", "telemetry", "config"],
    ),
    (
        "worker",
        &["api", "pod", "store", "runtime", "telemetry", "config"],
    ),
    ("volume", &["api", "pod", "runtime", "telemetry", "config"]),
    // Reads files of the kernel's; of the Engine it is told no more than where its disk is.
    ("stats", &["api", "pod", "store", "telemetry"]),
    // Of the runtime only what it asks of the API server.
    (
        "cluster",
        &[
            "api",
            "disk",
            "pod",
            "store",
            "runtime::objects",
            "telemetry",
            "config",
            "certificate",
        ],
    ),
    (
        "server",
        &[
            "api",
            "disk",
            "pod",
            "store",
            "runtime",
            "telemetry",
            "config",
            "certificate",
        ],
    ),
    // Of the server only what goes over the socket; of the app only its entry, and of the cluster
    // only the error that makes another exit code.
    (
        "cli",
        &[
            "api",
            "pod",
            "config",
            "telemetry",
            "server::client",
            "server::admin",
            "server::frame",
            "app::run",
            "cluster::ConnectError",
        ],
    ),
    (
        "app",
        &[
            "api",
            "disk",
            "pod",
            "store",
            "runtime",
            "source",
            "cluster",
            "observe",
            "worker",
            "probe",
            "prober",
            "volume",
            "stats",
            "certificate",
            "server",
            "config",
            "telemetry",
        ],
    ),
];

/// Files at the crate's root, which may name everything.
const ROOT_FILES: &[&str] = &["lib.rs", "main.rs"];

/// Words that may stand only in files whose path starts with one of the prefixes.
const ONLY_IN: &[(&str, &[&str])] = &[
    ("bollard", &["runtime/docker"]),
    ("axum", &["server"]),
    ("kube", &["cluster", "source/apiserver"]),
    ("mirrorlet_streaming", &["server"]),
    ("clap", &["config/args", "cli", "main.rs"]),
    ("clap_complete", &["config/args", "cli", "main.rs"]),
    ("notify", &["source"]),
    ("prometheus_client", &["telemetry", "server"]),
    ("tracing_subscriber", &["telemetry"]),
];

/// Crates that the deciding modules must not name: no runtime, no log, no wire.
const PURE_FORBIDS_CRATES: &[&str] = &[
    "tokio",
    "tokio_util",
    "futures",
    "async_trait",
    "tracing",
    "tracing_subscriber",
    "bollard",
    "axum",
    "hyper",
    "hyper_util",
    "http",
    "tower",
    "clap",
    "rustix",
    "notify",
    "prometheus_client",
    "anyhow",
];

/// What the deciding modules must not take from `std`: clock, disk, network, threads, process.
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
    "std::net::TcpStream",
    "std::net::TcpListener",
    "std::net::UdpSocket",
    "std::net::ToSocketAddrs",
    "std::os::unix::net",
];

/// The modules the two lists above are about.
const PURE: &[&str] = &["api", "pod"];

/// One broken arrow.
#[derive(Debug, PartialEq, Eq)]
struct Violation {
    file: String,
    line: usize,
    rule: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "src/{}:{}: {}", self.file, self.line, self.rule)
    }
}

/// Top-level module of a file given relative to `src/`.
fn module_of(file: &str) -> &str {
    let first = file.split('/').next().unwrap_or(file);
    first.strip_suffix(".rs").unwrap_or(first)
}

fn is_test_file(file: &str) -> bool {
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
fn statements(source: &str) -> Vec<(usize, String)> {
    let mut out: Vec<(usize, String)> = Vec::new();
    let mut open_use: Option<(usize, String)> = None;
    for (index, line) in source.lines().enumerate() {
        if line.trim_start().starts_with("#[cfg(test)]") {
            break;
        }
        let code = code_of(line);
        let trimmed = code.trim_start();
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

/// What a file may import: the row with the longest path that it lies under.
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
    let module = module_of(file);
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
        if ROOT_FILES.contains(&file) {
            continue;
        }
        let Some(allowed) = allowed_in(file) else {
            continue;
        };
        for path in crate_paths(&code) {
            let target = path.split("::").next().unwrap_or_default();
            let known = MAY_IMPORT.iter().any(|(name, _)| *name == target);
            let permitted = target == module
                || allowed
                    .iter()
                    .any(|a| *a == target || names_prefix(&path, a));
            if known && !permitted {
                report(line, format!("`{module}` must not import `crate::{path}`"));
            }
        }
        if PURE.contains(&module) {
            for word in PURE_FORBIDS_CRATES
                .iter()
                .filter(|word| names_crate(&code, word))
            {
                report(
                    line,
                    format!("`{module}` is pure and must not name `{word}`"),
                );
            }
            for path in PURE_FORBIDS_STD.iter().filter(|path| names(&code, path)) {
                report(
                    line,
                    format!("`{module}` is pure and must not use `{path}`"),
                );
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

/// Every source file, relative to `src/`, with its text.
fn sources() -> Vec<(String, String)> {
    let src = root().join("src");
    let mut files = Vec::new();
    rust_files(&src, &mut files);
    assert!(
        files.len() > MAY_IMPORT.len(),
        "only {} files found under src/",
        files.len()
    );
    files
        .into_iter()
        .map(|path| {
            let name = path
                .strip_prefix(&src)
                .unwrap()
                .to_string_lossy()
                .replace('\\', "/");
            let text = fs::read_to_string(&path).unwrap();
            (name, text)
        })
        .collect()
}

fn modules() -> Vec<String> {
    let mut modules: Vec<String> = sources()
        .iter()
        .filter(|(file, _)| !ROOT_FILES.contains(&file.as_str()))
        .map(|(file, _)| module_of(file).to_owned())
        .collect();
    modules.dedup();
    modules
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
            "src/{module} is not in MAY_IMPORT of tests/house/layering.rs: say what it may import"
        );
    }
}

#[test]
fn every_module_and_crate_is_in_the_architecture_table() {
    let page = root().join("docs/ARCHITECTURE.md");
    let text = fs::read_to_string(&page).unwrap_or_else(|e| panic!("{}: {e}", page.display()));
    for module in modules() {
        assert!(
            text.lines()
                .any(|line| line.starts_with(&format!("| `{module}` |"))),
            "docs/ARCHITECTURE.md has no table row for `{module}`"
        );
    }
    let crates = fs::read_dir(root().join("crates")).unwrap();
    for name in crates.map(|entry| entry.unwrap().file_name()) {
        let row = format!("| `crates/{}` |", name.display());
        assert!(
            text.lines().any(|line| line.starts_with(&row)),
            "docs/ARCHITECTURE.md has no table row {row}"
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
        ("pod/x.rs", "use crate::runtime::Runtime;"),
        ("pod/x.rs", "use tokio::sync::watch;"),
        ("pod/x.rs", "use std::time::Instant;"),
        ("pod/x.rs", "let now = jiff::Timestamp::now();"),
        ("pod/x.rs", "fn f() { tracing::info!(\"x\"); }"),
        ("api/x.rs", "use crate::pod::Plan;"),
        ("runtime/fake.rs", "use crate::volume::VolumeManager;"),
        ("worker/x.rs", "use bollard::Docker;"),
        ("worker/x.rs", "use crate::source::Files;"),
        ("source/x.rs", "use crate::{api::Pod, worker::Worker};"),
        (
            "source/x.rs",
            "use crate::{\n    api::Pod,\n    volume::Mounts,\n};",
        ),
        ("observe/x.rs", "fn f() { crate::server::serve(); }"),
        ("app/x.rs", "use axum::Router;"),
        ("worker/x.rs", "use kube::Api;"),
        ("runtime/x.rs", "use mirrorlet_streaming::Chunk;"),
        ("cluster/x.rs", "use crate::runtime::Runtime;"),
        ("config/file.rs", "use clap::Parser;"),
        ("cli/x.rs", "use crate::server::health;"),
        ("cli/x.rs", "use crate::app::wire;"),
        ("runtime/x.rs", "use crate::telemetry::Metrics;"),
        ("runtime/x.rs", "use crate::worker::Task;"),
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
        rules("pod/x.rs", "//! docs\n\nuse crate::store::Reader;"),
        ["3: `pod` must not import `crate::store::Reader`"]
    );
}

#[test]
fn honest_code_is_left_alone() {
    let fine: &[(&str, &str)] = &[
        ("pod/x.rs", "use crate::api::{Pod, PodUid};"),
        (
            "pod/x.rs",
            "//! Knows no tokio::sync and no crate::runtime.",
        ),
        (
            "pod/x.rs",
            "use std::time::Duration;\nuse std::net::IpAddr;",
        ),
        ("pod/x.rs", "let why = \"crate::runtime::docker said so\";"),
        (
            "pod/x.rs",
            "fn f() {}\n#[cfg(test)]\nmod tests { use tokio::test; }",
        ),
        ("pod/tests.rs", "use tokio::test;"),
        ("runtime/docker/engine.rs", "use bollard::Docker;"),
        ("cli/status.rs", "use crate::server::client::Client;"),
        ("config/args.rs", "use clap::Parser;"),
        ("source/apiserver.rs", "use kube::runtime::watcher;"),
        ("worker/x.rs", "let http = 1; // axum::Router"),
        ("store/x.rs", "use super::cell::Writer;"),
    ];
    for (file, source) in fine {
        assert_eq!(
            rules(file, source),
            Vec::<String>::new(),
            "{file}: {source}"
        );
    }
}
