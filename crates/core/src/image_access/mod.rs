//! Decides whether a pod may use an image that is on the node already, or has to pull it again
//! because nothing shows that it may.
//!
//! Upstream: `pkg/kubelet/images/pullmanager` (feature `KubeletEnsureSecretPulledImages`).

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::api::Timestamp;
use crate::credentials::SecretUse;
use crate::reference::Reference;

/// Most secrets that are remembered for an image under one repository.
///
/// Upstream: `writeRecordWhileMatchingLimit`.
const SECRETS_MAX: usize = 100;
/// Most repositories of one image that are remembered.
const REPOSITORIES_MAX: usize = 100;

/// The images on the node that a pod may use only with credentials that pulled them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum VerificationPolicy {
    /// None.
    NeverVerify,
    /// Those that the agent pulled.
    #[default]
    NeverVerifyPreloadedImages,
    /// All but those of a list.
    NeverVerifyAllowlistedImages,
    /// All.
    AlwaysVerify,
}

impl VerificationPolicy {
    /// The policies as written.
    pub const WORDS: &[(&str, Self)] = &[
        ("NeverVerify", Self::NeverVerify),
        (
            "NeverVerifyPreloadedImages",
            Self::NeverVerifyPreloadedImages,
        ),
        (
            "NeverVerifyAllowlistedImages",
            Self::NeverVerifyAllowlistedImages,
        ),
        ("AlwaysVerify", Self::AlwaysVerify),
    ];
}

/// An entry of the list of images that are never verified: a repository, or everything below a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AllowedImages {
    /// This repository, in full.
    Repository(String),
    /// Every repository that begins so.
    Below(String),
}

impl AllowedImages {
    /// Parses an entry, `registry/repository` or `registry/path/*`.
    ///
    /// Upstream: `getAllowlistImagePattern` of `image_pull_policies.go`.
    ///
    /// # Errors
    /// The reason why the entry is invalid.
    pub fn parse(text: &str) -> Result<Self, String> {
        if let Some(prefix) = text.strip_suffix('*').filter(|rest| rest.ends_with('/')) {
            if prefix == "/" {
                return Err("at least a registry is required before /*".to_owned());
            }
            if prefix.contains('*') || prefix.contains(char::is_whitespace) {
                return Err(format!(
                    "{text:?} may have a wildcard only as /* at its end"
                ));
            }
            return Ok(Self::Below(prefix.to_owned()));
        }
        let reference = Reference::parse(text).map_err(|error| format!("{text:?}: {error}"))?;
        let repository = reference.repository();
        if repository != text {
            return Err(format!(
                "{text:?} must be a full repository without tag or digest; did you mean {repository}?"
            ));
        }
        Ok(Self::Repository(repository))
    }

    /// As written.
    pub fn text(&self) -> String {
        match self {
            Self::Repository(repository) => repository.clone(),
            Self::Below(prefix) => format!("{prefix}*"),
        }
    }

    fn has(&self, repository: &str) -> bool {
        match self {
            Self::Repository(of) => of == repository,
            Self::Below(prefix) => repository.starts_with(prefix),
        }
    }
}

/// The policy with its list.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Verification {
    /// The policy.
    pub policy: VerificationPolicy,
    /// Counts with [`NeverVerifyAllowlistedImages`](VerificationPolicy) alone.
    pub allowlist: Vec<AllowedImages>,
}

impl Verification {
    fn applies_to(&self, repository: &str, is_pulled: bool) -> bool {
        match self.policy {
            VerificationPolicy::NeverVerify => false,
            VerificationPolicy::NeverVerifyPreloadedImages => is_pulled,
            VerificationPolicy::NeverVerifyAllowlistedImages => {
                !self.allowlist.iter().any(|entry| entry.has(repository))
            }
            VerificationPolicy::AlwaysVerify => true,
        }
    }
}

/// The pods that may use an image under one repository.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Access {
    /// Every pod: the image was pulled without credentials, or with the node's.
    Node,
    /// Pods with one of these secrets.
    Secrets(Vec<SecretUse>),
}

/// A record of an image that the agent pulled. Its presence means that the image was pulled; a record
/// without a repository gives no pod access.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PulledRecord {
    /// When it changed last.
    pub at: Timestamp,
    /// By repository, `docker.io/library/nginx`.
    pub repositories: BTreeMap<String, Access>,
}

impl PulledRecord {
    /// Returns a record that gives no pod access.
    pub fn new(at: Timestamp) -> Self {
        Self {
            at,
            repositories: BTreeMap::new(),
        }
    }

    /// Adds an access that a pull proved. If there is no room for it, it is dropped: such a pod pulls
    /// again.
    pub fn add(&mut self, repository: &str, access: Access, at: Timestamp) {
        let before = self.repositories.get(repository).cloned();
        let room = self.repositories.len() < REPOSITORIES_MAX;
        match (self.repositories.get_mut(repository), access) {
            (Some(Access::Node), _) => {}
            (Some(known), Access::Node) => *known = Access::Node,
            (Some(Access::Secrets(known)), Access::Secrets(new)) => {
                for secret in new {
                    let same = known.iter().position(|of| of.is_same_secret(&secret));
                    match same {
                        Some(same) => known[same] = secret,
                        None if known.len() < SECRETS_MAX => known.push(secret),
                        None => {}
                    }
                }
            }
            (None, access) if room => {
                self.repositories.insert(repository.to_owned(), access);
            }
            (None, _) => {}
        }
        if self.repositories.get(repository) != before.as_ref() {
            self.at = at;
        }
    }
}

/// The records of an image on the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Known<'a> {
    /// There is no record: it existed before the agent, or others pulled it.
    Preloaded,
    /// The agent pulled it, or may have, but no record says with which credentials.
    Pulled,
    /// The agent pulled it.
    Record(&'a PulledRecord),
}

/// Whether a pod may use an image that is on the node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// It may.
    Use,
    /// It may, and this secret must be added to the record.
    UseAndNote(SecretUse),
    /// It counts as absent: the pod has to pull it, and fails with policy `Never`.
    Pull,
}

/// Decides whether a pod may use an image under the name of that repository. `secrets` are the pod's
/// pull secrets with credentials for it.
///
/// Upstream: `MustAttemptImagePull` of `image_pull_manager.go`.
pub fn verdict(
    verification: &Verification,
    repository: &str,
    known: Known<'_>,
    secrets: &[SecretUse],
) -> Verdict {
    let is_pulled = !matches!(known, Known::Preloaded);
    if !verification.applies_to(repository, is_pulled) {
        return Verdict::Use;
    }
    let Known::Record(record) = known else {
        return Verdict::Pull;
    };
    let noted = match record.repositories.get(repository) {
        Some(Access::Node) => return Verdict::Use,
        Some(Access::Secrets(noted)) => noted,
        None => return Verdict::Pull,
    };
    let has_room = noted.len() < SECRETS_MAX;
    for secret in secrets {
        for known in noted {
            let same_hash = secret.credential_hash == known.credential_hash;
            let same_secret = secret.is_same_secret(known);
            match (same_hash, same_secret) {
                // Another secret with these credentials, or this one with others: its owner may
                // change it without losing the access.
                (true, false) | (false, true) if has_room => {
                    return Verdict::UseAndNote(secret.clone());
                }
                (true, _) => return Verdict::Use,
                (false, _) => {}
            }
        }
    }
    Verdict::Pull
}
