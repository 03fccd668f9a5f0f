//! The pod of the DNS server.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context as _;
use serde_json::{Value, json};

use mirrorlet_core::api::{NodeName, Pod};
use mirrorlet_core::desired::PodSource;
use mirrorlet_core::manifest::{Document, ParseContext, parse_manifest};
use mirrorlet_core::spec;
use mirrorlet_docker::image::SANDBOX_IMAGE;

/// Name of the pod in its manifest.
pub(super) const NAME: &str = "mirrorlet-dns";
/// Its namespace.
pub(super) const NAMESPACE: &str = "kube-system";
/// Where the program is in the container.
const PROGRAM: &str = "/mirrorlet";
/// Where the directory of the table is in the container.
const TABLES: &str = "/dns";
/// Libraries of the host that a program may need that isn't static.
const LIBRARIES: [&str; 4] = ["/lib", "/lib64", "/usr/lib", "/usr/lib64"];
/// Whether this program needs none.
const IS_STATIC: bool = cfg!(target_feature = "crt-static");
/// The annotation by which another program is another version of the pod.
const BUILD: &str = "mirrorlet.dev/build";
/// Flags of the program's command.
const LISTEN: &str = "--listen";
const FROM: &str = "--from";
/// The port of DNS.
pub(super) const PORT: u16 = 53;

/// The inputs of the manifest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct DnsPod {
    /// The program, which is this one.
    pub(super) program: PathBuf,
    /// Differs from that of every other build.
    pub(super) build: String,
    /// The directory of the table, and the table's file name.
    pub(super) table: (PathBuf, &'static str),
    /// The sandbox image; the container uses it, too, but runs none of its programs.
    pub(super) image: String,
    /// Libraries that the program needs.
    pub(super) libraries: Vec<&'static str>,
}

impl DnsPod {
    /// The pod for the running program. Blocks on the disk.
    ///
    /// # Errors
    /// The program's file can't be found.
    pub(super) fn of_this_program(
        table: (PathBuf, &'static str),
        image: String,
    ) -> anyhow::Result<Self> {
        let program = std::env::current_exe().context("failed to find the file of the program")?;
        let file = std::fs::metadata(&program)
            .with_context(|| format!("failed to look at {}", program.display()))?;
        let libraries = LIBRARIES.into_iter();
        let libraries = libraries.filter(|path| !IS_STATIC && Path::new(path).is_dir());
        Ok(Self {
            build: format!(
                "{}-{}-{}",
                env!("CARGO_PKG_VERSION"),
                file.size(),
                file.mtime()
            ),
            program,
            table,
            image,
            libraries: libraries.collect(),
        })
    }

    /// Its manifest, for addresses to listen on and the subnets of clients. The next version starts
    /// beside the current one; both listen then.
    pub(super) fn manifest(&self, listen: &[Ipv4Addr], subnets: &[String]) -> Value {
        let (directory, table) = &self.table;
        let mut command = vec![PROGRAM.to_owned(), "dns".to_owned()];
        command.extend(["--table".to_owned(), format!("{TABLES}/{table}")]);
        for address in listen {
            command.extend([LISTEN.to_owned(), format!("{address}:{PORT}")]);
        }
        for subnet in subnets {
            command.extend([FROM.to_owned(), subnet.clone()]);
        }
        let mut volumes = vec![
            json!({"name": "program", "hostPath": {"path": self.program, "type": "File"}}),
            json!({"name": "table", "hostPath": {"path": directory, "type": "Directory"}}),
        ];
        let mut mounts = vec![
            json!({"name": "program", "mountPath": PROGRAM, "readOnly": true}),
            json!({"name": "table", "mountPath": TABLES, "readOnly": true}),
        ];
        for (number, path) in self.libraries.iter().enumerate() {
            let name = format!("libraries-{number}");
            volumes.push(json!({"name": name, "hostPath": {"path": path, "type": "Directory"}}));
            mounts.push(json!({"name": name, "mountPath": path, "readOnly": true}));
        }
        let answers = |period: u32| {
            let host = listen.first().map(ToString::to_string);
            json!({"tcpSocket": {"host": host, "port": PORT}, "periodSeconds": period, "timeoutSeconds": 5})
        };
        json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": NAME,
                "namespace": NAMESPACE,
                "labels": {"app.kubernetes.io/name": NAME, "app.kubernetes.io/managed-by": "mirrorlet"},
                "annotations": {BUILD: self.build, "mirrorlet.dev/rollout": "StartFirst"},
            },
            "spec": {
                "hostNetwork": true,
                "dnsPolicy": "Default",
                "priorityClassName": "system-node-critical",
                "tolerations": [{"operator": "Exists"}],
                "terminationGracePeriodSeconds": 5,
                "containers": [{
                    "name": "dns",
                    "image": self.image,
                    // Ours is in this program; a registry may have another of its name.
                    "imagePullPolicy": if self.image == SANDBOX_IMAGE { "Never" } else { "IfNotPresent" },
                    "command": command,
                    "resources": {"limits": {"memory": "128Mi"}, "requests": {"memory": "16Mi"}},
                    "securityContext": {
                        "allowPrivilegeEscalation": false,
                        "capabilities": {"drop": ["ALL"], "add": ["NET_BIND_SERVICE"]},
                        "readOnlyRootFilesystem": true,
                        "runAsUser": 0,
                    },
                    "readinessProbe": answers(10),
                    "livenessProbe": answers(30),
                    "volumeMounts": mounts,
                }],
                "volumes": volumes,
            },
        })
    }
}

/// Converts a manifest to the pod on this node.
pub(super) fn pod_of(
    manifest: &[u8],
    location: &str,
    node_name: &NodeName,
) -> anyhow::Result<Arc<Pod>> {
    let context = ParseContext {
        node_name,
        source: PodSource::File,
        location,
    };
    let parsed = parse_manifest(manifest, &context);
    let problems = parsed
        .documents
        .iter()
        .flat_map(|document| &document.problems);
    let problems: Vec<String> = problems
        .chain(&parsed.problems)
        .map(ToString::to_string)
        .collect();
    let mut pods = parsed.documents.iter().flat_map(Document::pods);
    let pod = pods.next().map(Arc::clone);
    pod.with_context(|| problems.join("; "))
}

/// The addresses and subnets of the server's pod.
pub(super) fn served_by(pod: &Pod) -> (Vec<Ipv4Addr>, Vec<String>) {
    let containers = spec::containers(pod);
    let commands = containers.filter_map(|(_, container)| container.command.as_ref());
    let words: Vec<&String> = commands.flatten().collect();
    let values = |flag: &str| {
        let pairs = words.windows(2).filter(|pair| pair[0] == flag);
        pairs.map(|pair| pair[1].to_owned()).collect::<Vec<_>>()
    };
    let listen = values(LISTEN).into_iter().filter_map(|at| {
        let at: SocketAddrV4 = at.parse().ok()?;
        Some(*at.ip())
    });
    (listen.collect(), values(FROM))
}

#[cfg(test)]
mod tests {
    use super::*;
    use mirrorlet_core::rollout::{RolloutStrategy, Settings, beside_refused};

    fn dns_pod(build: &str) -> DnsPod {
        DnsPod {
            program: "/usr/bin/mirrorlet".into(),
            build: build.to_owned(),
            table: ("/var/lib/mirrorlet/dns".into(), "table.json"),
            image: "mirrorlet/pause:1".to_owned(),
            libraries: vec!["/lib"],
        }
    }

    const LISTENS: [Ipv4Addr; 1] = [Ipv4Addr::new(172, 17, 0, 1)];

    fn built(build: &str) -> Arc<Pod> {
        let subnets = ["172.17.0.0/16".to_owned()];
        let manifest = dns_pod(build).manifest(&LISTENS, &subnets).to_string();
        pod_of(manifest.as_bytes(), "/r/dns/pod.yaml", &"Box".into()).unwrap()
    }

    #[test]
    fn another_program_is_another_version_that_starts_beside_the_first() {
        let (first, same, second) = (built("1"), built("1"), built("2"));
        // names 11
        assert_eq!(first.metadata.uid, same.metadata.uid);
        // names 11
        assert_ne!(first.metadata.uid, second.metadata.uid);
        let settings = Settings::of(&second);
        assert_eq!(settings.strategy, RolloutStrategy::StartFirst);
        // names 11
        assert_eq!(beside_refused(&first, &second, &settings), None);
    }

    #[test]
    fn the_manifest_of_the_dns_server_is_read_back() {
        let subnets = ["172.17.0.0/16".to_owned(), "10.0.0.0/8".to_owned()];
        let manifest = dns_pod("1").manifest(&LISTENS, &subnets).to_string();
        let pod = pod_of(manifest.as_bytes(), "/r/dns/pod.yaml", &"Box".into()).unwrap();
        // names 20
        assert_eq!(served_by(&pod), (LISTENS.to_vec(), subnets.to_vec()));
        // names 20
        assert_eq!(served_by(&Pod::default()), (Vec::new(), Vec::new()));
    }

    #[test]
    fn the_dns_server_may_bind_its_port_and_nothing_else() {
        let pod = built("1");
        let container = &pod.spec.as_ref().unwrap().containers[0];
        let words = container.command.clone().unwrap().join(" ");
        assert_eq!(
            words,
            "/mirrorlet dns --table /dns/table.json --listen 172.17.0.1:53 --from 172.17.0.0/16"
        );
        let security = container.security_context.as_ref().unwrap();
        let capabilities = security.capabilities.as_ref().unwrap();
        // names 12
        assert_eq!(capabilities.drop, Some(vec!["ALL".to_owned()]));
        assert_eq!(capabilities.add, Some(vec!["NET_BIND_SERVICE".to_owned()]));
        let mounts = container.volume_mounts.iter().flatten();
        // names 12
        assert!(mounts.clone().all(|mount| mount.read_only == Some(true)));
        assert_eq!(mounts.count(), 3);
    }
}
