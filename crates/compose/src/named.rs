//! The default compose files of a project's directory.
//!
//! Upstream: `WithDefaultConfigPath` of compose-go's `cli/options.go`. The override file of any name
//! goes with the project's file of any name.

use std::path::{Path, PathBuf};

use mirrorlet_core::api::{Code, Diagnostic};

/// Names of a project's file: the first one that exists is read.
const FILES: [&str; 4] = [
    "compose.yaml",
    "compose.yml",
    "docker-compose.yml",
    "docker-compose.yaml",
];

/// Names of the file that is merged over it: the first one that exists is.
const OVERRIDES: [&str; 4] = [
    "compose.override.yml",
    "compose.override.yaml",
    "docker-compose.override.yml",
    "docker-compose.override.yaml",
];

/// The files that are read, and notes about those that aren't.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ProjectFiles {
    /// The files, in merge order.
    pub files: Vec<PathBuf>,
    /// Files with default names that are not read; Docker Compose doesn't read them either.
    pub notes: Vec<Diagnostic>,
}

/// Returns the compose files of a project's directory; none if it has no main file.
pub fn project_files(dir: &Path, is_file: impl Fn(&Path) -> bool) -> ProjectFiles {
    let mut named = ProjectFiles::default();
    for names in [FILES, OVERRIDES] {
        let paths = names.iter().map(|name| dir.join(name));
        let mut found = paths.filter(|path| is_file(path));
        let Some(first) = found.next() else {
            // An override file alone is no project.
            break;
        };
        let name = file_name(&first).to_owned();
        named.files.push(first);
        named.notes.extend(found.map(|other| {
            let message = format!("ignored: {name} in the same directory takes precedence");
            Diagnostic::warning(Code::Ignored, file_name(&other), message).help(format!(
                "remove it, or name the files: {name} {}",
                file_name(&other)
            ))
        }));
    }
    named
}

/// Returns a note about the override file beside the only file that was named: `docker compose up` in
/// the directory merges it, but `docker compose -f` and the import of a file don't.
pub fn unmerged_override(files: &[PathBuf], is_file: impl Fn(&Path) -> bool) -> Option<Diagnostic> {
    let [file] = files else { return None };
    let name = file_name(file);
    let dir = file.parent().filter(|_| FILES.contains(&name))?;
    let other = OVERRIDES.iter().find(|other| is_file(&dir.join(other)))?;
    let message = format!("ignored: only {name} is named, as with docker compose -f");
    let help = format!("to merge it, import the directory, or name both files: {name} {other}");
    Some(Diagnostic::warning(Code::Ignored, *other, message).help(help))
}

fn file_name(path: &Path) -> &str {
    let name = path.file_name().and_then(|name| name.to_str());
    name.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(there: &[&str]) -> (Vec<String>, Vec<String>) {
        let dir = Path::new("/srv/shop");
        let named = project_files(dir, |path| there.contains(&file_name(path)));
        let files = named.files.iter();
        (
            files.map(|path| file_name(path).to_owned()).collect(),
            named.notes.into_iter().map(|note| note.file).collect(),
        )
    }

    #[test]
    fn an_override_of_any_name_goes_with_a_file_of_any_name() {
        for file in FILES {
            for over in OVERRIDES {
                let expected = (vec![file.to_owned(), over.to_owned()], Vec::new());
                assert_eq!(named(&[over, file]), expected);
            }
            assert_eq!(named(&[file]), (vec![file.to_owned()], Vec::new()));
        }
        assert_eq!(named(&OVERRIDES), (Vec::new(), Vec::new()));
    }

    #[test]
    fn of_several_the_first_is_read_and_a_note_names_each_other() {
        let all: Vec<&str> = FILES.into_iter().chain(OVERRIDES).collect();
        let (files, notes) = named(&all);
        assert_eq!(files, ["compose.yaml", "compose.override.yml"]);
        let others: Vec<&str> = FILES[1..].iter().chain(&OVERRIDES[1..]).copied().collect();
        assert_eq!(notes, others);
    }

    #[test]
    fn a_file_that_is_named_alone_has_no_override() {
        let note = |files: &[&str], there: &[&str]| {
            let at = |name: &&str| Path::new("/srv/shop").join(name);
            let files: Vec<PathBuf> = files.iter().map(at).collect();
            unmerged_override(&files, |path| there.contains(&file_name(path)))
                .map(|note| note.to_string())
        };
        let over = "docker-compose.override.yml";
        assert_eq!(
            note(&["compose.yaml"], &[over]).as_deref(),
            Some(
                "docker-compose.override.yml: ignored: only compose.yaml is named, as with docker compose -f [ignored]"
            )
        );
        assert_eq!(note(&["compose.yaml"], &[]), None);
        assert_eq!(note(&["stack.yaml"], &[over]), None);
        assert_eq!(note(&["compose.yaml", over], &[over]), None);
    }
}
