use std::fs;

use mirrorlet_apimachinery::selector::Selector;
use mirrorlet_core::api::{FullName, PodUid};
use mirrorlet_core::events::{EventType, Happening, pod_ref};
use serde_json::Value;

use super::*;
use crate::server::embedded::bed::Bed;

fn revision(bed: &Bed) -> u64 {
    bed.api.store.read(Cache::revision)
}

#[test]
fn no_revision_is_given_out_twice() {
    let now = |milliseconds| Timestamp::from_millisecond(milliseconds).unwrap();
    for (kept, milliseconds, expected) in [
        (Some(1), 0, REVISIONS_RESERVED),
        (Some(1), 5_000_000, 5_000_000 + REVISIONS_RESERVED),
        // The agent before has just started, or the clock is wrong.
        (Some(9_000_000), 7_000_000, 9_000_000),
        (Some(9_000_000), -1, 9_000_000),
        (Some(u64::MAX), 0, u64::MAX),
        // Agents have started again and again, and the file is damaged.
        (None, 5, 5 + REVISIONS_RESERVED + REVISIONS_LOST_MAX),
    ] {
        let first = first_revision(kept, now(milliseconds));
        // embedded 68
        assert_eq!(first, expected, "{kept:?} {milliseconds}");
    }
}

#[tokio::test]
async fn objects_are_shown_where_the_disk_takes_nothing() {
    let mut bed = Bed::new();
    let before = revision(&bed);
    let directory = bed.api.store.directory().to_owned();
    let kept = || last_revision(&directory).unwrap();
    let reserved = kept();
    let obstacle = directory.join(format!("{REVISION_FILE}{}", disk::TEMP_SUFFIX));
    fs::create_dir_all(obstacle.join("x")).unwrap();
    let view = Arc::clone(bed.api.store.view());
    let next = Store::new(view, directory.clone(), "box").unwrap();
    bed.api.store = Arc::new(next);
    let (code, list) = bed.ask("GET", "/api/v1/namespaces", &Value::Null).await;
    // embedded 68
    assert_eq!(code, 200, "{list}");
    assert!(revision(&bed) > before && kept() == reserved);
    fs::remove_dir_all(&obstacle).unwrap();
    bed.api.store.touch();
    // embedded 68
    assert!(revision(&bed) < kept());
}

#[tokio::test]
async fn objects_are_shown_where_the_last_revision_is_damaged() {
    for damaged in [
        "",
        "12x\n",
        "99999999999999999999\n",
        // A number that leaves no room for others.
        "18446744073709551615\n",
        "18446744073708551615\n",
        "9223372036854775808\n",
    ] {
        let mut bed = Bed::new();
        let before = revision(&bed);
        let directory = bed.api.store.directory().to_owned();
        fs::write(directory.join(REVISION_FILE), damaged).unwrap();
        let view = Arc::clone(bed.api.store.view());
        let next = Store::new(view, directory.clone(), "box").unwrap();
        bed.api.store = Arc::new(next);
        let (code, list) = bed.ask("GET", "/api/v1/namespaces", &Value::Null).await;
        // embedded 68
        assert_eq!(code, 200, "{damaged:?} {list}");
        assert!(revision(&bed) > before, "{damaged:?}");
        let aside = directory.join(format!("{REVISION_FILE}.set-aside"));
        assert_eq!(fs::read_to_string(aside).unwrap(), damaged);
        // The next agent knows what this one has reserved.
        let kept = last_revision(&directory).unwrap();
        // embedded 68
        assert!(kept > revision(&bed) && kept < REVISION_MAX, "{damaged:?}");
    }
}

#[tokio::test]
async fn revisions_grow_where_the_last_one_is_damaged_and_the_disk_takes_nothing() {
    let bed = Bed::new();
    let directory = bed.api.store.directory().to_owned();
    let file = directory.join(REVISION_FILE);
    fs::write(&file, "12x\n").unwrap();
    let obstacle = directory.join(format!("{REVISION_FILE}{}", disk::TEMP_SUFFIX));
    fs::create_dir_all(obstacle.join("x")).unwrap();
    let started = || {
        let view = Arc::clone(bed.api.store.view());
        let store = Store::new(view, directory.clone(), "box").unwrap();
        store.state.into_inner().cache.revision()
    };
    let first = started();
    assert!(!file.exists() && aside(&file).exists());
    let second = started();
    // embedded 68
    assert!(second >= first, "{first} {second}");
    fs::remove_dir_all(&obstacle).unwrap();
    let third = started();
    assert!(third >= second, "{second} {third}");
    assert!(last_revision(&directory).unwrap() > third);
}

#[tokio::test]
async fn a_watch_from_a_lost_revision_has_its_client_list_again() {
    let bed = Bed::new();
    for revision in [revision(&bed) + 1_000, u64::MAX] {
        let path = format!("/api/v1/pods?watch=true&resourceVersion={revision}");
        // The answer ends with that one event.
        let (code, event) = bed.ask("GET", &path, &Value::Null).await;
        // embedded 17
        assert_eq!((code, &event["type"]), (200, &"ERROR".into()), "{event}");
        assert_eq!(event["object"]["code"], 410, "{event}");
    }
}

#[tokio::test]
async fn an_event_is_over_after_an_hour_in_which_nothing_happens() {
    let bed = Bed::new();
    let at: Timestamp = "2026-01-02T03:04:05Z".parse().unwrap();
    bed.view.happened.lock().unwrap().push(Happening {
        involved: pod_ref(&FullName::new("web", "default"), &PodUid::from("u-1"), None),
        event_type: EventType::Normal,
        reason: "Started".to_owned(),
        message: "Container started".to_owned(),
        at,
    });
    let mut before = 0;
    for (minutes, shown) in [(0, 1), (59, 1), (60, 0), (61, 0)] {
        let now = at + Duration::from_mins(minutes);
        let (found, revision) = bed.api.store.read_at(now, |cache| {
            let found = cache.list(&EVENTS, "default", &Selector::default());
            (found.len(), cache.revision())
        });
        // embedded 69
        assert_eq!(found, shown, "{minutes}");
        let is_news = [0, 60].contains(&minutes);
        assert_eq!(revision > before, is_news, "{minutes}");
        before = revision;
    }
}
