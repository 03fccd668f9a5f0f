use super::*;

fn name(name: &str) -> FullName {
    FullName::new(name, "default")
}

fn note(journal: &Journal, pod: &str, kind: Kind, reason: &str) {
    journal.pod(&name(pod), &"u".into(), None, kind, reason, "x");
}

fn reasons(entries: &[Entry]) -> Vec<&str> {
    entries.iter().map(|entry| &*entry.reason).collect()
}

#[tokio::test]
async fn a_story_has_everything_and_events_have_no_traces() {
    let journal = Journal::default();
    let mut submissions = journal.subscribe();
    note(&journal, "web", Kind::Normal, "A");
    note(&journal, "web", Kind::Trace, "B");
    note(&journal, "db", Kind::Warning, "C");
    journal.node(Kind::Normal, "D", "x");
    assert_eq!(reasons(&journal.story(&name("web"))), ["A", "B"]);
    let (entries, lost) = submissions.next().await;
    assert_eq!((reasons(&entries), lost), (vec!["A", "C", "D"], 0));
    assert_eq!(reasons(&journal.entries(0)), ["A", "B", "C", "D"]);
    assert_eq!(reasons(&journal.entries(2)), ["C", "D"]);
    assert!(journal.entries(4).is_empty());
}

#[test]
fn the_troubles_of_a_pod_are_the_failed_probes_and_hooks_of_its_containers() {
    let journal = Journal::default();
    let web = |uid: &str, container, reason, message: &str| {
        let uid = uid.into();
        journal.pod(
            &name("web"),
            &uid,
            container,
            Kind::Warning,
            reason,
            message,
        );
    };
    web("u", Some("a"), UNHEALTHY, "Readiness probe failed: 503");
    web("u", Some("b"), POST_START_FAILED, "PostStartHook failed");
    web("u", Some("a"), "BackOff", "other reason");
    web("v", Some("a"), UNHEALTHY, "other pod");
    web("u", None, UNHEALTHY, "no container");
    let found = journal.troubles(&name("web"), &"u".into());
    let found: Vec<_> = found
        .iter()
        .map(|trouble| (&*trouble.container, trouble.what, &*trouble.message))
        .collect();
    let expected = [
        ("a", Failed::Probe, "Readiness probe failed: 503"),
        ("b", Failed::PostStart, "PostStartHook failed"),
    ];
    assert_eq!(found, expected);
}

/// Pods that are over are many, and the story of each has twenty entries.
#[test]
fn entries_share_their_subject_and_their_reason() {
    let journal = Journal::default();
    for (pod, container) in [("web", "a"), ("web", "b"), ("web", "a"), ("db", "a")] {
        let (name, uid) = (name(pod), "u".into());
        journal.pod(&name, &uid, Some(container), Kind::Trace, "Started", "x");
    }
    let (web, db) = (journal.story(&name("web")), journal.story(&name("db")));
    assert!(Arc::ptr_eq(&web[0].subject, &web[2].subject));
    assert_ne!(web[0].subject, web[1].subject);
    assert_ne!(web[0].subject, db[0].subject);
    assert!(Arc::ptr_eq(&web[0].reason, &db[0].reason));
    for number in 0..2 * REASONS_MAX {
        note(&journal, "web", Kind::Trace, &number.to_string());
    }
    let held = journal.0.stories.lock().reasons.len();
    assert_eq!(held, REASONS_MAX);
}

#[tokio::test]
async fn a_warning_told_again_and_again_leaves_room_for_others() {
    let journal = Journal::default();
    let mut submissions = journal.subscribe();
    note(&journal, "web", Kind::Normal, "Started");
    for _ in 0..STORY_MAX {
        note(&journal, "web", Kind::Warning, "Unhealthy");
        note(&journal, "web", Kind::Warning, "BackOff");
    }
    note(&journal, "web", Kind::Normal, "Started");
    note(&journal, "web", Kind::Normal, "Started");
    assert_eq!(
        reasons(&journal.story(&name("web"))),
        ["Started", "Unhealthy", "BackOff", "Started", "Started"]
    );
    // The recorder counts them itself.
    assert_eq!(submissions.next().await.0.len(), 2 * STORY_MAX + 3);
}

#[tokio::test]
async fn nothing_is_kept_for_a_recorder_that_is_not_there() {
    let journal = Journal::default();
    note(&journal, "web", Kind::Normal, "Early");
    drop(journal.subscribe());
    note(&journal, "web", Kind::Normal, "Between");
    let mut submissions = journal.subscribe();
    note(&journal, "web", Kind::Normal, "Late");
    assert_eq!(reasons(&submissions.next().await.0), ["Late"]);
}

#[tokio::test]
async fn the_oldest_goes_first_and_is_counted() {
    let journal = Journal::default();
    let mut submissions = journal.subscribe();
    for i in 0..PENDING_MAX + 3 {
        note(&journal, "web", Kind::Normal, &i.to_string());
    }
    let (entries, lost) = submissions.next().await;
    assert_eq!((entries.len(), lost), (PENDING_MAX, 3));
    assert_eq!(&*entries[0].reason, "3");
    let story = journal.story(&name("web"));
    assert_eq!(story.len(), STORY_MAX);
    assert_eq!(story.last(), entries.last());
}

#[tokio::test]
async fn an_event_of_a_workload_is_kept_and_not_written_to_a_cluster() {
    let journal = Journal::default();
    let mut submissions = journal.subscribe();
    let key = WorkloadKey::of_owner("default", "Job/once").unwrap();
    journal.workload(&WorkloadEvent {
        key,
        event_type: EventType::Warning,
        reason: "DeadlineExceeded".to_owned(),
        message: "x".to_owned(),
    });
    note(&journal, "web", Kind::Normal, "Started");
    let entries = journal.entries(0);
    let happening = entries[0].happening(&"box".into()).unwrap();
    let involved = happening.involved;
    assert_eq!(involved.kind.as_deref(), Some("Job"));
    assert_eq!(involved.api_version.as_deref(), Some("batch/v1"));
    assert_eq!(
        (involved.name.as_deref(), involved.uid),
        (Some("once"), None)
    );
    assert_eq!(journal.names(), [name("web")]);
    // A Job of that name there is another one.
    let (submitted, _) = submissions.next().await;
    assert_eq!(submitted, entries[1..]);
}

#[test]
fn the_longest_story_pays_for_all() {
    let journal = Journal::default();
    let long = |i: usize| format!("{i} {}", "…".repeat(4 << 10));
    note(&journal, "web", Kind::Normal, "Started");
    // More names and messages than fit: one tenant's pods that fail differently each time.
    for pod in 0..STORIES_MAX / 4 {
        for i in 0..STORY_MAX {
            let (pod, uid) = (name(&format!("p{pod}")), "u".into());
            journal.pod(&pod, &uid, None, Kind::Warning, "Unhealthy", long(i));
        }
    }
    let stories = journal.0.stories.lock();
    let (pods, held) = (&stories.all, stories.bytes);
    assert_eq!(held, pods.values().map(|story| story.bytes).sum::<usize>());
    assert!(held > BYTES_MAX / 2, "{held}");
    for (name, story) in pods {
        let own: usize = story.entries.iter().map(bytes).sum();
        assert_eq!(story.bytes, own, "{name:?}");
        let lengths = story.entries.iter().map(|entry| entry.message.len());
        assert!(lengths.max() <= Some(MESSAGE_BYTES_MAX), "{name:?}");
    }
    drop(stories);
    // events 8
    assert!(held <= BYTES_MAX, "{held}");
    // Who is quiet keeps all.
    assert_eq!(reasons(&journal.story(&name("web"))), ["Started"]);
    assert!(!journal.is_cut(&name("web")));
    assert!(journal.is_cut(&name("p0")));
    let last = journal.story(&name("p0")).pop().unwrap();
    assert!(last.message.starts_with(&format!("{} …", STORY_MAX - 1)));
}

#[test]
fn the_most_silent_pod_is_forgotten() {
    let journal = Journal::default();
    for i in 0..STORIES_MAX {
        note(&journal, &format!("p{i}"), Kind::Trace, "A");
    }
    note(&journal, "p0", Kind::Trace, "B");
    note(&journal, "new", Kind::Trace, "C");
    assert_eq!(journal.story(&name("p0")).len(), 2);
    assert!(journal.story(&name("p1")).is_empty());
    assert_eq!(journal.story(&name("new")).len(), 1);
}
