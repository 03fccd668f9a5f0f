//! Costs of reading logs, running commands and probing by commands, beside the Engine's own client
//! and raw calls.

use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use mirrorlet_docker::BollardEngine;

use crate::Settings;
use crate::agent::Agent;
use crate::bed::{Bed, IMAGE};
use crate::events::Events;
use crate::raw;
use crate::report::{Figure, Report, median};

/// Most time that an exec probe may take, as a multiple of the same three calls made raw.
const PROBE_SHARE: f64 = 1.3;
/// The least of the throughput of the Engine's own client that ours must have.
const THROUGHPUT_SHARE: f64 = 0.8;
/// Rounds of the figures about large transfers.
const ROUNDS: usize = 3;
/// The pod of all figures, and its container.
const POD: &str = "access";
const PERIOD: Duration = Duration::from_secs(1);
/// How often it is looked whether the log is written.
const LOOK: Duration = Duration::from_millis(200);

/// Measures everything of this module.
pub async fn measure(settings: &Settings, report: &mut Report) -> anyhow::Result<()> {
    let bed = Bed::new(&settings.docker)?;
    let agent = Agent::start(settings, &bed).await?;
    let engine = Arc::new(BollardEngine::connect(&settings.docker)?);
    let events = Events::of(&engine, &bed.owner()?).await?;
    let bytes = settings.stream_mb * 1_000_000;
    bed.prepare_as(POD, &writer(bytes))?;
    bed.save(POD)?;
    let id = events.one("start", &format!("k8s_app_{POD}-")).await?.id;
    let stand = Stand {
        settings,
        bed: &bed,
        id: &id,
        bytes,
    };
    report.found([stand.probe(&agent, &engine).await?]);
    // The last line of the log is the mark that it is whole.
    while !stand
        .docker(&["logs", "--tail", "1", &id])?
        .0
        .ends_with(b"done\n")
    {
        tokio::time::sleep(LOOK).await;
    }
    report.found([stand.logs()?]);
    report.found([stand.exec_out()?]);
    report.found([stand.exec_in()?]);
    Ok(())
}

struct Stand<'a> {
    settings: &'a Settings,
    bed: &'a Bed,
    id: &'a str,
    bytes: u64,
}

impl Stand<'_> {
    /// The mean time of an exec probe, beside create, start, read and inspect of the same command.
    async fn probe(&self, agent: &Agent, engine: &BollardEngine) -> anyhow::Result<Figure> {
        while agent.probed_well().await? < 1 {
            tokio::time::sleep(LOOK).await;
        }
        let before = agent.probe_seconds().await?;
        let mut raw = Vec::new();
        for _ in 0..self.settings.rounds.max(10) {
            raw.push(raw::exec_of_true(engine, self.id).await?);
            tokio::time::sleep(PERIOD).await;
        }
        let after = agent.probe_seconds().await?;
        let mean = (after.0 - before.0) / (after.1 - before.1) * 1e3;
        #[expect(clippy::cast_precision_loss, reason = "some tens")]
        let floor = raw.iter().sum::<f64>() / raw.len() as f64;
        Ok(Figure {
            name: "exec probe, mean",
            value: mean,
            unit: "ms",
            floor: Some(floor),
            target: "1.3 × create, start, inspect",
            limit: PROBE_SHARE * floor,
            note: format!("{} attempts", after.1 - before.1),
        })
    }

    /// A whole log, beside `docker logs`.
    fn logs(&self) -> anyhow::Result<Figure> {
        self.beside(
            "a log read through the agent",
            || self.mirrorlet(&["logs", POD], None),
            || Ok(self.docker(&["logs", self.id])?.1),
        )
    }

    /// Measures the output of a command, beside `docker exec`.
    fn exec_out(&self) -> anyhow::Result<Figure> {
        let command = format!("head -c {} /dev/zero", self.bytes);
        self.beside(
            "a command's output through the agent",
            || self.mirrorlet(&["exec", POD, "--", "sh", "-c", &command], None),
            || Ok(self.docker(&["exec", self.id, "sh", "-c", &command])?.1),
        )
    }

    /// Measures the input of a command, beside `docker exec -i`.
    fn exec_in(&self) -> anyhow::Result<Figure> {
        let command = "cat > /dev/null";
        self.beside(
            "a command's input through the agent",
            || {
                self.mirrorlet(
                    &["exec", "-i", POD, "--", "sh", "-c", command],
                    Some(self.bytes),
                )
            },
            || {
                let mut docker = Command::new("docker");
                docker.args([
                    "-H",
                    &self.settings.docker,
                    "exec",
                    "-i",
                    self.id,
                    "sh",
                    "-c",
                    command,
                ]);
                Ok(run(docker, Some(self.bytes))?.1)
            },
        )
    }

    /// Seconds that ours takes beside the Engine's client, one after the other.
    fn beside(
        &self,
        name: &'static str,
        ours: impl Fn() -> anyhow::Result<f64>,
        docker: impl Fn() -> anyhow::Result<f64>,
    ) -> anyhow::Result<Figure> {
        let (mut values, mut floors) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            floors.push(docker()?);
            values.push(ours()?);
        }
        let floor = median(&floors);
        Ok(Figure {
            name,
            value: median(&values),
            unit: "s",
            floor: Some(floor),
            target: "0.8 × the throughput of docker",
            limit: floor / THROUGHPUT_SHARE,
            note: format!(
                "{} MB; all: {values:.2?} {floors:.2?}",
                self.settings.stream_mb
            ),
        })
    }

    /// Seconds that a command of the agent's takes.
    fn mirrorlet(&self, args: &[&str], input: Option<u64>) -> anyhow::Result<f64> {
        let mut command = Command::new(&self.settings.binary);
        command.args(&args[..1]).arg("--root").arg(self.bed.root());
        command.args(&args[1..]);
        Ok(run(command, input)?.1)
    }

    /// The end of what the Engine's client prints, and the seconds it takes.
    fn docker(&self, args: &[&str]) -> anyhow::Result<(Vec<u8>, f64)> {
        let mut command = Command::new("docker");
        command.args(["-H", &self.settings.docker]).args(args);
        run(command, None)
    }
}

/// Runs a program that is given so many bytes and whose output is read; the end of that, and the
/// seconds it all took.
fn run(mut command: Command, input: Option<u64>) -> anyhow::Result<(Vec<u8>, f64)> {
    let began = Instant::now();
    let stdin = if input.is_some() {
        Stdio::piped()
    } else {
        Stdio::null()
    };
    let mut child = command.stdin(stdin).stdout(Stdio::piped()).spawn()?;
    let feeder = input.zip(child.stdin.take()).map(|(bytes, mut stdin)| {
        std::thread::spawn(move || {
            let block = vec![0; 64 << 10];
            let mut left = usize::try_from(bytes).unwrap_or(usize::MAX);
            while left > 0 {
                let part = left.min(block.len());
                stdin.write_all(&block[..part])?;
                left -= part;
            }
            std::io::Result::Ok(())
        })
    });
    let mut stdout = child.stdout.take().context("no output")?;
    let (mut block, mut end) = (vec![0; 256 << 10], Vec::new());
    loop {
        let read = stdout.read(&mut block)?;
        if read == 0 {
            break;
        }
        end.clear();
        end.extend_from_slice(&block[read.saturating_sub(16)..read]);
    }
    let status = child.wait()?;
    anyhow::ensure!(status.success(), "{command:?}: {status}");
    if let Some(feeder) = feeder {
        feeder
            .join()
            .map_err(|_| anyhow::anyhow!("the feeder panicked"))??;
    }
    Ok((end, began.elapsed().as_secs_f64()))
}

/// A pod that writes a log of so many bytes, and is asked by a command every second.
fn writer(bytes: u64) -> String {
    format!(
        r#"apiVersion: v1
kind: Pod
metadata:
  name: {POD}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: app
    image: {IMAGE}
    command: ["sh", "-c", "trap 'exit 0' TERM; sleep 20; yes 'a line of a log, of a length that is usual among lines of logs, with a time and some words 0123456789' | head -c {bytes}; echo; echo done; sleep 1000000 & wait"]
    readinessProbe:
      exec: {{command: ["true"]}}
      periodSeconds: 1
"#
    )
}
