//! The program: one TLS provider, one command, one exit code.

use std::process::ExitCode;

fn main() -> ExitCode {
    // Fails only when a provider is there already, which is as good.
    let _ = rustls::crypto::ring::default_provider().install_default();
    mirrorlet::cli::main()
}
