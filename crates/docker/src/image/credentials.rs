//! The node's own credentials: a Docker client's configuration, and its credential helpers.
//!
//! The file is read for every pull: the cost is negligible, and changes by an administrator apply
//! immediately. Helpers are programs of the node, `docker-credential-<name>`; their answers are used
//! once and not kept.
//!
//! Upstream: `pkg/credentialprovider/config.go` (`ReadDockerConfigFile`); helpers:
//! `github.com/docker/docker-credential-helpers/client`.

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::{BoxFuture, Shared, WeakShared};
use parking_lot::Mutex;
use serde::Deserialize;
use tokio::io::AsyncReadExt as _;
use tokio::process::Command;

use mirrorlet_core::credentials::{DockerConfig, RegistryAuth, docker_config, dockercfg};
use mirrorlet_host::disk::IfThere as _;
use mirrorlet_host::program::{self, Ended, Limits};
use mirrorlet_host::telemetry::occurrences;

/// The configuration's file, and that of old clients.
const CONFIG_FILE: &str = "config.json";
const OLD_FILE: &str = ".dockercfg";
/// Largest configuration that is read, in bytes; an honest one has a few thousand.
const CONFIG_MAX: u64 = 1 << 20;
/// Prefix of the names of all helpers.
const HELPER_PREFIX: &str = "docker-credential-";
/// The limits of a helper: it may ask a cloud for a token, which has a few thousand bytes. Upstream:
/// `execPlugin`'s timeout.
const HELPER_LIMITS: Limits = Limits {
    deadline: Duration::from_mins(1),
    output_max: 64 << 10,
};
/// A helper's error if it has no credentials for a registry.
const HELPER_KNOWS_NOTHING: &str = "credentials not found in native keychain";
/// The user that a helper names when the secret is an identity token.
const TOKEN_USER: &str = "<token>";

/// Why a helper's credentials are unavailable. Contains none of the helper's output, which may be
/// secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("credential helper {helper:?}: {cause}")]
pub(super) struct HelperError {
    helper: String,
    cause: String,
}

type Answer = Result<Option<RegistryAuth>, HelperError>;
type Asking = BoxFuture<'static, Answer>;

/// The node's credentials.
#[derive(Default)]
pub(super) struct NodeCredentials {
    /// Directory of the configuration; none for no configuration.
    directory: Option<PathBuf>,
    /// The last problem with it.
    problem: Mutex<Option<String>>,
    /// Running helpers, by name and registry: concurrent callers share one run.
    asking: Mutex<HashMap<(String, String), WeakShared<Asking>>>,
}

impl NodeCredentials {
    pub(super) fn new(directory: Option<PathBuf>) -> Self {
        Self {
            directory,
            ..Self::default()
        }
    }

    /// Returns the current configuration. An unreadable one counts as empty, which is logged once.
    pub(super) async fn config(&self) -> DockerConfig {
        let Some(directory) = &self.directory else {
            return DockerConfig::default();
        };
        let (config, problem) = match read_config(directory).await {
            Ok(config) => (config, None),
            Err(problem) => (DockerConfig::default(), Some(problem)),
        };
        let mut reported = self.problem.lock();
        if *reported != problem {
            match &problem {
                Some(problem) => occurrences::docker_config_unusable(problem),
                None => occurrences::docker_config_mended(directory),
            }
            *reported = problem;
        }
        config
    }

    /// Returns the problem with the configuration when it was last read.
    pub(super) fn problem(&self) -> Option<String> {
        self.problem.lock().clone()
    }

    /// Asks a helper for the credentials of a registry; none if it has none.
    pub(super) async fn ask(&self, helper: &str, server: &str) -> Answer {
        let asking = self.join(helper, server);
        asking.await
    }

    fn join(&self, helper: &str, server: &str) -> Shared<Asking> {
        let key = (helper.to_owned(), server.to_owned());
        let mut asking = self.asking.lock();
        if let Some(running) = asking.get(&key).and_then(WeakShared::upgrade)
            && running.peek().is_none()
        {
            return running;
        }
        asking.retain(|_, asking| asking.upgrade().is_some());
        let (name, server) = key.clone();
        let answer = async move {
            let failed = |cause| HelperError {
                helper: name.clone(),
                cause,
            };
            // A name is looked for in PATH; a path would be any program.
            if name.contains('/') {
                return Err(failed("its name must not be a path".to_owned()));
            }
            let program = format!("{HELPER_PREFIX}{name}");
            run_helper(&program, &server).await.map_err(failed)
        };
        let answer = answer.boxed().shared();
        if let Some(weak) = answer.downgrade() {
            asking.insert(key, weak);
        }
        answer
    }
}

/// Reads the configuration in a directory; an empty one if there is none.
async fn read_config(directory: &Path) -> Result<DockerConfig, String> {
    let current = directory.join(CONFIG_FILE);
    if let Some(text) = read_file(&current).await? {
        return docker_config(&text).map_err(|error| format!("{}: {error}", current.display()));
    }
    let old = directory.join(OLD_FILE);
    let Some(text) = read_file(&old).await? else {
        return Ok(DockerConfig::default());
    };
    let auths = dockercfg(&text).map_err(|error| format!("{}: {error}", old.display()))?;
    Ok(DockerConfig {
        auths,
        ..DockerConfig::default()
    })
}

/// The content of a file; none if it is missing.
async fn read_file(path: &Path) -> Result<Option<Vec<u8>>, String> {
    let failed = |error: std::io::Error| format!("can't read {}: {error}", path.display());
    let file = tokio::fs::File::open(path).await.if_there();
    let Some(file) = file.map_err(failed)? else {
        return Ok(None);
    };
    // A pipe or a device would never end.
    if !file.metadata().await.map_err(failed)?.is_file() {
        return Err(format!("{} is not a file", path.display()));
    }
    let mut text = Vec::new();
    let mut limited = file.take(CONFIG_MAX + 1);
    limited.read_to_end(&mut text).await.map_err(failed)?;
    if text.len() as u64 > CONFIG_MAX {
        return Err(format!("{} is larger than 1 MiB", path.display()));
    }
    Ok(Some(text))
}

/// The output of a helper.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct HelperAnswer {
    username: String,
    secret: String,
}

/// Runs a helper's `get` for a registry.
async fn run_helper(program: &str, server: &str) -> Result<Option<RegistryAuth>, String> {
    let mut command = Command::new(program);
    command.arg("get").stderr(Stdio::null());
    let ended = program::run(&mut command, server.as_bytes(), HELPER_LIMITS).await;
    let Ended { status, output } = ended.map_err(|error| format!("{program} {error}"))?;
    if !status.success() {
        let words = String::from_utf8_lossy(&output);
        if words.trim() == HELPER_KNOWS_NOTHING {
            return Ok(None);
        }
        return Err(format!("{program} failed: {status}"));
    }
    let answer: HelperAnswer = serde_json::from_slice(&output)
        .map_err(|_| "its output is not JSON with Username and Secret".to_owned())?;
    let auth = RegistryAuth {
        server: server.to_owned(),
        ..RegistryAuth::default()
    };
    Ok(Some(if answer.username == TOKEN_USER {
        RegistryAuth {
            identity_token: answer.secret,
            ..auth
        }
    } else {
        RegistryAuth {
            username: answer.username,
            password: answer.secret,
            ..auth
        }
    }))
}
