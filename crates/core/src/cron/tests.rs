use std::collections::BTreeMap;

use jiff::civil::DateTime;
use jiff::tz::TimeZone;

use super::*;
use crate::api::NodeName;
use crate::api::report::RunAction;
use crate::desired::PodSource;
use crate::manifest::{Accepted, ParseContext, parse_manifest};

fn document(spec: &str) -> String {
    format!(
        "apiVersion: batch/v1\nkind: CronJob\nmetadata: {{name: backup}}\nspec:\n  jobTemplate:\n    spec:\n      template:\n        spec:\n          restartPolicy: Never\n          containers: [{{name: c, image: i}}]\n  {spec}\n"
    )
}

fn parsed(spec: &str) -> crate::manifest::Document {
    let node = NodeName::from("box");
    let context = ParseContext {
        node_name: &node,
        source: PodSource::File,
        location: "/m/backup.yaml",
    };
    let parsed = parse_manifest(document(spec).as_bytes(), &context);
    parsed.documents[0].clone()
}

fn cron(spec: &str) -> CronJob {
    let document = parsed(spec);
    let Some(Accepted::Workload(workload)) = document.accepted else {
        panic!("{:?}", document.problems)
    };
    let Runs::CronJob(cron) = &**workload.runs.as_ref().unwrap() else {
        panic!("no CronJob")
    };
    (**cron).clone()
}

fn utc(text: &str) -> Timestamp {
    let time: DateTime = text.parse().unwrap();
    time.to_zoned(TimeZone::UTC).unwrap().timestamp()
}

/// The next times of a schedule after a moment, in its zone.
fn times(schedule: &str, zone: &str, after: &str, count: usize) -> String {
    let zone = time_zone(zone).unwrap();
    let schedule = Schedule::parse(schedule, zone.clone()).unwrap();
    let after: DateTime = after.parse().unwrap();
    let mut at = after.to_zoned(zone.clone()).unwrap().timestamp();
    let mut found = Vec::new();
    for _ in 0..count {
        let next = schedule.next(at).unwrap();
        assert_eq!(schedule.previous(next), Some(next));
        found.push(
            next.to_zoned(zone.clone())
                .strftime("%m-%d %H:%M%:z")
                .to_string(),
        );
        at = next;
    }
    found.join(" ").replace("+00:00", "")
}

#[test]
fn schedules_are_read_as_upstream_reads_them() {
    for (schedule, after, expected) in [
        (
            "*/20 * * * *",
            "2026-01-01T00:00",
            "01-01 00:20 01-01 00:40 01-01 01:00",
        ),
        (
            "50/4 0 * * *",
            "2026-01-01T00:00",
            "01-01 00:50 01-01 00:54 01-01 00:58",
        ),
        (
            "0 9-17/4 * * *",
            "2026-01-01T00:00",
            "01-01 09:00 01-01 13:00 01-01 17:00",
        ),
        (
            "30 2 * * MON-fri",
            "2026-01-02T03:00",
            "01-05 02:30 01-06 02:30 01-07 02:30",
        ),
        (
            "0 0 ? feb 0",
            "2026-01-01T00:00",
            "02-01 00:00 02-08 00:00 02-15 00:00",
        ),
        // One of two days suffices, unless one of them is a star.
        (
            "0 0 13 * 5",
            "2026-02-01T00:00",
            "02-06 00:00 02-13 00:00 02-20 00:00",
        ),
        (
            "0 0 13 * *",
            "2026-02-01T00:00",
            "02-13 00:00 03-13 00:00 04-13 00:00",
        ),
        // A star with a step of 1 is one, and so is a list that has one.
        (
            "0 0 13 * */1",
            "2026-02-01T00:00",
            "02-13 00:00 03-13 00:00 04-13 00:00",
        ),
        (
            "0 0 13 * ?/1",
            "2026-02-01T00:00",
            "02-13 00:00 03-13 00:00 04-13 00:00",
        ),
        (
            "0 0 *,5 * 1",
            "2026-02-01T00:00",
            "02-02 00:00 02-09 00:00 02-16 00:00",
        ),
        (
            "0 0 1-31 * 1",
            "2026-02-01T00:00",
            "02-02 00:00 02-03 00:00 02-04 00:00",
        ),
        (
            "0 0 */15 * 1",
            "2026-02-01T00:00",
            "02-02 00:00 02-09 00:00 02-16 00:00",
        ),
        (
            "0 0 29 2 *",
            "2026-01-01T00:00",
            "02-29 00:00 02-29 00:00 02-29 00:00",
        ),
        (
            "@monthly",
            "2026-01-01T00:00",
            "02-01 00:00 03-01 00:00 04-01 00:00",
        ),
        (
            "@weekly",
            "2026-01-01T00:00",
            "01-04 00:00 01-11 00:00 01-18 00:00",
        ),
        (
            "@hourly",
            "2026-01-01T00:00",
            "01-01 01:00 01-01 02:00 01-01 03:00",
        ),
    ] {
        // workloads 10
        assert_eq!(times(schedule, "UTC", after, 3), expected, "{schedule}");
    }
}

#[test]
fn clocks_that_change_repeat_and_leave_out_nothing() {
    for (schedule, zone, after, expected) in [
        // The hour from 2 to 3 isn't there.
        (
            "30 2 * * *",
            "Europe/Berlin",
            "2026-03-28T00:00",
            "03-28 02:30+01:00 03-29 03:00+02:00 03-30 02:30+02:00",
        ),
        // It is there twice.
        (
            "30 2 * * *",
            "Europe/Berlin",
            "2026-10-24T12:00",
            "10-25 02:30+02:00 10-26 02:30+01:00 10-27 02:30+01:00",
        ),
        (
            "*/30 * * * *",
            "Europe/Berlin",
            "2026-10-25T02:00",
            "10-25 02:30+02:00 10-25 02:00+01:00 10-25 02:30+01:00",
        ),
        (
            "0 12 * * *",
            "Asia/Tokyo",
            "2026-01-01T00:00",
            "01-01 12:00+09:00",
        ),
        // The zone left out a whole day, which fuzzing found.
        (
            "0 0 * * *",
            "Pacific/Apia",
            "2011-12-28T12:00",
            "12-29 00:00-10:00 12-31 00:00+14:00 01-01 00:00+14:00",
        ),
    ] {
        let count = expected.split(' ').count() / 2;
        // workloads 10
        assert_eq!(times(schedule, zone, after, count), expected, "{schedule}");
    }
}

#[test]
fn wrong_schedules_are_refused_by_field() {
    for (schedule, words) in [
        ("* * * *", "must have five fields"),
        ("* * * * * *", "must have five fields"),
        ("60 * * * *", "the minute is not valid"),
        ("* 24 * * *", "the hour is not valid"),
        ("* * 0 * *", "the day of the month is not valid"),
        ("* * L * *", "the day of the month is not valid"),
        ("* * * 13 *", "the month is not valid"),
        ("* * * * 7", "the day of the week is not valid"),
        ("* * * * mon#1", "the day of the week is not valid"),
        ("*/0 * * * *", "the minute is not valid"),
        ("5-1 * * * *", "the minute is not valid"),
        ("1,,2 * * * *", "the minute is not valid"),
        ("0 0 30 2 *", "no date ever matches the schedule"),
        ("@every 1h", "@every is not supported"),
        (
            "TZ=UTC * * * * *",
            "a time zone in the schedule is not supported",
        ),
        ("@never", "must have five fields"),
    ] {
        let why = Schedule::parse(schedule, TimeZone::UTC).unwrap_err();
        assert!(why.to_string().starts_with(words), "{schedule}: {why}");
    }
    for name in ["", "local", "Local", "Europe/Nowhere", "../etc/passwd"] {
        assert!(time_zone(name).is_none(), "{name}");
    }
}

#[test]
fn a_cron_job_is_checked_as_the_api_server_checks_it() {
    for (spec, fields) in [
        ("schedule: \"@daily\"", ""),
        ("suspend: false", "spec.schedule"),
        ("schedule: \"61 * * * *\"", "spec.schedule"),
        ("schedule: \"@daily\"\n  timeZone: Nowhere", "spec.timeZone"),
        (
            "schedule: \"@daily\"\n  concurrencyPolicy: Never",
            "spec.concurrencyPolicy",
        ),
        (
            "schedule: \"@daily\"\n  startingDeadlineSeconds: -1",
            "spec.startingDeadlineSeconds",
        ),
        (
            "schedule: \"@daily\"\n  successfulJobsHistoryLimit: -1\n  failedJobsHistoryLimit: -1",
            "spec.failedJobsHistoryLimit spec.successfulJobsHistoryLimit",
        ),
    ] {
        let problems = parsed(spec).problems;
        let mut found: Vec<_> = problems.iter().filter_map(|p| p.field.clone()).collect();
        found.sort();
        assert_eq!(found.join(" "), fields, "{spec}");
    }
    // A problem of the Job is at its field.
    let text = document("schedule: \"@daily\"").replace("Never", "Always");
    let node = NodeName::from("box");
    let context = ParseContext {
        node_name: &node,
        source: PodSource::File,
        location: "/m/backup.yaml",
    };
    let parsed = parse_manifest(text.as_bytes(), &context);
    let problem = &parsed.documents[0].problems[0];
    assert_eq!(
        problem.field.as_deref(),
        Some("spec.jobTemplate.spec.template.spec.restartPolicy")
    );
    assert_eq!(problem.position.unwrap().line, 9);
}

/// A CronJob's life: a record that is always on disk, and Jobs that end when a test says so.
struct Life {
    cron: CronJob,
    record: Option<CronJobRecord>,
    ended: BTreeMap<JobName, bool>,
    /// The note of the last decision, and the Jobs that it removed.
    note: Option<CronNote>,
    deleted: Vec<JobName>,
}

impl Life {
    fn new(spec: &str) -> Self {
        Self {
            cron: cron(spec),
            record: None,
            ended: BTreeMap::new(),
            note: None,
            deleted: Vec::new(),
        }
    }

    /// Decides, and returns the runs that begin: when they were due.
    fn at(&mut self, now: &str) -> String {
        self.step(utc(now), false).join(" ")
    }

    fn step(&mut self, now: Timestamp, ordered: bool) -> Vec<String> {
        let decision = decide(&CronInput {
            cron: &self.cron,
            record: self.record.as_ref(),
            ended: &|job| self.ended.get(job).copied(),
            ordered,
            may_start: true,
            now,
        });
        let runs = &decision.record.runs;
        let begun = decision.begun.iter().map(|name| {
            let run = runs.iter().find(|run| run.job.name == *name).unwrap();
            run.due.map_or_else(
                || name.name.clone(),
                |due| due.to_zoned(TimeZone::UTC).strftime("%dT%H:%M").to_string(),
            )
        });
        let begun: Vec<String> = begun.collect();
        (self.note, self.deleted) = (decision.note, decision.deleted);
        self.record = Some(decision.record);
        begun
    }

    fn end(&mut self, complete: bool) {
        let last = self.record.as_ref().unwrap().runs.last().unwrap();
        self.ended.insert(last.job.name.clone(), complete);
    }

    fn runs(&self) -> usize {
        self.record.as_ref().unwrap().runs.len()
    }
}

#[test]
fn whoever_was_away_makes_one_late_run() {
    let mut life = Life::new("schedule: \"0 * * * *\"");
    // A time before the CronJob was created isn't due.
    assert_eq!(life.at("2026-01-01T00:30"), "");
    assert_eq!(life.at("2026-01-01T01:00"), "01T01:00");
    assert_eq!(life.at("2026-01-01T01:00"), "");
    // workloads 11
    assert_eq!(life.at("2026-01-01T09:59"), "01T09:00");
    assert_eq!(life.at("2026-01-01T10:00"), "01T10:00");
    let mut life = Life::new("schedule: \"0 * * * *\"\n  startingDeadlineSeconds: 600");
    life.at("2026-01-01T00:30");
    assert_eq!(life.at("2026-01-01T01:11"), "");
    assert_eq!(life.at("2026-01-01T04:10"), "01T04:00");
}

#[test]
fn a_time_without_a_run_is_noted_and_so_is_a_run_that_is_removed() {
    let text = "schedule: \"0 * * * *\"\n  concurrencyPolicy: Forbid\n  startingDeadlineSeconds: 600\n  successfulJobsHistoryLimit: 0";
    let mut life = Life::new(text);
    life.at("2026-01-01T00:30");
    life.at("2026-01-01T01:00");
    assert_eq!((life.note, life.deleted.len()), (None, 0));
    life.at("2026-01-01T02:05");
    assert_eq!(life.note, Some(CronNote::Busy(utc("2026-01-01T02:00"))));
    life.end(true);
    life.at("2026-01-01T02:11");
    assert_eq!(life.note, Some(CronNote::Missed(utc("2026-01-01T02:00"))));
    let deleted: Vec<_> = life.deleted.iter().map(|job| &*job.name).collect();
    assert_eq!(deleted, ["backup-29453820"]);
    life.at("2026-01-01T03:00");
    assert_eq!((life.note, life.deleted.len()), (None, 0));
}

#[test]
fn a_run_can_be_forgotten_and_is_not_due_again() {
    let mut life = Life::new("schedule: \"0 * * * *\"\n  concurrencyPolicy: Forbid");
    life.at("2026-01-01T00:30");
    assert_eq!(life.at("2026-01-01T01:00"), "01T01:00");
    assert_eq!(life.at("2026-01-01T02:00"), "", "the other one runs");
    let job = life.record.as_ref().unwrap().runs[0].job.name.clone();
    let record = life.record.as_mut().unwrap();
    assert!(record.forget(&job));
    assert!(!record.forget(&job));
    // embedded 57
    assert_eq!(life.at("2026-01-01T02:01"), "01T02:00");
    assert_eq!(life.runs(), 1);
}

#[test]
fn a_clock_that_jumps_doubles_nothing() {
    let mut life = Life::new("schedule: \"0 * * * *\"");
    life.at("2026-01-01T00:30");
    assert_eq!(life.at("2026-01-01T01:00"), "01T01:00");
    // Set forward by mistake, and back again.
    assert_eq!(life.at("2026-01-01T05:10"), "01T05:00");
    assert_eq!(life.at("2026-01-01T01:20"), "");
    // A time that the jump skipped comes due again; one that was run doesn't.
    assert_eq!(life.at("2026-01-01T02:00"), "01T02:00");
    assert_eq!(life.at("2026-01-01T04:00"), "01T04:00");
    // workloads 11
    assert_eq!(life.at("2026-01-01T05:00"), "");
    assert_eq!(life.at("2026-01-01T06:00"), "01T06:00");
    // Back beyond all that was.
    assert_eq!(life.at("2025-12-31T23:30"), "");
    assert_eq!(life.at("2026-01-01T00:00"), "01T00:00");
    assert_eq!(life.at("2026-01-01T01:00"), "");
}

#[test]
fn a_clock_that_is_wrong_by_years_at_boot_doubles_nothing() {
    for (schedule, last, next) in [
        ("@monthly", "2026-05-01T00:00", "2026-06-01T00:00"),
        ("@weekly", "2026-05-17T00:00", "2026-05-24T00:00"),
        ("0 3 * * 1", "2026-05-18T03:00", "2026-05-25T03:00"),
        ("0 3 * * *", "2026-05-20T03:00", "2026-05-21T03:00"),
    ] {
        let mut life = Life::new(&format!("schedule: \"{schedule}\""));
        life.at("2026-04-01T12:00");
        let ran = |at: &str| at[8..].to_owned();
        assert_eq!(life.at(last), ran(last), "{schedule}");
        assert_eq!(life.at("2026-05-20T11:00"), "");
        for boot in ["1970-01-01T00:10", "2019-07-03T12:00"] {
            assert_eq!(life.at(boot), "", "{schedule}");
            // workloads 11
            assert_eq!(life.at("2026-05-20T12:00"), "", "{schedule}");
        }
        // A record of the release before has no creation.
        life.record.as_mut().unwrap().created = None;
        assert_eq!(life.at("1970-01-01T00:10"), "");
        assert_eq!(life.at("2026-05-20T12:00"), "");
        assert_eq!(life.at(next), ran(next));
        // Set forward by years, by mistake: one late run, and none of it again.
        assert!(!life.at("2031-01-01T12:00").is_empty());
        assert_eq!(life.at("2026-06-02T12:00"), "");
    }
}

#[test]
fn a_new_cron_job_begins_with_the_next_time_over_a_clock_that_is_wrong_at_boot() {
    let mut life = Life::new("schedule: \"@weekly\"");
    assert_eq!(life.at("2026-05-20T12:00"), "");
    assert_eq!(life.at("1970-01-01T00:10"), "");
    // workloads 11
    assert_eq!(life.at("2026-05-20T12:10"), "");
    assert_eq!(life.at("2026-05-24T00:00"), "24T00:00");
    // One that was created while the clock was ahead doesn't wait for that.
    let mut life = Life::new("schedule: \"@weekly\"");
    assert_eq!(life.at("2031-01-01T12:00"), "");
    assert_eq!(life.at("2026-05-20T12:00"), "");
    assert_eq!(life.at("2026-05-24T00:00"), "24T00:00");
}

#[test]
fn records_of_the_release_before_are_read() {
    let text = r#"{"followed":"2026-05-17T00:00:00Z","last":"2026-05-17T00:00:00Z","times":[1778976000],"ordered":2,"runs":[]}"#;
    let mut life = Life::new("schedule: \"@weekly\"");
    life.record = Some(serde_json::from_str(text).unwrap());
    assert_eq!(life.at("1970-01-01T00:10"), "");
    assert_eq!(life.at("2026-05-20T12:00"), "");
    assert_eq!(life.at("2026-05-24T00:00"), "24T00:00");
}

#[test]
fn no_walk_of_the_clock_doubles_a_run() {
    let mut seed = 5;
    for schedule in ["@weekly", "@monthly", "0 3 * * *", "0 0 29 2 *"] {
        for _ in 0..50 {
            let mut life = Life::new(&format!("schedule: \"{schedule}\""));
            let (right, mut begun) = (utc("2026-05-20T12:00").as_second(), BTreeSet::new());
            let mut roll = |sides: u64| i64::try_from(dice(&mut seed, sides)).unwrap();
            let mut passed = 0;
            for _ in 0..30 {
                passed += roll(20 * 86_400);
                // Right in most looks, else wrong by up to fifty years.
                let wrong = match roll(3) {
                    0 => (roll(100) - 50) * 365 * 86_400,
                    _ => 0,
                };
                let now = Timestamp::from_second(right + passed + wrong).unwrap();
                if !life.step(now, false).is_empty() {
                    let due = life.record.as_ref().unwrap().last;
                    // workloads 11
                    assert!(begun.insert(due), "{schedule}: doubled at {now}");
                    life.end(true);
                }
            }
            assert!(!begun.is_empty() || schedule == "0 0 29 2 *");
        }
    }
}

#[test]
fn a_run_that_is_due_while_another_runs() {
    for (policy, second, runs) in [
        ("Allow", "01T02:00", 2),
        ("Forbid", "", 1),
        ("Replace", "01T02:00", 1),
    ] {
        let spec = format!("schedule: \"0 * * * *\"\n  concurrencyPolicy: {policy}");
        let mut life = Life::new(&spec);
        life.at("2026-01-01T00:30");
        life.at("2026-01-01T01:00");
        assert_eq!(life.at("2026-01-01T02:00"), second, "{policy}");
        // workloads 10
        assert_eq!(life.runs(), runs, "{policy}");
        // The missed run is started.
        life.end(true);
        let late = if policy == "Forbid" { "01T02:00" } else { "" };
        assert_eq!(life.at("2026-01-01T02:30"), late, "{policy}");
    }
}

#[test]
fn a_cron_job_whose_runs_never_end_has_a_bound() {
    for (policy, bound) in [("Allow", UNFINISHED_MAX), ("Forbid", 1), ("Replace", 1)] {
        let spec = format!("schedule: \"* * * * *\"\n  concurrencyPolicy: {policy}");
        let mut life = Life::new(&spec);
        let begin = utc("2026-01-01T00:00");
        let minute = |number: usize| {
            let second = begin.as_second() + 60 * i64::try_from(number).unwrap();
            Timestamp::from_second(second).unwrap()
        };
        let late = UNFINISHED_MAX + 20;
        for number in 0..=late {
            life.step(minute(number), false);
        }
        // workloads 10
        assert_eq!(life.runs(), bound, "{policy}");
        let waits = matches!(life.note, Some(CronNote::Full(due)) if due == minute(late));
        assert_eq!(waits, policy == "Allow", "{policy}");
    }
    // Runs that a user ordered count, too, and under Forbid they block no other.
    for policy in ["Allow", "Forbid"] {
        let spec = format!("schedule: \"* * * * *\"\n  concurrencyPolicy: {policy}");
        let mut life = Life::new(&spec);
        life.at("2026-01-01T00:00");
        for _ in 0..UNFINISHED_MAX {
            life.step(utc("2026-01-01T00:00"), true);
        }
        // workloads 10
        assert_eq!(life.at("2026-01-01T00:01"), "", "{policy}");
        assert!(matches!(life.note, Some(CronNote::Full(_))), "{policy}");
        life.end(true);
        // workloads 10
        assert_eq!(life.at("2026-01-01T00:01"), "01T00:01", "{policy}");
    }
}

#[test]
fn runs_and_their_pods_are_known_by_their_names() {
    let cron = cron("schedule: \"@daily\"");
    for (name, is_run) in [
        ("backup-29453820", true),
        ("backup-run-3", true),
        ("backup", false),
        ("backup-run", false),
        ("backup-db", false),
        ("backup-1-2", false),
        ("other-29453820", false),
    ] {
        assert_eq!(
            cron.is_run(&JobName::new("default", name)),
            is_run,
            "{name}"
        );
        assert!(!cron.is_run(&JobName::new("other", name)), "{name}");
    }
    for (name, is_pod) in [
        ("backup-29453820-0-box", true),
        ("backup-29453820-0-1-box", true),
        ("backup-run-3-0-box", true),
        ("backup-29453820-box", false),
        ("backup-29453820-0", false),
        ("backup-db-0-box", false),
        ("other-29453820-0-box", false),
    ] {
        let pod = FullName::new(name, "default");
        assert_eq!(cron.is_pod_of(&pod), is_pod, "{name}");
    }
}

#[test]
fn runs_that_are_over_stay_as_long_as_the_document_says() {
    let spec =
        "schedule: \"0 * * * *\"\n  successfulJobsHistoryLimit: 2\n  failedJobsHistoryLimit: 0";
    let mut life = Life::new(spec);
    life.at("2026-01-01T00:30");
    for hour in 1..=5 {
        life.at(&format!("2026-01-01T0{hour}:00"));
        life.end(hour != 2);
        life.at(&format!("2026-01-01T0{hour}:01"));
    }
    let runs = &life.record.as_ref().unwrap().runs;
    let names: Vec<&str> = runs.iter().map(|run| run.job.name.name.as_str()).collect();
    let minutes = |hour: &str| utc(hour).as_second() / 60;
    let expected =
        ["2026-01-01T04:00", "2026-01-01T05:00"].map(|hour| format!("backup-{}", minutes(hour)));
    assert_eq!(names, expected);
}

#[test]
fn a_run_that_is_ordered_counts_for_no_schedule() {
    let mut life =
        Life::new("schedule: \"0 * * * *\"\n  concurrencyPolicy: Forbid\n  suspend: true");
    assert_eq!(life.step(utc("2026-01-01T00:30"), true), ["backup-run-0"]);
    assert_eq!(life.step(utc("2026-01-01T00:31"), true), ["backup-run-1"]);
    assert_eq!(life.at("2026-01-01T01:00"), "");
    life.cron.suspend = false;
    assert_eq!(life.at("2026-01-01T01:10"), "01T01:00");
    let run = &life.record.as_ref().unwrap().runs[0];
    let template = serde_json::json!(run.job.template);
    assert_eq!(template["metadata"]["name"], "backup-run-0-0-box");
    let annotations = &template["metadata"]["annotations"];
    assert_eq!(annotations["mirrorlet.dev/workload"], "Job/backup-run-0");
    assert_eq!(annotations["mirrorlet.dev/cron-job"], "backup");
    assert_eq!(run.job.cron_job(), Some("backup"));
}

/// A number from a seed, by a recurrence that is good enough for dice.
fn dice(seed: &mut u64, sides: u64) -> u64 {
    *seed = seed
        .wrapping_mul(6_364_136_223_846_793_005)
        .wrapping_add(1_442_695_040_888_963_407);
    (*seed >> 33) % sides
}

/// Part of a machine's year: from when to when, in seconds, and by how much its clock was wrong.
struct Part {
    from: i64,
    to: i64,
    wrong: i64,
}

/// Lives through a year, and returns the parts of it, and the times for which there were runs.
fn year(life: &mut Life, seed: &mut u64, from: i64, end: i64) -> (Vec<Part>, Vec<i64>) {
    let (mut now, mut wrong) = (from, 0);
    let (mut parts, mut begun) = (Vec::new(), Vec::new());
    while now < end {
        let at = Timestamp::from_second(now + wrong).unwrap();
        if !life.step(at, false).is_empty() {
            begun.push(life.record.as_ref().unwrap().last.unwrap().as_second());
            life.end(true);
        }
        let from = now;
        let roll = |seed: &mut u64, sides: u64| i64::try_from(dice(seed, sides)).unwrap();
        match dice(seed, 300) {
            // The machine sleeps, or the agent is away, for up to two days.
            0 => now += roll(seed, 2 * 86_400),
            // The clock is set wrong, by up to three hours.
            1..=3 if wrong == 0 => wrong = roll(seed, 21_600) - 10_800,
            4..=90 if wrong != 0 => wrong = 0,
            _ => now += roll(seed, 3_600),
        }
        let wrong_so_far = if now == from { 0 } else { wrong };
        parts.push(Part {
            from,
            to: now,
            wrong: wrong_so_far,
        });
    }
    (parts, begun)
}

#[test]
fn a_year_of_ten_cron_jobs_over_sleeps_and_clocks_that_jump() {
    const DEADLINE: i64 = 7_200;
    let schedules = [
        ("*/10 * * * *", "UTC"),
        ("0 * * * *", "Europe/Berlin"),
        ("30 2 * * *", "Europe/Berlin"),
        ("0 3 * * 1-5", "America/New_York"),
        ("15 14 1 * *", "Asia/Kolkata"),
        ("0 0 13 * 5", "Australia/Lord_Howe"),
        ("@weekly", "Pacific/Apia"),
        ("5 4 * * sun", "UTC"),
        ("0 */6 * * *", "America/Sao_Paulo"),
        ("45 23 28-31 * *", "Europe/London"),
    ];
    let (from, end) = (
        utc("2026-01-01T00:00").as_second(),
        utc("2027-01-01T00:00").as_second(),
    );
    let mut seed = 17;
    for (schedule, zone) in schedules {
        let spec = format!(
            "schedule: \"{schedule}\"\n  timeZone: {zone}\n  startingDeadlineSeconds: {DEADLINE}"
        );
        let mut life = Life::new(&spec);
        let (parts, begun) = year(&mut life, &mut seed, from, end);
        let unique: BTreeSet<i64> = begun.iter().copied().collect();
        // workloads 11
        assert_eq!(unique.len(), begun.len(), "a run is doubled: {schedule}");
        let schedule = &life.cron.schedule;
        let at = |second| Timestamp::from_second(second).unwrap();
        let (mut due, mut checked) = (schedule.next(at(from)).unwrap().as_second(), 0);
        while due < end - DEADLINE {
            let next = schedule.next(at(due)).unwrap().as_second();
            // The first look at the machine's right time after it was due, which no other was since.
            let look = parts.partition_point(|part| part.to < due);
            if let Some(part) = parts.get(look)
                && part.wrong == 0
                && part.from < due
                && part.to - due <= DEADLINE
                && part.to < next
            {
                assert!(unique.contains(&due), "{spec}: nothing at {}", at(due));
                checked += 1;
            }
            due = next;
        }
        assert!(checked > 0, "{spec}");
    }
}

#[test]
fn a_plan_names_what_changes() {
    let daily = "schedule: \"0 3 * * *\"";
    let before = cron(daily);
    for (more, changed) in [
        ("", ""),
        ("\n  suspend: true", "suspend"),
        ("\n  timeZone: Europe/Berlin", "timeZone"),
        (
            "\n  concurrencyPolicy: Forbid\n  startingDeadlineSeconds: 9",
            "concurrencyPolicy, startingDeadlineSeconds",
        ),
        (
            "\n  successfulJobsHistoryLimit: 0\n  failedJobsHistoryLimit: 0",
            "successfulJobsHistoryLimit, failedJobsHistoryLimit",
        ),
    ] {
        let edited = cron(&format!("{daily}{more}"));
        let (action, reason) = plan(&edited, Some(&before));
        let expected = if changed.is_empty() {
            RunAction::None
        } else {
            RunAction::Change
        };
        // workloads 25
        assert_eq!(action, expected, "{more}");
        assert_eq!(reason.split(';').next().unwrap(), changed);
        let (action, reason) = plan(&edited, None);
        assert_eq!(action, RunAction::Create);
        assert_eq!(
            reason.starts_with("it is suspended"),
            edited.suspend,
            "{more}"
        );
    }
    let (_, reason) = plan(&cron("schedule: \"0 4 * * *\""), Some(&before));
    assert!(reason.starts_with("schedule;"), "{reason}");
    let mut other = before.clone();
    other.job.content = "other".to_owned();
    let (_, reason) = plan(&other, Some(&before));
    assert!(reason.starts_with("jobTemplate;"), "{reason}");
}
