//! `mirrorlet import compose`: converts a compose project to manifests.
//!
//! Reads the files that the import needs, and the environment; everything else is decided in
//! `mirrorlet_compose`.

use std::fmt::Write as _;
use std::fs;
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;

use mirrorlet_compose::{
    Content, Disk, Import, Imported, ManifestFile, Need, Options, PathKind, ProjectFiles,
};
use mirrorlet_core::api::{Diagnostic, Severity};
use mirrorlet_core::small::{SmallCollect, SmallSort};
use mirrorlet_host::disk::{self, IfThere as _};

use super::table::counted;
use super::{Failure, Outcome, ambient, print};
use crate::config::args::ComposeArgs;

/// Largest file that is read: the largest manifest.
const FILE_MIB_MAX: u64 = 10;

/// The argument that names standard input, as for `docker compose -f`.
const STDIN: &str = "-";

/// Name of standard input in messages. As a file it is in the current directory.
const STDIN_FILE: &str = "<stdin>";

/// Maximum number of rounds in which an import may request more files: files can refer to files.
const ROUNDS_MAX: usize = 64;

/// Imports a compose project.
pub fn compose(args: &ComposeArgs) -> Outcome {
    let (options, notes) = options(args)?;
    let mut disk = Disk::default();
    if args.files.iter().any(|path| path == Path::new(STDIN)) {
        let path = options.current_dir.join(STDIN_FILE);
        disk.contents.insert(path, stdin());
    }
    let mut imported = imported(&options, disk)?;
    imported.notes.splice(..0, notes);
    complain(&imported)?;
    if imported.is_unreadable() {
        return Err(Failure::Problems);
    }
    match &args.output_dir {
        Some(dir) => {
            write(&imported, dir, args.force)?;
            complain_of_left(&imported, dir)?;
        }
        None => print(&joined(&imported.files))?,
    }
    if imported.has_errors() || (args.strict && !imported.problems.is_empty()) {
        return Err(Failure::Problems);
    }
    Ok(())
}

/// The options of an import, and notes of files that are not read.
fn options(args: &ComposeArgs) -> Result<(Options, Vec<Diagnostic>), Failure> {
    let ambient = ambient()?;
    let absolute = |path: &PathBuf| ambient.cwd.join(path);
    let (mut files, mut notes) = (Vec::new(), Vec::new());
    let mut has_directory = false;
    for written in &args.files {
        let path = absolute(written);
        if written == Path::new(STDIN) {
            files.push(ambient.cwd.join(STDIN_FILE));
        } else if path.is_dir() {
            let named = of_directory(&path)?;
            files.extend(named.files);
            notes.extend(named.notes);
            has_directory = true;
        } else if path.exists() {
            files.push(path);
        } else {
            let shown = path.display();
            return Err(Failure::Usage(anyhow::anyhow!("{shown} does not exist")));
        }
    }
    if !has_directory {
        notes.extend(mirrorlet_compose::unmerged_override(&files, Path::is_file));
    }
    let options = Options {
        files,
        home: ambient.env.get("HOME").cloned(),
        current_dir: ambient.cwd.clone(),
        env_files: args.env_files.iter().map(absolute).collect(),
        environment: ambient.env,
        profiles: args.profiles.iter().cloned().collect_set(),
        project_name: args.project_name.clone(),
        namespace: args.namespace.clone(),
    };
    Ok((options, notes))
}

/// The files of a project's directory.
fn of_directory(dir: &Path) -> Result<ProjectFiles, Failure> {
    let named = mirrorlet_compose::project_files(dir, Path::is_file);
    if named.files.is_empty() {
        let shown = dir.display();
        let error = anyhow::anyhow!("{shown} has no compose.yaml and no docker-compose.yml");
        return Err(Failure::Usage(error));
    }
    Ok(named)
}

/// Reads the files that the import requests, until it has all.
fn imported(options: &Options, mut found: Disk) -> Result<Imported, Failure> {
    for _ in 0..ROUNDS_MAX {
        let needs = match mirrorlet_compose::import(options, &found) {
            Import::Done(imported) => return Ok(imported),
            Import::Needs(needs) => needs,
        };
        for need in needs {
            match need {
                Need::Content(path) => {
                    let content = content(&path);
                    found.contents.insert(path, content);
                }
                Need::Kind(path) => {
                    let kind = kind(&path);
                    found.kinds.insert(path, kind);
                }
            }
        }
    }
    let error =
        anyhow::anyhow!("the files of the project are nested too deeply (include, extends)");
    Err(Failure::Failed(error))
}

/// The content of standard input.
fn stdin() -> Content {
    let max = FILE_MIB_MAX << 20;
    let mut bytes = Vec::new();
    // One byte more shows that it is too long.
    match io::stdin().lock().take(max + 1).read_to_end(&mut bytes) {
        Ok(_) if bytes.len() as u64 > max => {
            Content::Failed(format!("it is larger than {FILE_MIB_MAX} MiB"))
        }
        Ok(_) => Content::Bytes(bytes),
        Err(error) => Content::Failed(error.to_string()),
    }
}

/// The file that is always empty; the one that isn't a regular file and is read all the same.
const NOTHING: &str = "/dev/null";

fn content(path: &Path) -> Content {
    if path == Path::new(NOTHING) {
        return Content::Bytes(Vec::new());
    }
    let is_file = fs::metadata(path).map(|found| found.is_file());
    let read = match is_file {
        // A named pipe would have no writer.
        Ok(false) => return Content::Failed("it is not a file".to_owned()),
        Ok(true) => disk::read_small(path, FILE_MIB_MAX),
        Err(error) => Err(error),
    };
    match read {
        Ok(bytes) => Content::Bytes(bytes),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Content::Missing,
        Err(error) => Content::Failed(error.to_string()),
    }
}

fn kind(path: &Path) -> PathKind {
    let Ok(found) = fs::metadata(path) else {
        return PathKind::Missing;
    };
    let kind = found.file_type();
    if kind.is_dir() {
        PathKind::Directory
    } else if kind.is_file() {
        PathKind::File
    } else if kind.is_socket() {
        PathKind::Socket
    } else {
        PathKind::Device
    }
}

/// Writes what is to be said to standard error.
fn complain(imported: &Imported) -> Outcome {
    let mut text = String::new();
    for problem in &imported.problems {
        let word = match problem.severity {
            Severity::Warning => "warning",
            Severity::Error => "error",
        };
        add(&mut text, word, problem);
    }
    if !imported.is_unreadable() {
        for note in &imported.notes {
            add(&mut text, "note", note);
        }
    }
    let documents = imported.files.iter().map(|file| file.documents).sum();
    let problems = imported.problems.iter();
    let errors = problems.filter(|problem| problem.is_error()).count();
    let warnings = counted(imported.problems.len() - errors, "warning");
    let errors = counted(errors, "error");
    let manifests = counted(documents, "manifest");
    let services = counted(imported.services, "service");
    let _ = if imported.is_unreadable() {
        writeln!(text, "nothing imported: {errors}")
    } else if imported.has_errors() {
        writeln!(text, "{manifests} of {services}, {errors}, {warnings}")
    } else {
        writeln!(text, "{manifests} of {services}, {warnings}")
    };
    Ok(anstream::stderr().lock().write_all(text.as_bytes())?)
}

fn add(text: &mut String, word: &str, problem: &Diagnostic) {
    // Writing to a string can't fail.
    let _ = writeln!(text, "{word}: {problem}");
    if let Some(help) = &problem.help {
        let _ = writeln!(text, "  help: {help}");
    }
}

/// The manifests as one text.
fn joined(files: &[ManifestFile]) -> String {
    let texts: Vec<&str> = files.iter().map(|file| file.text.as_str()).collect();
    texts.join("---\n")
}

/// Writes the files: all, or none if one exists already.
fn write(imported: &Imported, dir: &Path, force: bool) -> Outcome {
    let files = &imported.files;
    let taken = files
        .iter()
        .map(|file| dir.join(&file.name))
        .find(|path| path.exists());
    if let Some(path) = taken.filter(|_| !force) {
        let shown = path.display();
        let error = anyhow::anyhow!("{shown} exists; use --force to overwrite it");
        return Err(Failure::Failed(error));
    }
    for file in files {
        let path = dir.join(&file.name);
        let failed = || format!("failed to write {}", path.display());
        let text = imported.heading() + &file.text;
        disk::replace(&path, text.as_bytes()).with_context(failed)?;
    }
    Ok(disk::sync_directory(dir)?)
}

/// Warns of the files of a directory that an earlier import has written and this one hasn't.
fn complain_of_left(imported: &Imported, dir: &Path) -> Outcome {
    let mut text = String::new();
    for path in left(imported, dir)? {
        // Writing to a string can't fail.
        let _ = writeln!(
            text,
            "warning: {}: left from an earlier import; remove it if the service is gone",
            path.display()
        );
    }
    Ok(anstream::stderr().lock().write_all(text.as_bytes())?)
}

/// The files of a directory that are left from an earlier import of the project, by name.
fn left(imported: &Imported, dir: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let entries = fs::read_dir(dir).if_there();
    let entries = entries.with_context(|| format!("failed to read {}", dir.display()))?;
    // An import that writes nothing makes no directory.
    for entry in entries.into_iter().flatten() {
        let entry = entry?;
        let path = dir.join(entry.file_name());
        let is_yaml = path.extension().is_some_and(|ending| ending == "yaml");
        let name = path.file_name().and_then(|name| name.to_str());
        let Some(name) = name.filter(|_| is_yaml) else {
            continue;
        };
        // An unreadable file was not written by an import of this user.
        let is_left = entry.file_type()?.is_file()
            && disk::read_small(&path, FILE_MIB_MAX)
                .is_ok_and(|content| imported.is_left(name, &content));
        if is_left {
            found.push(path);
        }
    }
    found.small_sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_null_device_is_an_empty_file_and_no_other_device_is_one() {
        assert_eq!(content(Path::new(NOTHING)), Content::Bytes(Vec::new()));
        let failed = Content::Failed("it is not a file".to_owned());
        assert_eq!(content(Path::new("/dev/zero")), failed);
    }
}
