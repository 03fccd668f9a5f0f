//! `mirrorlet cleanup`: removes what an agent has left.

use super::{Outcome, print, resolve_args};
use crate::app::cleanup::cleanup as clean;
use crate::config::args::CleanupArgs;

/// Prints what there is to remove, and with `--yes` removes it.
pub async fn cleanup(args: &CleanupArgs) -> Outcome {
    let resolved = resolve_args(&args.settings.0)?;
    let root = resolved.config.root.display();
    let Some(left) = clean(&resolved.config, args.yes).await? else {
        return print(&format!("no agent has used {root}\n"));
    };
    let (containers, pods) = (left.containers.len(), left.pods.len());
    let what =
        format!("{containers} containers, the volumes of {pods} pods, the rules for host ports");
    print(&if args.yes {
        format!("removed: {what}\nThe rest of {root} can be deleted now.\n")
    } else {
        format!("would remove: {what}\nNothing was removed; do it with: mirrorlet cleanup --yes\n")
    })
}
