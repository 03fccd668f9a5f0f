//! Calls to the Engine as they would be made by hand.

use std::time::Instant;

use mirrorlet_docker::BollardEngine;
use mirrorlet_docker::engine::Engine as _;
use mirrorlet_runtime::{ExecOptions, StreamOptions};
use tokio::io::AsyncReadExt as _;

/// Milliseconds that `true` takes in a container: create, start, read and inspect.
pub async fn exec_of_true(engine: &BollardEngine, container: &str) -> anyhow::Result<f64> {
    let began = Instant::now();
    let options = ExecOptions {
        command: vec!["true".into()],
        streams: StreamOptions {
            stdout: true,
            stderr: true,
            ..StreamOptions::default()
        },
        size: None,
    };
    let exec = engine.create_exec(container, &options).await?;
    let mut stream = engine.start_exec(&exec, false).await?;
    stream.read_to_end(&mut Vec::new()).await?;
    engine.inspect_exec(&exec).await?;
    Ok(began.elapsed().as_secs_f64() * 1e3)
}
