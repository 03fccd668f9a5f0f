//! The two forms of records.

use super::*;

fn ours(kind: Kind) -> OurContainer {
    OurContainer {
        uid: "1b671a64-40d5-491e-99b0-da01ff1f3341".into(),
        full_name: FullName::new("report-28912345-x7k2p", "batch"),
        grace: Duration::from_secs(30),
        kind,
    }
}

fn id(first: char) -> Arc<str> {
    let id: String = std::iter::once(first)
        .chain("0123456789abcdef".chars().cycle().take(63))
        .collect();
    id.into()
}

fn at(second: i64) -> Timestamp {
    Timestamp::new(1_767_225_600 + second, 123_456_789).unwrap()
}

fn container() -> Record {
    let sha = id('c');
    let kind = Kind::Container {
        name: "main".to_owned(),
        role: Role::App,
        restart_count: 2,
        pod_restarts: 1,
        hash: ContainerHash(0x1234_abcd),
        sandbox_id: id('a').to_string(),
        image_id: format!("registry.example/team/report@sha256:{sha}").into(),
        termination_path: "/dev/termination-log".to_owned(),
        fallback_to_logs: true,
        hooks: HookLabels::of_texts("{\"exec\":{}}".to_owned(), String::new()),
    };
    let mut record = Record::new(id('b'), ours(kind), at(0));
    record.state = ContainerState::Exited;
    (record.started_at, record.finished_at) = (Some(at(1)), Some(at(5)));
    record.exit_code = Some(3);
    record.image = "registry.example/team/report:1.2.3".into();
    record.reason = "Error".into();
    record.message = "\"no\" such\nfile".into();
    record.stopped_by_us = true;
    record.ran_before = true;
    let log =
        "/var/lib/mirrorlet/pods/1b671a64-40d5-491e-99b0-da01ff1f3341/containers/main/0f1e2d3c";
    record.termination_log = Some(log.into());
    record.touched = 17;
    record
}

fn sandbox() -> Record {
    let kind = Kind::Sandbox {
        attempt: 1,
        host_network: false,
        pod_started_at: Some(at(0)),
        forwarded_ports: Vec::new(),
    };
    let mut record = Record::new(id('a'), ours(kind), at(0));
    record.state = ContainerState::Exited;
    record.exit_code = Some(0);
    record.image = "registry.example/pause:3.10".into();
    record
}

/// Everything of a record that is ever read.
fn shown(record: &Record) -> String {
    let record = Record {
        inspecting: Arc::default(),
        ..record.clone()
    };
    let hooks = match &record.ours.kind {
        Kind::Container { hooks, .. } => format!("{:?}", hooks.texts()),
        Kind::Sandbox { .. } => String::new(),
    };
    format!("{record:#?}{hooks}")
}

fn bytes(records: &Records) -> usize {
    let forms = records.forms.values().map(|form| match form {
        Form::Whole(_) => panic!("it is whole"),
        Form::Ended(ended) => size_of::<Ended>() + ended.text.len(),
    });
    // An id is 64 characters with two counts.
    let places = records.forms.capacity() * (size_of::<(Arc<str>, Form)>() + 1);
    forms.sum::<usize>() + places + records.forms.len() * (64 + 16)
}

#[test]
fn of_a_container_that_has_ended_all_is_kept_in_a_third_of_the_bytes() {
    let mut records = Records::default();
    for record in [container(), sandbox()] {
        let id = Arc::clone(&record.id);
        records.insert(record.clone());
        assert_eq!(shown(&records.get(&id).unwrap()), shown(&record));
    }
    assert_eq!(records.whole().count(), 0);
    assert_eq!(records.all().count(), 2);
    let uid = container().ours.uid.clone();
    assert_eq!(records.of_pod(&uid).len(), 2);
    assert!(records.of_pod(&"1b671a64".into()).is_empty());
    records.retain(|_, _| true);
    // node 6k
    assert!(bytes(&records) < 1_000, "{}", bytes(&records));
}

#[test]
fn a_record_that_may_change_is_whole() {
    let changes: [fn(&mut Record); 4] = [
        |record| record.state = ContainerState::Running,
        |record| record.stale = true,
        |record| record.image_id = Arc::default(),
        |record| record.ips = vec!["10.0.0.1".parse().unwrap()],
    ];
    for change in changes {
        let mut records = Records::default();
        let id = id('b');
        records.insert(container());
        assert!(records.is_known_ended(&id, 18));
        assert_eq!(records.change(&id, change), Some(()));
        assert_eq!(records.whole().count(), 1);
        assert!(!records.is_known_ended(&id, 19));
        // It ends again.
        let ended = records.change(&id, |record| {
            *record = Record {
                touched: 20,
                ..container()
            };
        });
        assert!(ended.is_some() && records.whole().count() == 0);
        records.retain(|_, touched| touched > 20);
        assert!(!records.contains(&id));
        assert!(records.texts.is_empty());
    }
}
