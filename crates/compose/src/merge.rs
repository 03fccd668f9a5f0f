//! The rules for merging the values of one file over those of another.
//!
//! Upstream: `override/merge.go` and `override/uncity.go` of compose-go. Both sides are canonical.

use std::collections::BTreeMap;

use crate::tree::{Entry, Kind, Node, Tag};

/// Keys of a service that are replaced as a whole.
const REPLACED: [&str; 4] = [
    "services.*.command",
    "services.*.entrypoint",
    "services.*.healthcheck.test",
    "services.*.provider",
];

/// Lists of a service whose items are mounted, each at a path of its own.
const MOUNTED: [&str; 4] = ["volumes", "tmpfs", "configs", "secrets"];

/// The path of a child: names of services, volumes and so on are `*`.
fn below(path: &str, key: &str) -> String {
    match path {
        "" => key.to_owned(),
        "services" | "volumes" | "networks" | "configs" | "secrets" | "models" => {
            format!("{path}.*")
        }
        _ => format!("{path}.{key}"),
    }
}

/// Merges `over` into `base`. `path` is their common path, with `*` for names; the root's is empty.
pub(crate) fn merge(base: Node, over: Node, path: &str) -> Node {
    // A variable without a value is taken from the environment: no value to be merged.
    let is_variable = path.starts_with("services.*.environment.");
    if over.tag != Tag::None || REPLACED.contains(&path) || is_variable {
        return over;
    }
    if path == "services.*.logging" && has_other_driver(&base, &over) {
        return over;
    }
    let Node { kind, place, tag } = base;
    let kind = match (kind, over.kind) {
        (kind, Kind::Null) => kind,
        (Kind::Map(mut entries), Kind::Map(others)) => {
            for other in others {
                lay(&mut entries, other, path);
            }
            Kind::Map(entries)
        }
        (Kind::List(mut items), Kind::List(others)) => {
            for other in others {
                add(&mut items, other, path);
            }
            Kind::List(items)
        }
        (_, kind) => {
            return Node {
                kind,
                place: over.place,
                tag,
            };
        }
    };
    Node { kind, place, tag }
}

fn lay(entries: &mut Vec<Entry>, other: Entry, path: &str) {
    let Some(at) = entries.iter().position(|entry| entry.key == other.key) else {
        entries.push(other);
        return;
    };
    let old = entries[at].value.clone();
    let child = below(path, &other.key);
    let is_scalar = !matches!(other.value.kind, Kind::Map(_) | Kind::List(_) | Kind::Null);
    if is_scalar {
        entries[at].place = other.place.clone();
    }
    entries[at].value = merge(old, other.value, &child);
}

/// Adds an item to a list, in place of the one that it redefines.
fn add(items: &mut Vec<Node>, other: Node, path: &str) {
    let same = identity(&other, path);
    let old = items
        .iter_mut()
        .find(|item| same.is_some() && identity(item, path) == same);
    match old {
        Some(old) => *old = other,
        None => items.push(other),
    }
}

/// Removes the mounts of a service that a later one in the same list redefines. Returns those that
/// differ from the later one, each with its list's key.
pub(crate) fn without_redefined(service: &mut Node) -> Vec<(String, Node)> {
    let mut found = Vec::new();
    for Entry { key, value, .. } in service.entries_mut().into_iter().flatten() {
        let Kind::List(items) = &mut value.kind else {
            continue;
        };
        if !MOUNTED.contains(&key.as_str()) {
            continue;
        }
        let path = format!("services.*.{key}");
        let mut kept: Vec<Node> = Vec::new();
        let mut known: BTreeMap<String, usize> = BTreeMap::new();
        for item in std::mem::take(items) {
            let same = identity(&item, &path);
            if let Some(at) = same.as_ref().and_then(|same| known.get(same)) {
                let old = std::mem::replace(&mut kept[*at], item);
                if old != kept[*at] {
                    found.push((key.clone(), old));
                }
                continue;
            }
            known.extend(same.map(|same| (same, kept.len())));
            kept.push(item);
        }
        *items = kept;
    }
    found
}

/// By what an item of a list is known; none if it never redefines another.
fn identity(item: &Node, path: &str) -> Option<String> {
    let of = |key: &str| item.get(key).and_then(Node::text);
    match path {
        "services.*.volumes" => of("target").map(|path| path.trim_end_matches('/').to_owned()),
        // The Engine has one for each path.
        "services.*.tmpfs" => item.text().map(|text| match text.split_once(':') {
            Some((path, _)) => path.to_owned(),
            None => text,
        }),
        "services.*.env_file" | "services.*.label_file" => of("path"),
        "services.*.ports" => Some(format!(
            "{}:{}:{}/{}",
            of("host_ip").unwrap_or_default(),
            of("published").unwrap_or_default(),
            of("target").unwrap_or_default(),
            of("protocol").unwrap_or_else(|| "tcp".to_owned()),
        )),
        "services.*.configs" | "services.*.secrets" => of("target").or_else(|| of("source")),
        _ => item.text(),
    }
}

fn has_other_driver(base: &Node, over: &Node) -> bool {
    let driver = |node: &Node| node.get("driver").and_then(Node::text);
    matches!((driver(base), driver(over)), (Some(one), Some(two)) if one != two)
}

/// Removes all values tagged with `!reset`.
pub(crate) fn without_resets(node: &mut Node) {
    match &mut node.kind {
        Kind::Map(entries) => {
            entries.retain(|entry| entry.value.tag != Tag::Reset);
            for entry in entries {
                without_resets(&mut entry.value);
            }
        }
        Kind::List(items) => {
            items.retain(|item| item.tag != Tag::Reset);
            items.iter_mut().for_each(without_resets);
        }
        Kind::Null | Kind::Bool(_) | Kind::Int(_) | Kind::Float(_) | Kind::Text(_) => {}
    }
    node.tag = Tag::None;
}
