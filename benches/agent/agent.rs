//! The program as a child process.

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::Settings;
use crate::bed::Bed;

/// Pause between two questions whether something is so.
const ASK_AGAIN: Duration = Duration::from_millis(100);
/// How long the count of Engine calls must stand still for the agent to have finished.
const QUIET: Duration = Duration::from_secs(1);
/// Longest wait for the agent.
const PATIENCE: Duration = Duration::from_mins(1);

/// A running agent; killed when dropped.
pub struct Agent {
    child: Child,
    address: String,
}

impl Agent {
    /// Starts it on that bed, and waits until it is ready.
    pub async fn start(settings: &Settings, bed: &Bed) -> anyhow::Result<Self> {
        // Free a moment ago: good enough for one process.
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string();
        let mut command = Command::new(&settings.binary);
        command.args(["run", "--node-name", "bench", "--docker", &settings.docker]);
        command.args(["--metrics-address", &address]);
        // Agents of several beds run at a time.
        command.args(["--api-address", "127.0.0.1:0"]);
        command.arg("--root").arg(bed.root());
        command.args([
            "--log-level",
            &std::env::var("BENCH_LOG").unwrap_or("warn".into()),
        ]);
        let child = command
            .stdin(Stdio::null())
            .spawn()
            .with_context(|| format!("can't run {}", settings.binary.display()))?;
        let agent = Self { child, address };
        let end = Instant::now() + PATIENCE;
        while !agent
            .get("/readyz")
            .await
            .is_ok_and(|answer| answer.contains(" 200 "))
        {
            anyhow::ensure!(Instant::now() < end, "the agent does not get ready");
            tokio::time::sleep(ASK_AGAIN).await;
        }
        Ok(agent)
    }

    /// Process id.
    pub fn pid(&self) -> anyhow::Result<i32> {
        Ok(i32::try_from(self.child.id())?)
    }

    /// Engine calls made so far, by operation.
    pub async fn engine_calls(&self) -> anyhow::Result<BTreeMap<String, u64>> {
        let text = self.get("/metrics").await?;
        let calls = text.lines().filter_map(|line| {
            let rest = line.strip_prefix("mirrorlet_engine_operations_total{operation=\"")?;
            let (operation, count) = rest.split_once("\"} ")?;
            Some((operation.to_owned(), count.trim().parse().ok()?))
        });
        Ok(calls.collect())
    }

    /// How many probes have succeeded at least once.
    pub async fn probed_well(&self) -> anyhow::Result<usize> {
        let text = self.get("/metrics").await?;
        let well = |line: &&str| {
            line.starts_with("prober_probe_total{") && line.contains("result=\"successful\"")
        };
        Ok(text.lines().filter(well).count())
    }

    /// Seconds that all probes have taken, and how many there were.
    pub async fn probe_seconds(&self) -> anyhow::Result<(f64, f64)> {
        let text = self.get("/metrics").await?;
        let sum = |series: &str| {
            let values = text.lines().filter(|line| line.starts_with(series));
            let values = values.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
            values.sum::<f64>()
        };
        Ok((
            sum("prober_probe_duration_seconds_sum{"),
            sum("prober_probe_duration_seconds_count{"),
        ))
    }

    /// Waits until the agent asks the Engine nothing any more.
    pub async fn quiet(&self) -> anyhow::Result<BTreeMap<String, u64>> {
        let mut before = self.engine_calls().await?;
        loop {
            tokio::time::sleep(QUIET).await;
            let now = self.engine_calls().await?;
            if now == before {
                return Ok(now);
            }
            before = now;
        }
    }

    /// Stops it; what it runs keeps running.
    pub fn stop(mut self) -> anyhow::Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// Returns the answer of its port to a GET: head and body.
    pub async fn get(&self, path: &str) -> anyhow::Result<String> {
        let mut stream = TcpStream::connect(&self.address).await?;
        let request = format!("GET {path} HTTP/1.1\r\nHost: bench\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        Ok(answer)
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        // Gone already is what is wanted.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
