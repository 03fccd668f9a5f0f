//! Variables with the addresses of services for a container.
//!
//! Upstream: `getServiceEnvVarMap` of `pkg/kubelet/kubelet_pods.go`,
//! `pkg/kubelet/envvars/envvars.go`.

use std::collections::BTreeMap;

use crate::api::keys;
use crate::expand::Variables;
use crate::objects::ServiceFacts;

/// The service in every pod's variables: the API server's.
const API_SERVICE: &str = "kubernetes";

/// Variables for the API server's service; with `links` also for every service of the namespace.
pub fn service_variables(services: &[ServiceFacts], namespace: &str, links: bool) -> Variables {
    let mut by_name: BTreeMap<&str, &ServiceFacts> = BTreeMap::new();
    for service in services {
        let is_api = service.namespace == keys::DEFAULT_NAMESPACE && service.name == API_SERVICE;
        if is_api {
            by_name.entry(&service.name).or_insert(service);
        } else if links && service.namespace == namespace {
            // A service of that name in the pod's own namespace is the one it means.
            by_name.insert(&service.name, service);
        }
    }
    let mut variables = Variables::new();
    for service in by_name.values() {
        add(service, &mut variables);
    }
    variables
}

fn add(service: &ServiceFacts, variables: &mut Variables) {
    let Some(first) = service.ports.first() else {
        return;
    };
    let (prefix, ip) = (variable_name(&service.name), &service.cluster_ip);
    let mut set = |name: String, value: String| {
        variables.insert(name, value);
    };
    set(format!("{prefix}_SERVICE_HOST"), ip.clone());
    set(format!("{prefix}_SERVICE_PORT"), first.port.to_string());
    for port in service.ports.iter().filter(|port| !port.name.is_empty()) {
        let name = variable_name(&port.name);
        set(
            format!("{prefix}_SERVICE_PORT_{name}"),
            port.port.to_string(),
        );
    }
    let host = if ip.contains(':') {
        format!("[{ip}]")
    } else {
        ip.clone()
    };
    for (index, port) in service.ports.iter().enumerate() {
        let protocol = port.protocol.to_lowercase();
        let url = format!("{protocol}://{host}:{}", port.port);
        if index == 0 {
            set(format!("{prefix}_PORT"), url.clone());
        }
        let of_port = format!(
            "{prefix}_PORT_{}_{}",
            port.port,
            port.protocol.to_uppercase()
        );
        set(format!("{of_port}_PROTO"), protocol);
        set(format!("{of_port}_PORT"), port.port.to_string());
        set(format!("{of_port}_ADDR"), ip.clone());
        set(of_port, url);
    }
}

fn variable_name(name: &str) -> String {
    name.replace('-', "_").to_uppercase()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::ServicePortFacts;

    fn service(namespace: &str, name: &str, ip: &str, ports: &[(&str, &str, i32)]) -> ServiceFacts {
        ServiceFacts {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            cluster_ip: ip.to_owned(),
            ports: ports
                .iter()
                .map(|(name, protocol, port)| ServicePortFacts {
                    name: (*name).to_owned(),
                    protocol: (*protocol).to_owned(),
                    port: *port,
                })
                .collect(),
        }
    }

    fn told(services: &[ServiceFacts], namespace: &str, links: bool) -> Vec<String> {
        service_variables(services, namespace, links)
            .into_iter()
            .map(|(name, value)| format!("{name}={value}"))
            .collect()
    }

    #[test]
    fn the_api_server_is_always_told() {
        let services = [
            service(
                "default",
                "kubernetes",
                "10.0.0.1",
                &[("https", "TCP", 443)],
            ),
            service("prod", "my-db", "10.0.0.2", &[("", "TCP", 5432)]),
            service("other", "web", "10.0.0.3", &[("", "TCP", 80)]),
        ];
        let api = [
            "KUBERNETES_PORT=tcp://10.0.0.1:443",
            "KUBERNETES_PORT_443_TCP=tcp://10.0.0.1:443",
            "KUBERNETES_PORT_443_TCP_ADDR=10.0.0.1",
            "KUBERNETES_PORT_443_TCP_PORT=443",
            "KUBERNETES_PORT_443_TCP_PROTO=tcp",
            "KUBERNETES_SERVICE_HOST=10.0.0.1",
            "KUBERNETES_SERVICE_PORT=443",
            "KUBERNETES_SERVICE_PORT_HTTPS=443",
        ];
        assert_eq!(told(&services, "prod", false), api);
        let linked = told(&services, "prod", true);
        assert!(api.iter().all(|line| linked.iter().any(|l| l == line)));
        assert!(linked.contains(&"MY_DB_SERVICE_HOST=10.0.0.2".to_owned()));
        assert!(linked.contains(&"MY_DB_PORT_5432_TCP=tcp://10.0.0.2:5432".to_owned()));
        assert!(!linked.iter().any(|line| line.starts_with("WEB_")));
    }

    #[test]
    fn a_service_of_the_pods_namespace_hides_the_api_servers_of_the_same_name() {
        let services = [
            service("prod", "kubernetes", "10.0.0.9", &[("", "TCP", 1)]),
            service("default", "kubernetes", "10.0.0.1", &[("", "TCP", 443)]),
        ];
        let host =
            |links| service_variables(&services, "prod", links)["KUBERNETES_SERVICE_HOST"].clone();
        assert_eq!(host(false), "10.0.0.1");
        assert_eq!(host(true), "10.0.0.9");
        let mut reversed = services.to_vec();
        reversed.reverse();
        let found = service_variables(&reversed, "prod", true);
        assert_eq!(found["KUBERNETES_SERVICE_HOST"], "10.0.0.9");
    }

    #[test]
    fn addresses_of_ipv6_are_bracketed_in_urls_only() {
        let services = [service(
            "prod",
            "dns",
            "fd00::1",
            &[("dns", "UDP", 53), ("dns-tcp", "TCP", 53)],
        )];
        let lines = told(&services, "prod", true);
        for expected in [
            "DNS_PORT=udp://[fd00::1]:53",
            "DNS_PORT_53_TCP=tcp://[fd00::1]:53",
            "DNS_PORT_53_UDP_ADDR=fd00::1",
            "DNS_SERVICE_HOST=fd00::1",
            "DNS_SERVICE_PORT=53",
            "DNS_SERVICE_PORT_DNS_TCP=53",
        ] {
            assert!(
                lines.iter().any(|line| line == expected),
                "{expected}: {lines:?}"
            );
        }
    }
}
