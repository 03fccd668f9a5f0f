//! The limit of open files for the agent and the approver.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use mirrorlet_host::telemetry::occurrences;

/// Raises the limit of open files as far as the system allows. Many shells and containers start with
/// 1,024, for programs that use `select`, and one client's stream takes several: at the limit, no probe
/// can connect. Programs that the agent runs inherit the limit.
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
