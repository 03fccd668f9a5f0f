//! `mirrorlet volumes`: the volumes of claims, and their removal.

use std::io::{self, BufRead as _, IsTerminal as _};
use std::path::Path;

use super::logs::escape;
use super::table::{self, Cell, one_line};
use super::{Failure, Outcome, client, print, print_document};
use crate::config::args::{AgentArgs, ListArgs, RemoveArgs, VolumesArgs, VolumesCommand};
use mirrorlet_core::api::report::{VolumeReport, VolumeState, VolumesReport};

/// The agent that a command line means.
pub fn agent(args: &VolumesArgs) -> &AgentArgs {
    match &args.command {
        Some(VolumesCommand::Rm(args)) => &args.agent,
        None => &args.list.agent,
    }
}

/// Lists or removes volumes.
pub async fn volumes(args: &VolumesArgs, root: &Path) -> Outcome {
    match &args.command {
        Some(VolumesCommand::Rm(args)) => remove(args, root).await,
        None => list(&args.list, root).await,
    }
}

pub(super) async fn fetch(root: &Path) -> Result<VolumesReport, Failure> {
    let body = client::get(root, "/v1/volumes").await?.whole().await?;
    Ok(client::parse(&body)?)
}

async fn list(args: &ListArgs, root: &Path) -> Outcome {
    print_document(args.output, &fetch(root).await?, |report| {
        render(&report.volumes)
    })
}

fn render(volumes: &[VolumeReport]) -> String {
    if volumes.is_empty() {
        return "no claim has a volume\n".to_owned();
    }
    let row = |volume: &VolumeReport| {
        let driver = volume
            .driver
            .as_ref()
            .map(|driver| format!("driver {driver}"));
        vec![
            Cell::from(&*volume.name),
            format!("{:?}", volume.state).into(),
            format!("{}/{}", volume.namespace, volume.claim).into(),
            volume.path.clone().or(driver).unwrap_or_default().into(),
            volume.users().collect::<Vec<_>>().join(", ").into(),
        ]
    };
    let titles = ["NAME", "STATE", "CLAIM", "STORAGE", "USED BY"];
    table::titled(titles, volumes.iter().map(row))
}

async fn remove(args: &RemoveArgs, root: &Path) -> Outcome {
    let VolumesReport { volumes } = fetch(root).await?;
    let is_meant = |volume: &&VolumeReport| {
        let is_unused = volume.state == VolumeState::Released && volume.users().next().is_none();
        args.released && is_unused || args.names.contains(&volume.name)
    };
    let meant: Vec<&VolumeReport> = volumes.iter().filter(is_meant).collect();
    let unknown = |name: &&String| !meant.iter().any(|volume| volume.name == **name);
    if let Some(name) = args.names.iter().find(unknown) {
        let name = one_line(name);
        let error = anyhow::anyhow!("no claim has a volume {name}; see: mirrorlet volumes");
        return Err(error.into());
    }
    if meant.is_empty() {
        return print("no volume is released\n");
    }
    if !args.yes {
        confirm(&meant)?;
    }
    for volume in meant {
        let path = format!("/v1/volumes/remove?name={}", escape(&volume.name));
        let removed: VolumeReport = client::parse(&client::post(root, &path).await?)?;
        let name = one_line(&removed.name);
        let done = match (removed.state, removed.created) {
            (VolumeState::Lost, _) => "released, an empty one is created when a pod uses its claim",
            (VolumeState::Bound | VolumeState::Released, true) => "removed",
            (VolumeState::Bound | VolumeState::Released, false) => "released, its data was kept",
        };
        print(&format!("volume {name}: {done}\n"))?;
    }
    Ok(())
}

/// Asks the user to confirm; fails without consent.
fn confirm(volumes: &[&VolumeReport]) -> Outcome {
    for volume in volumes {
        let (name, claim) = (one_line(&volume.name), one_line(&volume.claim));
        let namespace = one_line(&volume.namespace);
        let what = match (volume.state, volume.created) {
            (VolumeState::Lost, _) => "start with an empty volume",
            (VolumeState::Bound | VolumeState::Released, true) => "remove with its data",
            (VolumeState::Bound | VolumeState::Released, false) => "release, keep its data",
        };
        print(&format!("{name} (claim {namespace}/{claim}): {what}\n"))?;
    }
    print("Continue? [y/N] ")?;
    let mut answer = String::new();
    let is_answered = io::stdin().lock().read_line(&mut answer)? > 0;
    if matches!(answer.trim(), "y" | "Y" | "yes") {
        return Ok(());
    }
    let why = not_agreed(is_answered || io::stdin().is_terminal());
    Err(anyhow::anyhow!(why).into())
}

/// The error without consent. If the user could not be asked, as in a script, it mentions `--yes`.
fn not_agreed(is_asked: bool) -> &'static str {
    if is_asked {
        "nothing was removed"
    } else {
        "nothing was removed: the question got no answer; pass --yes"
    }
}

#[cfg(test)]
mod tests;
