//! Passes on an Engine that came back, and may keep its images elsewhere.

use super::*;

#[tokio::test]
async fn the_disk_of_an_engine_that_came_back_is_read_where_it_is_now() {
    let mut bed = bed(false, ImageGcPolicy::default());
    bed.pass(0, 1000).await;
    bed.engine.keep_files_in("/mnt/docker");
    bed.pass(5, 1000).await;
    assert_eq!(*bed.disk.1.lock(), ["/var/lib/docker".into()].into());
    assert_eq!(bed.engine.count(Operation::Info), 1);
    bed.reconnects.add();
    bed.pass(10, 1000).await;
    let both = ["/mnt/docker", "/var/lib/docker"].map(PathBuf::from);
    // docker 51
    assert_eq!(*bed.disk.1.lock(), both.into());
}

#[tokio::test]
async fn an_engine_that_came_back_and_can_not_say_its_directory_keeps_the_disk_it_had() {
    let mut bed = bed(false, ImageGcPolicy::default());
    bed.pass(0, 1000).await;
    bed.pull("a:1", 60).await;
    bed.engine.keep_files_in("/mnt/docker");
    bed.reconnects.add();
    let error = EngineError::Unavailable {
        endpoint: "fake://engine".to_owned(),
        cause: "busy".to_owned(),
        is_shortage: false,
    };
    bed.engine
        .fail(Operation::Info, None, FaultPoint::Before, error);
    let now = bed.began + Duration::from_mins(10);
    bed.gc.collect(now, true).await;
    // docker 51
    assert!(bed.names().await.is_empty(), "what is unused goes");
    assert_eq!(*bed.disk.1.lock(), ["/var/lib/docker".into()].into());
    assert_eq!(bed.gc.report().borrow().error, None);
    // The next pass asks again.
    bed.pass(15, 1000).await;
    let both = ["/mnt/docker", "/var/lib/docker"].map(PathBuf::from);
    // docker 51
    assert_eq!(*bed.disk.1.lock(), both.into());
}
