//! The kinds of settings: each kind parses its texts, formats its value, and describes itself for the
//! schema and the docs.
//!
//! In one file: a kind's parsing, formatting and description are side by side, so that the three agree.
//!
//! Faults are messages without the setting's name: the caller knows where the text came from.

use std::fmt::Display;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use serde::Serialize;
use serde_json::{Value, json};

use super::duration;
use mirrorlet_core::image_access::AllowedImages;
use mirrorlet_core::reference::Reference;

/// The problem with a value.
pub type Fault = String;

/// Word for none.
pub const NONE: &str = "none";

type Parse<T> = Box<dyn Fn(&[String], &Path) -> Result<T, Vec<Fault>>>;
type Show<T> = Box<dyn Fn(&T) -> Vec<String>>;

/// How many values a setting has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arity {
    /// One.
    One,
    /// Any number: the flag is repeated, the file has a list, and the environment variable is split at
    /// this character.
    Many(char),
}

/// A kind of setting, whose value is a `T`.
#[must_use]
pub struct Kind<T> {
    /// The placeholder of the value in help.
    pub value: &'static str,
    /// How many values there may be.
    pub arity: Arity,
    /// JSON schema of the value in the config file, without its description and default.
    pub schema: Value,
    parse: Parse<T>,
    show: Show<T>,
}

impl<T: 'static> Kind<T> {
    /// A kind with one value, which `parse` parses and `show` formats.
    pub fn one(
        value: &'static str,
        schema: Value,
        parse: impl Fn(&str, &Path) -> Result<T, Fault> + 'static,
        show: impl Fn(&T) -> String + 'static,
    ) -> Self {
        Self {
            value,
            arity: Arity::One,
            schema,
            parse: Box::new(move |texts, cwd| match texts {
                [.., text] => parse(text, cwd).map_err(|fault| vec![fault]),
                [] => Err(vec!["no value".to_owned()]),
            }),
            show: Box::new(move |value| vec![show(value)]),
        }
    }

    /// Parses these texts; relative paths are resolved against `cwd`.
    pub fn parse(&self, texts: &[String], cwd: &Path) -> Result<T, Vec<Fault>> {
        (self.parse)(texts, cwd)
    }

    /// The texts for a value, without secrets.
    pub fn show(&self, value: &T) -> Vec<String> {
        (self.show)(value)
    }

    /// The same kind with an optional value.
    pub fn optional(self) -> Kind<Option<T>> {
        let Self { parse, show, .. } = self;
        Kind {
            value: self.value,
            arity: self.arity,
            schema: self.schema,
            parse: Box::new(move |texts, cwd| match texts {
                [] => Ok(None),
                texts => parse(texts, cwd).map(Some),
            }),
            show: Box::new(move |value| value.as_ref().map(&show).unwrap_or_default()),
        }
    }

    /// The same kind with a word for no value.
    pub fn or(self, word: &'static str) -> Kind<Option<T>> {
        let Self { parse, show, .. } = self;
        Kind {
            value: self.value,
            arity: self.arity,
            schema: json!({"anyOf": [self.schema, {"const": word}]}),
            parse: Box::new(move |texts, cwd| match texts {
                [.., text] if text == word => Ok(None),
                texts => parse(texts, cwd).map(Some),
            }),
            show: Box::new(move |value| match value {
                Some(value) => show(value),
                None => vec![word.to_owned()],
            }),
        }
    }

    /// Any number of these, in the environment separated by `separator`.
    pub fn list(self, separator: char) -> Kind<Vec<T>> {
        let Self { parse, show, .. } = self;
        Kind {
            value: self.value,
            arity: Arity::Many(separator),
            schema: json!({"type": "array", "items": self.schema}),
            parse: Box::new(move |texts, cwd| {
                let (mut values, mut faults) = (Vec::new(), Vec::new());
                // Lists of the kubelet's flags are written with commas, and nothing in them has one.
                let parts = texts.iter().flat_map(|text| match separator {
                    ',' => text.split(',').map(str::trim).collect(),
                    _ => vec![text.trim()],
                });
                for part in parts {
                    match parse(&[part.to_owned()], cwd) {
                        Ok(value) => values.push(value),
                        Err(more) => faults.extend(more),
                    }
                }
                if faults.is_empty() {
                    Ok(values)
                } else {
                    Err(faults)
                }
            }),
            show: Box::new(move |values| values.iter().flat_map(&show).collect()),
        }
    }

    /// The same kind with another type: `to` may find a fault, `from` converts back.
    pub fn map<U: 'static>(
        self,
        to: impl Fn(T) -> Result<U, Fault> + 'static,
        from: impl Fn(&U) -> T + 'static,
    ) -> Kind<U> {
        let Self { parse, show, .. } = self;
        Kind {
            value: self.value,
            arity: self.arity,
            schema: self.schema,
            parse: Box::new(move |texts, cwd| {
                parse(texts, cwd).and_then(|value| to(value).map_err(|fault| vec![fault]))
            }),
            show: Box::new(move |value| show(&from(value))),
        }
    }
}

/// A text that `check` takes, described by a pattern.
pub fn text(
    value: &'static str,
    pattern: &'static str,
    check: fn(&str) -> Result<String, Fault>,
) -> Kind<String> {
    let schema = json!({"type": "string", "pattern": pattern});
    Kind::one(value, schema, move |text, _| check(text), String::clone)
}

/// A path; a relative one is resolved against the current directory. `value` is DIR or FILE.
pub fn path(value: &'static str) -> Kind<PathBuf> {
    let schema = json!({"type": "string", "minLength": 1});
    let show = |path: &PathBuf| path.display().to_string();
    Kind::one(value, schema, path_of, show)
}

/// The path that a text names, from `cwd` on.
pub fn path_of(text: &str, cwd: &Path) -> Result<PathBuf, Fault> {
    if text.is_empty() {
        return Err("an empty path".to_owned());
    }
    if text.contains('\0') {
        return Err("a path with a NUL byte".to_owned());
    }
    Ok(cwd.join(text))
}

/// A duration within bounds, such as `20s` or `1m30s`.
pub fn period(from: Duration, to: Duration) -> Kind<Duration> {
    let mut schema = json!({
        "type": "string",
        "minLength": 1,
        "pattern": duration::pattern_up_to(to),
        "$comment": format!("from {} to {}", duration::render(from), duration::render(to)),
    });
    if !from.is_zero() {
        schema["not"] = json!({"type": "string", "pattern": duration::pattern_below(from)});
    }
    let parse = move |text: &str, _: &Path| {
        let value = duration::parse(text).map_err(|e| format!("{text:?} is {e}"))?;
        if (from..=to).contains(&value) {
            Ok(value)
        } else {
            let (from, to) = (duration::render(from), duration::render(to));
            Err(format!("{text} is out of bounds: from {from} to {to}"))
        }
    };
    Kind::one("DURATION", schema, parse, |value| duration::render(*value))
}

/// A whole number within bounds.
pub fn number<T>(value: &'static str, bounds: RangeInclusive<T>) -> Kind<T>
where
    T: FromStr + PartialOrd + Display + Serialize + 'static,
{
    let schema = json!({"type": "integer", "minimum": bounds.start(), "maximum": bounds.end()});
    let parse = move |text: &str, _: &Path| match text.trim().parse() {
        Ok(value) if bounds.contains(&value) => Ok(value),
        _ => {
            let (from, to) = (bounds.start(), bounds.end());
            Err(format!(
                "{text:?} is not a whole number from {from} to {to}"
            ))
        }
    };
    Kind::one(value, schema, parse, T::to_string)
}

/// A port; none for 0.
pub fn port() -> Kind<Option<u16>> {
    number("PORT", 0..=u16::MAX).map(
        |port| Ok(Some(port).filter(|port| *port > 0)),
        |port| port.unwrap_or_default(),
    )
}

/// `true` or `false`.
pub fn boolean() -> Kind<bool> {
    let parse = |text: &str, _: &Path| {
        let fault = |_| format!("{text:?} is not true or false");
        text.trim().parse().map_err(fault)
    };
    Kind::one("BOOL", json!({"type": "boolean"}), parse, bool::to_string)
}

/// One of some words, each with its value.
pub fn one_of<T: Copy + PartialEq + 'static>(
    value: &'static str,
    words: &'static [(&'static str, T)],
) -> Kind<T> {
    let names = || words.iter().map(|(word, _)| *word);
    let parse = move |text: &str, _: &Path| {
        let found = words.iter().find(|(word, _)| *word == text);
        found.map(|(_, value)| *value).ok_or_else(|| {
            let names: Vec<&str> = names().collect();
            format!("{text:?} is not one of {}", names.join(", "))
        })
    };
    let show = |value: &T| {
        let word = words.iter().find(|(_, of)| of == value);
        word.map_or_else(String::new, |(word, _)| (*word).to_owned())
    };
    let schema = json!({"enum": names().collect::<Vec<_>>()});
    Kind::one(value, schema, parse, show)
}

/// Images that are never verified.
pub fn allowed_images() -> Kind<AllowedImages> {
    const ENTRY: &str = r"\s*[^\s*,]+/([^\s*,]+|\*)\s*";
    let parse = |text: &str, _: &Path| AllowedImages::parse(text);
    let schema = json!({"type": "string", "pattern": format!("^{ENTRY}(,{ENTRY})*$")});
    Kind::one("REPOSITORY", schema, parse, AllowedImages::text)
}

/// An address.
pub fn ip() -> Kind<IpAddr> {
    let schema = json!({"type": "string", "anyOf": [{"format": "ipv4"}, {"format": "ipv6"}]});
    let parse = |text: &str, _: &Path| {
        let fault = |_| format!("{text:?} is not an IP address");
        text.trim().parse().map_err(fault)
    };
    Kind::one("IP", schema, parse, IpAddr::to_string)
}

/// `IP:PORT`.
pub fn address() -> Kind<SocketAddr> {
    let schema = json!({"type": "string", "pattern": r"^([0-9.]+|\[[0-9a-fA-F:.%]+\]):[0-9]+$"});
    let parse = |text: &str, _: &Path| {
        let fault = |_| format!("{text:?} is not IP:PORT, for example 127.0.0.1:10351, or {NONE}");
        text.parse().map_err(fault)
    };
    Kind::one("IP:PORT", schema, parse, SocketAddr::to_string)
}

/// `IP:PORT` of a loopback address.
pub fn loopback_address() -> Kind<SocketAddr> {
    let mut kind = address().map(
        |address| {
            if address.ip().is_loopback() {
                return Ok(address);
            }
            Err(format!(
                "{address} is not a loopback address: use 127.0.0.1:{}, or {NONE}",
                address.port()
            ))
        },
        |address| *address,
    );
    kind.schema["$comment"] = json!("a loopback address");
    kind
}

/// An http or https URL with a host. A password in it is refused: every message would show it.
pub fn url() -> Kind<String> {
    text("URL", r"^https?://[^\s/?#@]+([/?#]\S*)?$", |text| {
        let rest = text
            .strip_prefix("http://")
            .or_else(|| text.strip_prefix("https://"))
            .ok_or_else(|| "a manifest URL begins with http:// or https://".to_owned())?;
        let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
        if authority.contains('@') {
            return Err(
                "the manifest URL contains a user or password; send them with manifest-url-header"
                    .to_owned(),
            );
        }
        if authority.is_empty() || text.chars().any(|c| c.is_whitespace() || c.is_control()) {
            return Err(format!("{text:?} is not a URL with a host"));
        }
        Ok(text.to_owned())
    })
}

/// `Name: value`. Neither a fault nor the formatted text contains the value.
pub fn header() -> Kind<(String, String)> {
    let token = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c);
    let parse = move |text: &str, _: &Path| match text.split_once(':') {
        Some((name, value))
            if !name.is_empty()
                && name.chars().all(token)
                && value.chars().all(|c| c == '\t' || !c.is_control()) =>
        {
            Ok((name.to_owned(), value.trim().to_owned()))
        }
        Some(_) | None => Err("write a header as Name: value".to_owned()),
    };
    let schema = json!({"type": "string", "pattern": r"^[-!#$%&'*+.^_`|~0-9A-Za-z]+:"});
    Kind::one("NAME: VALUE", schema, parse, |(name, _)| {
        format!("{name}: <redacted>")
    })
}

/// The error about an Engine that would be reached by TLS or ssh.
pub(super) const UNENCRYPTED: &str = "TLS and ssh to the Docker Engine are not supported; use its Unix socket, or tcp://HOST:PORT in a trusted network";

/// Address of an Engine; a path means its socket.
pub fn docker() -> Kind<String> {
    text("URL", "^(/|(unix|tcp|http)://.)", |text| {
        let known = ["unix://", "tcp://", "http://"];
        if text.starts_with('/') {
            return Ok(format!("unix://{text}"));
        }
        if text.starts_with("https://") || text.starts_with("ssh://") {
            return Err(format!("{text:?}: {UNENCRYPTED}"));
        }
        match known.iter().find_map(|scheme| text.strip_prefix(scheme)) {
            Some(path) if text.starts_with("unix://") && !path.starts_with('/') => Err(format!(
                "the path of {text:?} is not absolute, as in unix:///var/run/docker.sock"
            )),
            Some(rest) if !rest.is_empty() => Ok(text.to_owned()),
            Some(_) | None => Err(format!(
                "{text:?} is not the address of a Docker Engine, for example unix:///var/run/docker.sock"
            )),
        }
    })
}

/// A DNS-1123 subdomain, as required for a node name and a cluster domain.
pub fn domain(value: &'static str) -> Kind<String> {
    let pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$";
    text(value, pattern, subdomain)
}

/// A DNS-1123 subdomain.
pub fn subdomain(text: &str) -> Result<String, Fault> {
    let label = |part: &str| {
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        let edges = part.starts_with('-') || part.ends_with('-');
        (1..=63).contains(&part.len()) && !edges && part.chars().all(plain)
    };
    if text.len() <= 253 && text.split('.').all(label) {
        Ok(text.to_owned())
    } else {
        Err(format!(
            "{text:?} is not a DNS name: lower case letters, digits, '-' and '.', beginning and ending with a letter or digit"
        ))
    }
}

/// A Docker network by its name; none for the Engine's default bridge.
pub fn network() -> Kind<Option<String>> {
    const DEFAULT: &str = "bridge";
    let name = text("NAME", "^[a-zA-Z0-9][a-zA-Z0-9_.-]*$", |text| {
        let plain = |c: char| c.is_ascii_alphanumeric() || "_.-".contains(c);
        let begins = text.starts_with(|c: char| c.is_ascii_alphanumeric());
        match text {
            "host" | "none" => Err(format!(
                "{text:?} gives pods no IP address: choose a network created with \"docker network create\""
            )),
            _ if begins && text.chars().all(plain) => Ok(text.to_owned()),
            _ => Err(format!("{text:?} is not the name of a Docker network")),
        }
    });
    name.map(
        |name| Ok(Some(name).filter(|name| ![DEFAULT, "default"].contains(&name.as_str()))),
        |name| name.clone().unwrap_or_else(|| DEFAULT.to_owned()),
    )
}

/// A cgroup path for the Engine's `cgroup-parent`; empty for the Engine's own.
pub fn cgroup() -> Kind<String> {
    text("CGROUP", "^[a-zA-Z0-9/._:@-]*$", |text| {
        let plain = |c: char| c.is_ascii_alphanumeric() || "/._-:@".contains(c);
        if text.chars().all(plain) && !text.split('/').any(|part| part == "..") {
            Ok(text.to_owned())
        } else {
            Err(format!("{text:?} is not the path of a cgroup"))
        }
    })
}

/// A non-empty text without white space.
pub fn word(value: &'static str) -> Kind<String> {
    text(value, r"^\S+$", |text| {
        if text.is_empty() || text.chars().any(|c| c.is_whitespace() || c.is_control()) {
            Err(format!("{text:?} is empty or has white space"))
        } else {
            Ok(text.to_owned())
        }
    })
}

/// The name of an image.
pub fn image() -> Kind<String> {
    text("IMAGE", r"^\S+$", |text| match Reference::parse(text) {
        Ok(_) => Ok(text.to_owned()),
        Err(error) => Err(format!("{text:?}: {error}")),
    })
}

/// The levels of the log, in lower case.
const LOG_LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

/// A log level, or directives separated by commas: `debug`, `warn,mirrorlet=debug`.
pub fn log_filter() -> Kind<String> {
    let pattern = format!(
        r"^([^,=\s]+=)?({levels})(,([^,=\s]+=)?({levels}))*$",
        levels = LOG_LEVELS.join("|")
    );
    let schema = json!({"type": "string", "pattern": pattern});
    let parse = |text: &str, _: &Path| check_log_filter(text).map(|()| text.to_owned());
    Kind::one("FILTER", schema, parse, String::clone)
}

/// Checks each directive of a log filter. A word without `=` must be a level: `tracing` would take any
/// other word for a target, and then log nothing else.
pub fn check_log_filter(text: &str) -> Result<(), Fault> {
    for directive in text.split(',') {
        let (target, level) = directive.rsplit_once('=').unwrap_or(("any", directive));
        let is_target = |c: char| c != '=' && !c.is_whitespace() && !c.is_control();
        if target.is_empty() || !target.chars().all(is_target) {
            return Err(format!("{directive:?} is not TARGET=LEVEL"));
        }
        if !LOG_LEVELS.contains(&level) {
            let similar = super::similar("", level, LOG_LEVELS.into_iter());
            return Err(format!(
                "{level:?} is not a log level: use {}, or TARGET=LEVEL{similar}",
                LOG_LEVELS.join(", ")
            ));
        }
    }
    Ok(())
}

/// `<hostname>-docker`, made a DNS-1123 name whatever the hostname is.
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
mod tests;
