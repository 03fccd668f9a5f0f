//! The kernel's real texts, of a machine of each version, and the pages made of them.

mod forms;
mod top;

use std::collections::HashMap;

use proptest::prelude::*;

use super::cgroup::{
    Controller, Cpu, Detail, Files, Io, Memory, Pressure, Throttling, Version, cpu, detail,
    first_process, memory, pressure, processes,
};
use super::proc::{
    Interface, Traffic, cgroup_of, devices, interfaces, meminfo, stat, threads, upper_dir,
};
use super::{Usage, nano_cores, place, proc, sum};
use crate::api::{PodUid, Timestamp};
use crate::resources::QosClass;

/// The files of a cgroup, by name.
struct Texts(HashMap<&'static str, &'static str>);

impl Files for Texts {
    fn read(&mut self, _: Controller, file: &str) -> Option<&str> {
        self.0.get(file).copied()
    }
}

/// A busybox on Engine 20.10 with cgroupfs, 64 MiB and half a processor.
fn v1() -> Texts {
    Texts(HashMap::from([
        ("cpuacct.usage", "22368223\n"),
        ("cpuacct.stat", "user 1\nsystem 2\n"),
        (
            "cpu.stat",
            "nr_periods 4\nnr_throttled 1\nthrottled_time 5000\nnr_bursts 0\nburst_time 0\n",
        ),
        ("cpu.cfs_quota_us", "50000\n"),
        ("cpu.cfs_period_us", "100000\n"),
        ("cpu.shares", "1024\n"),
        ("memory.usage_in_bytes", "638976\n"),
        ("memory.max_usage_in_bytes", "3981312\n"),
        ("memory.failcnt", "3\n"),
        ("memory.limit_in_bytes", "67108864\n"),
        ("memory.memsw.limit_in_bytes", "134217728\n"),
        ("memory.soft_limit_in_bytes", "9223372036854771712\n"),
        ("memory.kmem.usage_in_bytes", "270336\n"),
        (
            "memory.oom_control",
            "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n",
        ),
        ("memory.stat", include_str!("tests/memory.stat.v1")),
        ("cgroup.procs", "4321\n4330\n"),
        ("pids.current", "3\n"),
        ("pids.max", "max\n"),
        (
            "blkio.throttle.io_service_bytes_recursive",
            "254:0 Read 4096\n254:0 Write 8192\n254:0 Sync 0\n254:0 Async 12288\n254:0 Discard 0\n254:0 Total 12288\nTotal 12288\n",
        ),
        (
            "blkio.throttle.io_serviced_recursive",
            "254:0 Read 1\n254:0 Write 2\n254:0 Total 3\nTotal 3\n",
        ),
    ]))
}

/// The same on a machine with version 2.
fn v2() -> Texts {
    Texts(HashMap::from([
        (
            "cpu.stat",
            "usage_usec 22368\nuser_usec 10000\nsystem_usec 12368\nnice_usec 0\ncore_sched.force_idle_usec 0\nnr_periods 4\nnr_throttled 1\nthrottled_usec 5\nnr_bursts 0\nburst_usec 0\n",
        ),
        ("cpu.max", "50000 100000\n"),
        ("cpu.weight", "100\n"),
        (
            "cpu.pressure",
            "some avg10=0.00 avg60=0.00 avg300=0.00 total=7012\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=7000\n",
        ),
        ("memory.current", "638976\n"),
        ("memory.peak", "3981312\n"),
        ("memory.max", "67108864\n"),
        ("memory.low", "0\n"),
        ("memory.swap.current", "4096\n"),
        ("memory.swap.max", "max\n"),
        (
            "memory.events",
            "low 0\nhigh 0\nmax 3\noom 2\noom_kill 2\noom_group_kill 0\n",
        ),
        ("memory.stat", include_str!("tests/memory.stat.v2")),
        (
            "memory.pressure",
            "some avg10=0.00 avg60=0.00 avg300=0.00 total=1\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n",
        ),
        (
            "io.pressure",
            "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n",
        ),
        ("cgroup.procs", "0\n"),
        ("pids.current", "3\n"),
        ("pids.max", "100\n"),
        (
            "io.stat",
            "254:0 rbytes=4096 wbytes=8192 rios=1 wios=2 dbytes=0 dios=0\n7:0 \n",
        ),
    ]))
}

#[test]
fn version_1_is_read() {
    let used = cpu(Version::V1, &mut v1(), true).unwrap();
    let expected = Cpu {
        usage_nanos: 22_368_223,
        user_nanos: 10_000_000,
        system_nanos: 20_000_000,
        throttling: Some(Throttling {
            periods: 4,
            throttled: 1,
            nanos: 5000,
        }),
    };
    // usage 35a
    assert_eq!(used, expected);
    // One file is enough for the sum.
    let sum = cpu(Version::V1, &mut v1(), false).unwrap();
    assert_eq!((sum.usage_nanos, sum.throttling), (22_368_223, None));
    let held = memory(Version::V1, &mut v1()).unwrap();
    let expected = Memory {
        usage: 638_976,
        working_set: 638_976 - 200_704,
        rss: 53_248,
        cache: 208_896,
        mapped_file: 4096,
        active_file: 8192,
        inactive_file: 200_704,
        kernel: 0,
        swap: 4096,
        swap_limit: Some(67_108_864),
        page_faults: 1110,
        major_page_faults: 1,
        limit: Some(67_108_864),
    };
    assert_eq!(held, expected);
    // usage 36
    assert_eq!(held.available(), Some(67_108_864 - 438_272));
    assert_eq!(held.swap_available(), Some(67_108_864 - 4096));
    let expected = Detail {
        cpu_quota: Some(50_000),
        cpu_period: 100_000,
        cpu_shares: 1024,
        memory_limit: 67_108_864,
        swap_limit: 134_217_728,
        memory_reservation: 0,
        memory_max_usage: 3_981_312,
        memory_failures: 3,
        oom_kills: 2,
        kernel_memory: 270_336,
        threads: 3,
        threads_max: 0,
        io: vec![IO],
        pressure: None,
    };
    assert_eq!(detail(Version::V1, &mut v1(), None), expected);
    assert_eq!(processes(&mut v1()), Some(2));
    assert_eq!(first_process(&mut v1()), Some(4321));
}

const IO: Io = Io {
    device: (254, 0),
    read_bytes: 4096,
    write_bytes: 8192,
    reads: 1,
    writes: 2,
};

#[test]
fn version_2_is_read() {
    let used = cpu(Version::V2, &mut v2(), false).unwrap();
    let expected = Cpu {
        usage_nanos: 22_368_000,
        user_nanos: 10_000_000,
        system_nanos: 12_368_000,
        throttling: Some(Throttling {
            periods: 4,
            throttled: 1,
            nanos: 5000,
        }),
    };
    // usage 35a
    assert_eq!(used, expected);
    let held = memory(Version::V2, &mut v2()).unwrap();
    let expected = Memory {
        usage: 638_976,
        working_set: 638_976 - 200_704,
        rss: 53_248,
        cache: 208_896,
        mapped_file: 4096,
        active_file: 8192,
        inactive_file: 200_704,
        kernel: 270_336,
        swap: 4096,
        swap_limit: None,
        page_faults: 1110,
        major_page_faults: 1,
        limit: Some(67_108_864),
    };
    // usage 36
    assert_eq!(held, expected);
    let expected = Detail {
        cpu_quota: Some(50_000),
        cpu_period: 100_000,
        cpu_shares: 2597,
        memory_limit: 67_108_864,
        swap_limit: 0,
        memory_reservation: 0,
        memory_max_usage: 3_981_312,
        memory_failures: 3,
        oom_kills: 2,
        kernel_memory: 270_336,
        threads: 3,
        threads_max: 100,
        io: vec![
            IO,
            Io {
                device: (7, 0),
                ..Io::default()
            },
        ],
        pressure: Some([
            Pressure {
                some_micros: 7012,
                full_micros: 7000,
            },
            Pressure {
                some_micros: 1,
                full_micros: 0,
            },
            Pressure::default(),
        ]),
    };
    assert_eq!(detail(Version::V2, &mut v2(), None), expected);
    let of_container = detail(Version::V2, &mut v2(), Some(1024));
    assert_eq!(of_container.cpu_shares, 1024);
    // Of another process namespace: it is none of ours to look at.
    assert_eq!(first_process(&mut v2()), None);
}

#[test]
fn limits_that_are_none_are_none() {
    for (limit, expected) in [
        ("max\n", None),
        ("9223372036854771712\n", None),
        ("4096\n", Some(4096)),
        ("0\n", Some(0)),
    ] {
        let mut files = v2();
        files.0.insert("memory.max", limit);
        let held = memory(Version::V2, &mut files).unwrap();
        // usage 35a
        assert_eq!(held.limit, expected, "{limit}");
        // More than the limit is used for moments: nothing is left, not less than that.
        assert!(held.available().is_none_or(|left| left == 0));
    }
    let mut files = v1();
    files.0.insert("cpu.cfs_quota_us", "-1\n");
    assert_eq!(detail(Version::V1, &mut files, None).cpu_quota, None);
    let mut files = v2();
    files.0.insert("cpu.max", "max 100000\n");
    let told = detail(Version::V2, &mut files, None);
    assert_eq!((told.cpu_quota, told.cpu_period), (None, 100_000));
}

#[test]
fn a_machine_without_a_controller_tells_the_rest() {
    for (version, mut files) in [(Version::V1, v1()), (Version::V2, v2())] {
        for gone in ["memory.usage_in_bytes", "memory.current"] {
            files.0.remove(gone);
        }
        // usage 35a
        assert_eq!(memory(version, &mut files), None);
        assert!(cpu(version, &mut files, true).is_some());
        let mut none = Texts(HashMap::new());
        assert_eq!(cpu(version, &mut none, true), None);
        assert_eq!(processes(&mut none), None);
        assert_eq!(detail(version, &mut none, None), Detail::default());
    }
}

const NET_DEV: &str = "\
Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo: 4836749762 5693647    0    0    0     0          0         0 4836749762 5693647    0    0    0     0       0          0
  eth0: 793444814   55189    1    2    0     0          0         0  4426772   44426    3    4    0     0       0          0
docker0: 2331480   24073    0    0    0     0          0         0  2591054   25937    0   44    0     0       0          0
veth12: 1 1 0 0 0 0 0 0 1 1 0 0 0 0 0 0
  short: 1 2 3
";

#[test]
fn networks_are_those_of_the_machine() {
    let expected = Interface {
        name: "eth0".to_owned(),
        received: Traffic {
            bytes: 793_444_814,
            packets: 55_189,
            errors: 1,
            dropped: 2,
        },
        sent: Traffic {
            bytes: 4_426_772,
            packets: 44_426,
            errors: 3,
            dropped: 4,
        },
    };
    assert_eq!(interfaces(NET_DEV), [expected]);
}

const STAT: &str = "\
cpu  2067399 1082120 582259 844273 18772 7 13099 10525 5 0
cpu0 1026240 531201 280238 457934 5833 0 2370 5328 0 0
intr 123 4 5
btime 1763704800
processes 99
";

#[test]
fn the_machine_is_read() {
    let (used, booted) = stat(STAT).unwrap();
    let ticks = 2_067_399 + 1_082_120 + 582_259 + 7 + 13_099 + 10_525;
    assert_eq!(used.usage_nanos, ticks * 10_000_000);
    assert_eq!(booted, Timestamp::from_second(1_763_704_800).unwrap());
    assert_eq!(stat("cpu0 1 2\nbtime 1\n"), None);
    assert_eq!(stat("cpu  1 x\nbtime 1\n"), None);

    let text = "MemTotal:       24684084 kB\nMemFree:        16843764 kB\nCached:          4292044 kB\nActive(file):    1657776 kB\nInactive(file):  2682828 kB\nSwapTotal:          1024 kB\nSwapFree:            512 kB\nAnonPages:       2153296 kB\nMapped:           717956 kB\nHugePages_Total:       0\n";
    let held = proc::memory(&meminfo(text), "pgfault 846021263\npgmajfault 334073\n").unwrap();
    assert_eq!(held.usage, (24_684_084 - 16_843_764) * 1024);
    assert_eq!(
        held.working_set,
        (24_684_084 - 16_843_764 - 2_682_828) * 1024
    );
    assert_eq!(held.available(), Some((16_843_764 + 2_682_828) * 1024));
    assert_eq!(
        (held.page_faults, held.major_page_faults),
        (846_021_263, 334_073)
    );
    assert_eq!(
        (held.swap, held.swap_limit),
        (512 * 1024, Some(1024 * 1024))
    );
    assert_eq!(proc::memory(&meminfo("MemFree: 1 kB\n"), ""), None);

    let told = devices("major minor  #blocks  name\n\n 254        0   52428800 vda\n");
    assert_eq!(told.get(&(254, 0)).map(String::as_str), Some("vda"));
    assert_eq!(
        threads("0.5 0.4 0.3 2/345 6789", "4194304", "1000"),
        Some((345, 1000))
    );
    assert_eq!(threads("", "1", "1"), None);
    assert_eq!(
        pressure("some avg10=90.87 avg60=86.29 avg300=55.45 total=14523952087\n").some_micros,
        14_523_952_087
    );
}

#[test]
fn what_a_container_writes_is_above_its_image() {
    let mounts = "\
46 45 0:156 / / rw,relatime master:24 - overlay overlay rw,lowerdir=/var/lib/docker/overlay2/l/A:/var/lib/docker/overlay2/l/B,upperdir=/var/lib/docker/overlay2/56b2/diff,workdir=/var/lib/docker/overlay2/56b2/work
77 46 0:40 / /proc rw,nosuid,nodev,noexec,relatime - proc proc rw
";
    let upper = "/var/lib/docker/overlay2/56b2/diff".to_owned();
    assert_eq!(upper_dir(mounts), Some(upper));
    for other in [
        "46 45 254:0 / / rw - ext4 /dev/vda rw\n",
        "46 45 0:1 / /merged rw - overlay overlay rw,upperdir=/x\n",
        "46 45 0:1 / / rw - overlay overlay rw,upperdir=/a\\040b\n",
        "46 45 0:1 / / rw - overlay overlay rw,lowerdir=/x\n",
        "",
    ] {
        assert_eq!(upper_dir(other), None, "{other}");
    }
    let text = "4:memory:/a/b\n2:cpu,cpuacct:/c\n0::/d\n";
    assert_eq!(cgroup_of(text, Some("cpuacct")).as_deref(), Some("/c"));
    assert_eq!(cgroup_of(text, Some("pids")), None);
    assert_eq!(cgroup_of(text, None).as_deref(), Some("/d"));
}

#[test]
fn cgroups_are_where_both_drivers_put_them() {
    let uid = PodUid::from("ab-1");
    let id = "f".repeat(64);
    let found = place::candidates("kubepods", Some(QosClass::Burstable), &uid, &id);
    let scope = format!("docker-{id}.scope");
    // usage 35b
    assert_eq!(
        found,
        [
            format!("kubepods/burstable/podab-1/{id}"),
            format!("kubepods/burstable/podab-1/{scope}"),
            format!(
                "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podab_1.slice/{id}"
            ),
            format!(
                "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podab_1.slice/{scope}"
            ),
            format!("docker/{id}"),
            format!("docker/{scope}"),
            format!("system.slice/{id}"),
            format!("system.slice/{scope}"),
        ]
    );
    assert_eq!(place::candidates("", None, &uid, &id).len(), 4);
    assert_eq!(place::candidates("x", None, &uid, &id).len(), 16);
    assert_eq!(place::container_of(&id), Some(&*id));
    assert_eq!(place::container_of(&scope), Some(&*id));
    for other in ["docker", "docker-x.scope", &id[1..]] {
        assert_eq!(place::container_of(other), None);
    }
    for (parent, expected) in [
        ("kubepods/burstable/podab-1", true),
        ("podab-1", true),
        ("a.slice/kubepods-burstable-podab_1.slice", true),
        ("kubepods-podab_1.slice", true),
        ("kubepods/podab-12", false),
        ("x/kubepods-podab_12.slice", false),
        ("docker", false),
        ("x/podab_1.slice", true),
    ] {
        assert_eq!(place::is_of_pod(parent, &uid), expected, "{parent}");
    }
}

#[test]
fn rates_are_between_two_looks() {
    let at = |second, nanos| (Timestamp::from_second(second).unwrap(), nanos);
    for (before, now, expected) in [
        (at(10, 0), at(20, 5_000_000_000), Some(500_000_000)),
        (at(10, 7), at(20, 7), Some(0)),
        (at(10, 0), at(11, 4_000_000_000), Some(4_000_000_000)),
        (at(10, 0), at(10, 7), None),
        (at(20, 0), at(10, 7), None),
        (at(10, 9), at(20, 7), None),
        (at(0, 0), at(1, u64::MAX), Some(u64::MAX)),
    ] {
        // usage 35c
        assert_eq!(nano_cores(before, now), expected, "{before:?} {now:?}");
    }
}

#[test]
fn a_pods_use_is_the_sum_of_its_parts() {
    let time = Timestamp::from_second(5).unwrap();
    let part = |nanos, rate| Usage {
        cpu: Some(Cpu {
            usage_nanos: nanos,
            ..Cpu::default()
        }),
        nano_cores: rate,
        memory: Some(Memory {
            working_set: nanos,
            limit: rate,
            ..Memory::default()
        }),
        processes: Some(2),
        ..Usage::default()
    };
    let both = sum(time, &[&part(5, Some(1)), &part(6, Some(2))]);
    assert_eq!(both.cpu.unwrap().usage_nanos, 11);
    assert_eq!((both.nano_cores, both.processes), (Some(3), Some(4)));
    let held = both.memory.unwrap();
    assert_eq!((held.working_set, held.limit), (11, Some(3)));
    // One unknown part makes an unknown rate and no limit.
    let both = sum(time, &[&part(5, Some(1)), &part(6, None)]);
    assert_eq!(both.nano_cores, None);
    assert_eq!(both.memory.unwrap().limit, None);
    let none = sum(time, &[]);
    assert_eq!((none.cpu, none.memory, none.processes), (None, None, None));
}

proptest! {
    #[test]
    fn no_text_makes_anything_panic(
        text in "([a-z_. :=/0-9-]{0,20}( |\n|=|:)){0,12}",
        wild in any::<String>(),
    ) {
        struct Same<'a>(&'a str);
        impl Files for Same<'_> {
            fn read(&mut self, _: Controller, _: &str) -> Option<&str> {
                Some(self.0)
            }
        }
        for text in [&text, &wild] {
            for version in [Version::V1, Version::V2] {
                let _ = cpu(version, &mut Same(text), true);
                let held = memory(version, &mut Same(text));
                if let Some(held) = held {
                    // usage 35a
                    prop_assert!(held.working_set <= held.usage);
                }
                let _ = detail(version, &mut Same(text), Some(1024));
                let _ = processes(&mut Same(text));
                let _ = first_process(&mut Same(text));
            }
            let _ = (interfaces(text), stat(text), meminfo(text), devices(text));
            let _ = (upper_dir(text), cgroup_of(text, None), threads(text, text, text));
            let _ = (pressure(text), place::container_of(text));
            let _ = proc::memory(&meminfo(text), text);
        }
    }

    #[test]
    fn real_files_with_one_hostile_line_keep_the_rest(line in "[^\n]{0,40}") {
        struct With(String);
        impl Files for With {
            fn read(&mut self, _: Controller, file: &str) -> Option<&str> {
                Some(if file == "memory.stat" { &self.0 } else { "638976\n" })
            }
        }
        let text = format!("{}{line}\n", include_str!("tests/memory.stat.v1"));
        prop_assume!(!line.starts_with("total_rss "));
        let held = memory(Version::V1, &mut With(text)).unwrap();
        // usage 35a
        prop_assert_eq!(held.rss, 53_248);
    }
}
