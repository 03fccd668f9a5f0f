use std::collections::BTreeSet;

use super::*;
use mirrorlet_core::api::FullName;

#[test]
fn series_are_prefixed_and_counted() {
    let metrics = Metrics::new();
    metrics.engine_call("list_containers", Duration::from_millis(3), true);
    metrics.engine_call("list_containers", Duration::from_millis(3), false);
    metrics.set_pods(&BTreeMap::from([(PodState::Running, 2)]));
    metrics.set_workloads(&BTreeMap::from([(WorkloadKind::Job, 3)]));
    metrics.set_unready_pods(&BTreeMap::from([(WorkloadKind::Deployment, 1)]));
    metrics.set_problems(&BTreeMap::from([(Code::Syntax, 1)]));
    metrics.set_problems(&BTreeMap::from([(Code::Empty, 1)]));
    metrics.sync_failed(SyncErrorReason::ErrImagePull);
    metrics.source_read(PodSource::File, 2);
    metrics.set_source_success(PodSource::File, Timestamp::UNIX_EPOCH);
    let text = metrics.encode();
    for line in [
        "mirrorlet_engine_operations_total{operation=\"list_containers\"} 2",
        "mirrorlet_engine_operation_errors_total{operation=\"list_containers\"} 1",
        "mirrorlet_engine_operation_duration_seconds_count{operation=\"list_containers\"} 2",
        "mirrorlet_pods{state=\"running\"} 2",
        "mirrorlet_pods{state=\"failed\"} 0",
        "mirrorlet_workloads{kind=\"Job\"} 3",
        "mirrorlet_workloads{kind=\"Deployment\"} 0",
        "mirrorlet_workload_pods_unready{kind=\"Deployment\"} 1",
        "mirrorlet_manifest_problems{code=\"empty\"} 1",
        "mirrorlet_pod_sync_errors_total{reason=\"ErrImagePull\"} 1",
        "mirrorlet_source_reads_total{source=\"file\"} 2",
        "mirrorlet_source_last_success_timestamp_seconds{source=\"file\"} 0",
        "# EOF",
    ] {
        assert!(text.lines().any(|l| l == line), "{line} is not in\n{text}");
    }
    assert!(!text.contains("code=\"syntax\""), "{text}");
    for line in text.lines().filter(|l| !l.starts_with('#')) {
        assert!(line.starts_with("mirrorlet_"), "{line}");
    }
}
fn lines(metrics: &Metrics) -> Vec<String> {
    metrics.encode().lines().map(str::to_owned).collect()
}

fn has(metrics: &Metrics, line: &str) -> bool {
    lines(metrics).iter().any(|l| l == line)
}

#[test]
fn whether_the_api_server_answers_is_no_series_where_there_is_none() {
    let metrics = Metrics::new();
    assert!(!metrics.encode().contains("api_up"));
    metrics.set_api_up(false);
    assert!(has(&metrics, "mirrorlet_api_up 0"));
    metrics.clone().set_api_up(true);
    assert!(has(&metrics, "mirrorlet_api_up 1"));
    assert!(has(&metrics, "# TYPE mirrorlet_api_up gauge"));
}

#[test]
fn the_use_of_the_image_disk_is_no_series_before_it_is_measured() {
    let metrics = Metrics::new();
    assert!(!metrics.encode().contains("image_disk_used"));
    metrics.set_image_disk_used(0);
    assert!(has(&metrics, "mirrorlet_image_disk_used_percent 0"));
}

#[test]
fn what_alerts_count_begins_at_zero() {
    let metrics = Metrics::new();
    for outcome in ["started", "held", "failed", "restored", "succeeded"] {
        let line = format!("mirrorlet_rollouts_total{{outcome=\"{outcome}\"}} 0");
        assert!(has(&metrics, &line), "{line}");
    }
    for signal in ["memory.available", "pid.available", "emptydirfs.limit"] {
        let line = format!("mirrorlet_evictions_total{{eviction_signal=\"{signal}\"}} 0");
        assert!(has(&metrics, &line), "{line}");
    }
    metrics.rollout(RolloutOutcome::Held);
    assert!(has(
        &metrics,
        "mirrorlet_rollouts_total{outcome=\"held\"} 1"
    ));
}

#[test]
fn an_approver_has_its_own_series_and_no_agents() {
    let metrics = Metrics::of_approver();
    metrics.set_api_up(true);
    metrics.certificate_request(CertificateDecision::Approved);
    let expected = [
        "mirrorlet_api_up 1".to_owned(),
        format!(
            "mirrorlet_build_info{{version=\"{}\"}} 1",
            env!("CARGO_PKG_VERSION")
        ),
        "mirrorlet_certificate_requests_total{decision=\"approved\"} 1".to_owned(),
        "mirrorlet_certificate_requests_total{decision=\"denied\"} 0".to_owned(),
        "mirrorlet_certificate_requests_total{decision=\"ignored\"} 0".to_owned(),
    ];
    let mut samples = lines(&metrics);
    samples.retain(|line| !line.starts_with('#'));
    samples.sort();
    assert_eq!(samples, expected);
    assert!(!Metrics::new().encode().contains("certificate_requests"));
}

/// The page that lists the series.
const PAGE: &str = include_str!("../../../../../docs/metrics.md");

/// The series of ours on the page, without the endings that their types give them, with their types.
fn listed() -> BTreeMap<String, &'static str> {
    let rows = PAGE
        .lines()
        .filter(|line| line.starts_with("| `mirrorlet_"));
    let series = rows.map(|row| {
        let mut cells = row.trim_matches('|').split('|').map(str::trim);
        let (name, kind) = (cells.next().unwrap(), cells.next().unwrap());
        let ending = match kind {
            "counter" => "_total",
            "info" => "_info",
            _ => "",
        };
        let base = name.trim_matches('`').strip_suffix(ending);
        (base.unwrap_or_else(|| panic!("{row}")).to_owned(), kind)
    });
    series.collect()
}

#[test]
fn the_page_of_the_metrics_has_every_series_and_code() {
    let lines = include_str!("names.rs").lines();
    let registered = lines.filter_map(|line| {
        let (_, rest) = line.split_once(": r.add")?;
        let name = rest.split('"').nth(1)?;
        let unit = match rest {
            rest if rest.contains("Unit::Seconds") => "_seconds",
            rest if rest.contains("Unit::Bytes") => "_bytes",
            _ => "",
        };
        Some(format!("mirrorlet_{name}{unit}"))
    });
    let mut registered: BTreeSet<String> = registered.collect();
    assert!(registered.len() > 40, "the series were not read");
    registered.insert("mirrorlet_build".to_owned());
    let listed = listed();
    let named: BTreeSet<String> = listed.keys().cloned().collect();
    // agent 16
    assert_eq!(named, registered);
    let pod = PodSample {
        name: FullName::new("web", "shop"),
        state: PodState::Running,
        is_ready: true,
        started_at: Some(Timestamp::UNIX_EPOCH),
        restarts: vec![("app".to_owned(), 1)],
    };
    let pods = PodSamples {
        pods: vec![pod],
        left_out: 0,
    };
    let text = Metrics::new().encode_with(Some(&pods));
    let types = types_of(&text);
    let of_pod = ("mirrorlet_pod_container_restarts", "counter");
    assert!(types.contains(&of_pod), "{types:?}");
    for (name, kind) in types {
        assert_eq!(listed.get(name), Some(&kind), "{name}");
    }
    for code in Code::ALL {
        let row = format!("\n| `{code}` | ");
        assert!(PAGE.contains(&row), "{code} is not on the page");
    }
}

/// The names and types of the series of ours that have samples.
fn types_of(text: &str) -> Vec<(&str, &str)> {
    let types = text.lines().filter_map(|line| {
        let of_ours = line.strip_prefix("# TYPE ")?;
        of_ours
            .split_once(' ')
            .filter(|_| of_ours.starts_with("mirrorlet_"))
    });
    types.collect()
}
