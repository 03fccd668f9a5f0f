//! Whole imports, each with its manifests accepted by the parser of the agent.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::*;

mod joined;
mod keys;
mod load;
mod names;
mod reports;
mod scale;

/// A disk of text files below `/srv/shop`, the first of which is imported.
struct Case {
    files: BTreeMap<PathBuf, Vec<u8>>,
    options: Options,
}

impl Case {
    fn new(files: &[(&str, &str)]) -> Self {
        let at = |name: &str| Path::new("/srv/shop").join(name);
        Self {
            files: files
                .iter()
                .map(|(name, text)| (at(name), text.as_bytes().to_vec()))
                .collect(),
            options: Options {
                files: vec![at(files[0].0)],
                current_dir: "/srv/shop".into(),
                home: Some("/root".to_owned()),
                ..Options::default()
            },
        }
    }

    fn import(&self) -> Imported {
        let mut disk = Disk::default();
        for _ in 0..20 {
            match import(&self.options, &disk) {
                Import::Done(imported) => return imported,
                Import::Needs(needs) => {
                    for need in needs {
                        match need {
                            Need::Content(path) => {
                                let found = self.files.get(&path).cloned();
                                let content = found.map_or(Content::Missing, Content::Bytes);
                                disk.contents.insert(path, content);
                            }
                            Need::Kind(path) => {
                                let kind = if self.files.contains_key(&path) {
                                    PathKind::File
                                } else {
                                    PathKind::Missing
                                };
                                disk.kinds.insert(path, kind);
                            }
                        }
                    }
                }
            }
        }
        panic!("an import asks for ever more")
    }
}

/// The problems that the agent has with manifests.
fn rejected(imported: &Imported) -> Vec<String> {
    let node_name = NodeName::from("box");
    let problems = imported.files.iter().flat_map(|file| {
        let ctx = ParseContext {
            node_name: &node_name,
            source: PodSource::File,
            location: &file.name,
        };
        let parsed = parse_manifest(file.text.as_bytes(), &ctx);
        let own = parsed
            .documents
            .into_iter()
            .flat_map(|document| document.problems);
        let all: Vec<_> = parsed.problems.into_iter().chain(own).collect();
        all.into_iter().map(|problem| problem.to_string())
    });
    problems.collect()
}

fn lines(imported: &Imported) -> Vec<String> {
    imported.problems.iter().map(ToString::to_string).collect()
}

/// Where the table of keys begins and ends in its page.
const TABLE: [&str; 2] = ["<!-- keys -->\n", "<!-- end of keys -->\n"];

/// Regenerate with `UPDATE_DOCS=1`.
#[test]
fn the_page_has_every_key() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/from-compose.md");
    let page = std::fs::read_to_string(&path).unwrap();
    let (before, rest) = page.split_once(TABLE[0]).unwrap();
    let (_, after) = rest.split_once(TABLE[1]).unwrap();
    let row = |key: &Key| {
        format!(
            "| `{}` | {} | {} |\n",
            key.path,
            key.support.as_str(),
            key.text
        )
    };
    let rows: String = KEYS.iter().map(row).collect();
    let table = format!("| Key | | |\n|---|---|---|\n{rows}");
    let current = [before, TABLE[0], &table, TABLE[1], after].concat();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, &current).unwrap();
    }
    let page = std::fs::read_to_string(&path).unwrap();
    assert!(
        page == current,
        "run: UPDATE_DOCS=1 cargo test -p mirrorlet-compose the_page"
    );
}

#[test]
fn a_project_is_its_manifests() {
    let case = Case::new(&[(
        "compose.yaml",
        "services:\n  web:\n    image: nginx\n    ports: ['8080:80']\n    environment: {A: yes, B: '$$(x)'}\n    volumes: ['data:/d', './conf:/c:ro']\n    depends_on: [db]\n  db:\n    image: postgres:16\nvolumes:\n  data:\n",
    )]);
    let imported = case.import();
    let names: Vec<&str> = imported.files.iter().map(|file| &*file.name).collect();
    assert_eq!(names, ["web.yaml", "db.yaml", "shop.volumes.yaml"]);
    assert_eq!(lines(&imported).len(), 2, "{:?}", lines(&imported));
    assert_eq!(rejected(&imported), Vec::<String>::new());
}
