//! The examples at the end of `--help`. A test parses each of them.

pub(super) const RUN: &str = "\
  # Run the manifests of a directory
  mirrorlet run --manifests /etc/mirrorlet/manifests

  # With a config file and debug messages in the log
  mirrorlet run --config /etc/mirrorlet/config.yaml --log-level debug

  # Run as a Node of a cluster
  mirrorlet run --kubeconfig /etc/mirrorlet/kubeconfig";

pub(super) const VALIDATE: &str = "\
  mirrorlet validate manifests/

  # Fail on warnings, too
  mirrorlet validate --strict web.yaml";

pub(super) const STATUS: &str = "\
  mirrorlet status

  # The pods with a label, with their ports
  mirrorlet status -l app=web -o wide

  # Fail unless all is well
  mirrorlet status --exit-code";

pub(super) const EXPLAIN: &str = "\
  mirrorlet explain web

  # Show new entries as they come
  mirrorlet explain web --since 10m -f

  # The problems of a workload, and its pods
  mirrorlet explain deployment/web";

pub(super) const PLAN: &str = "\
  # What the manifests of a directory would change
  mirrorlet plan manifests/

  # What an edit of one manifest would change
  mirrorlet plan web.yaml";

pub(super) const RESTART: &str = "\
  mirrorlet restart web

  # One container, with its image pulled first
  mirrorlet restart web -c app --pull

  # All pods of a workload; a Job from the beginning
  mirrorlet restart deployment/web job/migrate";

pub(super) const WAIT: &str = "\
  # Until all pods of a workload are Ready
  mirrorlet wait deployment/web --timeout 2m

  # Until a Job has completed; this fails if the Job fails
  mirrorlet wait job/migrate --for complete --timeout 0

  # After an edit, until its rollout has succeeded
  mirrorlet wait web --for healthy";

pub(super) const LOGS: &str = "\
  mirrorlet logs web --tail 100

  # Follow one container, with timestamps
  mirrorlet logs -f web -c app --timestamps

  # The instance before the last restart
  mirrorlet logs web --previous

  # All pods with a label
  mirrorlet logs -f -l app=web";

pub(super) const EXEC: &str = "\
  # A shell in a container
  mirrorlet exec -it web -- sh

  # A command in a container of one of a workload's pods
  mirrorlet exec deployment/web -c app -- ls -l /etc";

pub(super) const CP: &str = "\
  # Copy from a container, and to a container
  mirrorlet cp web:/etc/nginx/nginx.conf .
  mirrorlet cp site/ web:/usr/share/nginx/html -c app

  # As a tar archive on standard output
  mirrorlet cp web:/data -";

pub(super) const PORT_FORWARD: &str = "\
  mirrorlet port-forward web 8080:80

  # Any free local port
  mirrorlet port-forward deployment/web :80";

pub(super) const VOLUMES: &str = "\
  mirrorlet volumes

  # Remove the volume of a claim that no pod uses, with its data
  mirrorlet volumes rm mirrorlet_default_data";

pub(super) const ROLLOUT: &str = "\
  mirrorlet rollout status web
  mirrorlet rollout history web

  # Run an earlier version again, until the next edit
  mirrorlet rollout undo web --to-revision 3";

pub(super) const IMPORT_COMPOSE: &str = "\
  # List what can't be carried over
  mirrorlet import compose . > /dev/null

  # Write the manifests; each service has a file of its own
  mirrorlet import compose . -o manifests/";

/// The end of a command's help. `examples` has the indent of its first line taken off, as a
/// continued string has.
pub(super) fn help(examples: &str, codes: &str) -> String {
    format!("Examples:\n  {examples}\n\n{codes}")
}
