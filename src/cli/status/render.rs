//! Renders a report as a table with the problems below it. Pure: the time is an argument.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use anstyle::Style;

use crate::cli::table::{self, BAD, BOLD, Cell, GOOD, PENDING, one_line};
use mirrorlet_core::api::report::{
    CronJobReport, EngineReport, ImageGcReport, JobReport, MissingAccessReport, NO_PARALLELISM,
    PODS_TERMINATING, PodReport, PullPhase, PullReport, SourceReport, StatusReport,
};
use mirrorlet_core::api::{Diagnostic, Severity, Timestamp};
use mirrorlet_core::clock::age;
use mirrorlet_core::small::SmallCollect;

mod cluster;
mod pods;
mod workloads;

pub(in crate::cli) use pods::beside;

/// The report as text with ANSI styles, for an output that strips them unless it is a terminal.
pub fn render(report: &StatusReport, now: Timestamp, wide: bool) -> String {
    let mut out = String::new();
    banner(&mut out, &report.engine, now);
    cluster::banner(&mut out, report.api.as_ref(), now);
    // By the name that agents of all releases write.
    missing_access(&mut out, &report.missing_access_alias);
    for (pressure, readings) in &report.pressures {
        let words = format!("The node is under {pressure}: {readings}");
        line(&mut out, &styled(&words, BAD));
    }
    if report.pods.is_empty() {
        line(&mut out, "No pods.");
    } else {
        out.push_str(&table::render(&pods::pods(report, now, wide)));
    }
    workloads::workloads(&mut out, &report.workloads);
    cron_jobs(&mut out, &report.cron_jobs, now);
    jobs(&mut out, &report.jobs, now);
    if !wide {
        messages(&mut out, &report.pods);
    }
    mirrors(&mut out, &report.pods, now);
    pulls(&mut out, &report.pulls);
    if let Some(gc) = &report.image_gc {
        image_gc(&mut out, gc, now, wide);
    }
    problems(&mut out, report);
    sources(&mut out, report, now, wide);
    cluster::node(&mut out, report, now);
    out
}

fn line(out: &mut String, text: &str) {
    out.push_str(text);
    out.push('\n');
}

fn styled(text: &str, style: Style) -> String {
    format!("{style}{text}{style:#}")
}

fn banner(out: &mut String, engine: &EngineReport, now: Timestamp) {
    if engine.reachable {
        return;
    }
    let mut text = format!("The Docker Engine at {} is not reachable", engine.endpoint);
    if let Some(since) = engine.unreachable_since {
        let _ = write!(text, " (for {})", age(since, now));
    }
    if let Some(error) = &engine.error {
        let _ = write!(text, ": {}", one_line(error));
    }
    line(out, &styled(&text, BAD.bold()));
    line(
        out,
        "The list below is the last known state. The agent continues as soon as the Engine answers.\n",
    );
}

fn missing_access(out: &mut String, missing_access: &[MissingAccessReport]) {
    for missing in missing_access {
        line(out, &styled(&one_line(&missing.message), BAD.bold()));
        line(out, &format!("  help: {}", one_line(&missing.help)));
    }
    if !missing_access.is_empty() {
        out.push('\n');
    }
}

/// The CronJobs, as kubectl prints them.
fn cron_jobs(out: &mut String, cron_jobs: &[CronJobReport], now: Timestamp) {
    if cron_jobs.is_empty() {
        return;
    }
    let titles = [
        "NAMESPACE",
        "CRONJOB",
        "SCHEDULE",
        "TIMEZONE",
        "SUSPEND",
        "ACTIVE",
        "LAST SCHEDULE",
        "NEXT",
    ];
    let row = |cron: &CronJobReport| {
        let last = cron.last_schedule.map(|last| age(last, now));
        let next = cron
            .next_schedule
            .map(|next| format!("in {}", age(now, next)));
        vec![
            Cell::from(&cron.namespace),
            Cell::from(&cron.name),
            Cell::from(&cron.schedule),
            Cell::from(&cron.time_zone),
            Cell::from(if cron.suspended { "True" } else { "False" }),
            cron.active.to_string().into(),
            last.as_deref().unwrap_or("<none>").into(),
            next.as_deref().unwrap_or("<none>").into(),
        ]
    };
    out.push('\n');
    out.push_str(&table::titled(titles, cron_jobs.iter().map(row)));
}

/// The Jobs, as kubectl prints them.
fn jobs(out: &mut String, jobs: &[JobReport], now: Timestamp) {
    if jobs.is_empty() {
        return;
    }
    let titles = [
        "NAMESPACE",
        "JOB",
        "STATUS",
        "COMPLETIONS",
        "DURATION",
        "AGE",
    ];
    let row = |job: &JobReport| {
        let style = match job.condition.as_str() {
            "Complete" => GOOD,
            "Failed" => BAD,
            _ => PENDING,
        };
        let wanted = job.completions.map_or_else(
            || "1 of any".to_owned(),
            |completions| completions.to_string(),
        );
        let lasted = job.started_at.map_or_else(String::new, |started| {
            age(started, job.ended_at.unwrap_or(now))
        });
        let since = age(job.created_at.or(job.started_at).unwrap_or(now), now);
        vec![
            Cell::from(&job.namespace),
            Cell::from(&job.name),
            Cell::styled(&job.condition, style),
            format!("{}/{wanted}", job.succeeded).into(),
            lasted.into(),
            since.into(),
        ]
    };
    out.push('\n');
    out.push_str(&table::titled(titles, jobs.iter().map(row)));
    let waits = |job: &JobReport| [NO_PARALLELISM, PODS_TERMINATING].contains(&job.reason.as_str());
    let explained = |job: &&JobReport| job.has_failed() || waits(job);
    for job in jobs.iter().filter(explained) {
        let name = one_line(&format!("{}/{}", job.namespace, job.name));
        let (reason, message) = (one_line(&job.reason), one_line(&job.message));
        let style = if job.has_failed() { BAD } else { PENDING };
        line(
            out,
            &format!("  job {name}: {}: {message}", styled(&reason, style)),
        );
    }
}

/// Why pods aren't simply running.
fn messages(out: &mut String, pods: &[PodReport]) {
    let with_words: Vec<_> = pods.iter().filter(|pod| !pod.message.is_empty()).collect();
    if with_words.is_empty() {
        return;
    }
    line(out, &format!("\n{}", styled("MESSAGES", BOLD)));
    for pod in with_words {
        let message = one_line(&pod.message);
        line(out, &format!("  {}/{}: {message}", pod.namespace, pod.name));
    }
}

/// Why pods have no mirror.
fn mirrors(out: &mut String, pods: &[PodReport], now: Timestamp) {
    let without = pods.iter().filter_map(|pod| {
        let mirror = pod.mirror.as_ref()?;
        (!mirror.message.is_empty()).then_some((pod, mirror))
    });
    let mut first = true;
    for (pod, mirror) in without {
        if std::mem::take(&mut first) {
            line(out, &format!("\n{}", styled("MISSING MIRROR PODS", BOLD)));
        }
        let since = mirror.since.map(|since| age(since, now));
        let since = since.map_or_else(String::new, |since| format!(" for {since}"));
        let (state, words) = (styled(&mirror.state, BAD), one_line(&mirror.message));
        let name = format!("{}/{}", pod.namespace, pod.name);
        line(out, &format!("  {name}: {state}{since}: {words}"));
    }
}

fn problems(out: &mut String, report: &StatusReport) {
    let of_sources = report.sources.iter().flat_map(|source| &source.problems);
    let of_pods = report.pods.iter().flat_map(|pod| &pod.problems);
    // A set: a problem may be reported both by its source and by its pod.
    let all: BTreeSet<&Diagnostic> = report
        .problems
        .iter()
        .chain(of_sources)
        .chain(of_pods)
        .collect_set();
    if all.is_empty() {
        return;
    }
    line(out, &format!("\n{}", styled("PROBLEMS", BOLD)));
    let errors = all.iter().filter(|problem| problem.is_error());
    let warnings = all.iter().filter(|problem| !problem.is_error());
    for problem in errors.chain(warnings) {
        let word = match problem.severity {
            Severity::Error => styled("error:", BAD),
            Severity::Warning => styled("warning:", PENDING),
        };
        let of = match (&problem.pod, &problem.workload) {
            (Some(pod), _) if problem.is_error() => format!("pod {}: ", one_line(pod)),
            (None, Some(workload)) if problem.is_error() => format!("{}: ", one_line(workload)),
            _ => String::new(),
        };
        line(
            out,
            &format!("  {word} {of}{}", one_line(&problem.to_string())),
        );
        if let Some(help) = &problem.help {
            line(out, &format!("    help: {}", one_line(help)));
        }
    }
}

fn pulls(out: &mut String, pulls: &[PullReport]) {
    if pulls.is_empty() {
        return;
    }
    line(out, &format!("\n{}", styled("PULLS", BOLD)));
    for pull in pulls {
        let phase = match pull.phase {
            PullPhase::Waiting => "waiting for other pulls",
            PullPhase::Downloading => "downloading",
            PullPhase::Extracting => "extracting",
        };
        let image = one_line(&pull.image);
        let (done, all) = (pull.layers_done, pull.layers_total);
        let bytes = bytes_of(pull);
        line(
            out,
            &format!("  {image}: {phase}{bytes}, {done} of {all} layers"),
        );
    }
}

/// The share of the known size that was downloaded, as a bar and as text.
fn bytes_of(pull: &PullReport) -> String {
    const CELLS: u128 = 20;
    let total = u128::from(pull.bytes_total);
    let done = u128::from(pull.bytes_done).min(total);
    let Some(percent) = (done * 100).checked_div(total) else {
        return String::new();
    };
    let bar: String = (0..CELLS)
        .map(|cell| {
            if cell * 100 < percent * CELLS {
                '#'
            } else {
                '.'
            }
        })
        .collect();
    format!(" [{bar}] {percent}% of {}", megabytes(pull.bytes_total))
}

/// Printed with `-o wide`, or when it fails.
fn image_gc(out: &mut String, gc: &ImageGcReport, now: Timestamp, wide: bool) {
    if !wide && gc.error.is_none() {
        return;
    }
    line(out, &format!("\n{}", styled("IMAGES", BOLD)));
    let (high, low) = (gc.high_threshold_percent, gc.low_threshold_percent);
    let used = match gc.disk_used_percent {
        Some(used) => format!("disk {used}% used"),
        None => "disk usage unknown".to_owned(),
    };
    let removed = match gc.removed {
        0 => String::new(),
        removed => format!(", {} removed", count_u64(removed, "image")),
    };
    let last = gc.last_pass.map_or_else(
        || "has not run yet".to_owned(),
        |at| format!("last run {} ago", age(at, now)),
    );
    let words =
        format!("  {used}; garbage collection starts at {high}%, stops at {low}%; {last}{removed}");
    line(out, &words);
    if let Some(error) = &gc.error {
        line(
            out,
            &format!("  {} {}", styled("error:", BAD), one_line(error)),
        );
    }
}

/// With `-o wide`, or without pods, all; otherwise those with a problem.
fn sources(out: &mut String, report: &StatusReport, now: Timestamp, wide: bool) {
    let all = wide || report.pods.is_empty();
    let shown = |source: &&SourceReport| {
        all || !source.synced || !source.problems.is_empty() || !source.ignored.is_empty()
    };
    let mut sources = report.sources.iter().filter(shown).peekable();
    if sources.peek().is_none() {
        return;
    }
    line(out, &format!("\n{}", styled("SOURCES", BOLD)));
    for source in sources {
        let mut contents = count(source.pods, "pod");
        if source.objects > 0 {
            contents = format!("{contents}, {}", count(source.objects, "object"));
        }
        let state = match (source.synced, source.last_success) {
            (false, _) => styled("not read yet", PENDING),
            (true, Some(at)) => format!("{contents}, read {} ago", age(at, now)),
            (true, None) => contents,
        };
        let location = one_line(&source.location);
        // There is one API server, and its line says all of its own.
        let kind = if source.kind == "api" {
            ""
        } else {
            &source.kind
        };
        let name = format!("{kind} {location}");
        line(out, &format!("  {}: {state}", name.trim_start()));
        if !source.ignored.is_empty() {
            let names = source.ignored.iter().map(|name| one_line(name));
            let names = names.collect::<Vec<_>>().join(", ");
            line(out, &format!("    ignored: {names}"));
        }
    }
}

/// As Docker's own client prints sizes.
pub(in crate::cli) fn megabytes(bytes: u64) -> String {
    const KILO: u64 = 1000;
    match bytes {
        0..KILO => format!("{bytes} B"),
        KILO..1_000_000 => format!("{}.{} kB", bytes / KILO, bytes % KILO / 100),
        _ => {
            let tenths = bytes / 100_000;
            format!("{}.{} MB", tenths / 10, tenths % 10)
        }
    }
}

fn count(number: usize, noun: &str) -> String {
    count_u64(number as u64, noun)
}

fn count_u64(number: u64, noun: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {noun}{plural}")
}
