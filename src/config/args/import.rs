//! Arguments of `import`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::{OWN_EXIT_CODES, examples};

/// Arguments of `import`.
#[derive(Debug, Clone, Args)]
pub struct ImportArgs {
    /// The subcommand.
    #[command(subcommand)]
    pub command: ImportCommand,
}

/// Subcommands of `import`.
#[derive(Debug, Clone, Subcommand)]
pub enum ImportCommand {
    /// Print manifests for a Docker Compose project, and list on standard error what can't be
    /// carried over. Needs neither an agent nor an Engine.
    #[command(after_help = examples::help(examples::IMPORT_COMPOSE, OWN_EXIT_CODES))]
    Compose(ComposeArgs),
}

/// Arguments of `import compose`.
#[expect(clippy::doc_markdown, reason = "it is the help")]
#[derive(Debug, Clone, Args)]
pub struct ComposeArgs {
    /// Compose files, later ones merged over earlier ones, or the directory of a project; - is
    /// standard input.
    #[arg(required = true, value_name = "FILE|DIR", value_hint = clap::ValueHint::AnyPath)]
    pub files: Vec<PathBuf>,
    /// Import the services of this profile, too; * for all profiles. May be repeated.
    #[arg(long = "profile", value_name = "NAME")]
    pub profiles: Vec<String>,
    /// Project name, the prefix of volume names [default: as with Docker Compose].
    #[arg(short, long, value_name = "NAME")]
    pub project_name: Option<String>,
    /// File of variables, instead of the .env file next to the first file. May be repeated.
    #[arg(long = "env-file", value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    pub env_files: Vec<PathBuf>,
    /// Namespace to write into the manifests [default: none; the agent then uses default].
    #[arg(short, long, value_name = "NAME")]
    pub namespace: Option<String>,
    /// Write the manifests to this directory, one file for each service, instead of printing them.
    #[arg(short = 'o', long, value_name = "DIR", value_hint = clap::ValueHint::DirPath)]
    pub output_dir: Option<PathBuf>,
    /// Overwrite existing files in the directory.
    #[arg(long, requires = "output_dir")]
    pub force: bool,
    /// Exit with code 1 if there are warnings: settings that are not carried over or apply to more
    /// containers than in Compose, unknown keys, variables that are not set, services that no active
    /// profile has, or a COMPOSE_FILE that is not read. The manifests are still written.
    #[arg(long)]
    pub strict: bool,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use crate::config::args::Cli;

    #[test]
    fn the_page_about_imports_says_of_strict_what_its_help_says() {
        let command = Cli::command();
        let import = command.find_subcommand("import").unwrap();
        let mut flags = import.find_subcommand("compose").unwrap().get_arguments();
        let strict = flags.find(|flag| flag.get_id() == "strict").unwrap();
        let help = strict.get_help().unwrap().to_string();
        // The classes of warnings, in the order of the help.
        for class in [
            "not carried over",
            "more containers than in Compose",
            "unknown keys",
            "variables that are not set",
            "no active profile has",
            "COMPOSE_FILE",
        ] {
            assert!(help.contains(class), "{class}: {help}");
        }
        let page = include_str!("../../../docs/from-compose.md").replace('`', "");
        let row = format!("| --strict | {help}");
        assert!(page.contains(&row), "not in docs/from-compose.md: {row}");
    }
}
