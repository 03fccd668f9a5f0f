use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::fs::{chown, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

use mirrorlet::source::files::FileSource;
use mirrorlet::source::{SourceReader, source};
use mirrorlet::store::refresh::{RefreshHandle, refreshes};
use mirrorlet_core::desired::{PodSource, SourceState};
use mirrorlet_host::disk::{self, TEMP_SUFFIX};
use tempfile::TempDir;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::{PATIENCE, expect, pod};

/// A root, a manifest directory and an agent's source on them.
struct Bench {
    temp: TempDir,
    reader: SourceReader,
    refresh: RefreshHandle,
    cancel: CancellationToken,
    task: JoinHandle<Option<()>>,
}

/// The source of the manifest directory below a path.
fn files(path: &Path) -> FileSource {
    FileSource {
        source: PodSource::File,
        directory: path.join("manifests"),
        root: path.join("root"),
        node_name: "node".into(),
        settle: Duration::from_millis(25),
        // Never within a test: whatever is noticed is noticed by inotify.
        rescan_period: Duration::from_hours(1),
    }
}

impl Bench {
    /// Starts on a directory prepared by `prepare`; `manifests` exists then.
    fn start(prepare: impl FnOnce(&Path)) -> Self {
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path().join("manifests");
        fs::create_dir(&dir).unwrap();
        prepare(&dir);
        Self::start_in(temp)
    }

    fn start_in(temp: TempDir) -> Self {
        let files = files(temp.path());
        Self::start_source(temp, files)
    }

    fn start_source(temp: TempDir, files: FileSource) -> Self {
        let (writer, reader) = source(files.name());
        let (refresh, refreshes) = refreshes();
        let cancel = CancellationToken::new();
        let task = tokio::spawn(
            cancel
                .clone()
                .run_until_cancelled_owned(files.run(writer, refreshes)),
        );
        Self {
            temp,
            reader,
            refresh,
            cancel,
            task,
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.temp.path().join("manifests").join(name)
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
    }

    /// Puts what is `aside` in the place of a file, and the file aside, in one step.
    fn exchange(&self, name: &str, aside: &Path) {
        let (here, name) = (rustix::fs::CWD, self.path(name));
        let flags = rustix::fs::RenameFlags::EXCHANGE;
        rustix::fs::renameat_with(here, aside, here, &name, flags).unwrap();
    }

    async fn expect(&mut self, pods: &[&str], problems: &[&str]) {
        expect(&mut self.reader, pods, problems).await;
    }

    async fn expect_ignored(&mut self, names: &[&str]) {
        let wanted = |state: &SourceState| match state {
            SourceState::NotSynced | SourceState::LastKnown(_) => false,
            SourceState::Synced(set) => set.ignored == names,
        };
        let waiting = self.reader.state.wait_for(wanted);
        tokio::time::timeout(PATIENCE, waiting)
            .await
            .unwrap()
            .unwrap();
    }

    /// Stops the source and starts it again on the same directories, as a restarted agent does.
    async fn restart(self, between: impl FnOnce(&Path)) -> Self {
        self.cancel.cancel();
        self.task.await.unwrap();
        between(&self.temp.path().join("manifests"));
        Self::start_in(self.temp)
    }

    /// Waits until the last good versions on disk contain a text.
    async fn expect_stored(&self, text: &str) {
        self.until_stored(text, true).await;
    }

    /// Waits until a published text is stored, or no longer stored.
    async fn until_stored(&self, text: &str, is_there: bool) {
        let dir = self.temp.path().join("root/last-good");
        let stored = || {
            let files = fs::read_dir(&dir).into_iter().flatten().flatten();
            // Not what is about to be renamed in.
            files
                .filter(|file| !file.file_name().to_string_lossy().ends_with(TEMP_SUFFIX))
                .filter_map(|file| fs::read_to_string(file.path()).ok())
                .any(|t| t.contains(text))
        };
        let poll = async {
            while stored() != is_there {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(PATIENCE, poll).await.unwrap();
    }
}

#[tokio::test]
async fn after_a_refresh_a_file_that_was_saved_is_read() {
    let bench = Bench::start(|_| {});
    for image in ["a:1", "a:2", "a:3"] {
        bench.write("web.yaml", &pod("web", image));
        bench.refresh.refresh().await;
        let state = bench.reader.state.get();
        let pods = &state.set().unwrap().pods;
        let containers = &pods[0].pod.spec.as_ref().unwrap().containers;
        assert_eq!(containers[0].image.as_deref(), Some(image));
    }
}

#[tokio::test]
async fn a_write_of_the_embedded_api_does_not_wait_until_the_directory_is_quiet() {
    let temp = tempfile::tempdir().unwrap();
    let stored = temp.path().join("manifests/default/pods");
    fs::create_dir_all(&stored).unwrap();
    let source = FileSource {
        source: PodSource::Embedded,
        // Whoever waits for that waits in vain.
        settle: Duration::from_hours(1),
        ..files(temp.path())
    };
    let bench = Bench::start_source(temp, source);
    for image in ["a:1", "a:2", "a:3"] {
        // A user edits a file, and the source waits for the end of that.
        fs::write(stored.join("db.yaml"), pod("db", image)).unwrap();
        tokio::time::sleep(Duration::from_millis(50)).await;
        disk::replace(&stored.join("web.yaml"), pod("web", image).as_bytes()).unwrap();
        let taken_in = tokio::time::timeout(PATIENCE, bench.refresh.refresh());
        taken_in.await.unwrap();
        let state = bench.reader.state.get();
        let pods = state.set().unwrap().pods.iter();
        let images: Vec<_> = pods
            .map(|pod| pod.pod.spec.as_ref().unwrap().containers[0].image.clone())
            .collect();
        assert_eq!(images, [Some(image.to_owned()), Some(image.to_owned())]);
    }
}

#[tokio::test]
async fn stored_objects_are_held_while_one_of_their_directories_cannot_be_read() {
    const PATH_MAX: usize = 4096;
    let temp = tempfile::tempdir().unwrap();
    let mut stored = temp.path().join("manifests");
    while stored.as_os_str().len() < PATH_MAX - 250 {
        stored.push("d".repeat(200));
    }
    stored.push("e".repeat(PATH_MAX - stored.as_os_str().len() - 30));
    fs::create_dir_all(stored.join("a/pods")).unwrap();
    fs::write(stored.join("a/pods/web.yaml"), pod("web", "a:1")).unwrap();
    let source = FileSource {
        source: PodSource::Embedded,
        directory: stored.clone(),
        ..files(temp.path())
    };
    let mut bench = Bench::start_source(temp, source);
    bench.expect(&["web a:1"], &[]).await;
    bench.expect_stored("a:1").await;

    // The path of the namespace's directory is longer than any that can be opened.
    let parent = fs::File::open(&stored).unwrap();
    let long = "a-namespace-with-too-long-a-name";
    rustix::fs::renameat(&parent, "a", &parent, long).unwrap();
    bench.refresh.refresh().await;
    assert!(bench.reader.health.get().last_error.is_some());
    let state = bench.reader.state.get();
    // pods 1
    assert_eq!(super::pods(state.set().unwrap()), ["web a:1"]);
    bench.until_stored("a:1", true).await;

    // Once all of them can be read, what is missing is gone.
    fs::create_dir(stored.join("empty")).unwrap();
    rustix::fs::renameat(
        &parent,
        long,
        rustix::fs::CWD,
        bench.temp.path().join("away"),
    )
    .unwrap();
    bench.refresh.refresh().await;
    assert!(bench.reader.health.get().last_error.is_none());
    bench.expect(&[], &[]).await;
}

#[tokio::test]
async fn an_empty_directory_is_synced() {
    let mut bench = Bench::start(|_| {});
    // pods 2
    bench.expect(&[], &[]).await;
    let report = bench.reader.report();
    assert!(report.synced && report.last_success.is_some());
    assert_eq!(report.kind, "file");
    bench.write("web.yaml", &pod("web", "a:1"));
    bench.expect(&["web-node a:1"], &[]).await;
    assert_eq!(bench.reader.report().pods, 1);
}

#[tokio::test]
async fn cancelling_ends_the_source() {
    let mut bench = Bench::start(|_| {});
    bench.expect(&[], &[]).await;
    bench.cancel.cancel();
    tokio::time::timeout(PATIENCE, bench.task)
        .await
        .unwrap()
        .unwrap();
}

#[tokio::test]
async fn edits_of_every_kind_are_noticed() {
    let mut bench = Bench::start(|dir| fs::write(dir.join("web.yaml"), pod("web", "a:1")).unwrap());
    bench.expect(&["web-node a:1"], &[]).await;
    // In place.
    bench.write("web.yaml", &pod("web", "a:2"));
    // pods 4
    bench.expect(&["web-node a:2"], &[]).await;
    // As vim does: a probe file, the old file kept aside, a new file.
    bench.write("4913", "");
    fs::remove_file(bench.path("4913")).unwrap();
    fs::rename(bench.path("web.yaml"), bench.path("web.yaml~")).unwrap();
    bench.write("web.yaml", &pod("web", "a:3"));
    bench.expect(&["web-node a:3"], &[]).await;
    fs::remove_file(bench.path("web.yaml~")).unwrap();
    // A temporary file renamed over it.
    bench.write(".web.yaml.tmp", &pod("web", "a:4"));
    fs::rename(bench.path(".web.yaml.tmp"), bench.path("web.yaml")).unwrap();
    bench.expect(&["web-node a:4"], &[]).await;
    // Two in quick succession, of one size.
    bench.write("web.yaml", &pod("web", "a:5"));
    bench.write("web.yaml", &pod("web", "a:6"));
    bench.expect(&["web-node a:6"], &[]).await;
    // Removal.
    fs::remove_file(bench.path("web.yaml")).unwrap();
    bench.expect(&[], &[]).await;
}

#[tokio::test]
async fn a_renamed_file_is_another_pod_of_the_same_name() {
    let mut bench = Bench::start(|dir| fs::write(dir.join("a.yaml"), pod("web", "a:1")).unwrap());
    bench.expect(&["web-node a:1"], &[]).await;
    let uid = |reader: &SourceReader| match &*reader.state.get() {
        SourceState::NotSynced | SourceState::LastKnown(_) => None,
        SourceState::Synced(set) => set
            .pods
            .first()
            .map(|p| (p.uid(), p.origin.location.clone())),
    };
    let (before, _) = uid(&bench.reader).unwrap();
    fs::rename(bench.path("a.yaml"), bench.path("b.yaml")).unwrap();
    let moved = |_: &SourceState| true;
    loop {
        bench.reader.state.wait_for(moved).await.unwrap();
        if let Some((uid, location)) = uid(&bench.reader)
            && location.ends_with("b.yaml")
        {
            // pods 5
            assert_ne!(uid, before);
            break;
        }
        tokio::time::timeout(PATIENCE, bench.reader.state.changed())
            .await
            .unwrap()
            .unwrap();
    }
}

#[tokio::test]
async fn everything_but_manifests_is_ignored_and_listed() {
    let names = [
        ".hidden.yaml",
        "4913",
        "README",
        "sub",
        "web.yaml.swp",
        "web.yaml~",
    ];
    let mut bench = Bench::start(|dir| {
        for name in names.iter().filter(|name| **name != "sub") {
            fs::write(dir.join(name), pod("ignored", "a:1")).unwrap();
        }
        fs::create_dir(dir.join("sub")).unwrap();
        fs::write(dir.join("sub/web.yaml"), pod("ignored", "a:1")).unwrap();
        fs::write(dir.join("web.json"), r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"j"},"spec":{"containers":[{"name":"m","image":"a:1"}]}}"#).unwrap();
    });
    bench.expect(&["j-node a:1"], &[]).await;
    bench.expect_ignored(&names).await;
    // pods 6
    assert_eq!(bench.reader.report().ignored, names);
}

#[tokio::test]
async fn manifests_that_are_too_much_together_are_refused_one_by_one() {
    let long = |name: &str, variables: usize| {
        let variable = "\n    - {name: a, value: b}";
        format!(
            "{}\n    env:{}\n",
            pod(name, "a:1").trim_end(),
            variable.repeat(variables)
        )
    };
    let mut bench = Bench::start(|dir| {
        for name in ["a", "b"] {
            fs::write(dir.join(format!("{name}.yaml")), long(name, 10)).unwrap();
        }
    });
    let mut wanted = vec!["a-node a:1".to_owned(), "b-node a:1".to_owned()];
    bench.expect(&refs(&wanted), &[]).await;
    // One with too many values is held, as after any bad edit.
    bench.write("b.yaml", &long("b", 4_000));
    // tenants M8
    bench
        .expect(&["a-node a:1", "b-node a:1 held too-large"], &[])
        .await;
    bench.write("b.yaml", &long("b", 10));
    bench.expect(&refs(&wanted), &[]).await;
    for number in 0..11 {
        let name = format!("large-{number:02}");
        bench.write(&format!("{name}.yaml"), &long(&name, 3_000));
        wanted.push(format!("{name}-node a:1"));
    }
    bench.expect(&refs(&wanted), &[]).await;
    bench.write("large-11.yaml", &long("large-11", 3_000));
    bench.expect(&refs(&wanted), &["too-large"]).await;
}

fn refs(names: &[String]) -> Vec<&str> {
    names.iter().map(String::as_str).collect()
}

#[tokio::test]
async fn several_documents_come_and_go() {
    let two = format!("{}---\n{}", pod("one", "a:1"), pod("two", "a:1"));
    let mut bench = Bench::start(|dir| fs::write(dir.join("all.yaml"), &two).unwrap());
    bench.expect(&["one-node a:1", "two-node a:1"], &[]).await;
    // Removing a document removes its pod.
    bench.write("all.yaml", &pod("two", "a:1"));
    // pods 8
    bench.expect(&["two-node a:1"], &[]).await;
    // One broken document of two leaves the other alone.
    bench.write("all.yaml", &two);
    bench.expect(&["one-node a:1", "two-node a:1"], &[]).await;
    let broken = format!("{}---\n{}", pod("one", "a:1"), pod("two", "[]"));
    bench.write("all.yaml", &broken);
    bench
        .expect(&["one-node a:1", "two-node a:1 held invalid-type"], &[])
        .await;
}

#[tokio::test]
async fn a_bad_edit_never_hurts() {
    let mut bench = Bench::start(|dir| fs::write(dir.join("web.yaml"), pod("web", "a:1")).unwrap());
    bench.expect(&["web-node a:1"], &[]).await;
    bench.write("web.yaml", "");
    bench.expect(&["web-node a:1 held empty"], &[]).await;
    bench.write("web.yaml", "# nothing\n");
    bench.expect(&["web-node a:1 held empty"], &[]).await;
    bench.write("web.yaml", "a: ]\n");
    // pods 9
    bench.expect(&["web-node a:1 held syntax"], &[]).await;
    // In one step: without a file there would be no pod.
    let aside = bench.temp.path().join("aside");
    fs::create_dir(&aside).unwrap();
    bench.exchange("web.yaml", &aside);
    bench.expect(&["web-node a:1 held unreadable"], &[]).await;
    fs::remove_file(&aside).unwrap();
    symlink("web.yaml", &aside).unwrap();
    bench.exchange("web.yaml", &aside);
    bench.expect(&["web-node a:1 held unreadable"], &[]).await;
    fs::remove_file(bench.path("web.yaml")).unwrap();
    bench.expect(&[], &[]).await;
    // Without a last good version there is only the problem.
    bench.write("web.yaml", "");
    bench.expect(&[], &["empty"]).await;
    bench.write("web.yaml", &pod("web", "a:2"));
    bench.expect(&["web-node a:2"], &[]).await;
}

#[tokio::test]
async fn a_half_written_file_is_held() {
    let two = format!("{}---\n{}", pod("one", "a:1"), pod("two", "a:1"));
    let mut bench = Bench::start(|dir| fs::write(dir.join("all.yaml"), &two).unwrap());
    bench.expect(&["one-node a:1", "two-node a:1"], &[]).await;
    bench.write("all.yaml", &pod("one", "a:1"));
    let held = [
        "one-node a:1 held half-written",
        "two-node a:1 held half-written",
    ];
    // pods 9
    bench.expect(&held, &[]).await;
    bench.write("all.yaml", &two);
    bench.expect(&["one-node a:1", "two-node a:1"], &[]).await;
    // An end cut off on purpose counts after a while: well within the patience of these tests.
    bench.write("all.yaml", &pod("one", "a:1"));
    bench.expect(&held, &[]).await;
    bench.expect(&["one-node a:1"], &[]).await;
}

#[tokio::test]
async fn a_bad_edit_never_hurts_across_restarts() {
    let mut bench = Bench::start(|dir| fs::write(dir.join("web.yaml"), pod("web", "a:1")).unwrap());
    bench.expect(&["web-node a:1"], &[]).await;
    bench.expect_stored("a:1").await;
    let mut bench = bench
        .restart(|dir| fs::write(dir.join("web.yaml"), "a: ]\n").unwrap())
        .await;
    bench.expect(&["web-node a:1 held syntax"], &[]).await;
    // The directory is away altogether.
    let mut bench = bench.restart(|dir| fs::remove_dir_all(dir).unwrap()).await;
    bench
        .expect(
            &["web-node a:1 held source-unavailable"],
            &["source-unavailable"],
        )
        .await;
    assert!(bench.reader.report().synced);
    assert!(bench.reader.health.get().last_error.is_some());
    // Removed while the agent was away: gone, from the disk as well.
    let mut bench = bench.restart(|dir| fs::create_dir(dir).unwrap()).await;
    bench.expect(&[], &[]).await;
    bench.until_stored("a:1", false).await;
    let mut bench = bench
        .restart(|dir| fs::write(dir.join("web.yaml"), "").unwrap())
        .await;
    bench.expect(&[], &["empty"]).await;
}

#[tokio::test]
async fn a_file_in_the_directorys_place_is_a_problem() {
    let temp = tempfile::tempdir().unwrap();
    fs::write(temp.path().join("manifests"), pod("web", "a:1")).unwrap();
    let mut bench = Bench::start_in(temp);
    // pods 3
    bench.expect(&[], &["source-unavailable"]).await;
}

#[tokio::test]
async fn a_directory_that_others_can_write_to_is_warned_of() {
    let warned = &["invalid-value"][..];
    let is_root = rustix::process::geteuid().is_root();
    for (mode, user, group, problems) in [
        (0o755, None, None, &[][..]),
        (0o757, None, None, warned),
        (0o775, None, None, &[][..]),
        (0o775, None, Some(1000), warned),
        (0o755, None, Some(1000), &[][..]),
        (0o700, Some(1000), None, warned),
    ] {
        if (user.is_some() || group.is_some()) && !is_root {
            continue;
        }
        let temp = tempfile::tempdir().unwrap();
        let manifests = temp.path().join("manifests");
        fs::create_dir(&manifests).unwrap();
        fs::set_permissions(&manifests, fs::Permissions::from_mode(mode)).unwrap();
        chown(&manifests, user, group).unwrap();
        fs::write(manifests.join("web.yaml"), pod("web", "a:1")).unwrap();
        let mut bench = Bench::start_in(temp);
        // tenants L6
        bench.expect(&["web-node a:1"], problems).await;
    }
}

#[tokio::test]
async fn a_missing_directory_is_synced_with_a_problem() {
    let mut bench = Bench::start_in(tempfile::tempdir().unwrap());
    // pods 1
    bench.expect(&[], &["source-unavailable"]).await;
    fs::create_dir(bench.path("")).unwrap();
    bench.expect(&[], &[]).await;
    bench.write("web.yaml", &pod("web", "a:1"));
    bench.expect(&["web-node a:1"], &[]).await;
}

#[tokio::test]
async fn a_vanished_directory_keeps_its_pods() {
    let mut bench = Bench::start(|dir| {
        fs::write(dir.join("a.yaml"), pod("a", "a:1")).unwrap();
        fs::write(dir.join("b.yaml"), pod("b", "a:1")).unwrap();
    });
    let both = ["a-node a:1", "b-node a:1"];
    bench.expect(&both, &[]).await;
    let away = bench.temp.path().join("away");
    fs::rename(bench.path(""), &away).unwrap();
    bench.expect(&both, &["source-unavailable"]).await;
    fs::rename(&away, bench.path("")).unwrap();
    bench.expect(&both, &[]).await;
    // Removed file by file, and filled again file by file.
    fs::remove_dir_all(bench.path("")).unwrap();
    bench.expect(&both, &["source-unavailable"]).await;
    fs::create_dir(bench.path("")).unwrap();
    bench.write("a.yaml", &pod("a", "a:2"));
    bench
        .expect(&["a-node a:2", "b-node a:1 held source-unavailable"], &[])
        .await;
    bench.write("b.yaml", &pod("b", "a:2"));
    bench.expect(&["a-node a:2", "b-node a:2"], &[]).await;
    // It is watched as before.
    fs::remove_file(bench.path("b.yaml")).unwrap();
    bench
        .expect(&["a-node a:2", "b-node a:2 held source-unavailable"], &[])
        .await;
    bench.expect(&["a-node a:2"], &[]).await;
}

#[tokio::test]
async fn a_file_in_place_of_the_directory_keeps_its_pods() {
    let mut bench = Bench::start(|dir| fs::write(dir.join("a.yaml"), pod("a", "a:1")).unwrap());
    bench.expect(&["a-node a:1"], &[]).await;
    fs::rename(bench.path(""), bench.temp.path().join("away")).unwrap();
    fs::write(bench.temp.path().join("manifests"), "").unwrap();
    bench.expect(&["a-node a:1"], &["source-unavailable"]).await;
}

#[tokio::test]
async fn symbolic_links_are_followed_and_swapped() {
    let temp = tempfile::tempdir().unwrap();
    for (version, image) in [("v1", "a:1"), ("v2", "a:2")] {
        let dir = temp.path().join(version);
        fs::create_dir(&dir).unwrap();
        fs::write(dir.join("web.yaml"), pod("web", image)).unwrap();
    }
    symlink("v1", temp.path().join("manifests")).unwrap();
    let mut bench = Bench::start_in(temp);
    bench.expect(&["web-node a:1"], &[]).await;
    // The directory itself is a link that is swapped at once.
    let root = bench.temp.path().to_owned();
    symlink("v2", root.join("next")).unwrap();
    fs::rename(root.join("next"), root.join("manifests")).unwrap();
    bench.expect(&["web-node a:2"], &[]).await;
    // The new target is watched.
    fs::write(root.join("v2/web.yaml"), pod("web", "a:3")).unwrap();
    bench.expect(&["web-node a:3"], &[]).await;
}

#[tokio::test]
async fn a_mounted_config_map_is_swapped() {
    let mut bench = Bench::start(|dir| {
        for (version, image) in [("..1", "a:1"), ("..2", "a:2")] {
            fs::create_dir(dir.join(version)).unwrap();
            fs::write(dir.join(version).join("web.yaml"), pod("web", image)).unwrap();
        }
        symlink("..1", dir.join("..data")).unwrap();
        symlink("..data/web.yaml", dir.join("web.yaml")).unwrap();
    });
    bench.expect(&["web-node a:1"], &[]).await;
    symlink("..2", bench.path("..data_tmp")).unwrap();
    fs::rename(bench.path("..data_tmp"), bench.path("..data")).unwrap();
    bench.expect(&["web-node a:2"], &[]).await;
}

#[tokio::test]
async fn a_fifo_is_reported_and_hangs_nobody() {
    let mut bench = Bench::start(|dir| {
        let kind = rustix::fs::FileType::Fifo;
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        rustix::fs::mknodat(rustix::fs::CWD, dir.join("a.yaml"), kind, mode, 0).unwrap();
        fs::write(dir.join("web.yaml"), pod("web", "a:1")).unwrap();
    });
    bench.expect(&["web-node a:1"], &["unreadable"]).await;
}

#[tokio::test]
async fn a_root_that_cannot_be_written_costs_no_pod() {
    let temp = tempfile::tempdir().unwrap();
    fs::create_dir(temp.path().join("manifests")).unwrap();
    fs::write(temp.path().join("manifests/web.yaml"), pod("web", "a:1")).unwrap();
    // A file where the root directory should be: nothing below it can be created, even by root.
    fs::write(temp.path().join("root"), "").unwrap();
    let mut bench = Bench::start_in(temp);
    let wanted = |state: &SourceState| match state {
        SourceState::NotSynced | SourceState::LastKnown(_) => false,
        SourceState::Synced(set) => {
            super::pods(set) == ["web-node a:1"] && !set.problems.is_empty()
        }
    };
    let waiting = bench.reader.state.wait_for(wanted);
    tokio::time::timeout(PATIENCE, waiting)
        .await
        .unwrap()
        .unwrap();
    // The memory keeps what the disk can't.
    bench.write("web.yaml", "");
    let held = |state: &SourceState| match state {
        SourceState::NotSynced | SourceState::LastKnown(_) => false,
        SourceState::Synced(set) => super::pods(set) == ["web-node a:1 held empty"],
    };
    let waiting = bench.reader.state.wait_for(held);
    tokio::time::timeout(PATIENCE, waiting)
        .await
        .unwrap()
        .unwrap();
}
