//! The open files that the system lets the agent and the approver have.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use mirrorlet_host::telemetry::occurrences;

/// Raises the limit of open files as far as the system lets us. Many a shell and container starts
/// with 1,024 for programs that use `select`, and a stream of a client takes several: without any
/// left, no probe can connect. Programs that the agent runs have the same limit.
pub(super) fn raise_limit() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        ..limit
    };
    if raised == limit {
        return;
    }
    if let Err(errno) = setrlimit(Resource::Nofile, raised) {
        occurrences::open_files_limited(limit.current, &std::io::Error::from(errno).to_string());
    }
}
