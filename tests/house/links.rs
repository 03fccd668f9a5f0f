//! Every link between the documents of the tree resolves, the book has every page of `docs/`, and the
//! command line takes every command that a document names.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Component, Path, PathBuf};

use clap::Parser as _;
use clap::error::ErrorKind;
use mirrorlet::config::args::Cli;
use mirrorlet_core::api::Timestamp;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The documents below a directory.
fn documents(dir: &Path, into: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            documents(&path, into);
        } else if path.extension().is_some_and(|extension| extension == "md") {
            into.push(path);
        }
    }
}

/// A document without what is between backquotes and in fenced blocks.
fn prose(text: &str) -> String {
    let mut fenced = false;
    let mut prose = String::new();
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if !fenced {
            prose.push_str(line);
            prose.push('\n');
        }
    }
    prose
}

/// The targets of a document's links.
fn links(text: &str) -> Vec<String> {
    let prose = prose(text);
    prose
        .split("](")
        .skip(1)
        .filter_map(|rest| Some(rest.split_once(')')?.0.to_owned()))
        .collect()
}

/// The name that a heading is linked by.
fn anchor(heading: &str) -> String {
    let kept = heading
        .to_lowercase()
        .chars()
        .filter(|c| c.is_alphanumeric() || [' ', '-', '_'].contains(c))
        .collect::<String>();
    kept.trim().replace(' ', "-")
}

fn anchors(text: &str) -> BTreeSet<String> {
    let prose = prose(text);
    let headings = prose.lines().filter(|line| line.starts_with('#'));
    headings
        .map(|line| anchor(line.trim_start_matches('#')))
        .collect()
}

/// A path without its `..`.
fn plain(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        if part == Component::ParentDir {
            plain.pop();
        } else {
            plain.push(part);
        }
    }
    plain
}

#[test]
fn every_link_resolves() {
    let mut pages = Vec::new();
    for dir in ["docs", "benches", "crates", "charts"] {
        documents(&root().join(dir), &mut pages);
    }
    for page in ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"] {
        pages.push(root().join(page));
    }
    assert!(pages.len() > 20, "{pages:?}");
    let mut broken = Vec::new();
    for page in &pages {
        let text = fs::read_to_string(page).unwrap();
        let page_name = page.strip_prefix(root()).unwrap().display();
        for link in links(&text) {
            if link.starts_with("https://") {
                continue;
            }
            let (path, fragment) = link.split_once('#').unwrap_or((&link, ""));
            let target = match path {
                "" => page.clone(),
                path => plain(&page.parent().unwrap().join(path)),
            };
            let leaves_the_book =
                page.starts_with(root().join("docs")) && !target.starts_with(root().join("docs"));
            let found = target.exists() && !leaves_the_book;
            let has_fragment = fragment.is_empty()
                || fs::read_to_string(&target).is_ok_and(|text| anchors(&text).contains(fragment));
            if !found || !has_fragment {
                broken.push(format!("{page_name}: {link}"));
            }
        }
    }
    assert!(broken.is_empty(), "broken links: {broken:#?}");
}

#[test]
fn the_book_has_every_page() {
    let docs = root().join("docs");
    let summary = fs::read_to_string(docs.join("SUMMARY.md")).unwrap();
    let named = links(&summary);
    let set: BTreeSet<PathBuf> = named.iter().map(|link| docs.join(link)).collect();
    assert_eq!(set.len(), named.len(), "a page stands twice");
    let mut pages = Vec::new();
    documents(&docs, &mut pages);
    let all = pages
        .into_iter()
        .filter(|page| !page.ends_with("SUMMARY.md"));
    assert_eq!(set, all.collect());
}

/// The commands of ours in a document: lines of fenced blocks, and what is between backquotes.
fn commands(text: &str) -> Vec<&str> {
    let mut fenced = false;
    let mut commands = Vec::new();
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if fenced {
            commands.push(line.trim_start_matches("$ ").trim_start_matches("sudo "));
        } else {
            commands.extend(line.split('`').skip(1).step_by(2));
        }
    }
    // Not a description of several commands, nor what a program of ours printed.
    commands.retain(|command| {
        command.starts_with("mirrorlet ") && !command.contains(['…', '[', ':'])
            || command.starts_with("mirrorlet cp ")
    });
    commands
}

#[test]
fn the_command_line_takes_every_command_of_the_documents() {
    let mut pages = vec![root().join("README.md")];
    documents(&root().join("docs"), &mut pages);
    let mut count = 0;
    let mut wrong = Vec::new();
    for page in &pages {
        let text = fs::read_to_string(page).unwrap();
        for command in commands(&text) {
            let words = command.split_whitespace();
            let words = words.take_while(|word| !["|", "&&", ">", "#", "2>&1"].contains(word));
            count += 1;
            let parsed = Cli::try_parse_from(words);
            // A verb that is named in a sentence has no arguments there.
            if let Err(error) = parsed
                && error.kind() != ErrorKind::MissingRequiredArgument
            {
                let error = error.to_string();
                let page = page.strip_prefix(root()).unwrap().display();
                wrong.push(format!(
                    "{page}: {command}: {}",
                    error.lines().next().unwrap()
                ));
            }
        }
    }
    assert!(count > 100, "only {count} commands were found");
    assert!(wrong.is_empty(), "not a command: {wrong:#?}");
}

/// The seconds of an age such as `3m10s`.
fn seconds(age: &str) -> Option<i64> {
    let (mut all, mut number) = (0, String::new());
    for c in age.chars() {
        let unit = match c {
            '0'..='9' => {
                number.push(c);
                continue;
            }
            's' => 1,
            'm' => 60,
            'h' => 3600,
            'd' => 86_400,
            _ => return None,
        };
        all += number.parse::<i64>().ok()? * unit;
        number.clear();
    }
    number.is_empty().then_some(all)
}

/// The ages in the tables of fenced blocks.
fn ages(text: &str) -> Vec<&str> {
    let mut ages = Vec::new();
    let mut column = None;
    for line in text.lines() {
        let is_title = line.split_whitespace().any(|word| word == "AGE");
        if line.trim().is_empty() || line.starts_with("```") {
            column = None;
        } else if is_title && line == line.to_uppercase() {
            column = line.find("AGE");
        } else if let Some(column) = column {
            let cell = line.get(column..).unwrap_or_default();
            ages.extend(cell.split_whitespace().next());
        }
    }
    ages
}

#[test]
fn ages_of_the_documents_are_written_as_they_are_printed() {
    let mut pages = vec![root().join("README.md")];
    documents(&root().join("docs"), &mut pages);
    let mut count = 0;
    for page in &pages {
        let text = fs::read_to_string(page).unwrap();
        for age in ages(&text) {
            let Some(seconds) = seconds(age) else {
                continue;
            };
            let now = Timestamp::from_second(seconds).unwrap();
            let printed = mirrorlet_core::clock::age(Timestamp::UNIX_EPOCH, now);
            assert_eq!(printed, age, "{}", page.display());
            count += 1;
        }
    }
    assert!(count > 10, "only {count} ages were found");
}
