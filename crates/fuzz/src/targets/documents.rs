//! Fuzz targets for documents: manifests, compose files, schedules, and values in them.

use std::path::PathBuf;

use jiff::{SignedDuration, Timestamp, tz::TimeZone};
use mirrorlet_compose::{Content, Disk, Import, Need, Options, PathKind, import};
use mirrorlet_core::api::quantity::Quantity;
use mirrorlet_core::api::{Diagnostic, NodeName};
use mirrorlet_core::credentials::{docker_config, dockercfg};
use mirrorlet_core::cron::{Schedule, time_zone};
use mirrorlet_core::desired::PodSource;
use mirrorlet_core::image_access::AllowedImages;
use mirrorlet_core::manifest::{
    Accepted, ParseContext, document_from_canonical, parse_manifest, render, unsupported_fields,
};
use mirrorlet_core::reference::Reference;

use super::{parts, text};

/// Parses a manifest, renders its problems, and parses what it accepts again from its stored form.
pub(crate) fn manifests(bytes: &[u8]) {
    let node_name = NodeName::from("node");
    let ctx = ParseContext {
        node_name: &node_name,
        source: PodSource::File,
        location: "/m.yaml",
    };
    let parsed = parse_manifest(bytes, &ctx);
    assert_eq!(
        parsed,
        parse_manifest(bytes, &ctx),
        "equal bytes, equal results"
    );
    let source = std::str::from_utf8(bytes).ok();
    let own = parsed
        .documents
        .iter()
        .flat_map(|document| &document.problems);
    for problem in own.chain(&parsed.problems) {
        assert!(!problem.message.is_empty());
        let _ = render(problem, source, false);
    }
    for document in &parsed.documents {
        let is_refused = document.problems.iter().any(Diagnostic::is_error);
        assert_eq!(
            document.accepted.is_none(),
            is_refused,
            "refused with an error"
        );
        let canonical = match &document.accepted {
            Some(Accepted::Pod(accepted)) => Some(accepted.canonical.clone()),
            Some(Accepted::Workload(workload)) => Some(workload.canonical.clone()),
            Some(Accepted::Object(object)) => object.canonical(),
            Some(Accepted::Namespace) | None => None,
        };
        let Some(canonical) = canonical else {
            continue;
        };
        let again = document_from_canonical(&canonical, &ctx);
        assert_eq!(
            again.ok().as_ref(),
            document.accepted.as_ref(),
            "made again"
        );
        for pod in document.pods() {
            let _ = unsupported_fields(pod);
        }
    }
}

/// Imports a project of one file; every other file is missing.
pub(crate) fn compose(bytes: &[u8]) {
    let file = PathBuf::from("/p/compose.yaml");
    let options = Options {
        files: vec![file.clone()],
        current_dir: PathBuf::from("/p"),
        home: Some("/home/user".to_owned()),
        project_name: None,
        ..Options::default()
    };
    let mut disk = Disk::default();
    disk.contents.insert(file, Content::Bytes(bytes.to_vec()));
    // Each question brings an answer, so that there is an end.
    loop {
        match import(&options, &disk) {
            Import::Done(imported) => {
                assert!(imported.files.is_empty() || !imported.is_unreadable());
                return;
            }
            Import::Needs(needs) => {
                let before = disk.contents.len() + disk.kinds.len();
                for need in needs {
                    match need {
                        Need::Content(path) => {
                            disk.contents.insert(path, Content::Missing);
                        }
                        Need::Kind(path) => {
                            disk.kinds.insert(path, PathKind::Missing);
                        }
                    }
                }
                let after = disk.contents.len() + disk.kinds.len();
                assert!(after > before, "asked twice for the same");
            }
        }
    }
}

/// A time zone, a schedule, and seconds since 1970, one per line.
pub(crate) fn crons(bytes: &[u8]) {
    let mut lines = text(bytes).lines();
    let zone = lines.next().and_then(time_zone).unwrap_or(TimeZone::UTC);
    let Ok(schedule) = Schedule::parse(lines.next().unwrap_or_default(), zone) else {
        return;
    };
    let seconds: i64 = lines
        .next()
        .and_then(|line| line.parse().ok())
        .unwrap_or_default();
    let Ok(at) = Timestamp::from_second(seconds) else {
        return;
    };
    if let Some(next) = schedule.next(at) {
        assert!(next > at, "the next time is later");
        let same = schedule.previous(next);
        assert_eq!(same, Some(next), "a time is the last one at that time");
    }
    if let Some(previous) = schedule.previous(at) {
        assert!(previous <= at, "the previous time is not later");
        let before = previous.saturating_sub(SignedDuration::from_secs(1));
        let next = before.ok().and_then(|before| schedule.next(before));
        assert_eq!(next, Some(previous), "nothing is skipped");
    }
}

/// Values in manifests and referenced files: quantities, image references, credentials.
pub(crate) fn words(bytes: &[u8]) {
    let text = text(bytes);
    if let Ok(quantity) = text.parse::<Quantity>() {
        let _ = (quantity.ceil(), quantity.milli_ceil(), quantity.is_zero());
        let _ = quantity.saturating_add(quantity).div_ceil(quantity);
    }
    if let Ok(reference) = Reference::parse(text) {
        let full = reference.full();
        let again = Reference::parse(&full).ok();
        assert_eq!(
            again.map(|again| again.full()),
            Some(full),
            "a full name is its own"
        );
        let _ = (reference.repository(), reference.is_latest());
    }
    if let Ok(allowed) = AllowedImages::parse(text) {
        assert_eq!(allowed.text(), text, "written as it was read");
    }
    for part in parts(text) {
        if let Ok(config) = docker_config(part.as_bytes()) {
            let _ = format!("{config:?}");
        }
        let _ = dockercfg(part.as_bytes());
    }
}
