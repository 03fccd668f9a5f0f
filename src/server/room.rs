//! Limits the number of concurrent requests on the agent's socket: streams leave room for commands that
//! end by themselves.

use std::sync::Arc;

use axum::http::StatusCode;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::admin::ApiError;

/// Maximum number of requests that run for as long as their client wants: followed logs, watches,
/// commands in containers and forwarded connections. Beyond it the answer is 503.
pub const STREAMS_MAX: usize = 64;
/// Most requests at a time, those included. However many streams there are, `status` and orders get in.
const REQUESTS_MAX: usize = STREAMS_MAX + 16;

/// The room for requests.
#[derive(Clone)]
pub(super) struct Room {
    requests: Arc<Semaphore>,
    streams: Arc<Semaphore>,
}

/// The slots of one request, released on drop.
pub(super) struct Permit(Vec<OwnedSemaphorePermit>);

impl Room {
    pub(super) fn new() -> Self {
        Self {
            requests: Arc::new(Semaphore::new(REQUESTS_MAX)),
            streams: Arc::new(Semaphore::new(STREAMS_MAX)),
        }
    }

    /// Admits a request.
    pub(super) fn admit(&self) -> Result<Permit, ApiError> {
        let request = Arc::clone(&self.requests).try_acquire_owned();
        let request = request.map_err(|_| {
            let words = format!("the agent is already serving {REQUESTS_MAX} requests");
            ApiError::new(StatusCode::SERVICE_UNAVAILABLE, words).help("repeat the command")
        })?;
        Ok(Permit(vec![request]))
    }

    /// Lets an admitted request run for as long as its client wants.
    pub(super) fn keep_open(&self, permit: &mut Permit) -> Result<(), ApiError> {
        let stream = Arc::clone(&self.streams).try_acquire_owned();
        let stream = stream.map_err(|_| {
            let words = format!(
                "the agent already has {STREAMS_MAX} followed logs, watches, sessions and forwarded connections open"
            );
            ApiError::new(StatusCode::SERVICE_UNAVAILABLE, words)
                .help("end a mirrorlet logs -f, status --watch, exec, attach or port-forward")
        })?;
        permit.0.push(stream);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_leave_room_for_other_requests() {
        let room = Room::new();
        let stream = || -> Result<Permit, ApiError> {
            let mut permit = room.admit()?;
            room.keep_open(&mut permit)?;
            Ok(permit)
        };
        let mut streams: Vec<Permit> = (0..STREAMS_MAX).map_while(|_| stream().ok()).collect();
        assert_eq!(streams.len(), STREAMS_MAX);
        // agent 14
        assert!(stream().is_err());
        let others: Vec<Permit> = (0..REQUESTS_MAX).map_while(|_| room.admit().ok()).collect();
        // agent 14
        assert_eq!(others.len(), REQUESTS_MAX - STREAMS_MAX);
        streams.pop();
        // agent 14
        assert!(stream().is_ok());
    }
}
