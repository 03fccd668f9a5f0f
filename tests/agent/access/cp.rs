//! Files out of and into containers.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;

use super::{SLEEPS, ask, pod, sh, started, text};
use crate::common::Bed;

fn cp(bed: &Bed, source: &str, destination: &str) -> Result<String, String> {
    let done = ask(bed, &["cp", source, destination]);
    let said = text(&done.stderr);
    if done.status.success() {
        Ok(said)
    } else {
        Err(said)
    }
}

fn at(dir: &tempfile::TempDir, path: &str) -> String {
    dir.path().join(path).to_str().unwrap().to_owned()
}

fn mode(path: &str) -> u32 {
    let found = fs::symlink_metadata(path).unwrap();
    found.permissions().mode() & 0o7777
}

#[tokio::test(flavor = "multi_thread")]
async fn files_and_trees_are_copied_out_with_modes_and_links() {
    let bed = Bed::new();
    let agent = started(&bed, &pod("web", "", SLEEPS), "web").await;
    let made = sh(
        &bed,
        "web",
        r"mkdir -p /src/sub && cd /src && printf '\000\001bytes' > file && chmod 640 file &&
          echo run > sub/script && chmod 755 sub/script && ln -s ../file sub/link &&
          ln -s /etc absolute && chmod 711 sub && touch -d @1000000000 file",
    );
    assert!(made.status.success(), "{}", text(&made.stderr));
    let here = crate::common::tempdir();
    // A file into a directory, to a new name, and over another.
    cp(&bed, "web:/src/file", &at(&here, "")).unwrap();
    assert_eq!(fs::read(at(&here, "file")).unwrap(), b"\0\x01bytes");
    assert_eq!(mode(&at(&here, "file")), 0o640);
    let changed = fs::metadata(at(&here, "file")).unwrap().modified().unwrap();
    let age = changed.duration_since(std::time::UNIX_EPOCH).unwrap();
    assert_eq!(age.as_secs(), 1_000_000_000);
    cp(&bed, "default/web:/src/sub/script", &at(&here, "file")).unwrap();
    assert_eq!(fs::read(at(&here, "file")).unwrap(), b"run\n");
    // A directory to a new name, into one that is there, and its contents only.
    cp(&bed, "web:/src", &at(&here, "new")).unwrap();
    cp(&bed, "web:/src", &at(&here, "")).unwrap();
    fs::create_dir(at(&here, "contents")).unwrap();
    cp(&bed, "web:/src/.", &at(&here, "contents")).unwrap();
    for tree in ["new", "src", "contents"] {
        let within = |path: &str| at(&here, &format!("{tree}/{path}"));
        assert_eq!(fs::read(within("file")).unwrap(), b"\0\x01bytes", "{tree}");
        // docker 55a
        assert_eq!(mode(&within("sub/script")), 0o755, "{tree}");
        assert_eq!(mode(&within("sub")), 0o711, "{tree}");
        let link = fs::read_link(within("sub/link")).unwrap();
        assert_eq!(link, Path::new("../file"), "{tree}");
        let link = fs::read_link(within("absolute")).unwrap();
        assert_eq!(link, Path::new("/etc"), "{tree}");
    }
    // Again: what is there is replaced.
    cp(&bed, "web:/src/.", &at(&here, "contents")).unwrap();
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn files_and_trees_are_copied_in_and_are_roots() {
    let bed = Bed::new();
    let agent = started(&bed, &pod("web", "", SLEEPS), "web").await;
    let here = crate::common::tempdir();
    fs::create_dir_all(at(&here, "src/sub")).unwrap();
    fs::write(at(&here, "src/file"), b"\0\x01bytes").unwrap();
    fs::set_permissions(at(&here, "src/file"), fs::Permissions::from_mode(0o640)).unwrap();
    symlink("../file", at(&here, "src/sub/link")).unwrap();
    // More than any buffer on the way holds.
    let big: Vec<u8> = (0..20 << 20).map(|i: u32| (i % 249) as u8).collect();
    fs::write(at(&here, "src/big"), &big).unwrap();
    assert!(
        sh(
            &bed,
            "web",
            "mkdir /there /contents && ln -s /there /linked"
        )
        .status
        .success()
    );
    cp(&bed, &at(&here, "src/file"), "web:/there").unwrap();
    cp(&bed, &at(&here, "src/file"), "web:/there/named").unwrap();
    cp(&bed, &at(&here, "src"), "web:/new").unwrap();
    cp(&bed, &at(&here, "src"), "web:/linked").unwrap();
    cp(&bed, &at(&here, "src/."), "web:/contents/").unwrap();
    let seen = sh(
        &bed,
        "web",
        "cd / && for f in there/file there/named new/file there/src/file contents/file; do
           stat -c '%a %u %s' $f; done
         readlink new/sub/link; readlink contents/sub/link; cmp new/big there/src/big && echo same",
    );
    let expected = format!("{}../file\n../file\nsame\n", "640 0 7\n".repeat(5));
    // docker 55a
    assert_eq!(text(&seen.stdout), expected, "{}", text(&seen.stderr));
    let back = crate::common::tempdir();
    cp(&bed, "web:/new/big", &at(&back, "")).unwrap();
    assert!(fs::read(at(&back, "big")).unwrap() == big);
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_that_does_not_run_has_its_files_all_the_same() {
    let bed = Bed::new();
    bed.write("over.yaml", &pod("over", "", "echo result > /result"));
    let agent = bed.agent().await;
    agent
        .until_pod("over", |pod| pod.phase == "Succeeded")
        .await;
    let here = crate::common::tempdir();
    cp(&bed, "over:/result", &at(&here, "")).unwrap();
    // docker 55a
    assert_eq!(fs::read(at(&here, "result")).unwrap(), b"result\n");
    cp(&bed, &at(&here, "result"), "over:/again").unwrap();
    cp(&bed, "over:/again", &at(&here, "")).unwrap();
    assert_eq!(fs::read(at(&here, "again")).unwrap(), b"result\n");
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dash_is_an_archive_on_a_standard_stream() {
    let bed = Bed::new();
    let deployment = format!(
        "apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: web}}\nspec:\n  replicas: 2\n  \
         selector: {{matchLabels: {{app: web}}}}\n  template:\n    metadata: {{labels: {{app: web}}}}\n    \
         spec:\n      terminationGracePeriodSeconds: 1\n      containers:\n      - name: c\n        \
         image: {}\n        command: [sh, -c, {SLEEPS}]\n",
        crate::common::IMAGE
    );
    bed.write("web.yaml", &deployment);
    let agent = bed.agent().await;
    agent.until_running("web-0").await;
    agent.until_running("web-1").await;
    // One of the workload's pods is meant, the same one each time.
    let script = "mkdir /d && echo one > /d/file && ln -s file /d/link && chown 12:34 /d/file";
    assert!(sh(&bed, "deployment/web", script).status.success());
    let out = ask(&bed, &["cp", "deploy/web:/d", "-"]);
    assert!(out.status.success(), "{}", text(&out.stderr));
    let mut archive = tar::Archive::new(&*out.stdout);
    let names = archive.entries().unwrap().map(|entry| {
        let entry = entry.unwrap();
        let path = entry.path().unwrap().display().to_string();
        (path, entry.header().uid().unwrap())
    });
    let mut names: Vec<_> = names.collect();
    names.sort();
    // docker 55a
    assert_eq!(
        names,
        [("d/", 0), ("d/file", 12), ("d/link", 0)].map(|(path, uid)| (path.to_owned(), uid))
    );
    assert!(sh(&bed, "web-1", "mkdir /into").status.success());
    let sent = super::fed(&bed, &["cp", "-", "web-1:/into"], out.stdout);
    assert!(sent.status.success(), "{}", text(&sent.stderr));
    let seen = sh(
        &bed,
        "web-1",
        "stat -c '%u %g' /into/d/file; cat /into/d/link",
    );
    assert_eq!(text(&seen.stdout), "12 34\none\n");
    for (destination, words) in [
        ("web-1:/into/d/file", "/into/d/file is not a directory"),
        ("web-1:/none", "/none does not exist"),
    ] {
        let refused = super::fed(&bed, &["cp", "-", destination], Vec::new());
        assert!(
            text(&refused.stderr).contains(words),
            "{}",
            text(&refused.stderr)
        );
    }
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_can_not_be_copied_is_told_with_its_reason() {
    let bed = Bed::new();
    let agent = started(&bed, &pod("web", "", SLEEPS), "web").await;
    let here = crate::common::tempdir();
    fs::write(at(&here, "file"), "x").unwrap();
    fs::create_dir(at(&here, "dir")).unwrap();
    assert!(sh(&bed, "web", "mkdir /d; touch /f").status.success());
    let (file, dir) = (at(&here, "file"), at(&here, "dir"));
    for (source, destination, words) in [
        ("web:/none", file.as_str(), "/none"),
        (&*at(&here, "none"), "web:/d", "none"),
        ("web:/d", &file, "can't overwrite"),
        (&dir, "web:/f", "can't overwrite /f"),
        (&file, "web:/none/x", "/none"),
        ("web:/f/.", &dir, "/f is not a directory"),
        ("nobody:/f", &dir, "pod \"nobody\" not found"),
        (&file, &dir, "neither path is in a pod"),
        ("web:/f", "web:/g", "both paths are in pods"),
        ("-", &dir, "neither path is in a pod"),
        ("web:/proc/version", &dir, "use exec with cat"),
    ] {
        let said = cp(&bed, source, destination).unwrap_err();
        // docker 55a
        assert!(said.contains(words), "{source} {destination}: {said}");
    }
    assert_eq!(fs::read(&file).unwrap(), b"x");
    agent.stop().await;
}
