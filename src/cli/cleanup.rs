//! `mirrorlet cleanup`: removes what an agent has left.

use std::fmt::Write as _;

use super::{Outcome, print, resolve_args, warn};
use crate::app::cleanup::{Leftovers, cleanup as clean};
use crate::config::args::CleanupArgs;

/// Prints what there is to remove, and with `--yes` removes it.
pub async fn cleanup(args: &CleanupArgs) -> Outcome {
    let resolved = resolve_args(&args.settings.0)?;
    let root = resolved.config.root.display();
    let Some(left) = clean(&resolved.config, args.yes).await? else {
        return print(&format!("no agent has used {root}\n"));
    };
    let each = if args.verbose {
        listed(&left)
    } else {
        String::new()
    };
    let (containers, pods) = (left.containers.len(), left.pods.len());
    let what =
        format!("{containers} containers, the volumes of {pods} pods, the rules for host ports");
    let printed = print(&if args.yes {
        format!("{each}removed: {what}\nThe rest of {root} can be deleted now.\n")
    } else {
        format!(
            "{each}would remove: {what}\nNothing was removed; do it with: mirrorlet cleanup --yes\n"
        )
    });
    for why in &left.kept_cgroups {
        warn(&format!(
            "{why}; an empty cgroup is harmless, and gone after the next boot"
        ));
    }
    printed
}

/// One line for each container, and for each pod that has volumes.
fn listed(left: &Leftovers) -> String {
    let mut text = String::new();
    let containers = left
        .containers
        .iter()
        .map(|(_, name)| ("container", &**name));
    let pods = left.pods.iter().map(|uid| ("volumes of pod", uid.as_str()));
    for (kind, name) in containers.chain(pods) {
        // Writing to a String can't fail.
        let _ = writeln!(text, "{kind} {name}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_is_named() {
        let left = Leftovers {
            containers: vec![("0a".to_owned(), "k8s_POD_web_default_u_0".to_owned())],
            pods: ["u".into()].into(),
            ..Leftovers::default()
        };
        let named = "container k8s_POD_web_default_u_0\nvolumes of pod u\n";
        assert_eq!(listed(&left), named);
    }
}
