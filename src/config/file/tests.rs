use std::fmt::Write as _;

use serde_json::Value;

use super::super::{Ambient, resolve};
use super::*;

fn schema_value() -> Value {
    serde_json::from_str(&schema()).unwrap()
}

/// Writes a generated file anew where `UPDATE_DOCS` is set, and holds that it is current.
fn assert_current(path: &str, text: &str) {
    let path = format!("{}/{path}", env!("CARGO_MANIFEST_DIR"));
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, text).unwrap();
    }
    let committed = std::fs::read_to_string(&path).unwrap();
    assert!(committed == text, "run: UPDATE_DOCS=1 cargo test config::");
}

#[test]
fn the_committed_schema_is_current() {
    assert_current("docs/config-schema.json", &schema());
}

/// The table of all settings for the docs.
fn docs() -> String {
    let mut text = String::from(
        "| Flag | Environment | File | Value | Default | |\n|---|---|---|---|---|---|\n",
    );
    for row in &*ROWS {
        let default = row.fallback.words().unwrap_or("—").replace('<', "&lt;");
        let _ = writeln!(
            text,
            "| `--{}` | `{}` | `{}` | {} | {default} | {} |",
            row.flag, row.env, row.name, row.value, row.help
        );
    }
    text
}

#[test]
fn the_table_of_the_docs_is_current() {
    let page = include_str!("../../../docs/settings.md");
    let (head, _) = page.split_once("\n| Flag").unwrap();
    assert_current("docs/settings.md", &format!("{head}\n{}", docs()));
}

/// The schema accepts exactly the files that the parser accepts, as far as types, bounds,
/// enumerations and patterns go.
#[test]
fn schema_and_parser_agree() {
    let texts = [
        "",
        "x",
        "none",
        "/a",
        "a/b",
        "-1",
        "0",
        "1",
        "101",
        "70000",
        "2000000",
        "true",
        "false",
        "1s",
        "1m30s",
        "7h",
        "10",
        "1.5s",
        "s",
        "10.0.0.1",
        "::1",
        "10.0.0.1:1",
        "[::1]:1",
        "http://a/",
        "http://a@b/",
        "ftp://a/",
        "A: b",
        "bad name: x",
        "unix:///x",
        "ssh://x",
        "box",
        "Box",
        "a b",
        "a=b",
        "cpu=1",
        "disk=1",
        "a=b:NoSchedule",
        "a:Never",
        "pulled",
        "json",
        "xml",
        "in-cluster",
    ];
    let schema = schema_value();
    for row in &*ROWS {
        // Whatever the parser checks beyond: bounds of durations, what only the network knows.
        let loose = [
            "IMAGE",
            "DURATION",
            "IP",
            "IP:PORT",
            "KEY=VALUE",
            "RESOURCE=QUANTITY",
            "QUANTITY",
            "NAME",
            "REPOSITORY",
        ];
        for text in texts {
            let scalar: Value = match row.schema["type"].as_str() {
                Some("integer" | "boolean") => {
                    serde_json::from_str(text).unwrap_or_else(|_| json!(text))
                }
                _ => json!(text),
            };
            let value = match row.arity {
                Arity::One => scalar,
                Arity::Many(_) => json!([scalar]),
            };
            let text = json!({ row.name: value }).to_string();
            let file = LocatedFile::parse("c", &text).unwrap();
            let resolved = resolve(&BTreeMap::new(), Some(&file), &Ambient::default());
            let words = resolved.err().map(|e| e.to_string()).unwrap_or_default();
            // Of another setting, which has to be there as well.
            let other = |line: &str| line.contains("requires ");
            let parsed = words.lines().all(other);
            let described = takes(&schema["properties"][row.name], &value);
            if loose.contains(&row.value) {
                assert!(
                    described || !parsed,
                    "{text} is refused by the schema alone"
                );
            } else {
                assert_eq!(described, parsed, "{text}: {words}");
            }
        }
    }
}

/// Whether a schema of ours takes a value: the keywords that the table uses.
fn takes(schema: &Value, value: &Value) -> bool {
    schema
        .as_object()
        .unwrap()
        .iter()
        .all(|(keyword, of)| match keyword.as_str() {
            "type" => match of.as_str() {
                Some("string") => value.is_string(),
                Some("integer") => value.is_i64(),
                Some("boolean") => value.is_boolean(),
                Some("array") => value.is_array(),
                Some("object") => value.is_object(),
                other => panic!("{other:?}"),
            },
            "minimum" => value.as_i64() >= of.as_i64(),
            "maximum" => value.as_i64() <= of.as_i64(),
            "minLength" => value.as_str().is_some_and(|text| !text.is_empty()),
            "pattern" => {
                let pattern = regex::Regex::new(of.as_str().unwrap()).unwrap();
                value.as_str().is_some_and(|text| pattern.is_match(text))
            }
            "enum" => of.as_array().unwrap().contains(value),
            "const" => of == value,
            "anyOf" => of.as_array().unwrap().iter().any(|of| takes(of, value)),
            "not" => !takes(of, value),
            "propertyNames" => value
                .as_object()
                .is_none_or(|map| map.keys().all(|name| takes(of, &json!(name)))),
            "items" => value
                .as_array()
                .is_none_or(|values| values.iter().all(|value| takes(of, value))),
            "format" => match of.as_str() {
                Some("ipv4") => value
                    .as_str()
                    .is_some_and(|t| t.parse::<std::net::Ipv4Addr>().is_ok()),
                Some("ipv6") => value
                    .as_str()
                    .is_some_and(|t| t.parse::<std::net::Ipv6Addr>().is_ok()),
                other => panic!("{other:?}"),
            },
            "description" | "default" | "$comment" | "additionalProperties" => true,
            other => panic!("{other} is not known here"),
        })
}

#[test]
fn yaml_and_json_say_the_same() {
    let yaml = LocatedFile::parse("c", "# mine\nsettle: 10ms\nnodeIps: [10.0.0.1]\n").unwrap();
    let json = LocatedFile::parse(
        "c",
        "{\n\n  \"settle\": \"10ms\", \"nodeIps\": [\"10.0.0.1\"]}",
    )
    .unwrap();
    let texts = |file: &LocatedFile| -> Vec<_> {
        let settings = file.settings.iter();
        settings.map(|(key, (_, of))| (*key, of.clone())).collect()
    };
    assert_eq!(texts(&yaml), texts(&json));
    assert_eq!(yaml.settings[&Key::Settle].0, 2);
    assert_eq!(json.settings[&Key::Settle].0, 3);
    for nothing in ["", "# x\n---\n", "settle:\n"] {
        let file = LocatedFile::parse("c", nothing).unwrap();
        assert!(
            file.settings.is_empty() && file.faults.is_empty(),
            "{nothing:?}"
        );
    }
}

#[test]
fn labels_and_reservations_may_be_maps() {
    let text = "nodeLabels: {a: b, c: 1}\nsystemReserved:\n  cpu: 500m\n  memory: 1Gi\n";
    let file = LocatedFile::parse("c", text).unwrap();
    let resolved = resolve(&BTreeMap::new(), Some(&file), &Ambient::default()).unwrap();
    assert_eq!(resolved.config.shown(Key::NodeLabels), ["a=b", "c=1"]);
    let reserved = resolved.config.shown(Key::SystemReserved);
    assert_eq!(reserved, ["cpu=500m", "memory=1Gi"]);
    let faults = |text: &str| -> Vec<String> {
        let file = LocatedFile::parse("c", text).unwrap();
        file.faults.into_iter().map(|(_, words)| words).collect()
    };
    for (text, words) in [
        (
            "nodeIps: {a: b}\n",
            "nodeIps: expected a list: write nodeIps: [IP]",
        ),
        (
            "nodeIps: [[a]]\n",
            "nodeIps: expected a single value in each entry: write - IP",
        ),
        (
            "nodeLabels: {a: b, c}\n",
            "nodeLabels: expected a single value of c: write c: VALUE",
        ),
        (
            "maxPods: [1]\n",
            "maxPods: expected a single value: write maxPods: N",
        ),
    ] {
        assert_eq!(faults(text), [format!("c:1: {words}")]);
    }
}

#[test]
fn a_list_may_be_a_map_where_the_schema_says_so() {
    let schema = schema_value();
    let mut maps = Vec::new();
    for row in &*ROWS {
        if row.arity == Arity::One {
            continue;
        }
        let file = LocatedFile::parse("c", &format!("{}: {{}}\n", row.name)).unwrap();
        let is_map = file.faults.is_empty();
        let described = takes(&schema["properties"][row.name], &json!({}));
        assert_eq!(described, is_map, "{}", row.name);
        maps.extend(is_map.then_some(row.name));
    }
    assert!(
        maps.contains(&"nodeLabels") && maps.contains(&"evictionHard"),
        "{maps:?}"
    );

    let text = "evictionHard: {memory.available: 100Mi, nodefs.available: 10%}\n";
    let file = LocatedFile::parse("c", text).unwrap();
    let resolved = resolve(&BTreeMap::new(), Some(&file), &Ambient::default()).unwrap();
    let shown = resolved.config.shown(Key::EvictionHard);
    assert_eq!(shown, ["memory.available<100Mi", "nodefs.available<10%"]);
    let hard = &schema["properties"]["evictionHard"];
    assert!(takes(hard, &json!({"memory.available": "100Mi"})));
    assert!(!takes(hard, &json!({"memory.free": "100Mi"})));
}

/// The chart has values of its own for these.
#[test]
fn the_chart_has_the_limits_and_defaults_of_the_settings() {
    let schema = include_str!("../../../charts/mirrorlet/values.schema.json");
    let schema: Value = serde_json::from_str(schema).unwrap();
    let values = include_str!("../../../charts/mirrorlet/values.yaml");
    let values: Value = serde_saphyr::from_str(values).unwrap();
    let ours = schema_value();
    for (value, name) in [
        ("node/maxPods", "maxPods"),
        ("nodeApi/port", "nodeApiPort"),
        ("nodeApi/address", "nodeApiAddress"),
        ("logLevel", "logLevel"),
        ("logFormat", "logFormat"),
    ] {
        let ours = &ours["properties"][name];
        let place = format!("/properties/{}", value.replace('/', "/properties/"));
        let described = schema.pointer(&place).unwrap();
        for limit in ["minimum", "maximum", "enum"] {
            assert_eq!(described.get(limit), ours.get(limit), "{limit} of {value}");
        }
        // Lines of pods are read by machines.
        let default = match name {
            "logFormat" => json!("json"),
            _ => ours["default"].clone(),
        };
        let found = values.pointer(&format!("/{value}"));
        assert_eq!(found, Some(&default), "{value}");
    }
}

/// The chart's schema takes these forms, too (`hack/chart-schema.sh`).
#[test]
fn a_value_may_be_null_quoted_or_a_number() {
    for row in &*ROWS {
        let file = LocatedFile::parse("c", &format!("{}: null\n", row.name)).unwrap();
        let is_nothing = file.settings.is_empty() && file.faults.is_empty();
        assert!(is_nothing, "{}", row.name);
    }
    for (text, key, shown) in [
        ("podNames: \"false\"\n", Key::PodNames, "false"),
        (
            "imageGcHighThreshold: \"90\"\n",
            Key::ImageGcHighThreshold,
            "90",
        ),
        (
            "maximumDeadContainers: \" +7 \"\n",
            Key::MaximumDeadContainers,
            "7",
        ),
        (
            "containerLogMaxSize: 10485760\n",
            Key::ContainerLogMaxSize,
            "10Mi",
        ),
        ("network: 7\n", Key::Network, "7"),
    ] {
        let file = LocatedFile::parse("c", text).unwrap();
        let resolved = resolve(&BTreeMap::new(), Some(&file), &Ambient::default()).unwrap();
        assert_eq!(resolved.config.shown(key), [shown], "{text}");
    }
}

#[test]
fn a_file_that_is_no_map_is_told_what_one_is() {
    for text in ["- root: /r\n", "root\n", "[]\n"] {
        let words = LocatedFile::parse("c", text).unwrap_err().to_string();
        let expected = "c:1: expected a map of settings: write one KEY: VALUE a line, for example logLevel: debug";
        assert_eq!(words, expected, "{text}");
    }
}

#[test]
fn what_can_not_be_taken_apart_is_named_with_its_line() {
    for (text, line) in [
        ("root: [\n", 1),
        ("- root\n", 1),
        ("root: /x\nroot: /y\n", 2),
        ("settle: 10ms\n\troot: x\n", 1),
    ] {
        let error = LocatedFile::parse("/etc/m.yaml", text).unwrap_err();
        let words = error.to_string();
        assert!(
            words.starts_with(&format!("/etc/m.yaml:{line}: ")),
            "{words}"
        );
    }
}
