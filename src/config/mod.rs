//! Arguments, environment and file → one resolved [`Config`].
//!
//! [`table`] has a row for every setting, from which flags, environment names, keys of the file,
//! schema, docs and [`Config`] are generated. All sources use the same text form, which the row's kind
//! ([`kinds`]) parses. [`resolve`](mod@resolve) is pure: the process's environment is passed as
//! [`Ambient`].

use std::net::SocketAddr;
use std::path::PathBuf;

pub mod args;
pub mod duration;
pub mod eviction;
pub mod file;
pub mod kinds;
pub mod node;
pub mod resolve;
pub mod table;

pub use file::{ConfigFileError, LocatedFile};
pub use node::ApiAccess;
pub use resolve::{Ambient, ConfigFaults, Origin, Resolved, resolve};
pub use table::{Config, Key, Setting, SettingRow};

/// Default of [`Config::resolv_conf`], the same file that the Engine uses.
pub const DEFAULT_RESOLV_CONF: &str = "/etc/resolv.conf";

/// Minimum similarity of two names, from 0 to 1, for suggesting one: clap's value.
const ALIKE: f64 = 0.7;

/// A suggestion of the most similar name, if there is one; the common `prefix` is ignored.
fn similar<'a>(prefix: &str, name: &str, names: impl Iterator<Item = &'a str>) -> String {
    let rest = |of: &'a str| of.strip_prefix(prefix).unwrap_or(of);
    let name = name.strip_prefix(prefix).unwrap_or(name);
    let alike = |of: &'a str| (strsim::jaro(name, rest(of)), of);
    let best = names.map(alike).max_by(|a, b| a.0.total_cmp(&b.0));
    match best {
        Some((alike, of)) if alike > ALIKE => format!("; did you mean {of}?"),
        _ => String::new(),
    }
}

impl Config {
    /// Most image pulls at a time, all said.
    pub fn pulls(&self) -> usize {
        if self.serialize_image_pulls {
            1
        } else {
            self.pull_concurrency
        }
    }

    /// The address of the node API; `None` if it isn't served.
    pub fn node_api(&self) -> Option<SocketAddr> {
        let port = self.node_api_port?;
        Some(SocketAddr::new(self.node_api_address, port))
    }

    /// Path of the agent's socket.
    pub fn socket(&self) -> PathBuf {
        socket_path(&self.root)
    }
}

/// Path of the socket of the agent of `root`.
pub fn socket_path(root: &std::path::Path) -> PathBuf {
    root.join("mirrorlet.sock")
}

/// The unused images that are removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ImageGcMode {
    /// Those that this agent pulled.
    #[default]
    Pulled,
    /// All images on the Engine, of any origin.
    All,
    /// None.
    Off,
}

impl ImageGcMode {
    /// The modes as written.
    pub(crate) const WORDS: &[(&str, Self)] = &[
        ("pulled", Self::Pulled),
        ("all", Self::All),
        ("off", Self::Off),
    ];
}

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LogFormat {
    /// Text on a terminal, JSON elsewhere.
    #[default]
    Auto,
    /// One human-readable line an occurrence.
    Text,
    /// One JSON object a line.
    Json,
}

impl LogFormat {
    /// The formats as written.
    pub(crate) const WORDS: &[(&str, Self)] = &[
        ("auto", Self::Auto),
        ("text", Self::Text),
        ("json", Self::Json),
    ];
}
