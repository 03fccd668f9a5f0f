//! The checks, on values and on a socket of the test.

use std::sync::Arc;

use super::*;
use mirrorlet_docker::Operation;
use mirrorlet_docker::engine::EngineError;
use mirrorlet_testing::FakeEngine;
use mirrorlet_testing::fake_engine::FaultPoint;

#[tokio::test]
async fn who_listens_here_shares_everything() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    let docker = format!("unix://{}", path.display());
    assert_eq!(peer(&docker).await, Peer::default());
    let _listener = tokio::net::UnixListener::bind(&path).unwrap();
    let found = peer(&docker).await;
    let all = Peer {
        is_seen: Some(true),
        shares_mounts: Some(true),
        shares_network: Some(true),
    };
    assert_eq!(found, all);
    assert!(!is_apart(found));
}

#[test]
fn the_hosts_side_of_a_network_is_found_by_bridge_or_address() {
    let side = |bridge: Option<&str>, gateways: &[&str]| HostSide {
        bridge: bridge.map(str::to_owned),
        gateways: gateways.iter().map(|ip| ip.parse().unwrap()).collect(),
        ..HostSide::default()
    };
    // TEST-NET-1 is nobody's address; `lo` and its address are everybody's.
    for (bridge, gateways, found) in [
        (None, &[][..], None),
        (Some("lo"), &[], Some(true)),
        (Some("no-such-bridge"), &[], Some(false)),
        (None, &["127.0.0.1"], Some(true)),
        (None, &["192.0.2.1"], Some(false)),
        (Some("lo"), &["192.0.2.1"], Some(true)),
        (
            Some("no-such-bridge"),
            &["192.0.2.1", "127.0.0.1"],
            Some(true),
        ),
    ] {
        let side = side(bridge, gateways);
        assert_eq!(has_host_side(&side), found, "{side:?}");
    }
}

#[test]
fn owners_before_are_those_of_containers_of_the_same_pods() {
    let labels = |owner: &str, uid: &str| {
        HashMap::from(
            [(keys::OWNER, owner), (keys::POD_UID, uid)].map(|(k, v)| (k.to_owned(), v.to_owned())),
        )
    };
    let listed = [
        labels("old", "a"),
        labels("new", "a"),
        labels("other", "c"),
        labels("old", "b"),
    ];
    let orphans = BTreeSet::from(["a".into(), "b".into()]);
    let owners = owners_before("new", &orphans, listed.into_iter());
    assert_eq!(owners, BTreeSet::from(["old".to_owned()]));
    let report = lost_owner(Path::new("/r"), "new", &owners);
    assert!(report.help.contains("write old to /r/owner"), "{report:?}");
    // A container of an image that was made of a pod's container has the label, too.
    let removal = "(docker rm -fv $(docker ps -aq --filter name=^k8s_ --filter label=";
    assert!(report.help.contains(removal), "{report:?}");
}

#[test]
fn interfaces_are_compared_by_their_whole_names() {
    let listed = "Inter-|   Receive\n face |bytes\n    lo: 1 2\n docker0: 3 4\n";
    assert!(has_interface(listed, "docker0"));
    for name in ["docker", "docker01", "1 2", ""] {
        assert!(!has_interface(listed, name), "{name}");
    }
}

#[test]
fn who_is_not_among_our_processes_has_other_files() {
    let unseen = Peer {
        is_seen: Some(false),
        ..Peer::default()
    };
    assert!(is_apart(unseen));
}

/// A look at an Engine whose socket the test has, so it finds all that it needs without a trial.
fn looking_at(engine: &Arc<FakeEngine>, dir: &Path) -> HostLook {
    HostLook {
        root: dir.to_owned(),
        docker: format!("unix://{}", dir.join("socket").display()),
        host_root: None,
        network: DEFAULT_NETWORK.to_owned(),
        engine: engine.clone(),
        files: HostFiles::default(),
        telemetry: Telemetry::new(),
        published: watch::Sender::default(),
        missing: Vec::new(),
        owner: "o".to_owned(),
        orphans: BTreeSet::new(),
        lost: None,
    }
}

#[tokio::test(start_paused = true)]
async fn a_look_that_fails_is_repeated_until_one_succeeds() {
    let dir = tempfile::tempdir().unwrap();
    let _listener = tokio::net::UnixListener::bind(dir.path().join("socket")).unwrap();
    let engine = Arc::new(FakeEngine::new());
    let refuse = || {
        let error = EngineError::Api {
            status: 500,
            message: "not yet".to_owned(),
        };
        engine.fail(Operation::Info, None, FaultPoint::Before, error);
    };
    let looks_after = async |seconds| {
        sleep(Duration::from_secs(seconds)).await;
        engine.count(Operation::Info)
    };
    refuse();
    refuse();
    let (reach, reader) = watch::channel(RuntimeReach::Up);
    let running = tokio::spawn(looking_at(&engine, dir.path()).run(reader));
    assert_eq!(looks_after(1).await, 1);
    assert!(UsedEngine::read(dir.path()).unwrap().is_none());
    // installed 7
    assert_eq!(looks_after(5).await, 2, "5 s after the first");
    assert_eq!(looks_after(5).await, 2, "10 s after the second");
    assert_eq!(looks_after(5).await, 3);
    let kept = UsedEngine::read(dir.path()).unwrap().unwrap();
    assert_eq!(kept.owner, "o");
    // installed 7
    assert_eq!(looks_after(600).await, 3, "a look that succeeded is enough");
    refuse();
    reach.send(RuntimeReach::Up).unwrap();
    assert_eq!(looks_after(1).await, 4);
    assert_eq!(looks_after(5).await, 5, "the pauses begin anew");
    refuse();
    reach.send(RuntimeReach::Up).unwrap();
    assert_eq!(looks_after(1).await, 6);
    reach.send(RuntimeReach::Down("away".to_owned())).unwrap();
    assert_eq!(looks_after(600).await, 6, "there is nobody to ask");
    running.abort();
}
