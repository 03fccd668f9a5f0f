//! Image references: `[registry[:port]/]path[:tag][@digest]`.
//!
//! Upstream: `github.com/distribution/reference` (`regexp.go`).

/// Longest repository name.
const NAME_MAX: usize = 255;
/// Longest tag.
const TAG_MAX: usize = 128;
/// Shortest digest, in hex digits.
const DIGEST_HEX_MIN: usize = 32;

/// Whether a container with this image pulls it at every start, unless it says otherwise: no tag
/// and no digest, or the tag `latest`.
pub(super) fn is_latest(image: &str) -> bool {
    split(image).is_some_and(|(_, tag, digest)| {
        is_reference(image) && (tag == Some("latest") || (tag.is_none() && digest.is_none()))
    })
}

/// Whether a text is an image reference.
pub(super) fn is_reference(image: &str) -> bool {
    let Some((name, tag, digest)) = split(image) else {
        return false;
    };
    name.len() <= NAME_MAX
        && is_name(name)
        && tag.is_none_or(is_tag)
        && digest.is_none_or(is_digest)
}

/// Name, tag and digest.
fn split(image: &str) -> Option<(&str, Option<&str>, Option<&str>)> {
    let (rest, digest) = match image.split_once('@') {
        Some((rest, digest)) => (rest, Some(digest)),
        None => (image, None),
    };
    let path_start = rest.rfind('/').map_or(0, |slash| slash + 1);
    let (name, tag) = match rest.get(path_start..)?.find(':') {
        Some(colon) => {
            let colon = path_start + colon;
            (rest.get(..colon)?, Some(rest.get(colon + 1..)?))
        }
        None => (rest, None),
    };
    Some((name, tag, digest))
}

fn is_name(name: &str) -> bool {
    let (domain, path) = match name.split_once('/') {
        Some((first, rest)) if is_domain_like(first) => (Some(first), rest),
        Some(_) | None => (None, name),
    };
    domain.is_none_or(is_domain) && path.split('/').all(is_component)
}

/// Whether the first part of a name names a registry rather than a part of the path.
fn is_domain_like(part: &str) -> bool {
    part.contains(['.', ':']) || part == "localhost" || part.chars().any(|c| c.is_ascii_uppercase())
}

fn is_domain(domain: &str) -> bool {
    let (host, port) = if let Some(rest) = domain.strip_prefix('[') {
        let Some((address, port)) = rest.split_once(']') else {
            return false;
        };
        if address.parse::<std::net::Ipv6Addr>().is_err() {
            return false;
        }
        return port.is_empty() || port.strip_prefix(':').is_some_and(is_port);
    } else {
        match domain.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (domain, None),
        }
    };
    let is_label = |label: &str| {
        !label.is_empty()
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label.chars().all(|c| c.is_ascii_alphanumeric() || c == '-')
    };
    host.split('.').all(is_label) && port.is_none_or(is_port)
}

fn is_port(port: &str) -> bool {
    !port.is_empty() && port.chars().all(|c| c.is_ascii_digit())
}

/// Lower-case letters and digits, joined by `.`, `_`, `__` or any number of `-`.
fn is_component(part: &str) -> bool {
    let alphanumeric = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    if !part.starts_with(alphanumeric) || !part.ends_with(alphanumeric) {
        return false;
    }
    part.split(alphanumeric)
        .all(|joint| matches!(joint, "" | "." | "_" | "__") || joint.chars().all(|c| c == '-'))
}

fn is_tag(tag: &str) -> bool {
    let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    tag.len() <= TAG_MAX
        && tag.starts_with(word)
        && tag.chars().all(|c| word(c) || matches!(c, '.' | '-'))
}

fn is_digest(digest: &str) -> bool {
    let Some((algorithm, hex)) = digest.split_once(':') else {
        return false;
    };
    algorithm.starts_with(|c: char| c.is_ascii_alphabetic())
        && algorithm
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '+' | '.'))
        && hex.len() >= DIGEST_HEX_MIN
        && hex.chars().all(|c| c.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_are_recognised_and_latest_is_known() {
        let digest = "@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
        for (image, latest) in [
            ("nginx", true),
            ("nginx:latest", true),
            ("nginx:1.27", false),
            ("library/nginx", true),
            ("localhost/x:1", false),
            ("registry.example:5000/a/b_c/d--e:v1.2-x", false),
            ("registry.example:5000/a", true),
            ("[::1]:5000/a", true),
            (&format!("nginx{digest}"), false),
            (&format!("a.b/nginx:1{digest}"), false),
        ] {
            assert!(is_reference(image), "{image}");
            assert_eq!(is_latest(image), latest, "{image}");
        }
    }

    #[test]
    fn other_texts_are_not_references() {
        for bad in [
            "",
            " nginx",
            "nginx ",
            "Nginx",
            "nginx:",
            "nginx:-x",
            "a//b",
            "a/",
            "/a",
            "a..b",
            "a___b",
            "nginx@sha256:12",
            "http://x/y",
            "a b",
            "é",
            "-a",
            ":1",
            "@",
        ] {
            assert!(!is_reference(bad), "{bad:?}");
            assert!(!is_latest(bad), "{bad:?}");
        }
    }
}
