//! `mirrorlet dns`: the DNS server of pods, which the agent runs in a container.

use anyhow::Context as _;
use mirrorlet_dns::{Options, serve};
use tokio::signal::unix::{SignalKind, signal};

use super::{Failure, Outcome, block_on};
use crate::config::LogFormat;
use crate::config::args::DnsArgs;

/// Serves until it is stopped.
pub fn dns(args: DnsArgs) -> Outcome {
    crate::logging::init(LogFormat::Auto, "info").map_err(|e| Failure::Usage(e.into()))?;
    let subnets = args.from.iter().map(|subnet| {
        let parsed = subnet.parse();
        parsed.with_context(|| format!("--from {subnet}: not a subnet, as 172.17.0.0/16 is one"))
    });
    let from = subnets.collect::<Result<_, _>>().map_err(Failure::Usage)?;
    let options = Options {
        table: args.table,
        listen: args.listen,
        from,
    };
    block_on(async {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let stop = async {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
        };
        Ok(serve(options, stop).await?)
    })
}
