//! The table from which the DNS server answers.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use mirrorlet_core::names::{NamedPod, Names};
use mirrorlet_core::spec;
use mirrorlet_dns::{Name, Port, Table};
use mirrorlet_host::disk;

use crate::store::cell::Reader;

/// The port of DNS.
const PORT: u16 = 53;

/// Writes the table of the DNS server.
#[derive(Debug, Clone)]
pub struct DnsTable {
    /// The file.
    pub path: PathBuf,
    /// The ending of the longest names.
    pub domain: String,
    /// The servers that know all other names.
    pub forwarders: Reader<Vec<IpAddr>>,
}

impl DnsTable {
    /// Replaces the file, while its directory exists, which is removed with the server.
    pub(super) async fn write(
        &self,
        names: &Names,
        pods: &[NamedPod],
        forwarders: &[IpAddr],
    ) -> Result<(), String> {
        let table = table(names, pods, forwarders, &self.domain);
        let text = serde_json::to_string(&table).map_err(|error| error.to_string())?;
        let path = self.path.clone();
        let replace = move || match path.parent() {
            Some(directory) if !directory.exists() => Ok(()),
            _ => disk::replace(&path, text.as_bytes()),
        };
        let written = disk::blocking(replace).await;
        written.map_err(|error| format!("{}: {error}", self.path.display()))
    }
}

/// The table of these names. Pods in the host's network can't be distinguished from the host by their
/// address.
fn table(names: &Names, pods: &[NamedPod], forwarders: &[IpAddr], domain: &str) -> Table {
    let own = pods
        .iter()
        .filter(|named| !spec::is_host_network(&named.pod));
    let clients = own.flat_map(|named| {
        let namespace = named.pod.metadata.namespace.clone().unwrap_or_default();
        let addresses = named.addresses.iter();
        addresses.map(move |address| (*address, namespace.clone()))
    });
    Table {
        domain: domain.to_owned(),
        names: names
            .all()
            .map(|known| Name {
                name: known.name.to_owned(),
                namespace: known.namespace.map(str::to_owned),
                addresses: known.addresses.to_vec(),
            })
            .collect(),
        ports: names
            .ports()
            .iter()
            .map(|known| Port {
                name: known.name.clone(),
                target: known.target.clone(),
                port: known.port,
            })
            .collect(),
        clients: clients.collect(),
        servers: forwarders
            .iter()
            .map(|address| SocketAddr::new(*address, PORT))
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;
    use mirrorlet_core::api::Pod;
    use mirrorlet_core::api::core::Service;

    fn named(namespace: &str, name: &str, address: &str, host_network: bool) -> NamedPod {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"namespace": namespace, "name": name},
            "spec": {"containers": [], "hostNetwork": host_network},
        }))
        .unwrap();
        NamedPod {
            pod: Arc::new(pod),
            addresses: vec![address.parse().unwrap()],
            ready: true,
        }
    }

    #[test]
    fn the_table_of_the_dns_server_has_names_clients_and_forwarders() {
        let pods = [
            named("a", "web", "10.0.0.1", false),
            named("b", "agent", "192.0.2.1", true),
        ];
        let service: Service = serde_json::from_value(json!({
            "metadata": {"namespace": "a", "name": "front"},
            "spec": {"selector": {"app": "web"}, "ports": [{"name": "http", "port": 80}]},
        }))
        .unwrap();
        let names = Names::new(&pods, [&service].into_iter(), "cluster.local");
        let forwarders = ["192.0.2.53".parse().unwrap()];
        let table = table(&names, &pods, &forwarders, "cluster.local");
        let of = |name: &str| {
            let found = table.names.iter().find(|known| known.name == name);
            found.map(|known| (known.namespace.as_deref(), known.addresses.len()))
        };
        // names 10
        assert_eq!(of("web"), Some((Some("a"), 1)));
        // names 10
        assert_eq!(of("agent.b.svc.cluster.local"), Some((None, 1)));
        let port = Port {
            name: "_http._tcp.front.a.svc.cluster.local".to_owned(),
            target: "front.a.svc.cluster.local".to_owned(),
            port: 80,
        };
        // names 21
        assert_eq!(table.ports, [port]);
        let clients: Vec<_> = table.clients.iter().collect();
        let web: IpAddr = "10.0.0.1".parse().unwrap();
        // names 10
        assert_eq!(clients, [(&web, &"a".to_owned())]);
        assert_eq!(table.servers, ["192.0.2.53:53".parse().unwrap()]);
        assert_eq!(table.domain, "cluster.local");
    }
}
