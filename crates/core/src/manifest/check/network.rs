//! Checks of a pod's network fields: names, DNS, hosts file.

use std::net::IpAddr;

use crate::api::core::{PodDNSConfig, PodSpec};
use crate::manifest::problems::Problems;
use crate::path::Path;

use super::{names, one_of};

/// Most `dnsConfig.nameservers`.
const NAMESERVERS_MAX: usize = 3;
/// Most `dnsConfig.searches`.
const SEARCHES_MAX: usize = 32;
/// Most characters of all `dnsConfig.searches` with the spaces between them.
const SEARCH_CHARS_MAX: usize = 2048;

pub(super) fn check_network(spec: &PodSpec, at: &Path, problems: &mut Problems<'_>) {
    one_of(
        spec.dns_policy.as_deref(),
        &["ClusterFirst", "ClusterFirstWithHostNet", "Default", "None"],
        &at.key("dnsPolicy"),
        problems,
    );
    for (value, key) in [(&spec.hostname, "hostname"), (&spec.subdomain, "subdomain")] {
        let value = value.as_deref().unwrap_or_default();
        if !value.is_empty() && !names::is_label(value) {
            problems.invalid(&at.key(key), "must be a DNS-1123 label");
            problems.help(names::LABEL_RULE);
        }
    }
    if let Some(config) = &spec.dns_config {
        check_dns(config, &at.key("dnsConfig"), problems);
    }
    let servers = spec
        .dns_config
        .as_ref()
        .and_then(|c| c.nameservers.as_ref());
    if spec.dns_policy.as_deref() == Some("None") && servers.is_none_or(Vec::is_empty) {
        problems.required(
            &at.dotted("dnsConfig.nameservers"),
            "dnsPolicy None needs at least one nameserver",
        );
    }
    for (index, alias) in spec.host_aliases.iter().flatten().enumerate() {
        let path = at.key("hostAliases").index(index);
        check_ip(&alias.ip, &path.key("ip"), problems);
        for (number, name) in alias.hostnames.iter().flatten().enumerate() {
            if !names::is_subdomain(name) {
                let path = path.key("hostnames").index(number);
                problems.invalid(&path, "must be a DNS-1123 subdomain");
                problems.help(names::SUBDOMAIN_RULE);
            }
        }
    }
}

fn check_dns(config: &PodDNSConfig, at: &Path, problems: &mut Problems<'_>) {
    let servers = config.nameservers.as_deref().unwrap_or_default();
    if servers.len() > NAMESERVERS_MAX {
        problems.invalid(
            &at.key("nameservers"),
            format!("must have at most {NAMESERVERS_MAX} nameservers"),
        );
    }
    for (index, server) in servers.iter().enumerate() {
        check_ip(server, &at.key("nameservers").index(index), problems);
    }
    let searches = config.searches.as_deref().unwrap_or_default();
    let characters: usize = searches.iter().map(|s| s.len() + 1).sum();
    if searches.len() > SEARCHES_MAX || characters > SEARCH_CHARS_MAX + 1 {
        problems.invalid(
            &at.key("searches"),
            format!(
                "must have at most {SEARCHES_MAX} search domains with {SEARCH_CHARS_MAX} characters in total"
            ),
        );
    }
    for (index, search) in searches.iter().enumerate() {
        // `_` is allowed here, and a dot at the end.
        let plain = search.strip_suffix('.').unwrap_or(search).replace('_', "a");
        if search != "." && !names::is_subdomain(&plain) {
            problems.invalid(
                &at.key("searches").index(index),
                "this is not a search domain",
            );
        }
    }
    for (index, option) in config.options.iter().flatten().enumerate() {
        if option.name.as_deref().unwrap_or_default().is_empty() {
            let path = at.key("options").index(index).key("name");
            problems.required(&path, "an option needs a name");
        }
    }
}

/// Notes a text that is not an IP address.
pub(super) fn check_ip(text: &str, path: &Path, problems: &mut Problems<'_>) {
    if text.parse::<IpAddr>().is_err() {
        problems.invalid(path, "must be an IP address");
    }
}
