//! A runtime beside those of the tests. Connections of a client belong to the runtime that made
//! them, and each test has its own: on one that outlives them all, a cluster needs one client.

use std::sync::{LazyLock, mpsc};

use serde_json::Value;
use tokio::runtime::{Builder, Runtime};
use tokio::task::block_in_place;

use super::Cluster;

static BESIDE: LazyLock<Runtime> = LazyLock::new(|| {
    let mut builder = Builder::new_multi_thread();
    builder.worker_threads(1).thread_name("beside").enable_all();
    builder.build().unwrap()
});

/// What comes of it on that runtime. Whoever asks waits; other tasks of its own runtime go on, which
/// has to be one of many threads.
pub fn wait<T: Send + 'static>(future: impl Future<Output = T> + Send + 'static) -> T {
    let (told, value) = mpsc::sync_channel(1);
    BESIDE.spawn(async move {
        let _ = told.send(future.await);
    });
    block_in_place(|| value.recv()).expect("it panicked, and has said why")
}

impl Cluster {
    /// The answer to a request of an administrator.
    pub fn ask(&self, request: http::Request<Vec<u8>>) -> kube::Result<Value> {
        let client = self.client.clone();
        wait(async move { client.request(request).await })
    }
}
