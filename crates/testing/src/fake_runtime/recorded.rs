//! The recorded calls of a [`FakeRuntime`].

use std::sync::Arc;

use mirrorlet_core::api::{ContainerId, Pod, PodUid};

use super::FakeRuntime;

/// The recorded calls.
impl FakeRuntime {
    /// Names of the functions called, in order.
    pub fn called_functions(&self) -> Vec<String> {
        self.shared.state.lock().called_functions.clone()
    }

    /// How often a function was called.
    pub fn call_count(&self, call: &str) -> usize {
        let state = self.shared.state.lock();
        state.called_functions.iter().filter(|c| *c == call).count()
    }

    /// The pods of executed plans with a sandbox or a start, in order.
    pub fn started_pods(&self) -> Vec<PodUid> {
        self.shared.state.lock().started_pods.clone()
    }

    /// A pod as it was in its last executed plan with a sandbox or a start.
    pub fn started_as(&self, uid: &PodUid) -> Option<Arc<Pod>> {
        self.shared.state.lock().started_as.get(uid).cloned()
    }

    /// Pods `kill_pod` was called for, in order.
    pub fn killed_pods(&self) -> Vec<PodUid> {
        self.shared.state.lock().killed_pods.clone()
    }

    /// Names of the containers started, in order.
    pub fn started_containers(&self) -> Vec<String> {
        self.shared.state.lock().started_containers.clone()
    }

    /// Names of the containers killed, in order.
    pub fn killed_containers(&self) -> Vec<String> {
        self.shared.state.lock().killed_containers.clone()
    }

    /// Pods whose files were given names, by `serve_names`, in order.
    pub fn named_pods(&self) -> Vec<Vec<PodUid>> {
        self.shared.state.lock().named_pods.clone()
    }

    /// Commands run in containers, in order.
    pub fn commands(&self) -> Vec<(ContainerId, Vec<String>)> {
        self.shared.state.lock().commands.clone()
    }

    /// Forgets what was recorded; the pods stay.
    pub fn clear_calls(&self) {
        self.change(|s| {
            s.called_functions.clear();
            s.started_pods.clear();
            s.killed_pods.clear();
            s.started_containers.clear();
            s.killed_containers.clear();
            s.commands.clear();
        });
    }

    /// Checks all calls and their order.
    ///
    /// # Panics
    /// The calls differ.
    #[track_caller]
    pub fn assert_calls(&self, calls: &[&str]) {
        assert_eq!(self.called_functions(), calls, "calls");
    }

    /// Checks how often a function was called.
    ///
    /// # Panics
    /// The number differs.
    #[track_caller]
    pub fn assert_call_counts(&self, call: &str, count: usize) {
        assert_eq!(self.call_count(call), count, "calls of {call}");
    }

    /// Checks [`started_pods`](Self::started_pods).
    ///
    /// # Panics
    /// They are others.
    #[track_caller]
    pub fn assert_started_pods(&self, uids: &[&str]) {
        let started = self.started_pods();
        let started: Vec<&str> = started.iter().map(PodUid::as_str).collect();
        assert_eq!(started, uids, "started pods");
    }

    /// Checks [`killed_pods`](Self::killed_pods).
    ///
    /// # Panics
    /// They are others.
    #[track_caller]
    pub fn assert_killed_pods(&self, uids: &[&str]) {
        let killed = self.killed_pods();
        let killed: Vec<&str> = killed.iter().map(PodUid::as_str).collect();
        assert_eq!(killed, uids, "killed pods");
    }

    /// Checks [`started_containers`](Self::started_containers).
    ///
    /// # Panics
    /// They are others.
    #[track_caller]
    pub fn assert_started_containers(&self, names: &[&str]) {
        assert_eq!(self.started_containers(), names, "started containers");
    }

    /// Checks [`killed_containers`](Self::killed_containers).
    ///
    /// # Panics
    /// They are others.
    #[track_caller]
    pub fn assert_killed_containers(&self, names: &[&str]) {
        assert_eq!(self.killed_containers(), names, "killed containers");
    }

    /// Checks that no call violated a runtime's rules: two running instances of a container, two
    /// running sandboxes of a pod, the removal of something running.
    ///
    /// # Panics
    /// A call did.
    #[track_caller]
    pub fn assert_no_violations(&self) {
        let violations = self.shared.state.lock().model.violations.clone();
        assert!(violations.is_empty(), "{violations:#?}");
    }
}
