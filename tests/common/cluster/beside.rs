//! A runtime beside those of the tests. Connections of a client belong to the runtime that made
//! them, and each test has its own: on one that outlives them all, a cluster needs one client.

use std::any::Any;
use std::panic::resume_unwind;
use std::sync::LazyLock;
use std::time::Duration;

use serde_json::Value;
use tokio::runtime::{Builder, Runtime};
use tokio::task::block_in_place;
use tokio::time::timeout;

use super::Cluster;

/// Longest wait for one answer of an API server, which itself gives up a request after a minute. kube waits
/// for ever, and the test with it.
const ANSWER_MAX: Duration = Duration::from_mins(2);

static BESIDE: LazyLock<Runtime> = LazyLock::new(|| {
    let mut builder = Builder::new_multi_thread();
    // All clusters of a program share it.
    builder.worker_threads(2).thread_name("beside").enable_all();
    builder.build().unwrap()
});

/// Runs a future on that runtime, and returns its result. The calling thread waits; other tasks of the
/// caller's runtime, which must be multi-threaded, go on. A panic of the future fails the caller.
#[track_caller]
pub fn wait<T: Send + 'static>(future: impl Future<Output = T> + Send + 'static) -> T {
    let task = BESIDE.spawn(future);
    match block_in_place(|| BESIDE.block_on(task)) {
        Ok(value) => value,
        Err(ended) => fail(ended.into_panic()),
    }
}

/// Panics for the same reason. What the thread of that runtime prints belongs to another test: the one
/// that was the first to use it.
#[track_caller]
fn fail(payload: Box<dyn Any + Send>) -> ! {
    let text = payload.downcast_ref::<String>().cloned();
    let literal = payload.downcast_ref::<&str>().map(ToString::to_string);
    match text.or(literal) {
        Some(reason) => panic!("{reason}"),
        None => resume_unwind(payload),
    }
}

/// The answer to a request; panics with its name if none comes.
pub async fn in_time<T>(name: &str, answer: impl Future<Output = T>) -> T {
    let answer = timeout(ANSWER_MAX, answer).await;
    answer.unwrap_or_else(|_| panic!("no answer for {} s: {name}", ANSWER_MAX.as_secs()))
}

impl Cluster {
    /// The answer to a request of an administrator.
    pub fn ask(&self, request: http::Request<Vec<u8>>) -> kube::Result<Value> {
        let client = self.client.clone();
        let name = format!("{} {}", request.method(), request.uri());
        wait(async move { in_time(&name, client.request(request)).await })
    }
}
