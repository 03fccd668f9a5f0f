//! Normalizes short forms to long forms, so that equal values have the same form before they are
//! merged.
//!
//! Upstream: `transform/` of compose-go, and `format/volume.go`, `types/types.go` (ports).

use std::path::Path;

use mirrorlet_core::api::{Code, Diagnostic};

use crate::paths::{absolute, is_path};
use crate::tree::{Entry, Kind, Node};

/// Where relative paths begin.
#[derive(Clone, Copy)]
pub(crate) struct Base<'a> {
    pub(crate) dir: &'a Path,
    pub(crate) home: Option<&'a str>,
}

impl Base<'_> {
    pub(crate) fn path(self, written: &str) -> String {
        absolute(written, self.dir, self.home).display().to_string()
    }
}

/// Keys of a service that are a mapping, or a list of `key=value`.
const MAPPINGS: [&str; 4] = ["environment", "labels", "annotations", "sysctls"];
/// Keys of a service that are a list, or one item.
const LISTS: [&str; 6] = [
    "tmpfs",
    "dns",
    "dns_search",
    "env_file",
    "label_file",
    "profiles",
];

/// Rewrites a service in long forms, with absolute paths.
pub(crate) fn service(node: &mut Node, base: Base<'_>, problems: &mut Vec<Diagnostic>) {
    let Some(entries) = node.entries_mut() else {
        return;
    };
    for Entry { key, value, .. } in entries {
        match key.as_str() {
            key if MAPPINGS.contains(&key) => to_mapping(value),
            "deploy" => {
                let labels = value.entries_mut().into_iter().flatten();
                for entry in labels.filter(|entry| entry.key == "labels") {
                    to_mapping(&mut entry.value);
                }
            }
            "extra_hosts" => extra_hosts(value),
            "depends_on" => keyed(value, Some(("condition", "service_started"))),
            "networks" | "models" => keyed(value, None),
            "build" => short(value, "context"),
            "extends" => short(value, "service"),
            "ports" => each(value, |item| ports(item, problems)),
            "volumes" => each(value, |item| vec![volume(item, base, problems)]),
            "configs" | "secrets" => each(value, |mut item| {
                short(&mut item, "source");
                vec![item]
            }),
            _ => {}
        }
        if LISTS.contains(&key.as_str()) {
            to_list(value);
        }
        if key == "env_file" || key == "label_file" {
            each(value, |mut item| {
                short(&mut item, "path");
                path_at(&mut item, "path", base);
                vec![item]
            });
        }
    }
}

/// Makes the paths of a top-level `configs` or `secrets` item absolute.
pub(crate) fn file_of(node: &mut Node, base: Base<'_>) {
    path_at(node, "file", base);
}

/// Makes the host directory of a volume absolute, if it has one.
///
/// Upstream: `volumeDriverOpts` of compose-go.
pub(crate) fn device_of(node: &mut Node, base: Base<'_>) {
    for entry in node.entries_mut().into_iter().flatten() {
        let kind = entry.value.get("o").and_then(Node::text);
        if entry.key == "driver_opts" && kind.as_deref() == Some("bind") {
            path_at(&mut entry.value, "device", base);
        }
    }
}

/// Rewrites the labels of a top-level item as a mapping.
pub(crate) fn labels(node: &mut Node) {
    for entry in node.entries_mut().into_iter().flatten() {
        if entry.key == "labels" {
            to_mapping(&mut entry.value);
        }
    }
}

fn path_at(node: &mut Node, key: &str, base: Base<'_>) {
    for entry in node.entries_mut().into_iter().flatten() {
        if entry.key == key
            && let Some(written) = entry.value.text()
        {
            entry.value.kind = Kind::Text(base.path(&written));
        }
    }
}

/// `[a=1, b]` → `{a: 1, b: null}`.
fn to_mapping(node: &mut Node) {
    let Kind::List(items) = &node.kind else {
        return;
    };
    let entries = items.iter().filter_map(|item| {
        let text = item.text()?;
        Some(match text.split_once('=') {
            Some((key, value)) => Entry::new(key, Node::of_text(value, &item.place)),
            None => Entry::new(text, Node::new(Kind::Null, &item.place)),
        })
    });
    let mut map = Node::new(Kind::Map(Vec::new()), &node.place);
    map.tag = node.tag;
    for entry in entries {
        map.put(entry);
    }
    *node = map;
}

fn to_list(node: &mut Node) {
    if !matches!(node.kind, Kind::List(_) | Kind::Null) {
        let mut item = node.clone();
        item.tag = crate::tree::Tag::None;
        node.kind = Kind::List(vec![item]);
    }
}

/// `{a: 1, b: [2, 3]}` → `[a=1, b=2, b=3]`.
fn extra_hosts(node: &mut Node) {
    if let Kind::Map(entries) = &node.kind {
        let items = entries.iter().flat_map(|entry| {
            let line = |address: String| format!("{}={address}", entry.key);
            let texts = entry.value.texts().into_iter().map(line);
            texts.map(|text| Node::of_text(text, &entry.place))
        });
        node.kind = Kind::List(items.collect());
    }
}

/// `[a, b]` → `{a: …, b: …}`, each with one entry or null.
fn keyed(node: &mut Node, default: Option<(&str, &str)>) {
    if let Kind::List(items) = &node.kind {
        let entries = items.iter().filter_map(|item| {
            let place = &item.place;
            let value = match default {
                Some((key, text)) => Kind::Map(vec![Entry::new(key, Node::of_text(text, place))]),
                None => Kind::Null,
            };
            Some(Entry::new(item.text()?, Node::new(value, place)))
        });
        node.kind = Kind::Map(entries.collect());
    }
}

/// `x` → `{key: x}`.
fn short(node: &mut Node, key: &str) {
    if let Some(text) = node.text() {
        node.kind = Kind::Map(vec![Entry::new(key, Node::of_text(text, &node.place))]);
    }
}

fn each(node: &mut Node, mut rewrite: impl FnMut(Node) -> Vec<Node>) {
    if let Kind::List(items) = &mut node.kind {
        *items = std::mem::take(items)
            .into_iter()
            .flat_map(&mut rewrite)
            .collect();
    }
}

fn invalid(node: &Node, message: &str, help: &str) -> Diagnostic {
    let problem = Diagnostic::error(Code::InvalidValue, "", message).help(help);
    node.place.mark(problem)
}

/// A mapping of these texts, all at the place of a node.
fn map_of(node: &Node, entries: &[(&str, Option<String>)]) -> Node {
    let entries = entries.iter().filter_map(|(key, value)| {
        let text = Node::of_text(value.clone()?, &node.place);
        Some(Entry::new(*key, text))
    });
    Node::new(Kind::Map(entries.collect()), &node.place)
}

/// Longest range of ports.
const PORTS_MAX: u16 = 1000;

/// A port, or a range of ports of any length.
fn numbers(text: &str) -> Option<(u16, u16)> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let (first, last) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
    (first > 0 && first <= last).then_some((first, last))
}

fn is_long((first, last): (u16, u16)) -> bool {
    last - first >= PORTS_MAX
}

/// A port, or a range of ports.
fn range(text: &str) -> Option<(u16, u16)> {
    numbers(text).filter(|range| !is_long(*range))
}

/// A port in any form as one mapping for each port of the container.
fn ports(node: Node, problems: &mut Vec<Diagnostic>) -> Vec<Node> {
    let Some(text) = node.text() else {
        return vec![node];
    };
    let found = short_ports(&node, &text);
    found.unwrap_or_else(|| {
        let mut ranges = text.split([':', '/']).filter_map(numbers);
        problems.push(if ranges.any(is_long) {
            let message = format!("a range can have at most {PORTS_MAX} ports");
            let help = "publish fewer ports, or write network_mode: host instead";
            invalid(&node, &message, help)
        } else {
            let help = "write [[IP:]HOST:]CONTAINER[/PROTOCOL], for example 8080:80";
            invalid(&node, "this is not a port", help)
        });
        Vec::new()
    })
}

fn short_ports(node: &Node, text: &str) -> Option<Vec<Node>> {
    let (numbers, protocol) = match text.split_once('/') {
        Some((numbers, protocol)) => (numbers, Some(protocol.to_owned())),
        None => (text, None),
    };
    let (host, container) = match numbers.rsplit_once(':') {
        Some((host, container)) => (Some(host), container),
        None => (None, numbers),
    };
    let (address, published) = match host.map(|host| host.rsplit_once(':')) {
        Some(Some((address, published))) => (Some(address), Some(published)),
        Some(None) => (None, host),
        None => (None, None),
    };
    let published = published.filter(|published| !published.is_empty());
    let address = address.map(|a| a.trim_matches(['[', ']']).to_owned());
    let (first, last) = range(container)?;
    let published = published.map(range).map_or(Some(None), |p| p.map(Some))?;
    let is_pairwise = published.is_none_or(|(a, b)| b - a == last - first);
    if !is_pairwise && first != last {
        return None;
    }
    let port = |target: u16| {
        let published = published.map(|(a, b)| match (is_pairwise, a == b) {
            (true, _) | (_, true) => (a + (target - first)).to_string(),
            _ => format!("{a}-{b}"),
        });
        map_of(
            node,
            &[
                ("target", Some(target.to_string())),
                ("published", published),
                ("host_ip", address.clone()),
                ("protocol", protocol.clone()),
            ],
        )
    };
    Some((first..=last).map(port).collect())
}

/// A volume in any form as a mapping, the path of a bind mount absolute.
fn volume(mut node: Node, base: Base<'_>, problems: &mut Vec<Diagnostic>) -> Node {
    let Some(text) = node.text() else {
        if node.get("type").and_then(Node::text).as_deref() == Some("bind") {
            path_at(&mut node, "source", base);
        }
        return node;
    };
    let parts: Vec<&str> = text.split(':').collect();
    let (source, target, modes) = match parts[..] {
        [target] => (None, target, ""),
        [source, target] => (Some(source), target, ""),
        [source, target, modes] => (Some(source), target, modes),
        _ => (None, "", ""),
    };
    if target.is_empty() || source == Some("") {
        let help = "write [SOURCE:]TARGET[:MODE], for example ./data:/var/lib/data:ro";
        problems.push(invalid(&node, "this is not a volume", help));
    }
    let is_bind = source.is_some_and(is_path);
    let source = source.map(|source| {
        if is_bind {
            base.path(source)
        } else {
            source.to_owned()
        }
    });
    let kind = if is_bind { "bind" } else { "volume" };
    let mut long = map_of(
        &node,
        &[
            ("type", Some(kind.to_owned())),
            ("source", source),
            ("target", Some(target.to_owned())),
        ],
    );
    for mode in modes.split(',').filter(|mode| !mode.is_empty()) {
        add_mode(&mut long, &node, mode, problems);
    }
    long
}

fn add_mode(long: &mut Node, node: &Node, mode: &str, problems: &mut Vec<Diagnostic>) {
    let text = |text: &str| Node::of_text(text, &node.place);
    let mut put_below = |above: &str, key: &str, value: &str| {
        let known = long.remove(above).map(|entry| entry.value);
        let mut map = known.unwrap_or_else(|| Node::new(Kind::Map(Vec::new()), &node.place));
        map.put(Entry::new(key, text(value)));
        long.put(Entry::new(above, map));
    };
    match mode {
        "nocopy" => put_below("volume", "nocopy", "true"),
        "z" | "Z" => put_below("bind", "selinux", mode),
        "shared" | "rshared" | "slave" | "rslave" | "private" | "rprivate" => {
            put_below("bind", "propagation", mode);
        }
        "rw" => {}
        "ro" => long.put(Entry::new("read_only", text("true"))),
        "cached" | "delegated" | "consistent" => {
            long.put(Entry::new("consistency", text(mode)));
        }
        _ => {
            let message =
                "not carried over: this is not a mode of a volume, and Compose ignores it";
            let problem = Diagnostic::warning(Code::UnsupportedField, "", message)
                .help("write ro, rw, z, Z, nocopy or a propagation");
            problems.push(node.place.mark(problem));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::parse;

    /// The canonical form of the items of a key, each as `key=value` words.
    fn forms(key: &str, value: &str) -> Vec<String> {
        let mut node = parse(format!("{key}: {value}").as_bytes(), &"f".into()).unwrap();
        let base = Base {
            dir: Path::new("/srv"),
            home: Some("/root"),
        };
        let mut problems = Vec::new();
        service(&mut node, base, &mut problems);
        let items = node.get(key).unwrap().items().iter();
        let words = items.map(|item| {
            let entries = item.entries().iter();
            let words = entries.map(|e| match e.value.text() {
                Some(text) => format!("{}={text}", e.key),
                None => format!("{}={:?}", e.key, e.value.entries()[0].value.text().unwrap()),
            });
            words.collect::<Vec<_>>().join(" ")
        });
        let errors = problems.iter().map(|problem| problem.message.clone());
        words.chain(errors).collect()
    }

    #[test]
    fn ports_are_written_out() {
        for (port, long) in [
            ("80", &["target=80"][..]),
            ("8080:80", &["target=80 published=8080"]),
            (
                "\"127.0.0.1:8080:80/udp\"",
                &["target=80 published=8080 host_ip=127.0.0.1 protocol=udp"],
            ),
            (
                "\"[::1]:8080:80\"",
                &["target=80 published=8080 host_ip=::1"],
            ),
            ("127.0.0.1::80", &["target=80 host_ip=127.0.0.1"]),
            (
                "8000-8001:80-81",
                &["target=80 published=8000", "target=81 published=8001"],
            ),
            ("8000-8009:80", &["target=80 published=8000-8009"]),
            ("3000-3001", &["target=3000", "target=3001"]),
            ("8000-8002:80-81", &["this is not a port"]),
            ("http", &["this is not a port"]),
            ("70000:80", &["this is not a port"]),
            (
                "49152-65535:49152-65535/udp",
                &["a range can have at most 1000 ports"],
            ),
        ] {
            assert_eq!(forms("ports", &format!("[{port}]")), long, "{port}");
        }
    }

    #[test]
    fn volumes_are_written_out() {
        for (volume, long) in [
            ("data:/d", "type=volume source=data target=/d"),
            (
                "./data:/d:ro",
                "type=bind source=/srv/data target=/d read_only=true",
            ),
            ("~/x:/d:z", "type=bind source=/root/x target=/d bind=\"z\""),
            ("/d", "type=volume target=/d"),
            (
                "a:/d:nocopy,rw",
                "type=volume source=a target=/d volume=\"nocopy\"",
            ),
        ] {
            let found = forms("volumes", &format!("[\"{volume}\"]"));
            let found: Vec<_> = found
                .iter()
                .map(|f| f.replace("\"true\"", "\"nocopy\""))
                .collect();
            assert_eq!(found, [long], "{volume}");
        }
        assert_eq!(forms("volumes", "[\"a:/b:c:d\"]").len(), 2);
        // As in compose, an unknown mode is no error; the others count.
        let found = forms("volumes", "[\"a:/b:strange,ro\"]");
        assert_eq!(found.len(), 2);
        assert_eq!(found[0], "type=volume source=a target=/b read_only=true");
        assert!(found[1].starts_with("not carried over: "), "{found:?}");
        let mut node = parse(b"volumes: ['/a:/b:rslave,z']", &"f".into()).unwrap();
        let base = Base {
            dir: Path::new("/srv"),
            home: None,
        };
        service(&mut node, base, &mut Vec::new());
        let bind = node.get("volumes").unwrap().items()[0].get("bind").unwrap();
        let text = |key: &str| bind.get(key).and_then(Node::text);
        assert_eq!(text("propagation").as_deref(), Some("rslave"));
        assert_eq!(text("selinux").as_deref(), Some("z"));
    }
}
