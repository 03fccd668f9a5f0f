//! The requests of the tests themselves.

use crate::common::cluster::beside::in_time;

/// An API server that takes a request and is silent, as one that has no processor left.
#[tokio::test(start_paused = true)]
#[should_panic(expected = "no answer for 120 s: GET /api/v1/pods")]
async fn a_request_that_is_never_answered_fails_its_test() {
    in_time("GET /api/v1/pods", std::future::pending::<()>()).await;
}
