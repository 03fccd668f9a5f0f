//! Fuzz targets for answers of the Engine, and for labels that others can set.

use std::collections::HashMap;

use mirrorlet_core::observed::Role;
use mirrorlet_docker::bollard_engine::fuzzing::Answers;
use mirrorlet_docker::translate::{ContainerName, Kind, parse_ours};

use super::{choice, text};

/// The owner of the containers of the corpus.
const OWNER: &str = "me";

/// A container's name, and a label a line: `KEY=VALUE`.
pub(crate) fn labels(bytes: &[u8]) {
    let mut lines = text(bytes).lines();
    let name = lines.next().unwrap_or_default();
    let labels: HashMap<String, String> = lines
        .filter_map(|line| line.split_once('='))
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .collect();
    let Some(ours) = parse_ours(OWNER, [name], &labels) else {
        return;
    };
    let parsed = ContainerName::parse(name);
    assert_eq!(
        parsed.map(|name| name.uid),
        Some(ours.uid),
        "name and labels agree"
    );
    if let Kind::Container {
        name, role, hooks, ..
    } = &ours.kind
    {
        assert_eq!(Role::parse(role.as_str()), Some(*role));
        let container = hooks.container(name);
        assert_eq!(&container.name, name);
        // Hooks may hold secrets.
        assert_eq!(format!("{hooks:?}"), "HookLabels { .. }");
    }
}

/// Answers of the Engine, one after the other, to one index: the first byte of a line selects the call
/// that the rest answers. An input that begins with 0 is the frames of a log.
pub(crate) fn answers(bytes: &[u8]) {
    let (form, rest) = choice(bytes);
    if form == 0 {
        Answers::log(rest);
        return;
    }
    let answers = Answers::new(OWNER);
    for line in text(bytes).lines() {
        let Some((what, json)) = line.split_at_checked(1) else {
            continue;
        };
        match what {
            "l" => answers.list(json),
            "i" => answers.inspect(json),
            "e" => answers.event(json),
            "g" => answers.gap(),
            "p" => answers.pull(json),
            "n" => answers.network(json),
            "m" => answers.image(json),
            "s" => answers.path_stat(json),
            _ => {}
        }
    }
    answers.check();
}
