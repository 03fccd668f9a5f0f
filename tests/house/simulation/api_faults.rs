//! The things that happen to the API server in a life, and what people do there.

use std::time::Duration;

use mirrorlet_apimachinery::meta;
use mirrorlet_apimachinery::resources::PODS;
use mirrorlet_testing::FakeApi;
use mirrorlet_testing::fake_api::{ApiFault, Reach};

use super::cluster::NODE;
use super::versions::NAMESPACE;
use super::world::World;

/// The calls that may fail.
const CALLS: [&str; 10] = [
    "POST pods",
    "DELETE pods",
    "PATCH pods/status",
    "GET pods",
    "LIST pods",
    "WATCH pods",
    "POST nodes",
    "PATCH nodes/status",
    "WATCH nodes",
    "PUT leases",
];
/// The codes of refusals that pass.
const CODES: [u16; 4] = [429, 500, 503, 504];
/// How late an answer comes, and how late watches deliver, in milliseconds.
const LATE: [u64; 3] = [700, 12_000, 90_000];
const LAGS: [u64; 4] = [0, 300, 4_000, 60_000];
/// The time until the controllers take note of a Node that is gone, in seconds.
const COLLECTED_AFTER: [u64; 3] = [0, 3, 60];

/// A kind of turn that is about the API server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ApiTurn {
    Away,
    Back,
    Calls,
    Watches,
    DeleteMirror,
    TakeName,
    DeleteNode,
    Bind,
    Unbind,
    ExitOrdinary,
}

impl World {
    /// One thing happens to the API server, if the life has one.
    pub(super) async fn api_turn(&mut self, turn: ApiTurn, name: u64) {
        let Some(api) = self.api.clone() else {
            return;
        };
        match turn {
            ApiTurn::Away => {
                let reach = self.dice.one_of(&[Reach::Refused, Reach::Silent]);
                self.note(&format!("the API server is away: {reach:?}"));
                api.set_reach(reach);
            }
            ApiTurn::Back => {
                self.note("the API server is back");
                api.set_reach(Reach::Up);
            }
            ApiTurn::Calls => self.fail_api_calls(&api),
            ApiTurn::Watches => self.disturb_watches(&api),
            ApiTurn::DeleteMirror => {
                let is_forced = self.dice.roll(2) == 0;
                let words = if is_forced { ", by force" } else { "" };
                self.note(&format!("somebody deletes the mirror of {name}{words}"));
                let pod = format!("pod-{name}");
                if is_forced {
                    api.remove_pod(NAMESPACE, &pod);
                } else {
                    api.delete_pod(NAMESPACE, &pod);
                }
            }
            ApiTurn::TakeName => {
                self.note(&format!(
                    "another pod takes the name of {name}, if it is free"
                ));
                api.take_name(NAMESPACE, &format!("pod-{name}"));
            }
            ApiTurn::Bind => self.bind().await,
            ApiTurn::Unbind => self.unbind(),
            ApiTurn::ExitOrdinary => self.exit_ordinary(),
            ApiTurn::DeleteNode => {
                let after = Duration::from_secs(self.dice.one_of(&COLLECTED_AFTER));
                self.note("somebody deletes the Node");
                api.delete_node(NODE);
                if self.collects {
                    self.note(&format!("    its pods follow after {after:?}"));
                    tokio::spawn(async move {
                        tokio::time::sleep(after).await;
                        api.collect_garbage();
                    });
                }
            }
        }
    }

    fn fail_api_calls(&mut self, api: &FakeApi) {
        let call = self.dice.one_of(&CALLS);
        let count = usize::try_from(self.dice.roll(3)).unwrap() + 1;
        let late = Duration::from_millis(self.dice.one_of(&LATE));
        let code = self.dice.one_of(&CODES);
        let fault = self.dice.one_of(&[
            ApiFault::Refused(code),
            ApiFault::AnswerLost,
            ApiFault::Late(late),
        ]);
        self.note(&format!("{count} calls of {call}: {fault:?}"));
        api.fail_next_calls(call, count, fault);
    }

    fn disturb_watches(&mut self, api: &FakeApi) {
        match self.dice.roll(3) {
            0 => {
                self.note("watches break");
                api.break_watches();
            }
            1 => {
                self.note("watches break, and their place in the history is lost");
                api.forget_history();
            }
            _ => {
                let lag = Duration::from_millis(self.dice.one_of(&LAGS));
                self.note(&format!("watches are {lag:?} late"));
                api.set_lag(lag);
            }
        }
    }

    /// The API server is well again. What took a name goes, and the controllers that were slow do
    /// their work.
    pub(super) fn end_api_faults(&self) {
        let Some(api) = &self.api else {
            return;
        };
        api.end_faults();
        for pod in api.objects(&PODS) {
            if pod["spec"]["nodeName"].is_null() {
                api.remove_pod(meta::namespace(&pod), meta::name(&pod));
            }
        }
        if self.collects {
            api.collect_garbage();
        }
    }
}
