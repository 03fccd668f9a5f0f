//! `mirrorlet cleanup`: removes everything that a stopped agent has left.

use std::fmt::Write as _;
use std::path::Path;

use super::{Outcome, print, resolve_args, warn};
use crate::app::cleanup::{Leftovers, cleanup as clean};
use crate::config::args::CleanupArgs;

/// Prints what there is to remove, and with `--yes` removes it.
pub async fn cleanup(args: &CleanupArgs) -> Outcome {
    let resolved = resolve_args(&args.settings.0)?;
    let root: &Path = &resolved.config.root;
    let Some(left) = clean(&resolved.config, args.yes).await? else {
        return print(&format!(
            "no agent has used {}; if the service has another root directory, name it with --root DIR\n",
            root.display()
        ));
    };
    let each = if args.verbose {
        listed(&left)
    } else {
        String::new()
    };
    let what = kinds(&left, resolved.config.pod_logs_dir.as_deref());
    let printed = print(&if args.yes {
        format!("{each}removed: {what}\n{}\n", rest(root))
    } else {
        format!(
            "{each}would remove: {what}\nNothing was removed; do it with: mirrorlet cleanup --yes\n"
        )
    });
    for name in &left.others {
        warn(&format!(
            "container {name} has a label of this agent's, perhaps from its image, but is not a container of a pod: it stays; if you don't need it, remove it with: docker rm -f {name}"
        ));
    }
    for why in &left.kept_cgroups {
        warn(&format!(
            "{why}; an empty cgroup is harmless, and gone after the next boot"
        ));
    }
    printed
}

/// Lists the kinds of things that cleanup removes, in one line.
fn kinds(left: &Leftovers, logs: Option<&Path>) -> String {
    let (containers, pods) = (left.containers.len(), left.pods.len());
    let logs = logs.map_or_else(String::new, |dir| {
        format!("the links to logs in {}, ", dir.display())
    });
    format!(
        "{containers} containers, the volumes and cgroups of {pods} pods, {logs}the rules for host ports"
    )
}

/// Says what is lost with the rest of a root directory.
fn rest(root: &Path) -> String {
    let holds = [
        (
            "api",
            "api/ (objects created with kubectl: there is no other copy)",
        ),
        ("manifests", "manifests/"),
        (
            "owner",
            "owner, by which the volumes of claims are recognized",
        ),
    ];
    let is_there = |(name, _): &(&str, &str)| root.join(name).exists();
    let held = holds.into_iter().filter(is_there);
    let held: Vec<&str> = held.map(|(_, words)| words).collect();
    let held = match &*held {
        [] => String::new(),
        [one] => format!("; it holds {one}"),
        [before @ .., last] => format!("; it holds {}, and {last}", before.join(", ")),
    };
    format!("The rest of {} can be deleted now{held}.", root.display())
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
    fn what_is_lost_with_the_rest_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let (root, shown) = (dir.path(), dir.path().display());
        let all = format!("The rest of {shown} can be deleted now");
        assert_eq!(rest(root), format!("{all}."));
        std::fs::write(root.join("owner"), "").unwrap();
        let owner = "owner, by which the volumes of claims are recognized.";
        assert_eq!(rest(root), format!("{all}; it holds {owner}"));
        for directory in ["api", "manifests"] {
            std::fs::create_dir(root.join(directory)).unwrap();
        }
        let api = "api/ (objects created with kubectl: there is no other copy)";
        // rollouts S5
        assert_eq!(
            rest(root),
            format!("{all}; it holds {api}, manifests/, and {owner}")
        );
    }

    #[test]
    fn what_is_left_is_named() {
        let left = Leftovers {
            containers: vec![("0a".to_owned(), "k8s_POD_web_default_u_0".to_owned())],
            pods: ["u".into()].into(),
            ..Leftovers::default()
        };
        let named = "container k8s_POD_web_default_u_0\nvolumes of pod u\n";
        assert_eq!(listed(&left), named);
        let pods = "1 containers, the volumes and cgroups of 1 pods";
        let rules = "the rules for host ports";
        assert_eq!(kinds(&left, None), format!("{pods}, {rules}"));
        let logs = "the links to logs in /var/log/pods";
        // rollouts S5
        assert_eq!(
            kinds(&left, Some(Path::new("/var/log/pods"))),
            format!("{pods}, {logs}, {rules}")
        );
    }
}
