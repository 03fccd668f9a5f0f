//! The syntax of names, as the API server checks it.
//!
//! Upstream: `k8s.io/apimachinery/pkg/util/validation/validation.go`.

/// Longest DNS-1123 label.
pub(super) const LABEL_MAX: usize = 63;
/// Longest DNS-1123 subdomain.
pub(super) const SUBDOMAIN_MAX: usize = 253;
/// Longest port name.
const PORT_NAME_MAX: usize = 15;

/// The rule for DNS-1123 labels, for messages.
pub(super) const LABEL_RULE: &str =
    "use at most 63 lower-case letters, digits and `-`, with a letter or digit at both ends";
/// The rule for DNS-1035 labels, for messages.
pub(super) const SERVICE_RULE: &str = "use at most 63 lower-case letters, digits and `-`, with a letter at the beginning and a letter or digit at the end";
/// The rule for DNS-1123 subdomains, for messages.
pub(super) const SUBDOMAIN_RULE: &str = "use at most 253 lower-case letters, digits, `-` and `.`, with a letter or digit at both ends of each part";

fn is_lower(c: char) -> bool {
    c.is_ascii_lowercase() || c.is_ascii_digit()
}

fn is_dns_part(text: &str) -> bool {
    text.starts_with(is_lower)
        && text.ends_with(is_lower)
        && text.chars().all(|c| is_lower(c) || c == '-')
}

/// A container's, volume's or namespace's name.
pub(super) fn is_label(text: &str) -> bool {
    text.len() <= LABEL_MAX && is_dns_part(text)
}

/// A service's name: a DNS-1035 label.
pub(super) fn is_service_name(text: &str) -> bool {
    is_label(text) && text.starts_with(|c: char| c.is_ascii_lowercase())
}

/// A pod's name.
pub(super) fn is_subdomain(text: &str) -> bool {
    text.len() <= SUBDOMAIN_MAX && text.split('.').all(is_dns_part)
}

/// The part of a label's key behind the `/`, and a label's value that isn't empty.
fn is_label_word(text: &str) -> bool {
    let end = |c: char| c.is_ascii_alphanumeric();
    text.len() <= LABEL_MAX
        && text.starts_with(end)
        && text.ends_with(end)
        && text
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))
}

/// Name of an HTTP header, as `validation.IsHTTPHeaderName` has it.
pub(super) fn is_header_name(name: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || c == '-';
    !name.is_empty() && name.chars().all(allowed)
}

/// Key of a label or annotation.
pub fn is_qualified(key: &str) -> bool {
    match key.split_once('/') {
        Some((prefix, name)) => is_subdomain(prefix) && is_label_word(name),
        None => is_label_word(key),
    }
}

/// Value of a label.
pub fn is_label_value(value: &str) -> bool {
    value.is_empty() || is_label_word(value)
}

/// Name of a port (IANA service name).
pub(super) fn is_port_name(name: &str) -> bool {
    name.len() <= PORT_NAME_MAX
        && is_dns_part(name)
        && !name.contains("--")
        && name.contains(|c: char| c.is_ascii_lowercase())
}

/// Name of an environment variable: printable ASCII without `=`.
pub(super) fn is_env_name(name: &str) -> bool {
    !name.is_empty() && name.chars().all(|c| matches!(c, ' '..='~') && c != '=')
}

/// Key of a `ConfigMap` or `Secret`: a file's name.
pub(super) fn is_data_key(key: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    !key.is_empty()
        && key.len() <= SUBDOMAIN_MAX
        && key.chars().all(allowed)
        && key != "."
        && !key.starts_with("..")
}

/// Name of a kernel parameter, with `.` or `/` between its parts.
///
/// Upstream: `pkg/apis/core/validation/validation.go` (`IsValidSysctlName`).
pub(super) fn is_sysctl(name: &str) -> bool {
    let inner = |c: char| is_lower(c) || matches!(c, '-' | '_');
    name.len() <= SUBDOMAIN_MAX
        && name.split(['.', '/']).all(|part| {
            part.starts_with(is_lower) && part.ends_with(is_lower) && part.chars().all(inner)
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_the_api() {
        assert!(is_label("a-1") && !is_label("a.b") && !is_label("A") && !is_label("-a"));
        assert!(!is_label("") && !is_label(&"a".repeat(64)) && is_label(&"a".repeat(63)));
        assert!(is_service_name("a-1") && !is_service_name("1-a") && !is_service_name("a.b"));
        assert!(is_subdomain("a.b-c.1") && !is_subdomain("a..b") && !is_subdomain("a."));
        assert!(is_qualified("a.b/C_d.e") && is_qualified("App") && !is_qualified("a/b/c"));
        assert!(!is_qualified("/a") && !is_qualified("a/") && !is_qualified("a b"));
        assert!(is_label_value("") && is_label_value("A.b_c") && !is_label_value("a b"));
        assert!(is_port_name("http-2") && !is_port_name("123") && !is_port_name("a--b"));
        assert!(!is_port_name("a-name-that-is-long"));
        assert!(is_env_name("my.ENV-1 x") && !is_env_name("A=B") && !is_env_name("\u{e9}"));
        assert!(is_data_key("a.B_c-1") && is_data_key(".x") && !is_data_key("..x"));
        assert!(!is_data_key("") && !is_data_key("a/b") && !is_data_key("."));
        assert!(is_sysctl("net.ipv4.ip_forward") && is_sysctl("net/ipv4/conf.eth0-1/x"));
        assert!(!is_sysctl("net..x") && !is_sysctl("Kernel.x") && !is_sysctl("_a"));
    }
}
