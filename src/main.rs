//! The program: one TLS provider, one command, one exit code.

use std::process::ExitCode;

fn main() -> ExitCode {
    // Fails only if a provider is installed already, which is fine.
    let _ = rustls::crypto::ring::default_provider().install_default();
    mirrorlet::cli::main()
}
