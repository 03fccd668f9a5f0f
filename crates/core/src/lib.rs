//! PURE: every decision about pods.
//!
//! Nothing here is async, reads a clock, takes a lock, logs or does I/O: `now` is an argument, results
//! are values, and equal arguments give equal results. The state of the outside world is passed as
//! values ([`observed`], [`desired`]); the actions are returned as values ([`plan::Plan`],
//! [`merge::Merged`], statuses).

#![cfg_attr(
    test,
    expect(clippy::too_many_lines, reason = "a test is one story or one table")
)]

pub mod access;
pub mod admit;
pub mod amounts;
pub mod api;
pub mod app_armor;
pub mod backoff;
pub mod cdi;
pub mod certificate;
pub mod clock;
pub mod credentials;
pub mod cron;
mod decode;
pub mod desired;
pub mod downward;
pub mod ending;
pub mod env;
pub mod events;
pub mod eviction;
pub mod expand;
pub mod fields;
pub mod finished;
pub mod gc;
pub mod handler;
pub mod hold;
pub mod host_access;
pub mod image_access;
pub mod image_gc;
pub mod job;
pub mod labels;
pub mod log_limits;
pub mod logs;
pub mod manager;
pub mod manifest;
pub mod merge;
pub mod mirror;
pub mod names;
pub mod node;
pub mod objects;
pub mod observed;
pub mod order;
mod path;
pub mod payload;
pub mod plan;
pub mod pressure;
pub mod probe;
pub mod reference;
pub mod resources;
pub mod restart;
pub mod rollout;
pub mod select;
pub mod shares;
pub mod sizes;
pub mod small;
pub mod spec;
pub mod stateful;
pub mod stats;
pub mod status;
pub mod version;
pub mod volumes;
pub mod workload;
pub mod yaml;
