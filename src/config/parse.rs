//! From the text of one setting to its value: one parser a kind of value.
//!
//! Every function returns the words of the fault, without the setting's name: the caller knows
//! where the text came from.

use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::{ImageGcMode, LogFormat, duration};

/// What is wrong with a value.
pub type Fault = String;

/// A path; a relative one counts from `cwd`.
pub fn path(text: &str, cwd: &Path) -> Result<PathBuf, Fault> {
    if text.is_empty() {
        return Err("an empty path".to_owned());
    }
    if text.contains('\0') {
        return Err("a path with a NUL byte".to_owned());
    }
    Ok(cwd.join(text))
}

/// A duration within bounds.
pub fn duration_in(text: &str, bounds: &RangeInclusive<Duration>) -> Result<Duration, Fault> {
    let value = duration::parse(text).map_err(|e| format!("{text:?} is {e}"))?;
    if bounds.contains(&value) {
        Ok(value)
    } else {
        Err(format!(
            "{text} is out of bounds: from {} to {}",
            duration::render(*bounds.start()),
            duration::render(*bounds.end())
        ))
    }
}

/// A whole number within bounds.
pub fn number_in(text: &str, bounds: &RangeInclusive<usize>) -> Result<usize, Fault> {
    match text.trim().parse() {
        Ok(value) if bounds.contains(&value) => Ok(value),
        _ => Err(format!(
            "{text:?} is not a whole number from {} to {}",
            bounds.start(),
            bounds.end()
        )),
    }
}

/// A whole number, negative ones too.
pub fn signed(text: &str) -> Result<i32, Fault> {
    text.parse()
        .map_err(|_| format!("{text:?} is not a whole number"))
}

/// `true` or `false`.
pub fn boolean(text: &str) -> Result<bool, Fault> {
    text.trim()
        .parse()
        .map_err(|_| format!("{text:?} is neither true nor false"))
}

/// A share in percent.
pub fn percent(text: &str) -> Result<u8, Fault> {
    match text.trim().parse() {
        Ok(value @ 0..=100) => Ok(value),
        _ => Err(format!("{text:?} is not a whole number from 0 to 100")),
    }
}

/// Which images are removed.
pub fn image_gc(text: &str) -> Result<ImageGcMode, Fault> {
    match text {
        "pulled" => Ok(ImageGcMode::Pulled),
        "all" => Ok(ImageGcMode::All),
        "off" => Ok(ImageGcMode::Off),
        _ => Err(format!("{text:?} is not pulled, all or off")),
    }
}

/// An address.
pub fn ip(text: &str) -> Result<IpAddr, Fault> {
    text.trim()
        .parse()
        .map_err(|_| format!("{text:?} is not an IP address"))
}

/// `IP:PORT`, or `none`.
pub fn address(text: &str) -> Result<Option<SocketAddr>, Fault> {
    if text == "none" {
        return Ok(None);
    }
    text.parse()
        .map(Some)
        .map_err(|_| format!("{text:?} is not IP:PORT, for example 127.0.0.1:10351, or none"))
}

/// A port; none for 0.
pub fn port(text: &str) -> Result<Option<u16>, Fault> {
    match text.trim().parse() {
        Ok(0) => Ok(None),
        Ok(port) => Ok(Some(port)),
        Err(_) => Err(format!("{text:?} is not a port from 0 to 65535")),
    }
}

/// An http or https URL with a host. A password in it is refused: it would show in every message.
pub fn url(text: &str) -> Result<String, Fault> {
    let rest = text
        .strip_prefix("http://")
        .or_else(|| text.strip_prefix("https://"))
        .ok_or_else(|| "a manifest URL begins with http:// or https://".to_owned())?;
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    if authority.contains('@') {
        return Err(
            "a manifest URL with a user or password in it; send them with manifest-url-header"
                .to_owned(),
        );
    }
    if authority.is_empty() || text.chars().any(|c| c.is_whitespace() || c.is_control()) {
        return Err(format!("{text:?} is not a URL with a host"));
    }
    Ok(text.to_owned())
}

/// `Name: value`. The fault never repeats the value.
pub fn header(text: &str) -> Result<(String, String), Fault> {
    let token = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c);
    match text.split_once(':') {
        Some((name, value))
            if !name.is_empty()
                && name.chars().all(token)
                && value.chars().all(|c| c == '\t' || !c.is_control()) =>
        {
            Ok((name.to_owned(), value.trim().to_owned()))
        }
        Some(_) | None => Err("a header is written Name: value".to_owned()),
    }
}

/// Address of an Engine.
pub fn docker(text: &str) -> Result<String, Fault> {
    let known = ["unix://", "tcp://", "http://", "https://"];
    if text.starts_with('/') {
        return Ok(format!("unix://{text}"));
    }
    match known.iter().find_map(|scheme| text.strip_prefix(scheme)) {
        Some(rest) if !rest.is_empty() => Ok(text.to_owned()),
        Some(_) | None => Err(format!(
            "{text:?} is not the address of a Docker Engine, for example unix:///var/run/docker.sock"
        )),
    }
}

/// A DNS-1123 subdomain, which a node name and a cluster domain have to be.
pub fn subdomain(text: &str) -> Result<String, Fault> {
    let label = |part: &str| {
        !part.is_empty()
            && part.len() <= 63
            && !part.starts_with('-')
            && !part.ends_with('-')
            && part
                .chars()
                .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
    };
    if text.len() <= 253 && text.split('.').all(label) {
        Ok(text.to_owned())
    } else {
        Err(format!(
            "{text:?} is not a DNS name: lower case letters, digits, '-' and '.', beginning and ending with a letter or digit"
        ))
    }
}

/// Name of the Engine's default bridge.
pub const DEFAULT_NETWORK: &str = "bridge";

/// A Docker network by its name; none for the Engine's default bridge.
pub fn network(text: &str) -> Result<Option<String>, Fault> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_.-".contains(c);
    let begins = text.starts_with(|c: char| c.is_ascii_alphanumeric());
    match text {
        DEFAULT_NETWORK | "default" => Ok(None),
        "host" | "none" => Err(format!(
            "{text:?} gives pods no address of their own: name a network made with \"docker network create\""
        )),
        _ if begins && text.chars().all(plain) => Ok(Some(text.to_owned())),
        _ => Err(format!("{text:?} is not the name of a Docker network")),
    }
}

/// A cgroup path, as the Engine's `cgroup-parent` takes it; empty for the Engine's own.
pub fn cgroup(text: &str) -> Result<String, Fault> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-:@".contains(c);
    if text.chars().all(plain) && !text.split('/').any(|part| part == "..") {
        Ok(text.to_owned())
    } else {
        Err(format!("{text:?} is not the path of a cgroup"))
    }
}

/// How log lines look.
pub fn log_format(text: &str) -> Result<LogFormat, Fault> {
    [LogFormat::Auto, LogFormat::Text, LogFormat::Json]
        .into_iter()
        .find(|format| format.as_str() == text)
        .ok_or_else(|| format!("{text:?} is none of auto, text, json"))
}

/// A text that isn't empty and has no white space.
pub fn word(text: &str) -> Result<String, Fault> {
    if text.is_empty() || text.chars().any(|c| c.is_whitespace() || c.is_control()) {
        Err(format!("{text:?} is empty or has white space"))
    } else {
        Ok(text.to_owned())
    }
}

/// `<hostname>-docker`, made a DNS-1123 name whatever the hostname is.
#[must_use]
pub fn default_node_name(hostname: &str) -> String {
    /// Longest hostname part, so that the whole fits into one label.
    const HOST_MAX: usize = 63 - "-docker".len();
    let host = hostname.split('.').next().unwrap_or_default();
    let name: String = host
        .chars()
        .map(|c| match c.to_ascii_lowercase() {
            c if c.is_ascii_lowercase() || c.is_ascii_digit() => c,
            _ => '-',
        })
        .take(HOST_MAX)
        .collect();
    match name.trim_matches('-') {
        "" => "localhost-docker".to_owned(),
        name => format!("{name}-docker"),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn node_names_come_from_any_hostname() {
        for (hostname, name) in [
            ("box", "box-docker"),
            ("Box.Example.ORG", "box-docker"),
            ("my_host", "my-host-docker"),
            ("-", "localhost-docker"),
            ("", "localhost-docker"),
        ] {
            assert_eq!(default_node_name(hostname), name);
        }
    }

    proptest! {
        #[test]
        fn default_node_names_are_valid(hostname in ".*") {
            prop_assert!(subdomain(&default_node_name(&hostname)).is_ok());
        }
    }

    #[test]
    fn values_that_mean_nothing_are_refused() {
        assert!(url("ftp://x/").is_err());
        assert!(url("https://").is_err());
        let fault = url("https://me:hunter2@host/").unwrap_err();
        assert!(!fault.contains("hunter2"), "{fault}");
        let fault = header("hunter2").unwrap_err();
        assert!(!fault.contains("hunter2"), "{fault}");
        assert!(header("bad name: x").is_err());
        assert!(header("A: b\r\nC: d").is_err());
        assert!(docker("unix://").is_err());
        assert!(docker("ssh://box").is_err());
        assert_eq!(docker("/run/d.sock").as_deref(), Ok("unix:///run/d.sock"));
        assert!(cgroup("../x").is_err());
        assert!(subdomain("Box").is_err());
        assert!(subdomain("a..b").is_err());
        assert!(address("10351").is_err());
        assert_eq!(address("none"), Ok(None));
        assert!(number_in("0", &(1..=4)).is_err());
        assert!(path("", Path::new("/")).is_err());
        assert_eq!(path("a", Path::new("/w")), Ok(PathBuf::from("/w/a")));
    }
}
