//! A node's life, thrown by dice: the real merge task, workers, observer and cache over the
//! runtime in memory, and in every second life the real Node, mirrors, statuses and source of pods
//! over the API server in memory, on paused time.
//!
//! Every seed is one life: manifests come, change and go, good ones and bad ones; containers exit,
//! sandboxes die, events are lost, doubled and late, calls fail before or after their effect, or hang,
//! the runtime restarts, the clock jumps, the disk is full, the agent is killed at any await. All along
//! nothing runs twice, and nothing is restarted to which nothing has happened. Whenever peace returns,
//! the right versions run, nothing else is left, the API server shows just that, and the agent is idle
//! and keeps nothing of what is gone.
//!
//! Lives are played on all cores. `SIMULATION_SEEDS=10000` plays more of them, `SIMULATION_SEED=7`
//! plays that one, twenty times or until it fails, and prints its story.

mod agent;
mod api_faults;
mod away;
mod cluster;
mod dice;
mod disk;
mod faults;
mod invariants;
mod kept;
mod known;
mod mirrors;
mod ordinary;
mod panics;
mod story;
mod versions;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use story::Story;
use world::World;

/// Lives played unless `SIMULATION_SEEDS` names another number.
const SEEDS: u64 = 60;
/// How often `SIMULATION_SEED` plays its life. A seed is one story, but tasks that are ready at the
/// same moment run in any order: that of `select!` and of hash maps is thrown anew each time.
const REPLAYS: usize = 20;
/// Turns of a life, and after how many there is peace.
const TURNS: u64 = 60;
const PEACE_EVERY: u64 = 15;

/// Plays one life to its end.
fn play(seed: u64, story: &Story) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    runtime.block_on(async {
        let mut world = World::new(seed, story.clone());
        for turn in 1..=TURNS {
            if turn % PEACE_EVERY == 1 {
                world.forecast();
            }
            world.turn().await;
            if turn % PEACE_EVERY == 0 {
                world.peace().await;
            }
        }
        world.end().await;
    });
}

/// Plays one life to its end. Returns its story, or the story of its failure.
fn try_play(seed: u64) -> Result<String, String> {
    let story = Story::default();
    panics::begin();
    let ended = catch_unwind(AssertUnwindSafe(|| play(seed, &story)));
    let Err(panic) = ended else {
        return Ok(story.text());
    };
    let words = panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("a panic without words");
    Err(format!(
        "the life of seed {seed}:\n{}{words}\n\nto play it again:\n  \
         SIMULATION_SEED={seed} cargo test --test house simulation::whatever -- --nocapture\n",
        story.text()
    ))
}

/// Plays lives on all cores, until one fails. Returns how many were played, and the failures.
fn play_all(seeds: u64) -> (u64, Vec<String>) {
    let next = AtomicU64::new(0);
    let failures = Mutex::new(Vec::new());
    let player = || {
        while failures.lock().unwrap().is_empty() {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds {
                return;
            }
            if let Err(failure) = try_play(seed) {
                failures.lock().unwrap().push(failure);
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(player);
        }
    });
    let lives = next.load(Ordering::Relaxed).min(seeds);
    (lives, failures.into_inner().unwrap())
}

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().expect("a number"))
}

#[test]
fn whatever_the_dice_say_peace_finds_everything_in_order() {
    if let Some(seed) = number("SIMULATION_SEED") {
        for _ in 0..REPLAYS {
            match try_play(seed) {
                Ok(story) => println!("{story}"),
                Err(failure) => panic!("{failure}"),
            }
        }
        return;
    }
    let began = Instant::now();
    let (lives, failures) = play_all(number("SIMULATION_SEEDS").unwrap_or(SEEDS));
    println!("{lives} lives in {:.1} s", began.elapsed().as_secs_f64());
    // rollouts 19
    assert!(failures.is_empty(), "{}", failures.concat());
}

/// The events of a life; the agent's reaction may depend on the order of tasks.
fn happenings(story: &str) -> Vec<&str> {
    let lines = story.lines();
    let lines = lines.filter_map(|line| Some(line.split_once(" s  ")?.1));
    lines.filter(|line| !line.starts_with(' ')).collect()
}

#[test]
fn a_seed_is_one_story() {
    let [once, again] = [4711, 4711].map(|seed| try_play(seed).unwrap());
    assert_eq!(happenings(&once), happenings(&again));
}
