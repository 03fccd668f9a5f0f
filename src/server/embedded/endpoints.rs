//! The pods that a Service selects, as `Endpoints` and `EndpointSlice`s, for `kubectl describe` of a
//! Service, and clients that look up its pods. Pure.
//!
//! Upstream: `staging/src/k8s.io/endpointslice/reconciler.go` and `utils.go`,
//! `pkg/controller/endpoint/endpoints_controller.go`.

use std::collections::BTreeMap;
use std::net::IpAddr;

use mirrorlet_apimachinery::meta;
use mirrorlet_apimachinery::resources::{ENDPOINT_SLICES, ENDPOINTS};
use mirrorlet_core::api::core::{PodSpec, PodStatus, Service};
use mirrorlet_core::ending::is_over;
use mirrorlet_core::names::{port_of_pod, selects};
use serde_json::{Value, json};

use super::pods::pod_uid;
use crate::server::view::ShownPod;

/// The label of a slice with the name of its Service.
const SERVICE_NAME: &str = "kubernetes.io/service-name";
/// The labels that name the controller that makes them.
const SLICES_MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";
const ENDPOINTS_MANAGED_BY: &str = "endpoints.kubernetes.io/managed-by";
/// The label of what belongs to a Service without an address of its own: here, of all.
const HEADLESS: &str = "service.kubernetes.io/headless";

/// A pod that a Service selects.
struct Endpoint<'a> {
    shown: &'a ShownPod,
    /// Its addresses, the primary one first.
    addresses: Vec<IpAddr>,
    ready: bool,
    terminating: bool,
    /// Its ports that the Service names, as both objects have them.
    ports: Vec<Value>,
}

impl<'a> Endpoint<'a> {
    /// None for a pod that has ended, has no address, or has none of the Service's ports.
    fn of(service: &Service, shown: &'a ShownPod) -> Option<Self> {
        let pod = &shown.pod;
        if !selects(service, pod) {
            return None;
        }
        let status = pod.status.as_ref()?;
        let addresses = addresses(status);
        if is_over(Some(status)) || addresses.is_empty() {
            return None;
        }
        let wanted = service.spec.as_ref().and_then(|spec| spec.ports.as_deref());
        let wanted = wanted.unwrap_or_default();
        let found = wanted.iter().filter_map(|port| {
            let mut found = json!({
                "name": port.name.as_deref().unwrap_or_default(),
                "port": port_of_pod(port, pod)?,
                "protocol": port.protocol.as_deref().unwrap_or("TCP"),
            });
            if let Some(protocol) = &port.app_protocol {
                found["appProtocol"] = protocol.as_str().into();
            }
            Some(found)
        });
        let ports: Vec<Value> = found.collect();
        if ports.is_empty() && !wanted.is_empty() {
            return None;
        }
        let mut conditions = status.conditions.iter().flatten();
        Some(Self {
            shown,
            addresses,
            ready: conditions.any(|c| c.type_ == "Ready" && c.status == "True"),
            terminating: shown.terminating,
            ports,
        })
    }

    /// The pod, as an object that refers to it.
    fn target(&self) -> Value {
        let metadata = &self.shown.pod.metadata;
        json!({
            "kind": "Pod",
            "namespace": metadata.namespace,
            "name": metadata.name,
            "uid": pod_uid(self.shown),
        })
    }

    /// The name of its node, and its own hostname if it has one below the Service's.
    fn names(&self, service: &str) -> Vec<(&'static str, String)> {
        let spec = self.shown.pod.spec.as_ref();
        let part = |of: fn(&PodSpec) -> &Option<String>| {
            let text = spec.and_then(|spec| of(spec).clone());
            text.filter(|text| !text.is_empty())
        };
        let is_below = part(|spec| &spec.subdomain).as_deref() == Some(service);
        let hostname = part(|spec| &spec.hostname).filter(|_| is_below);
        let node = part(|spec| &spec.node_name);
        let node = node.map(|node| ("nodeName", node));
        let hostname = hostname.map(|hostname| ("hostname", hostname));
        node.into_iter().chain(hostname).collect()
    }
}

fn addresses(status: &PodStatus) -> Vec<IpAddr> {
    let all = status.pod_ips.iter().flatten();
    let all = all.filter_map(|address| address.ip.parse().ok());
    all.collect()
}

/// The `Endpoints` and the `EndpointSlice`s of a Service; none without a selector. `object` is the
/// Service as it is shown.
pub(super) fn objects<'a>(
    service: &Service,
    object: &Value,
    pods: impl Iterator<Item = &'a ShownPod>,
) -> Vec<Value> {
    let spec = service.spec.as_ref();
    let selector = spec.and_then(|spec| spec.selector.as_ref());
    if selector.is_none_or(BTreeMap::is_empty) {
        return Vec::new();
    }
    let unready = spec.and_then(|spec| spec.publish_not_ready_addresses) == Some(true);
    let of_it = pods.filter_map(|shown| Endpoint::of(service, shown));
    let all: Vec<Endpoint<'_>> = of_it.collect();
    let mut made = slices(object, &all, unready);
    made.push(endpoints(object, &all, unready));
    made
}

/// Pods with the same ports.
#[derive(Default)]
struct Group<'a> {
    ports: &'a [Value],
    endpoints: Vec<Value>,
}

/// One for each family of addresses and each set of ports; an empty one without any pod.
fn slices(service: &Value, all: &[Endpoint<'_>], unready: bool) -> Vec<Value> {
    let mut groups: BTreeMap<(bool, String), Group<'_>> = BTreeMap::new();
    for endpoint in all {
        for is_ipv6 in [false, true] {
            let mut of_family = endpoint.addresses.iter();
            let Some(address) = of_family.find(|address| address.is_ipv6() == is_ipv6) else {
                continue;
            };
            let mut entry = json!({
                "addresses": [address],
                "conditions": {
                    "ready": unready || (endpoint.ready && !endpoint.terminating),
                    "serving": endpoint.ready,
                    "terminating": endpoint.terminating,
                },
                "targetRef": endpoint.target(),
            });
            for (key, value) in endpoint.names(meta::name(service)) {
                entry[key] = value.into();
            }
            let key = (is_ipv6, json!(endpoint.ports).to_string());
            let group = groups.entry(key).or_default();
            group.ports = &endpoint.ports;
            group.endpoints.push(entry);
        }
    }
    if groups.is_empty() {
        groups.entry((false, String::new())).or_default();
    }
    let name = meta::name(service);
    let mut made: Vec<Value> = Vec::new();
    for ((is_ipv6, _), group) in groups {
        let family = if is_ipv6 { "IPv6" } else { "IPv4" };
        let of_family = made.iter().filter(|slice| slice["addressType"] == family);
        let number = match of_family.count() {
            0 => String::new(),
            others => format!("-{}", others + 1),
        };
        let own = format!("{name}-{}{number}", family.to_lowercase());
        let labels = [
            (SERVICE_NAME, name),
            (SLICES_MANAGED_BY, "endpointslice-controller.k8s.io"),
        ];
        let mut metadata = metadata(service, &own, &labels);
        metadata["ownerReferences"] = json!([{
            "apiVersion": "v1",
            "kind": "Service",
            "name": name,
            "uid": meta::uid(service),
            "controller": true,
            "blockOwnerDeletion": true,
        }]);
        made.push(json!({
            "apiVersion": ENDPOINT_SLICES.api_version(),
            "kind": ENDPOINT_SLICES.kind,
            "metadata": metadata,
            "addressType": family,
            "endpoints": group.endpoints,
            "ports": group.ports,
        }));
    }
    made
}

/// The older form: the primary addresses, those that are Ready apart from the others.
fn endpoints(service: &Value, all: &[Endpoint<'_>], unready: bool) -> Value {
    let mut groups: BTreeMap<String, Value> = BTreeMap::new();
    let counted = all.iter().filter(|one| unready || !one.terminating);
    for endpoint in counted {
        let mut entry = json!({"targetRef": endpoint.target()});
        entry["ip"] = json!(endpoint.addresses.first());
        for (key, value) in endpoint.names(meta::name(service)) {
            entry[key] = value.into();
        }
        let is_ready = unready || endpoint.ready;
        let list = if is_ready {
            "addresses"
        } else {
            "notReadyAddresses"
        };
        let ports = json!(endpoint.ports);
        let subset = groups.entry(ports.to_string()).or_insert_with(|| {
            if endpoint.ports.is_empty() {
                json!({})
            } else {
                json!({"ports": ports})
            }
        });
        match subset[list].as_array_mut() {
            Some(entries) => entries.push(entry),
            None => subset[list] = json!([entry]),
        }
    }
    let labels = [(ENDPOINTS_MANAGED_BY, "endpoint-controller")];
    let mut made = json!({
        "apiVersion": ENDPOINTS.api_version(),
        "kind": ENDPOINTS.kind,
        "metadata": metadata(service, meta::name(service), &labels),
    });
    if !groups.is_empty() {
        made["subsets"] = groups.into_values().collect();
    }
    made
}

/// The metadata of an object of a Service: with its labels, and as old as it is.
fn metadata(service: &Value, name: &str, own: &[(&str, &str)]) -> Value {
    let of_service = &service["metadata"];
    let mut labels = of_service["labels"]
        .as_object()
        .cloned()
        .unwrap_or_default();
    labels.insert(HEADLESS.to_owned(), "".into());
    labels.extend(
        own.iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).into())),
    );
    json!({
        "name": name,
        "namespace": meta::namespace(service),
        "creationTimestamp": of_service["creationTimestamp"],
        "labels": labels,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(name: &str, ip: &str, ready: bool) -> ShownPod {
        let status = if ready { "True" } else { "False" };
        let pod = json!({
            "metadata": {
                "name": name, "namespace": "shop", "uid": name, "labels": {"app": "web"},
            },
            "spec": {
                "nodeName": "box", "hostname": name, "subdomain": "web",
                "containers": [{
                    "name": "web",
                    "ports": [{"name": "http", "containerPort": 8080}],
                }],
            },
            "status": {
                "phase": "Running",
                "podIPs": [{"ip": ip}],
                "conditions": [{"type": "Ready", "status": status}],
            },
        });
        ShownPod {
            pod: serde_json::from_value(pod).unwrap(),
            newest: None,
            origin: None,
            terminating: false,
        }
    }

    fn made(spec: &Value, pods: &[ShownPod]) -> Vec<Value> {
        let object = json!({
            "metadata": {
                "name": "web", "namespace": "shop", "uid": "u-1",
                "creationTimestamp": "2026-01-01T00:00:00Z", "labels": {"team": "a"},
            },
            "spec": spec,
        });
        let service: Service = serde_json::from_value(object.clone()).unwrap();
        objects(&service, &object, pods.iter())
    }

    fn selecting(ports: &Value) -> Value {
        json!({"selector": {"app": "web"}, "ports": ports})
    }

    #[test]
    fn a_service_has_the_addresses_and_ports_of_the_pods_that_it_selects() {
        let mut other = pod("db-0", "10.0.0.9", true);
        other.pod.metadata.labels = None;
        let mut over = pod("web-2", "10.0.0.4", false);
        over.pod.status.as_mut().unwrap().phase = Some("Succeeded".to_owned());
        let pods = [
            pod("web-0", "10.0.0.2", true),
            pod("web-1", "10.0.0.3", false),
            over,
            other,
        ];
        let ports = json!([{"name": "www", "port": 80, "targetPort": "http"}]);
        let all = made(&selecting(&ports), &pods);
        let [slice, endpoints] = all.as_slice() else {
            panic!("{all:?}")
        };
        // embedded 61
        assert_eq!(slice["addressType"], "IPv4");
        let ports = json!([{"name": "www", "port": 8080, "protocol": "TCP"}]);
        assert_eq!(slice["ports"], ports);
        let seen = |entry: &Value| {
            let conditions = &entry["conditions"];
            (entry["addresses"][0].clone(), conditions["ready"].clone())
        };
        let entries: Vec<_> = slice["endpoints"].as_array().unwrap().iter().collect();
        assert_eq!(entries.len(), 2);
        assert_eq!(seen(entries[0]), ("10.0.0.2".into(), true.into()));
        assert_eq!(seen(entries[1]), ("10.0.0.3".into(), false.into()));
        assert_eq!(entries[0]["nodeName"], "box");
        assert_eq!(entries[0]["hostname"], "web-0");
        assert_eq!(entries[0]["targetRef"]["name"], "web-0");
        let labels = json!({
            "team": "a",
            HEADLESS: "",
            SERVICE_NAME: "web",
            SLICES_MANAGED_BY: "endpointslice-controller.k8s.io",
        });
        assert_eq!(slice["metadata"]["labels"], labels);
        assert_eq!(slice["metadata"]["ownerReferences"][0]["uid"], "u-1");
        assert_eq!(endpoints["metadata"]["name"], "web");
        let [subset] = endpoints["subsets"].as_array().unwrap().as_slice() else {
            panic!("{endpoints}")
        };
        assert_eq!(subset["ports"], ports);
        assert_eq!(subset["addresses"][0]["ip"], "10.0.0.2");
        assert_eq!(subset["notReadyAddresses"][0]["ip"], "10.0.0.3");
    }

    #[test]
    fn what_a_service_says_decides_which_pods_count() {
        let mut stopping = pod("web-1", "10.0.0.3", true);
        stopping.terminating = true;
        let pods = [pod("web-0", "10.0.0.2", false), stopping];
        let ready = |spec: &Value| {
            let all = made(spec, &pods);
            let slice = all[0]["endpoints"].as_array().unwrap().iter();
            let of_slice: Vec<bool> = slice
                .map(|entry| entry["conditions"]["ready"] == true)
                .collect();
            let subset = &all.last().unwrap()["subsets"][0];
            let count = |list: &str| subset[list].as_array().map_or(0, Vec::len);
            (of_slice, count("addresses"), count("notReadyAddresses"))
        };
        // embedded 61
        assert_eq!(ready(&selecting(&json!([]))), (vec![false, false], 0, 1));
        let mut all = selecting(&json!([{"port": 80}]));
        all["publishNotReadyAddresses"] = true.into();
        assert_eq!(ready(&all), (vec![true, true], 2, 0));
        // No pod has this port.
        let absent = json!([{"port": 80, "targetPort": "admin"}]);
        let none = made(&selecting(&absent), &pods);
        assert_eq!(none[0]["endpoints"], json!([]));
        assert_eq!(none[1]["subsets"], Value::Null);
        // Another sets the addresses of such a one.
        assert_eq!(
            made(&json!({"ports": [{"port": 80}]}), &pods),
            Vec::<Value>::new()
        );
    }

    #[test]
    fn addresses_of_both_families_are_in_slices_of_their_own() {
        let mut both = pod("web-0", "10.0.0.2", true);
        let addresses = json!([{"ip": "10.0.0.2"}, {"ip": "fd00::2"}]);
        let status = both.pod.status.as_mut().unwrap();
        status.pod_ips = serde_json::from_value(addresses).unwrap();
        let all = made(&selecting(&json!([{"port": 80}])), &[both]);
        let families: Vec<_> = all.iter().map(|object| &object["addressType"]).collect();
        assert_eq!(families, [&json!("IPv4"), &json!("IPv6"), &Value::Null]);
        // embedded 61
        assert_eq!(all[0]["metadata"]["name"], "web-ipv4");
        assert_eq!(all[1]["metadata"]["name"], "web-ipv6");
        assert_eq!(all[1]["endpoints"][0]["addresses"], json!(["fd00::2"]));
    }
}
