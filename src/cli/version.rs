//! `mirrorlet version`.

use std::io::{self, Write};

use serde::Serialize;

use crate::config::args::VersionOutput;

/// Oldest Engine API spoken: Docker 20.10's.
const ENGINE_API_MIN: &str = "1.41";

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Program {
    version: &'static str,
    target: String,
    engine_api_min: &'static str,
    kubernetes_api: &'static str,
}

/// Prints the version.
pub fn version(output: VersionOutput, out: &mut dyn Write) -> io::Result<()> {
    let program = Program {
        version: env!("CARGO_PKG_VERSION"),
        target: format!("{}-{}", std::env::consts::ARCH, std::env::consts::OS),
        engine_api_min: ENGINE_API_MIN,
        kubernetes_api: "1.37",
    };
    match output {
        VersionOutput::Text => writeln!(
            out,
            "mirrorlet {} ({}), Docker Engine API from {}, Kubernetes API types {}",
            program.version, program.target, program.engine_api_min, program.kubernetes_api
        ),
        VersionOutput::Json => {
            serde_json::to_writer_pretty(&mut *out, &program)?;
            writeln!(out)
        }
    }
}
