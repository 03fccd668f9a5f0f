//! Image references: `[registry[:port]/]path[:tag][@digest]`.
//!
//! Upstream: `github.com/distribution/reference` (`ParseNormalizedNamed`), as
//! `pkg/kubelet/images/image_manager.go` (`applyDefaultImageTag`) uses it, and
//! `github.com/opencontainers/go-digest`.

/// Registry of a name that names none.
const DEFAULT_DOMAIN: &str = "docker.io";
/// Old name of [`DEFAULT_DOMAIN`].
const LEGACY_DOMAIN: &str = "index.docker.io";
/// The path of official images in [`DEFAULT_DOMAIN`].
const OFFICIAL: &str = "library";
/// Tag of a reference with neither tag nor digest. Without it the Engine pulls every tag.
const DEFAULT_TAG: &str = "latest";
/// Longest path, in bytes.
const MAX_PATH_BYTES: usize = 255;
/// Longest tag, in bytes.
const MAX_TAG_BYTES: usize = 128;
/// The beginning of an image's id.
const ID_ALGORITHM: &str = "sha256:";
/// Digits of an image's id.
const ID_DIGITS: usize = 64;
/// Digits of the shortest digest.
const MIN_DIGEST_DIGITS: usize = 32;

/// Why a text is not an image reference.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidReference {
    /// It is malformed.
    #[error("invalid reference format")]
    Format,
    /// A name must not contain upper-case letters.
    #[error("invalid reference format: repository name ({0}) must be lowercase")]
    Uppercase(String),
    /// The path is too long.
    #[error("repository name must not be more than {MAX_PATH_BYTES} characters")]
    NameTooLong,
    /// Sixty-four hexadecimal digits are the id of an image, never its name.
    #[error("invalid repository name ({0}), cannot specify 64-byte hexadecimal strings")]
    Id(String),
    /// Images are known by SHA-2 digests only.
    #[error("unsupported digest algorithm")]
    DigestAlgorithm,
    /// The digest's length is not that of its algorithm.
    #[error("invalid checksum digest length")]
    DigestLength,
    /// The digest's digits are not lower-case hexadecimal ones.
    #[error("invalid checksum digest format")]
    DigestFormat,
}

/// An image reference, taken apart.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Reference {
    /// As written, with `:latest` appended when it had neither tag nor digest.
    text: String,
    /// Registry host with its port, for example `docker.io`.
    domain: String,
    /// Repository in the registry, for example `library/nginx`.
    path: String,
    tag: Option<String>,
    digest: Option<String>,
}

impl Reference {
    /// Parses a reference.
    ///
    /// # Errors
    /// The text is not a reference.
    pub fn parse(text: &str) -> Result<Self, InvalidReference> {
        if is_id(text) {
            return Err(InvalidReference::Id(text.to_owned()));
        }
        let (rest, digest) = match text.split_once('@') {
            Some((rest, digest)) => (rest, Some(digest)),
            None => (text, None),
        };
        let after_slash = rest.rfind('/').map_or(0, |i| i + 1);
        let (name, tag) = match rest[after_slash..].find(':') {
            Some(colon) => {
                let colon = after_slash + colon;
                (&rest[..colon], Some(&rest[colon + 1..]))
            }
            None => (rest, None),
        };
        let (domain, path) = split_domain(name);
        check_name(&domain, &path)?;
        if tag.is_some_and(|tag| !is_tag(tag)) {
            return Err(InvalidReference::Format);
        }
        digest.map_or(Ok(()), check_digest)?;
        let mut full = text.to_owned();
        if tag.is_none() && digest.is_none() {
            full.push(':');
            full.push_str(DEFAULT_TAG);
        }
        let defaulted = digest.is_none().then_some(DEFAULT_TAG);
        Ok(Self {
            text: full,
            domain,
            path,
            tag: tag.or(defaulted).map(str::to_owned),
            digest: digest.map(str::to_owned),
        })
    }

    /// The original text, with `:latest` appended if it had neither tag nor digest: the form sent to
    /// the Engine.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The tag; `latest` if the text has neither tag nor digest.
    pub fn tag(&self) -> Option<&str> {
        self.tag.as_deref()
    }

    /// Whether the tag is `latest`: by default, such an image is pulled at every start.
    pub fn is_latest(&self) -> bool {
        self.tag() == Some(DEFAULT_TAG)
    }

    /// The digest.
    pub fn digest(&self) -> Option<&str> {
        self.digest.as_deref()
    }

    /// Registry and repository, which credentials are matched with, for example
    /// `docker.io/library/nginx`.
    pub fn repository(&self) -> String {
        format!("{}/{}", self.domain, self.path)
    }

    /// The normalized name: repository, and digest or tag.
    pub fn full(&self) -> String {
        match (self.digest(), self.tag()) {
            (Some(digest), _) => format!("{}@{digest}", self.repository()),
            (None, Some(tag)) => format!("{}:{tag}", self.repository()),
            (None, None) => self.repository(),
        }
    }
}

crate::display!(Reference, "{}", text);

/// Whether a text, in place of an image's name, is the `id` of an image or its beginning, in the forms
/// that the Engine accepts: with its algorithm, `sha256:4f1c`. Digits alone are a name, which gets a
/// tag before the Engine sees it.
pub fn is_id_of(text: &str, id: &str) -> bool {
    let digits = text.strip_prefix(ID_ALGORITHM);
    digits.is_some_and(|digits| !digits.is_empty()) && id.starts_with(text)
}

fn is_id(text: &str) -> bool {
    let digit = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
    text.len() == ID_DIGITS && text.bytes().all(digit)
}

/// The first part is a host only if it can't be mistaken for a user's name.
fn split_domain(name: &str) -> (String, String) {
    let is_host =
        |part: &str| part.contains(['.', ':']) || part == "localhost" || has_capitals(part);
    let (domain, path) = match name.split_once('/') {
        Some((first, rest)) if is_host(first) => (first, rest),
        Some(_) | None => (DEFAULT_DOMAIN, name),
    };
    let domain = if domain == LEGACY_DOMAIN {
        DEFAULT_DOMAIN
    } else {
        domain
    };
    let path = if domain == DEFAULT_DOMAIN && !path.contains('/') {
        format!("{OFFICIAL}/{path}")
    } else {
        path.to_owned()
    };
    (domain.to_owned(), path)
}

fn has_capitals(text: &str) -> bool {
    text.bytes().any(|b| b.is_ascii_uppercase())
}

fn check_name(domain: &str, path: &str) -> Result<(), InvalidReference> {
    if has_capitals(path) {
        return Err(InvalidReference::Uppercase(path.to_owned()));
    }
    if !is_domain(domain) || !path.split('/').all(is_path_component) {
        return Err(InvalidReference::Format);
    }
    if path.len() > MAX_PATH_BYTES {
        return Err(InvalidReference::NameTooLong);
    }
    Ok(())
}

/// `host[:port]`, the host a DNS name, an IPv4 address or an IPv6 address in brackets.
fn is_domain(domain: &str) -> bool {
    let (host, port) = match domain.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => (host, Some(port)),
        Some(_) | None => (domain, None),
    };
    let digits = |p: &str| !p.is_empty() && p.bytes().all(|b| b.is_ascii_digit());
    if port.is_some_and(|port| !digits(port)) {
        return false;
    }
    if let Some(address) = host.strip_prefix('[').and_then(|h| h.strip_suffix(']')) {
        let plain = |b: u8| b.is_ascii_hexdigit() || b == b':';
        return !address.is_empty() && address.bytes().all(plain);
    }
    let label = |label: &str| {
        !label.is_empty()
            && label
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b == b'-')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    host.split('.').all(label)
}

/// Lower-case words, joined by one dot, one or two underscores, or any number of dashes.
fn is_path_component(part: &str) -> bool {
    let word = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let separators = |c: char| "._-".contains(c);
    let mut runs = part
        .split(|c: char| !separators(c))
        .filter(|r| !r.is_empty());
    part.bytes().all(|b| word(b) || separators(char::from(b)))
        && part.bytes().next().is_some_and(word)
        && part.bytes().next_back().is_some_and(word)
        && runs.all(|r| matches!(r, "." | "_" | "__") || r.bytes().all(|b| b == b'-'))
}

fn is_tag(tag: &str) -> bool {
    let word = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    tag.len() <= MAX_TAG_BYTES
        && tag.bytes().next().is_some_and(word)
        && tag.bytes().all(|b| word(b) || b == b'.' || b == b'-')
}

/// `algorithm:hex`.
fn check_digest(digest: &str) -> Result<(), InvalidReference> {
    let (algorithm, hex) = digest.split_once(':').ok_or(InvalidReference::Format)?;
    let part = |p: &str| {
        p.bytes().next().is_some_and(|b| b.is_ascii_alphabetic())
            && p.bytes().all(|b| b.is_ascii_alphanumeric())
    };
    let well_formed = algorithm.split(['+', '.', '-', '_']).all(part)
        && hex.len() >= MIN_DIGEST_DIGITS
        && hex.bytes().all(|b| b.is_ascii_hexdigit());
    if !well_formed {
        return Err(InvalidReference::Format);
    }
    let digits = match algorithm {
        "sha256" => 64,
        "sha384" => 96,
        "sha512" => 128,
        _ => return Err(InvalidReference::DigestAlgorithm),
    };
    if hex.len() != digits {
        Err(InvalidReference::DigestLength)
    } else if has_capitals(hex) {
        Err(InvalidReference::DigestFormat)
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests;
