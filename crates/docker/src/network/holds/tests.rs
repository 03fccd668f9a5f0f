//! How long a container that is told to end is taken to be ending.

use super::*;
use crate::fake_engine::FakeEngine;
use crate::index::Created;
use crate::translate::OurContainer;
use mirrorlet_core::observed::UserAction;

const ID: &str = "0123456789abcdef";
const UID: &str = "uid-1";

fn full_name() -> FullName {
    FullName::new("web", "default")
}

/// One that is about to be stopped.
fn ending() -> Between {
    let stop = Stop {
        id: ID.into(),
        uid: UID.into(),
        port: None,
        kill_at: kill_at(Duration::from_secs(30)),
        failed: None,
    };
    Between::new(&full_name(), Some(stop))
}

/// How long ago the container was signalled, as the decision sees it.
async fn since(holds: &Holds, between: &mut Between) -> Duration {
    let port = HeldPort {
        host_ip: None,
        host_port: 80,
    };
    match holds.look_at(port, between).await {
        Gap::Stopping { since, .. } => since,
        gap => panic!("{gap:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_container_has_its_time_to_end_from_its_signal_on() {
    let engine = Arc::new(FakeEngine::new());
    let containers = Arc::new(Containers::new(engine, "me".to_owned(), 4));
    let index = &containers.index;
    index.created(Created {
        id: ID.into(),
        ours: OurContainer {
            uid: UID.into(),
            full_name: full_name(),
            grace: Duration::from_secs(30),
            kind: Kind::Sandbox {
                attempt: 0,
                host_network: false,
                pod_started_at: None,
                forwarded_ports: Vec::new(),
            },
        },
        image: "app:1".into(),
        at: Timestamp::UNIX_EPOCH,
    });
    let holds = Holds::new(Arc::clone(&containers), "t".to_owned());
    let pass = |seconds| tokio::time::advance(Duration::from_secs(seconds));
    let seconds = Duration::from_secs;

    let mut between = ending();
    index.stopping(ID);
    pass(3).await;
    assert_eq!(since(&holds, &mut between).await, seconds(3));
    // The Engine was slow. Its server may close its port from now on.
    index.handled(ID, UserAction::Signalled, true);
    // rollouts S6
    assert_eq!(since(&holds, &mut between).await, seconds(0));
    pass(1).await;
    // SIGKILL is no new beginning.
    index.handled(ID, UserAction::Signalled, false);
    assert_eq!(since(&holds, &mut between).await, seconds(1));
    // That stop failed, and there is another one, which has not been reported yet.
    let mut between = ending();
    assert_eq!(since(&holds, &mut between).await, seconds(0));
    pass(1).await;
    assert_eq!(since(&holds, &mut between).await, seconds(1));
}
