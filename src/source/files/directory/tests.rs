use tempfile::TempDir;

use super::*;

/// A manifest directory, as a source looks at it.
struct Bed {
    temp: TempDir,
    directory: Directory,
}

impl Bed {
    /// A directory with a manifest of each of these pods, which was looked at once.
    fn new(pods: &[&str]) -> Self {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("manifests");
        fs::create_dir(&path).unwrap();
        let root = temp.path().join("root");
        let directory = Directory::new(path, &root, "node".into(), PodSource::File);
        let mut bed = Self { temp, directory };
        for name in pods {
            bed.write(name, &pod(name));
        }
        assert_eq!(bed.look(), names(pods));
        bed
    }

    /// Lets the next agent look at the same directory.
    fn restart(&mut self) {
        let path = self.temp.path().join("manifests");
        let root = self.temp.path().join("root");
        self.directory = Directory::new(path, &root, "node".into(), PodSource::File);
    }

    fn path(&self, name: &str) -> PathBuf {
        let file = format!("{name}.yaml");
        self.temp.path().join("manifests").join(file)
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
    }

    fn remove(&self, name: &str) {
        fs::remove_file(self.path(name)).unwrap();
    }

    /// The pods of a look; none if it is to be repeated.
    fn look(&mut self) -> Option<Vec<String>> {
        let look = self.directory.look().ok()?;
        let names = look.set.pods.iter();
        Some(names.map(|pod| pod.full_name().name.to_string()).collect())
    }
}

fn pod(name: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec:\n  containers: [{{name: c, image: i}}]\n"
    )
}

#[expect(
    clippy::unnecessary_wraps,
    reason = "compared with a look that may find none"
)]
fn names(pods: &[&str]) -> Option<Vec<String>> {
    Some(pods.iter().map(|pod| format!("{pod}-node")).collect())
}

#[test]
fn a_file_is_gone_once_two_looks_in_a_row_have_missed_it() {
    let mut bed = Bed::new(&["a", "b", "c"]);
    bed.remove("a");
    assert_eq!(bed.look(), None);
    // Somebody replaces another one meanwhile.
    bed.remove("b");
    // pods 9
    assert_eq!(bed.look(), None);
    bed.write("b", &pod("b"));
    assert_eq!(bed.look(), names(&["b", "c"]));
    bed.remove("b");
    assert_eq!(bed.look(), None);
    assert_eq!(bed.look(), names(&["c"]));
    // One that is back after the first look was never gone.
    bed.remove("c");
    assert_eq!(bed.look(), None);
    bed.write("c", &pod("c"));
    assert_eq!(bed.look(), names(&["c"]));
    bed.remove("c");
    assert_eq!(bed.look(), None);
    assert_eq!(bed.look(), names(&[]));
}

/// A directory of these pods that is on another file system than when it was last read. Its files are
/// set aside, and nothing is in their place.
fn unmounted(pods: &[&str]) -> (Bed, PathBuf) {
    let mut bed = Bed::new(pods);
    bed.directory.device = bed.directory.device.map(|device| device + 1);
    let aside = bed.temp.path().join("aside");
    let here = bed.temp.path().join("manifests");
    fs::rename(&here, &aside).unwrap();
    fs::create_dir(here).unwrap();
    (bed, aside)
}

#[test]
fn a_directory_that_was_unmounted_is_away_until_it_is_back() {
    let (mut bed, aside) = unmounted(&["a", "b"]);
    for _ in 0..3 {
        let look = bed.directory.look().unwrap();
        let problem = look.unavailable.unwrap();
        let words = "its pods keep running: another file system is there, and has no manifests";
        assert!(problem.message.contains(words), "{}", problem.message);
        // pods 1
        assert_eq!(look.set.pods.len(), 2);
    }

    bed.directory.device = bed.directory.device.map(|device| device - 1);
    is_back(&mut bed, &aside);
}

/// The same file system is there again, with fewer files: what is missing is held for a while.
fn is_back(bed: &mut Bed, aside: &Path) {
    let here = bed.temp.path().join("manifests");
    fs::remove_dir(&here).unwrap();
    fs::rename(aside, here).unwrap();
    bed.remove("a");
    assert_eq!(bed.look(), None);
    let look = bed.directory.look().unwrap();
    assert_eq!(look.unavailable, None);
    let held: Vec<bool> = look.set.pods.iter().map(|pod| pod.held).collect();
    assert_eq!(held, [true, false]);
}

#[test]
fn a_directory_that_is_unmounted_while_no_agent_runs_is_away_until_it_is_back() {
    let mut bed = Bed::new(&["a", "b"]);
    let here = bed.temp.path().join("manifests");
    assert!(scan::is_mount(Path::new("/proc")) && !scan::is_mount(&here));
    // As a look at a mount does.
    bed.directory.last_good.set_mounted(true);
    assert!(!bed.directory.flush());
    let aside = bed.temp.path().join("aside");
    fs::rename(&here, &aside).unwrap();
    fs::create_dir(&here).unwrap();
    bed.restart();
    for _ in 0..3 {
        let look = bed.directory.look().unwrap();
        let problem = look.unavailable.unwrap();
        let words = "its pods keep running: another file system is there, and has no manifests";
        assert!(problem.message.contains(words), "{}", problem.message);
        assert!(problem.help.unwrap().contains("put another manifest there"));
        // pods 1
        assert_eq!(look.set.pods.len(), 2);
    }

    // In tests it is no mount.
    is_back(&mut bed, &aside);
    assert!(!bed.directory.flush());
    bed.remove("b");
    bed.restart();
    assert_eq!(bed.look(), None);
    assert_eq!(bed.look(), names(&[]));
}

#[test]
fn a_manifest_on_another_file_system_ends_the_wait_for_the_one_before() {
    let (mut bed, _) = unmounted(&["a", "b"]);
    assert_eq!(bed.look(), names(&["a", "b"]));
    bed.write("c", &pod("c"));
    assert_eq!(bed.look(), None);
    // Whoever replaces a directory fills it file by file.
    let look = bed.directory.look().unwrap();
    let held: Vec<bool> = look.set.pods.iter().map(|pod| pod.held).collect();
    // pods 1
    assert_eq!(held, [true, true, false]);
    assert!(look.again.is_some());
    // From now on this is its file system.
    bed.directory.returned = None;
    assert_eq!(bed.look(), None);
    assert_eq!(bed.look(), names(&["c"]));
    bed.remove("c");
    assert_eq!(bed.look(), None);
    assert_eq!(bed.look(), names(&[]));
}

#[test]
fn files_that_go_one_after_the_other_hold_up_a_directory_for_a_few_looks_only() {
    let mut bed = Bed::new(&["a", "b", "c", "d", "e"]);
    for name in ["a", "b", "c"] {
        bed.remove(name);
        assert_eq!(bed.look(), None, "{name}");
    }
    bed.remove("d");
    let look = bed.directory.look().unwrap();
    assert!(look.again.is_some());
    let files: Vec<&str> = look
        .set
        .pods
        .iter()
        .map(|pod| &*pod.origin.location)
        .collect();
    let known = ["d", "e"].map(|name| bed.path(name).display().to_string());
    // pods 9
    assert_eq!(files, known);
    assert_eq!(bed.look(), None);
    assert_eq!(bed.look(), names(&["e"]));
}

#[test]
fn no_file_is_waited_for_while_the_directory_is_away() {
    let mut bed = Bed::new(&[]);
    bed.write("all", &format!("{}---\n{}", pod("a"), pod("b")));
    assert_eq!(bed.look(), names(&["a", "b"]));
    // It looks half-written, which is decided anew after a while.
    bed.write("all", &pod("a"));
    assert!(bed.directory.look().unwrap().again.is_some());
    let (here, away) = (
        bed.temp.path().join("manifests"),
        bed.temp.path().join("away"),
    );
    fs::rename(&here, &away).unwrap();
    let look = bed.directory.look().unwrap();
    assert!(look.unavailable.is_some());
    // pods 9
    assert_eq!(look.again, None);
    fs::rename(&away, &here).unwrap();
    assert!(bed.directory.look().unwrap().again.is_some());
}

/// A Deployment of 50 pods with 19 values each, and three for each variable.
fn large(name: &str, variables: usize) -> String {
    let variables = "{name: a, value: b}, ".repeat(variables);
    format!(
        "apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: {name}}}\nspec:\n  replicas: 50\n  selector: {{matchLabels: {{a: b}}}}\n  template:\n    metadata: {{labels: {{a: b}}}}\n    spec:\n      containers: [{{name: c, image: i, env: [{variables}]}}]\n"
    )
}

#[test]
fn a_bad_edit_gives_its_room_to_no_other_file() {
    let mut bed = Bed::new(&[]);
    let good = BTreeMap::from([("a", large("a", 360)), ("z", large("z", 160))]);
    for (name, text) in &good {
        bed.write(name, text);
    }
    assert_eq!(bed.look().unwrap().len(), 100);
    let held = |look: &Look| look.set.pods.iter().filter(|pod| pod.held).count();
    for (name, bad) in [
        ("a", "a: ]\n".to_owned()),
        // Too much by itself, and with the other one.
        ("a", large("a", 700)),
        ("z", large("z", 360)),
    ] {
        bed.write(name, &bad);
        assert_eq!(held(&bed.directory.look().unwrap()), 50, "{name}");
        bed.write("b", &large("b", 160));
        let look = bed.directory.look().unwrap();
        let of_b = bed.path("b").display().to_string();
        let problems = look.set.problems.iter();
        let mut problems = problems.filter(|problem| problem.file == of_b);
        let code = problems.next().map(|problem| problem.code);
        // tenants M8
        assert_eq!((look.set.pods.len(), code), (100, Some(Code::TooLarge)));
        bed.write(name, &good[name]);
        bed.remove("b");
        assert_eq!(bed.look(), None);
        let look = bed.directory.look().unwrap();
        assert_eq!((look.set.pods.len(), held(&look)), (100, 0), "{name}");
    }
}

#[test]
fn a_file_has_the_size_of_all_that_is_in_force_of_it() {
    let mut bed = Bed::new(&[]);
    let small = pod("s");
    let rejected = |text: &str| text.replacen("spec:\n", "spec: []\nx:\n", 1);
    bed.write("a", &format!("{}---\n{small}", large("a", 360)));
    bed.write("z", &large("z", 160));
    assert_eq!(bed.look().unwrap().len(), 101);
    // A document for each that is rejected, whose last good version stays: together it is too much.
    let edit = format!("{}---\n{}", rejected(&large("a", 360)), large("b", 280));
    bed.write("a", &edit);
    // tenants M8
    assert_eq!(bed.look().unwrap().len(), 101);
    // The next agent counts what this one has kept.
    assert!(!bed.directory.flush());
    bed.write("a", "a: ]\n");
    bed.restart();
    assert_eq!(bed.look().unwrap().len(), 101);
    bed.write("c", &large("c", 160));
    // tenants M8
    assert_eq!(bed.look().unwrap().len(), 101);
    // A document that is smaller now gives its room away, though another one is rejected.
    bed.write("a", &format!("{}---\n{}", large("a", 0), rejected(&small)));
    bed.write("c", &large("c", 390));
    let look = bed.directory.look().unwrap();
    let held = look.set.pods.iter().filter(|pod| pod.held).count();
    // tenants M8
    assert_eq!((look.set.pods.len(), held), (151, 1));
}

#[test]
fn a_file_that_looks_cut_off_and_is_too_much_stays_too_much() {
    let mut bed = Bed::new(&[]);
    bed.write("a", &format!("{}# {}\n", large("a", 0), "x".repeat(20_000)));
    bed.write("z", &large("z", 360));
    assert_eq!(bed.look().unwrap().len(), 100);
    bed.write("a", large("a", 360).trim_end());
    let now = Instant::now();
    for (seconds, expected) in [
        (0, Code::HalfWritten),
        // Believed now, and too much with the other file; looked at again after a minute.
        (11, Code::TooLarge),
        (72, Code::TooLarge),
    ] {
        let listing = scan::list(&bed.directory.path).unwrap();
        let entry = &listing.manifests[0];
        assert!(
            bed.directory
                .take_in(entry, now + Duration::from_secs(seconds))
        );
        let pod = &bed.directory.files[&entry.path].pods[0];
        let codes: Vec<Code> = pod.problems.iter().map(|problem| problem.code).collect();
        // tenants M8
        assert_eq!((pod.held, codes), (true, vec![expected]), "{seconds} s");
    }
}
