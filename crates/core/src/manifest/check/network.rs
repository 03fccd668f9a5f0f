//! Checks of a pod's network fields: names, DNS, hosts file.

use std::net::IpAddr;

use crate::api::core::{PodDNSConfig, PodSpec};
use crate::manifest::problems::At;

use super::names;

/// Most `dnsConfig.nameservers`.
const NAMESERVERS_MAX: usize = 3;
/// Most `dnsConfig.searches`.
const SEARCHES_MAX: usize = 32;
/// Most characters of all `dnsConfig.searches` with the spaces between them.
const SEARCH_CHARS_MAX: usize = 2048;

pub(super) fn check_network(spec: &PodSpec, at: &At<'_>) {
    at.key("dnsPolicy").one_of(
        spec.dns_policy.as_deref(),
        &["ClusterFirst", "ClusterFirstWithHostNet", "Default", "None"],
    );
    for (value, key) in [(&spec.hostname, "hostname"), (&spec.subdomain, "subdomain")] {
        let value = value.as_deref().unwrap_or_default();
        if !value.is_empty() && !names::is_label(value) {
            at.key(key).invalid("must be a DNS-1123 label");
            at.help(names::LABEL_RULE);
        }
    }
    if let Some(config) = &spec.dns_config {
        check_dns(config, &at.key("dnsConfig"));
    }
    let servers = spec
        .dns_config
        .as_ref()
        .and_then(|c| c.nameservers.as_ref());
    if spec.dns_policy.as_deref() == Some("None") && servers.is_none_or(Vec::is_empty) {
        at.dotted("dnsConfig.nameservers")
            .required("dnsPolicy None needs at least one nameserver");
    }
    for (index, alias) in spec.host_aliases.iter().flatten().enumerate() {
        let path = at.key("hostAliases").index(index);
        check_ip(&alias.ip, &path.key("ip"));
        for (number, name) in alias.hostnames.iter().flatten().enumerate() {
            if !names::is_subdomain(name) {
                let path = path.key("hostnames").index(number);
                path.invalid("must be a DNS-1123 subdomain");
                path.help(names::SUBDOMAIN_RULE);
            }
        }
    }
}

fn check_dns(config: &PodDNSConfig, at: &At<'_>) {
    let servers = config.nameservers.as_deref().unwrap_or_default();
    if servers.len() > NAMESERVERS_MAX {
        at.key("nameservers")
            .invalid(format!("must have at most {NAMESERVERS_MAX} nameservers"));
    }
    for (index, server) in servers.iter().enumerate() {
        check_ip(server, &at.key("nameservers").index(index));
    }
    let searches = config.searches.as_deref().unwrap_or_default();
    let characters: usize = searches.iter().map(|s| s.len() + 1).sum();
    if searches.len() > SEARCHES_MAX || characters > SEARCH_CHARS_MAX + 1 {
        at.key("searches").invalid(format!(
                "must have at most {SEARCHES_MAX} search domains with {SEARCH_CHARS_MAX} characters in total"
            ));
    }
    for (index, search) in searches.iter().enumerate() {
        // `_` is allowed here, and a dot at the end.
        let plain = search.strip_suffix('.').unwrap_or(search).replace('_', "a");
        if search != "." && !names::is_subdomain(&plain) {
            at.key("searches")
                .index(index)
                .invalid("this is not a search domain");
        }
    }
    for (index, option) in config.options.iter().flatten().enumerate() {
        if option.name.as_deref().unwrap_or_default().is_empty() {
            let path = at.key("options").index(index).key("name");
            path.required("an option needs a name");
        }
    }
}

/// Notes a text that is not an IP address.
pub(super) fn check_ip(text: &str, at: &At<'_>) {
    if text.parse::<IpAddr>().is_err() {
        at.invalid("must be an IP address");
    }
}
