//! Writes the manual pages and the shells' completions of the program, for packages: the program
//! itself carries no roff.
//!
//!   cargo run --example man -- DIR

#![allow(clippy::print_stderr, reason = "an example talks to who runs it")]

use std::fs;
use std::io;
use std::path::Path;
use std::process::ExitCode;

use clap::{Command, CommandFactory as _};
use clap_complete::{Generator as _, Shell};
use mirrorlet::cli::complete;
use mirrorlet::config::args::Cli;

const NAME: &str = "mirrorlet";

fn main() -> ExitCode {
    let Some(dir) = std::env::args_os().nth(1) else {
        eprintln!("usage: man DIR");
        return ExitCode::from(2);
    };
    match write_all(Path::new(&dir)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn write_all(dir: &Path) -> io::Result<()> {
    fs::create_dir_all(dir)?;
    let mut command = Cli::command();
    command.build();
    write_pages(dir, NAME, &command)?;
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        fs::write(dir.join(shell.file_name(NAME)), complete::script(shell)?)?;
    }
    Ok(())
}

/// One page a command, `mirrorlet-config-show.1` say, as git has it.
fn write_pages(dir: &Path, name: &str, command: &Command) -> io::Result<()> {
    // clap takes names that last; this program doesn't.
    let lasting: &'static str = name.to_owned().leak();
    let page = clap_mangen::Man::new(command.clone().name(lasting))
        .section("1")
        .manual("mirrorlet");
    let mut text = Vec::new();
    page.render(&mut text)?;
    fs::write(dir.join(format!("{name}.1")), text)?;
    for below in command.get_subcommands() {
        if below.get_name() != "help" {
            write_pages(dir, &format!("{name}-{}", below.get_name()), below)?;
        }
    }
    Ok(())
}
