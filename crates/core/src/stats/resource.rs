//! The response of `/metrics/resource`, which `metrics-server` reads and `kubectl top` shows.
//!
//! `metrics-server` identifies a container by its labels alone, and drops a whole pod if one
//! container's CPU or memory is 0: a container that has just started is left out here.
//!
//! Upstream: `pkg/kubelet/metrics/collectors/resource_metrics.go`.

use super::text::{Kind, Page, labels, seconds, since_epoch};
use super::{Reading, Usage};
use crate::api::Timestamp;

/// Series of one thing: its labels, what it uses, and when it was started.
struct Series<'a> {
    labels: String,
    usage: &'a Usage,
    started_at: Option<Timestamp>,
}

/// The response for a reading; none if the machine could not be read.
pub fn render(reading: Option<&Reading>) -> String {
    let mut page = Page::default();
    if let Some(reading) = reading {
        families(&mut page, reading);
    }
    let failed = u8::from(reading.is_none());
    for name in ["resource_scrape_error", "scrape_error"] {
        let help = "1 if there was an error while getting container metrics, 0 otherwise";
        page.family(name, Kind::Gauge, help);
        page.sample(name, "", "", failed, None);
    }
    page.into_text()
}

fn families(page: &mut Page, reading: &Reading) {
    let node = [Series {
        labels: String::new(),
        usage: &reading.node.usage,
        started_at: None,
    }];
    let mut pods = Vec::new();
    let mut containers = Vec::new();
    for pod in &reading.pods {
        let of_pod = [("pod", &*pod.name), ("namespace", &*pod.namespace)];
        pods.push(Series {
            labels: labels(&of_pod),
            usage: &pod.usage,
            started_at: None,
        });
        let begun = pod.containers.iter().filter(|c| c.usage.has_begun());
        containers.extend(begun.map(|container| Series {
            labels: labels(&[("container", &*container.name), of_pod[0], of_pod[1]]),
            usage: &container.usage,
            started_at: Some(container.started_at),
        }));
    }
    for (all, prefix, what) in [
        (&node[..], "node", "node"),
        (&containers[..], "container", "container"),
        (&pods[..], "pod", "pod"),
    ] {
        let usages = || all.iter().map(|series| (&*series.labels, series.usage));
        if prefix == "container" {
            let name = "container_start_time_seconds";
            let help = "Start time of the container since unix epoch in seconds";
            page.family(name, Kind::Gauge, help);
            for series in all {
                if let Some(started) = series.started_at {
                    page.sample(name, &series.labels, "", since_epoch(started), None);
                }
            }
        }
        let name = format!("{prefix}_cpu_usage_seconds_total");
        let help = format!("Cumulative cpu time consumed by the {what} in core-seconds");
        page.usages((&name, Kind::Counter, &help), usages(), |usage| {
            Some(seconds(usage.cpu?.usage_nanos))
        });
        let name = format!("{prefix}_memory_working_set_bytes");
        let help = format!("Current working set of the {what} in bytes");
        page.usages((&name, Kind::Gauge, &help), usages(), |usage| {
            Some(usage.memory?.working_set.to_string())
        });
        let name = format!("{prefix}_swap_usage_bytes");
        let help = format!("Current swap usage of the {what} in bytes");
        page.usages((&name, Kind::Gauge, &help), usages(), |usage| {
            Some(usage.memory?.swap.to_string())
        });
        if prefix == "container" {
            let name = "container_swap_limit_bytes";
            let help = "Current amount of the container swap limit in bytes";
            page.usages((name, Kind::Gauge, help), usages(), |usage| {
                Some(usage.memory?.swap_limit?.to_string())
            });
        }
    }
}
