//! The things that happen in a life.

use std::time::Duration;

use mirrorlet_core::api::PodUid;
use mirrorlet_runtime::{RuntimeError, SyncError, SyncErrorReason};
use mirrorlet_testing::fake_runtime::{CallFault, EventFate};

use super::api_faults::ApiTurn;
use super::invariants::{has_sandbox, runs};
use super::versions::Temper;
use super::world::{NAMES, Weather, World};

/// Pauses after a turn, in milliseconds.
const PAUSES: [u64; 7] = [0, 0, 10, 300, 3_000, 20_000, 90_000];
/// How long a call hangs.
const HANGS: Duration = Duration::from_mins(2);
/// Jumps of the clock, in seconds.
const JUMPS: [i64; 4] = [SET_BACK, -60, 60, 3600];
/// More than any wait.
const SET_BACK: i64 = -3600;
/// Time in which a container that exited for the first time has been started again.
const RESTARTED: Duration = Duration::from_secs(1);
/// The calls that may fail; `step` is one step of a plan.
const CALLS: [&str; 9] = [
    "sync_pod",
    "step",
    "kill_pod",
    "delete_pod",
    "get_pod_status",
    "get_pods",
    "prepare_pod",
    "run_in_container",
    "serve_host_ports",
];

/// The faults that may happen in one turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Turn {
    Write(Temper),
    WriteUnprepared,
    PutBack,
    Remove,
    MoveAwayAndBack,
    Exit,
    LoseSandbox,
    Events,
    Calls,
    Hang,
    FailStart,
    Away,
    Back,
    Restart,
    Jump,
    ExitAndSetBack,
    Disk,
    StopAgent,
    KillAgent,
    WriteAndKill,
    Api(ApiTurn),
}

/// How often each happens.
const TURNS: [(Turn, u64); 32] = [
    (Turn::Write(Temper::Good), 5),
    (Turn::Write(Temper::Crashes), 2),
    (Turn::Write(Temper::NeverReady), 1),
    (Turn::WriteUnprepared, 1),
    (Turn::PutBack, 2),
    (Turn::Remove, 1),
    (Turn::MoveAwayAndBack, 1),
    (Turn::Exit, 2),
    (Turn::LoseSandbox, 1),
    (Turn::Events, 2),
    (Turn::Calls, 3),
    (Turn::Hang, 1),
    (Turn::FailStart, 1),
    (Turn::Away, 1),
    (Turn::Back, 1),
    (Turn::Restart, 1),
    (Turn::Jump, 1),
    (Turn::ExitAndSetBack, 1),
    (Turn::Disk, 1),
    (Turn::StopAgent, 1),
    (Turn::KillAgent, 2),
    (Turn::WriteAndKill, 1),
    (Turn::Api(ApiTurn::Away), 1),
    (Turn::Api(ApiTurn::Back), 2),
    (Turn::Api(ApiTurn::Calls), 3),
    (Turn::Api(ApiTurn::Watches), 2),
    (Turn::Api(ApiTurn::DeleteMirror), 2),
    (Turn::Api(ApiTurn::TakeName), 1),
    (Turn::Api(ApiTurn::DeleteNode), 1),
    (Turn::Api(ApiTurn::Bind), 2),
    (Turn::Api(ApiTurn::Unbind), 1),
    (Turn::Api(ApiTurn::ExitOrdinary), 2),
];

impl Turn {
    fn may_happen(self, weather: Weather, has_api: bool) -> bool {
        match self {
            Self::Write(_)
            | Self::WriteUnprepared
            | Self::PutBack
            | Self::Remove
            | Self::MoveAwayAndBack
            | Self::WriteAndKill => weather != Weather::Still,
            Self::Exit
            | Self::LoseSandbox
            | Self::Hang
            | Self::FailStart
            | Self::Away
            | Self::Restart
            | Self::Jump
            | Self::ExitAndSetBack => weather != Weather::Fair,
            Self::Events
            | Self::Calls
            | Self::Back
            | Self::Disk
            | Self::StopAgent
            | Self::KillAgent => true,
            Self::Api(_) => has_api,
        }
    }
}

fn refused() -> RuntimeError {
    RuntimeError::Refused {
        status: 500,
        message: "dice".to_owned(),
    }
}

impl World {
    /// One thing happens, and a pause follows.
    pub(super) async fn turn(&mut self) {
        let turn = self.throw_turn();
        let name = self.dice.roll(NAMES);
        match turn {
            Turn::Write(temper) => self.edit(name, temper),
            Turn::WriteUnprepared => self.edit_unprepared(name),
            Turn::PutBack => self.put_back(name),
            Turn::Remove => {
                self.note(&format!("remove {name}"));
                self.remove(name);
            }
            Turn::MoveAwayAndBack => self.move_away_and_back(name).await,
            Turn::Exit => self.exit(name),
            Turn::LoseSandbox => self.lose_sandbox(name),
            Turn::Events => self.disturb_events(),
            Turn::Calls => self.fail_calls(),
            Turn::Hang => self.hang_call(),
            Turn::FailStart => self.fail_start(),
            Turn::Away => {
                self.note("the runtime goes away");
                self.known.disturbed = true;
                let gone = RuntimeError::Unavailable("dice".to_owned());
                self.fake.set_err(Some(gone));
                self.fake.break_watches();
            }
            Turn::Back => {
                self.note("the runtime is back");
                self.fake.set_err(None);
            }
            Turn::Restart => self.restart_runtime().await,
            Turn::Jump => {
                let seconds = self.dice.one_of(&JUMPS);
                self.jump(seconds);
            }
            Turn::ExitAndSetBack => self.exit_and_set_back(name).await,
            Turn::Disk => self.fill_disk(),
            Turn::StopAgent => {
                self.note("the agent is stopped and started");
                self.stop_agent().await;
                self.start_agent();
            }
            Turn::KillAgent => self.kill_and_start().await,
            Turn::Api(turn) => self.api_turn(turn, name).await,
            Turn::WriteAndKill => {
                self.edit(name, Temper::Good);
                self.kill_and_start().await;
            }
        }
        let pause = self.dice.one_of(&PAUSES);
        tokio::time::sleep(Duration::from_millis(pause)).await;
        self.check_now();
    }

    fn throw_turn(&mut self) -> Turn {
        let sides = TURNS.iter().map(|(_, often)| often).sum();
        loop {
            let mut roll = self.dice.roll(sides);
            for (turn, often) in TURNS {
                if roll < often && turn.may_happen(self.weather, self.api.is_some()) {
                    return turn;
                }
                let Some(left) = roll.checked_sub(often) else {
                    break;
                };
                roll = left;
            }
        }
    }

    fn edit(&mut self, name: u64, temper: Temper) {
        let number = self.throw(name, temper);
        let strategy = self.ever[number].strategy();
        self.note(&format!("write {name}: v{number}, {temper:?}, {strategy}"));
        self.write(number);
    }

    fn edit_unprepared(&mut self, name: u64) {
        let number = self.throw(name, Temper::Good);
        self.note(&format!("write {name}: v{number}, which can't be prepared"));
        let error = SyncError::new(SyncErrorReason::ErrImagePull, "dice");
        let uid = self.ever[number].uid();
        self.fake.set_preparation_fault(&uid, Some(error));
        self.write_unprepared(number);
    }

    fn put_back(&mut self, name: u64) {
        let known = self.ever.iter().enumerate();
        let known: Vec<usize> = known
            .filter(|(_, version)| version.name == name)
            .map(|(number, _)| number)
            .collect();
        let recent = &known[known.len().saturating_sub(4)..];
        if recent.is_empty() {
            return;
        }
        let number = self.dice.one_of(recent);
        self.note(&format!("write {name}: v{number} again"));
        self.write(number);
    }

    async fn move_away_and_back(&mut self, name: u64) {
        let away = Duration::from_millis(self.dice.one_of(&[0, 5, 300, 30_000]));
        let Some(number) = self.manifests.get(&name).copied() else {
            return;
        };
        self.note(&format!("move {name} away, and back after {away:?}"));
        self.remove(name);
        tokio::time::sleep(away).await;
        self.write(number);
    }

    /// The UID of the version of a pod that runs.
    fn running(&self, name: u64) -> Option<PodUid> {
        let versions = self.ever.iter().filter(|version| version.name == name);
        let mut uids = versions.map(super::versions::Version::uid);
        uids.find(|uid| self.fake.pod(uid).running_containers().next().is_some())
    }

    fn exit(&mut self, name: u64) {
        let container = self.dice.roll(3);
        self.exit_of(name, container);
    }

    fn exit_of(&mut self, name: u64, container: u64) {
        let container = format!("c{container}");
        let code = i32::try_from(self.dice.roll(2)).unwrap();
        let uid = self.running(name);
        self.note(&format!(
            "{container} of {name} exits with {code}, if it runs"
        ));
        if let Some(uid) = uid.filter(|uid| runs(&self.fake.pod(uid), &container)) {
            self.known.disturbed = true;
            self.known.touch(name, &container);
            let version = self.ever.iter().find(|version| version.uid() == uid);
            if version.is_some_and(|version| version.restarts_all(&container, code)) {
                self.known.touch_all(name);
            }
            self.fake.exit_container(&uid, &container, code);
        }
    }

    fn lose_sandbox(&mut self, name: u64) {
        let uid = self.running(name);
        self.note(&format!("the sandbox of {name} dies, if it runs"));
        if let Some(uid) = uid.filter(|uid| has_sandbox(&self.fake.pod(uid))) {
            self.known.disturbed = true;
            self.known.touch_all(name);
            self.fake.lose_sandbox(&uid);
        }
    }

    /// In fair weather no event is lost, and none comes so late that a version passes its judgement
    /// before the agent hears that it has crashed.
    fn disturb_events(&mut self) {
        let is_fair = self.weather == Weather::Fair;
        let loses = !is_fair && self.ways.sweeps;
        let delays: &[u64] = if is_fair {
            &[1, 20, 700]
        } else {
            &[1, 20, 700, 40_000]
        };
        let fates: Vec<EventFate> = (0..=self.dice.roll(6))
            .map(|_| match self.dice.roll(4) {
                0 if loses => EventFate::Lost,
                1 => EventFate::Doubled,
                _ => EventFate::Late(Duration::from_millis(self.dice.one_of(delays))),
            })
            .collect();
        self.known.disturbed |= !is_fair;
        self.note(&format!("the next events: {fates:?}"));
        self.fake.script_events(fates);
    }

    fn fail_calls(&mut self) {
        let call = self.dice.one_of(&CALLS);
        let count = usize::try_from(self.dice.roll(3)).unwrap() + 1;
        if self.dice.roll(2) == 0 {
            self.note(&format!("{count} calls of {call} are refused"));
            self.fake.refuse_next(call, count, refused());
        } else {
            self.note(&format!("the answers of {count} calls of {call} are lost"));
            let fault = CallFault::AnswerLost(RuntimeError::Unavailable("dice".to_owned()));
            self.fake.fail_next_calls(call, count, fault);
        }
    }

    fn hang_call(&mut self) {
        let call = self.dice.one_of(&CALLS);
        self.note(&format!("a call of {call} hangs"));
        self.known.disturbed = true;
        self.fake.fail_next_calls(call, 1, CallFault::Hangs(HANGS));
    }

    fn fail_start(&mut self) {
        let container = format!("c{}", self.dice.roll(3));
        let reason = self.dice.one_of(&[
            SyncErrorReason::RunContainerError,
            SyncErrorReason::ErrImagePull,
            SyncErrorReason::RuntimeUnavailable,
        ]);
        let passing = self.dice.roll(2) == 0;
        let words = if passing { ", which passes" } else { "" };
        self.note(&format!("{container} does not start: {reason}{words}"));
        // No version is given up for what says nothing about it.
        self.known.disturbed |= !passing;
        let error = SyncError {
            passing,
            ..SyncError::new(reason, "dice")
        };
        self.fake.fail_next_starts(&container, 1, error);
    }

    async fn restart_runtime(&mut self) {
        let away = Duration::from_millis(self.dice.one_of(&[0, 200, 15_000]));
        self.note(&format!("the runtime restarts, and is back after {away:?}"));
        self.known.disturbed = true;
        for name in 0..NAMES {
            self.known.touch_all(name);
        }
        self.touch_ordinary();
        self.fake.restart();
        let gone = RuntimeError::Unavailable("dice".to_owned());
        self.fake.set_err(Some(gone));
        tokio::time::sleep(away).await;
        self.fake.set_err(None);
    }

    fn jump(&mut self, seconds: i64) {
        if self.jumps {
            self.note(&format!("the clock jumps by {seconds} s"));
            self.fake.jump_clock(seconds);
        }
    }

    /// A container exits, and again once it was restarted; the clock is set back in the back-off
    /// that follows.
    async fn exit_and_set_back(&mut self, name: u64) {
        let container = self.dice.roll(3);
        self.exit_of(name, container);
        tokio::time::sleep(RESTARTED).await;
        self.exit_of(name, container);
        tokio::time::sleep(RESTARTED).await;
        self.jump(SET_BACK);
    }

    fn fill_disk(&mut self) {
        let full = self.dice.roll(2) == 0;
        if self.fills {
            self.note(if full {
                "the agent's disk is full"
            } else {
                "the agent's disk has room"
            });
            self.set_disk_full(full);
        }
    }

    /// Kills the agent at any moment soon, and starts the next one.
    async fn kill_and_start(&mut self) {
        let micros = self.dice.one_of(&[0, 1_000, 10_000, 1_000_000]);
        let soon = Duration::from_micros(self.dice.roll(micros + 1));
        let polls = self.dice.roll(12);
        let gap = Duration::from_millis(self.dice.one_of(&[0, 0, 3, 5_000]));
        self.note(&format!(
            "the agent is killed after {soon:?} and {polls} polls, the next one starts after {gap:?}"
        ));
        tokio::time::sleep(soon).await;
        for _ in 0..polls {
            tokio::task::yield_now().await;
        }
        self.kill_agent().await;
        tokio::time::sleep(gap).await;
        self.start_agent();
    }
}
