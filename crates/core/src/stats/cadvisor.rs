//! The response of `/metrics/cadvisor`: the families that dashboards read, with the labels of a
//! kubelet. Sandboxes are included as container `POD`, as with a kubelet on Docker; pods with a cgroup
//! of their own, parts of the system, and the machine as `/` have no container.
//!
//! cAdvisor's families that are left out: those that are always 0 for a container
//! (`container_cpu_load_average_10s`, `container_tasks_state`, the kernel's disk queues), those that
//! require reading every file of every process (`container_file_descriptors`, `container_sockets`), and
//! `container_ulimits_soft`.
//!
//! Upstream: cAdvisor's `metrics/prometheus.go` and `metrics/prometheus_machine.go`;
//! `containerPrometheusLabelsFunc` of `pkg/kubelet/server/server.go`.

mod devices;

use self::devices::{disks, machine, network, pressure, processes};
use super::cgroup::{Cpu, Detail, Memory, Throttling};
use super::text::{Kind, Page, labels, seconds, since_epoch};
use super::{ContainerReading, Disk, Network, PodReading, Reading, Usage};
use crate::api::Timestamp;

/// A family: its name, its help, and what its value is of.
type Of<T, V = u64> = (&'static str, &'static str, fn(&T) -> V);
/// A family of a cgroup's [`Detail`].
type OfDetail = (&'static str, Kind, &'static str, fn(&Detail) -> Option<u64>);

#[rustfmt::skip]
const CPU_TIMES: [Of<Cpu>; 2] = [
    ("container_cpu_user_seconds_total", "Cumulative user cpu time consumed in seconds.",
        |cpu| cpu.user_nanos),
    ("container_cpu_system_seconds_total", "Cumulative system cpu time consumed in seconds.",
        |cpu| cpu.system_nanos),
];

/// Of cgroups with a quota.
#[rustfmt::skip]
const THROTTLING: [Of<Throttling, String>; 3] = [
    ("container_cpu_cfs_periods_total", "Number of elapsed enforcement period intervals.",
        |throttling| throttling.periods.to_string(),
    ),
    ("container_cpu_cfs_throttled_periods_total", "Number of throttled period intervals.",
        |throttling| throttling.throttled.to_string(),
    ),
    ("container_cpu_cfs_throttled_seconds_total", "Total time duration the container has been throttled.",
        |throttling| seconds(throttling.nanos),
    ),
];

#[rustfmt::skip]
const CPU_SPEC: [OfDetail; 3] = [
    ("container_spec_cpu_period", Kind::Gauge, "CPU period of the container.",
        |detail| Some(detail.cpu_period),
    ),
    ("container_spec_cpu_quota", Kind::Gauge, "CPU quota of the container.",
        |detail| detail.cpu_quota),
    ("container_spec_cpu_shares", Kind::Gauge, "CPU share of the container.",
        |detail| Some(detail.cpu_shares),
    ),
];

#[rustfmt::skip]
const MEMORY: [Of<Memory>; 8] = [
    ("container_memory_cache", "Number of bytes of page cache memory.", |memory| memory.cache),
    ("container_memory_rss", "Size of RSS in bytes.", |memory| memory.rss),
    ("container_memory_mapped_file", "Size of memory mapped files in bytes.",
        |memory| memory.mapped_file),
    ("container_memory_swap", "Container swap usage in bytes.", |memory| memory.swap),
    ("container_memory_usage_bytes", "Current memory usage in bytes, including all memory regardless of when it was accessed",
        |memory| memory.usage),
    ("container_memory_working_set_bytes", "Current working set in bytes.",
        |memory| memory.working_set),
    ("container_memory_total_active_file_bytes", "Current total active file in bytes.",
        |memory| memory.active_file),
    ("container_memory_total_inactive_file_bytes", "Current total inactive file in bytes.",
        |memory| memory.inactive_file),
];

#[rustfmt::skip]
const MEMORY_DETAILS: [OfDetail; 7] = [
    ("container_memory_kernel_usage", Kind::Gauge, "Size of kernel memory allocated in bytes.",
        |detail| Some(detail.kernel_memory),
    ),
    ("container_memory_failcnt", Kind::Counter, "Number of memory usage hits limits",
        |detail| Some(detail.memory_failures),
    ),
    ("container_memory_max_usage_bytes", Kind::Gauge, "Maximum memory usage recorded in bytes",
        |detail| Some(detail.memory_max_usage),
    ),
    ("container_oom_events_total", Kind::Counter, "Count of out of memory events observed for the container",
        |detail| Some(detail.oom_kills),
    ),
    ("container_spec_memory_limit_bytes", Kind::Gauge, "Memory limit for the container.",
        |detail| Some(detail.memory_limit),
    ),
    ("container_spec_memory_swap_limit_bytes", Kind::Gauge, "Memory swap limit for the container.",
        |detail| Some(detail.swap_limit),
    ),
    ("container_spec_memory_reservation_limit_bytes", Kind::Gauge, "Memory reservation limit for the container.",
        |detail| Some(detail.memory_reservation),
    ),
];

/// One cgroup with its labels.
struct Series<'a> {
    labels: String,
    usage: &'a Usage,
    started_at: Option<Timestamp>,
    network: Option<&'a Network>,
    rootfs: Option<&'a Disk>,
}

/// The response for a reading; none if the machine could not be read.
pub fn render(reading: Option<&Reading>) -> String {
    let mut page = Page::default();
    if let Some(reading) = reading {
        let all = series(reading);
        start(&mut page, &all, reading.time);
        cpu(&mut page, &all);
        memory(&mut page, &all);
        disks(&mut page, &all, reading);
        network(&mut page, &all);
        processes(&mut page, &all);
        pressure(&mut page, &all);
        machine(&mut page, reading);
    }
    let failed = u8::from(reading.is_none());
    for what in ["container", "machine"] {
        let name = format!("{what}_scrape_error");
        let help = format!("1 if there was an error while getting {what} metrics, 0 otherwise.");
        page.family(&name, Kind::Gauge, &help);
        page.sample(&name, "", "", failed, None);
    }
    page.into_text()
}

fn series(reading: &Reading) -> Vec<Series<'_>> {
    let node = &reading.node;
    let nobody = ["", "", "", "", ""];
    let mut all = vec![Series {
        labels: names("/", nobody),
        usage: &node.usage,
        started_at: Some(node.booted_at),
        network: node.network.as_ref(),
        rootfs: node.fs.as_ref(),
    }];
    all.extend(node.systems.iter().map(|system| Series {
        labels: names(&system.cgroup, nobody),
        usage: &system.usage,
        started_at: system.started_at,
        network: None,
        rootfs: None,
    }));
    for pod in &reading.pods {
        if let Some(cgroup) = &pod.cgroup {
            all.push(Series {
                labels: names(cgroup, ["", "", "", &pod.name, &pod.namespace]),
                usage: &pod.usage,
                started_at: pod.started_at,
                network: None,
                rootfs: None,
            });
        }
        if let Some(sandbox) = &pod.sandbox {
            all.push(of_container(pod, sandbox, pod.network.as_ref()));
        }
        let containers = pod.containers.iter();
        all.extend(containers.map(|container| of_container(pod, container, None)));
    }
    all
}

fn of_container<'a>(
    pod: &'a PodReading,
    container: &'a ContainerReading,
    network: Option<&'a Network>,
) -> Series<'a> {
    Series {
        labels: names(
            &container.cgroup,
            [
                &container.engine_name,
                &container.image,
                &container.name,
                &pod.name,
                &pod.namespace,
            ],
        ),
        usage: &container.usage,
        started_at: Some(container.started_at),
        network,
        rootfs: container.rootfs.as_ref(),
    }
}

/// The labels of a series; all of a family have the same, empty if they don't apply.
fn names(id: &str, [name, image, container, pod, namespace]: [&str; 5]) -> String {
    labels(&[
        ("container", container),
        ("id", id),
        ("image", image),
        ("name", name),
        ("namespace", namespace),
        ("pod", pod),
    ])
}

/// A family of at most one sample a cgroup.
fn one(
    page: &mut Page,
    family: (&str, Kind, &str),
    all: &[Series<'_>],
    value: impl Fn(&Usage) -> Option<String>,
) {
    let all = all.iter().map(|series| (&*series.labels, series.usage));
    page.usages(family, all, value);
}

fn start(page: &mut Page, all: &[Series<'_>], now: Timestamp) {
    let name = "container_last_seen";
    let help = "Last time a container was seen by the exporter";
    page.family(name, Kind::Gauge, help);
    for series in all {
        page.sample(name, &series.labels, "", now.as_second(), Some(now));
    }
    let name = "container_start_time_seconds";
    let help = "Start time of the container since unix epoch in seconds.";
    page.family(name, Kind::Gauge, help);
    for series in all {
        if let Some(started) = series.started_at {
            page.sample(name, &series.labels, "", since_epoch(started), None);
        }
    }
}

fn cpu(page: &mut Page, all: &[Series<'_>]) {
    use Kind::Counter;
    let name = "container_cpu_usage_seconds_total";
    page.family(name, Counter, "Cumulative cpu time consumed in seconds.");
    for series in all {
        if let Some(cpu) = &series.usage.cpu {
            let used = seconds(cpu.usage_nanos);
            let time = Some(series.usage.time);
            page.sample(name, &series.labels, "cpu=\"total\"", used, time);
        }
    }
    for (name, help, of) in CPU_TIMES {
        one(page, (name, Counter, help), all, |usage| {
            Some(seconds(of(usage.cpu.as_ref()?)))
        });
    }
    for (name, help, of) in THROTTLING {
        one(page, (name, Counter, help), all, |usage| {
            usage.detail.as_ref()?.cpu_quota?;
            Some(of(&usage.cpu?.throttling?))
        });
    }
    details(page, all, &CPU_SPEC);
}

fn details(page: &mut Page, all: &[Series<'_>], families: &[OfDetail]) {
    for (name, kind, help, of) in families {
        one(page, (name, *kind, help), all, |usage| {
            Some(of(usage.detail.as_ref()?)?.to_string())
        });
    }
}

fn memory(page: &mut Page, all: &[Series<'_>]) {
    for (name, help, of) in MEMORY {
        one(page, (name, Kind::Gauge, help), all, |usage| {
            Some(of(usage.memory.as_ref()?).to_string())
        });
    }
    let name = "container_memory_failures_total";
    let help = "Cumulative count of memory allocation failures.";
    page.family(name, Kind::Counter, help);
    for series in all {
        let Some(memory) = &series.usage.memory else {
            continue;
        };
        for scope in ["container", "hierarchy"] {
            for (what, count) in [
                ("pgfault", memory.page_faults),
                ("pgmajfault", memory.major_page_faults),
            ] {
                let more = labels(&[("failure_type", what), ("scope", scope)]);
                page.sample(name, &series.labels, &more, count, Some(series.usage.time));
            }
        }
    }
    details(page, all, &MEMORY_DETAILS);
}
