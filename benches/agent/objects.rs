//! Costs and delays of `ConfigMap`s, Services and names.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use mirrorlet_docker::BollardEngine;
use mirrorlet_docker::engine::Engine as _;

use crate::Settings;
use crate::agent::Agent;
use crate::bed::{Bed, IMAGE};
use crate::events::{Events, Happened};
use crate::figures::now_nanos;
use crate::floor::pid_of;
use crate::idle::{self, Idle};
use crate::report::{Figure, Report, median};

/// Another edition of the image, for edits.
const IMAGE_2: &str = "mirrorlet.test/busybox:2";
/// Services of the bed; each selects some of the pods.
const SERVICES: usize = 20;
/// Between two looks into the containers.
const LOOK_AGAIN: Duration = Duration::from_millis(2);
/// Longest wait for something that must come.
const PATIENCE: Duration = Duration::from_mins(1);

/// Measures delays, and an idle window with objects beside one without.
pub async fn measure(settings: &Settings, report: &mut Report) -> anyhow::Result<()> {
    let bed = Bed::new(&settings.docker)?;
    let engine = BollardEngine::connect(&settings.docker)?;
    for number in 0..settings.pods {
        save(&bed, &name(number), &pod(number, IMAGE, false))?;
    }
    let agent = Agent::start(settings, &bed).await?;
    let events = Events::of(&engine, &bed.owner()?).await?;
    let apps = |h: &Happened| h.action == "start" && h.name.starts_with("k8s_app_");
    events.last_of(settings.pods, "start", apps).await?;
    // Of an agent that adopts what runs, as one does after an upgrade.
    agent.stop()?;
    let agent = Agent::start(settings, &bed).await?;
    let without = idle::window(settings, &agent).await?;

    // ConfigMaps first, so that no pod waits for one.
    for number in 0..settings.pods {
        save(&bed, &format!("config{number:02}"), &config_map(number, 0))?;
    }
    for number in 0..SERVICES {
        save(&bed, &format!("service{number:02}"), &service(number))?;
    }
    for number in 0..settings.pods {
        save(&bed, &name(number), &pod(number, IMAGE, true))?;
    }
    events.last_of(2 * settings.pods, "start", apps).await?;
    agent.quiet().await?;
    agent.stop()?;
    let agent = Agent::start(settings, &bed).await?;
    let with = idle::window(settings, &agent).await?;
    report.found(added(settings, &without, &with));

    let pids = pids(&engine, &bed, settings.pods).await?;
    let note = format!("median of {}", settings.rounds);
    report.found([Figure::new(
        "ConfigMap edited → new file in the container",
        median(&edits(settings, &bed, &pids).await?),
        "ms",
        "at most 300 ms",
        300.0,
        note.clone(),
    )]);
    let names = names(settings, &bed, &engine, &events, pids).await?;
    report.found([Figure::new(
        "pod replaced and running → its name right in the others",
        median(&names),
        "ms",
        "at most 100 ms",
        100.0,
        format!("{note}, {} others; all: {names:.0?}", settings.pods - 1),
    )]);
    drop(agent);
    Ok(())
}

/// Costs of an idle agent with `ConfigMap`s and Services, above those of one without.
fn added(settings: &Settings, without: &Idle, with: &Idle) -> [Figure; 3] {
    [
        Figure::new(
            "idle with ConfigMaps and Services: Engine calls",
            with.calls,
            "1/min",
            "at most 1 a minute",
            1.0,
            format!("{} pods and ConfigMaps, {SERVICES} Services", settings.pods),
        ),
        Figure::new(
            "… CPU of the agent above that without them",
            with.cpu_percent - without.cpu_percent,
            "%",
            "below 0.05 % of a core",
            0.05,
            format!("{:.3} % with them", with.cpu_percent),
        ),
        Figure::new(
            "… RSS above that without them",
            with.rss_mib - without.rss_mib,
            "MiB",
            "at most 1 MiB",
            1.0,
            format!("{:.1} MiB with them", with.rss_mib),
        ),
    ]
}

/// The processes of the pods' containers, by the pods' numbers.
async fn pids(
    engine: &BollardEngine,
    bed: &Bed,
    pods: usize,
) -> anyhow::Result<BTreeMap<usize, i32>> {
    let mut processes = BTreeMap::new();
    let listed = engine.list_containers(&bed.owner()?).await?;
    for container in listed {
        let names = container.names.unwrap_or_default();
        let is_of = |number: &usize| {
            let start = format!("/k8s_app_{}-", name(*number));
            names.iter().any(|name| name.starts_with(&start))
        };
        let running = container
            .state
            .is_some_and(|state| state.to_string() == "running");
        if let Some(number) = (0..pods).find(is_of).filter(|_| running) {
            let id = container.id.unwrap_or_default();
            processes.insert(number, pid_of(engine, &id).await?);
        }
    }
    let running = processes.len();
    anyhow::ensure!(running == pods, "{running} of {pods} pods run");
    Ok(processes)
}

/// A file as the container with that process sees it; empty if there is none.
fn seen(pid: i32, path: &str) -> String {
    fs::read_to_string(PathBuf::from(format!("/proc/{pid}/root{path}"))).unwrap_or_default()
}

/// Waits until that holds; milliseconds since then.
async fn until(began: i64, what: &str, holds: impl Fn() -> bool) -> anyhow::Result<f64> {
    let end = Instant::now() + PATIENCE;
    while !holds() {
        anyhow::ensure!(Instant::now() < end, "waited in vain for {what}");
        tokio::time::sleep(LOOK_AGAIN).await;
    }
    let took = u64::try_from(now_nanos()? - began).unwrap_or(0);
    Ok(Duration::from_nanos(took).as_secs_f64() * 1e3)
}

/// Milliseconds from the edit of a `ConfigMap` to its new file in the container.
async fn edits(
    settings: &Settings,
    bed: &Bed,
    pids: &BTreeMap<usize, i32>,
) -> anyhow::Result<Vec<f64>> {
    let mut all = Vec::new();
    for round in 0..settings.rounds {
        let number = round % settings.pods;
        let began = now_nanos()?;
        save(
            bed,
            &format!("config{number:02}"),
            &config_map(number, round + 1),
        )?;
        let pid = pids[&number];
        let edition = (round + 1).to_string();
        let is_new = || seen(pid, "/config/edition") == edition;
        all.push(until(began, "an edited file", is_new).await?);
        // The directory is watched, and looked at once more after a while.
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    Ok(all)
}

/// Milliseconds from the Engine's start of a pod in place of another to its address in the hosts
/// files of all others.
async fn names(
    settings: &Settings,
    bed: &Bed,
    engine: &BollardEngine,
    events: &Events,
    mut pids: BTreeMap<usize, i32>,
) -> anyhow::Result<Vec<f64>> {
    let starts = |kind: &str, number: usize| format!("k8s_{kind}_{}-", name(number));
    let mut all = Vec::new();
    pids.remove(&0);
    for round in 0..settings.rounds {
        let image = if round % 2 == 0 { IMAGE_2 } else { IMAGE };
        save(bed, &name(0), &pod(0, image, true))?;
        // Twice before the first round: without and with its ConfigMap.
        let (app, sandbox) = (starts("app", 0), starts("POD", 0));
        let of = async |start: &str| {
            let is_it = |h: &Happened| h.action == "start" && h.name.starts_with(start);
            events.last_of(round + 3, start, is_it).await
        };
        let ran = of(&app).await?;
        let sandbox = of(&sandbox).await?;
        let inspected = engine.inspect_container(&sandbox.id).await?;
        let networks = inspected.network_settings.and_then(|all| all.networks);
        let mut networks = networks.into_iter().flatten();
        let address = networks.find_map(|(_, network)| network.ip_address);
        let address = address.context("the sandbox has no address")?;
        let is_right = || {
            pids.values().all(|pid| {
                let hosts = seen(*pid, "/etc/hosts");
                let mut lines = hosts.lines().map(str::split_whitespace);
                lines.any(|mut words| {
                    words.next() == Some(address.as_str()) && words.any(|word| word == name(0))
                })
            })
        };
        all.push(until(ran.nanos, "the new address", is_right).await?);
    }
    Ok(all)
}

/// Puts a manifest into the directory, whole.
fn save(bed: &Bed, file: &str, manifest: &str) -> std::io::Result<()> {
    bed.prepare_as(file, manifest)?;
    bed.save(file)
}

fn name(number: usize) -> String {
    format!("pod{number:02}")
}

fn config_map(number: usize, edition: usize) -> String {
    let mut text = format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: config{number:02}}}\ndata:\n  edition: \"{edition}\"\n  text: |\n"
    );
    for line in 0..20 {
        // Writing to a String can't fail.
        let _ = writeln!(text, "    line {line} of a file of ordinary length");
    }
    text
}

fn service(number: usize) -> String {
    format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: service{number:02}}}\nspec:\n  clusterIP: None\n  selector: {{group: g{number}}}\n  ports: [{{port: 80}}]\n"
    )
}

/// A pod that runs until it is told to stop, and then stops at once; in some Service, and with a
/// `ConfigMap` if it has objects.
fn pod(number: usize, image: &str, has_objects: bool) -> String {
    let (name, group) = (name(number), number % SERVICES);
    let (mount, volume) = if has_objects {
        (
            "    volumeMounts: [{name: config, mountPath: /config}]\n".to_owned(),
            format!("  volumes: [{{name: config, configMap: {{name: config{number:02}}}}}]\n"),
        )
    } else {
        (String::new(), String::new())
    };
    format!(
        "apiVersion: v1
kind: Pod
metadata: {{name: {name}, labels: {{group: g{group}}}}}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: app
    image: {image}
    command: [\"sh\", \"-c\", \"trap 'exit 0' TERM; sleep 1000000 & wait\"]
{mount}{volume}"
    )
}
