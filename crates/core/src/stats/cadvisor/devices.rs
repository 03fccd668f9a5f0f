//! Families of disks, networks, processes, waits, and of the machine.

use super::{Of, Series, details, one};
use crate::stats::cgroup::Io;
use crate::stats::proc::Interface;
use crate::stats::text::{Kind, Page, labels, seconds};
use crate::stats::{Disk, Reading};

pub(super) fn disks(page: &mut Page, all: &[Series<'_>], reading: &Reading) {
    #[rustfmt::skip]
    let sizes: [Of<Disk, Option<u64>>; 4] = [
        ("container_fs_inodes_free", "Number of available Inodes", |disk| disk.inodes_free),
        ("container_fs_inodes_total", "Number of Inodes", |disk| disk.inodes),
        ("container_fs_limit_bytes", "Number of bytes that can be consumed by the container on this filesystem.",
            |disk| disk.capacity_bytes),
        ("container_fs_usage_bytes", "Number of bytes that are consumed by the container on this filesystem.",
            |disk| disk.used_bytes),
    ];
    for (name, help, of) in sizes {
        page.family(name, Kind::Gauge, help);
        for series in all {
            if let Some((disk, value)) = series.rootfs.and_then(|disk| Some((disk, of(disk)?))) {
                page.sample(name, &series.labels, "device=\"\"", value, Some(disk.time));
            }
        }
    }
    #[rustfmt::skip]
    let traffic: [Of<Io>; 4] = [
        ("container_fs_reads_bytes_total", "Cumulative count of bytes read", |io| io.read_bytes),
        ("container_fs_reads_total", "Cumulative count of reads completed", |io| io.reads),
        ("container_fs_writes_bytes_total", "Cumulative count of bytes written",
            |io| io.write_bytes),
        ("container_fs_writes_total", "Cumulative count of writes completed", |io| io.writes),
    ];
    for (name, help, of) in traffic {
        page.family(name, Kind::Counter, help);
        for series in all {
            let io = series.usage.detail.iter().flat_map(|detail| &detail.io);
            for io in io {
                let device = match reading.node.devices.get(&io.device) {
                    Some(name) => format!("/dev/{name}"),
                    None => format!("{}:{}", io.device.0, io.device.1),
                };
                let more = labels(&[("device", &device)]);
                let time = Some(series.usage.time);
                page.sample(name, &series.labels, &more, of(io), time);
            }
        }
    }
}

pub(super) fn network(page: &mut Page, all: &[Series<'_>]) {
    #[rustfmt::skip]
    let counters: [Of<Interface>; 8] = [
        ("receive_bytes", "bytes received", |i| i.received.bytes),
        ("receive_packets", "packets received", |i| i.received.packets),
        ("receive_packets_dropped", "packets dropped while receiving", |i| i.received.dropped),
        ("receive_errors", "errors encountered while receiving", |i| i.received.errors),
        ("transmit_bytes", "bytes transmitted", |i| i.sent.bytes),
        ("transmit_packets", "packets transmitted", |i| i.sent.packets),
        ("transmit_packets_dropped", "packets dropped while transmitting", |i| i.sent.dropped),
        ("transmit_errors", "errors encountered while transmitting", |i| i.sent.errors),
    ];
    for (what, help, of) in counters {
        let name = format!("container_network_{what}_total");
        page.family(&name, Kind::Counter, &format!("Cumulative count of {help}"));
        for (series, network) in all.iter().filter_map(|s| Some((s, s.network?))) {
            for interface in &network.interfaces {
                let more = labels(&[("interface", &interface.name)]);
                let time = Some(network.time);
                page.sample(&name, &series.labels, &more, of(interface), time);
            }
        }
    }
}

pub(super) fn processes(page: &mut Page, all: &[Series<'_>]) {
    let name = "container_processes";
    let help = "Number of processes running inside the container.";
    one(page, (name, Kind::Gauge, help), all, |usage| {
        Some(usage.processes?.to_string())
    });
    details(
        page,
        all,
        &[
            (
                "container_threads",
                Kind::Gauge,
                "Number of threads running inside the container",
                |detail| Some(detail.threads),
            ),
            (
                "container_threads_max",
                Kind::Gauge,
                "Maximum number of threads allowed inside the container, infinity if value is zero",
                |detail| Some(detail.threads_max),
            ),
        ],
    );
}

pub(super) fn pressure(page: &mut Page, all: &[Series<'_>]) {
    let has_pressure = |series: &Series<'_>| {
        let detail = series.usage.detail.as_ref();
        detail.is_some_and(|detail| detail.pressure.is_some())
    };
    if !all.iter().any(has_pressure) {
        return;
    }
    for (at, what) in ["cpu", "memory", "io"].into_iter().enumerate() {
        for (word, is_full) in [("stalled", true), ("waiting", false)] {
            let name = format!("container_pressure_{what}_{word}_seconds_total");
            let help = if is_full {
                format!("Total time all tasks of the container were stalled for lack of {what}.")
            } else {
                format!("Total time tasks of the container have waited for {what}.")
            };
            one(page, (&name, Kind::Counter, &help), all, |usage| {
                let pressure = usage.detail.as_ref()?.pressure?[at];
                let micros = if is_full {
                    pressure.full_micros
                } else {
                    pressure.some_micros
                };
                Some(seconds(micros.saturating_mul(1000)))
            });
        }
    }
}

pub(super) fn machine(page: &mut Page, reading: &Reading) {
    let node = &reading.node;
    for (name, help, value) in [
        (
            "machine_cpu_cores",
            "Number of logical CPU cores.",
            node.cpus,
        ),
        (
            "machine_memory_bytes",
            "Amount of memory installed on the machine.",
            node.memory_bytes,
        ),
        (
            "machine_swap_bytes",
            "Amount of swap memory available on the machine.",
            node.swap_bytes,
        ),
    ] {
        page.family(name, Kind::Gauge, help);
        page.sample(name, "", "", value, Some(reading.time));
    }
}
