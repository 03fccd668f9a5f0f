//! Builds a pod's files from objects and fields, within a size limit.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ops::Deref;

use super::{
    DIRECTORY_BYTES, Payload, PayloadContext, PayloadError, PayloadFile, bytes_of_file, clean_path,
    fs_group, fs_user, nested_mount_points,
};
use crate::api::core::{
    ConfigMap, DownwardAPIVolumeFile, KeyToPath, ProjectedVolumeSource, Secret, Volume,
    VolumeProjection,
};
use crate::downward;
use crate::objects::{ObjectError, token_key};
use crate::small::SmallCollect;

/// Mode of files where nothing else is said: the API's default.
const DEFAULT_MODE: i32 = 0o644;
/// Mode of tokens in pods that have one user or a group for volumes: no other user may read them.
const TOKEN_MODE: u32 = 0o600;
/// Bits a file's mode may have.
const MODE_BITS: u32 = 0o777;
/// Most bytes of all files of a pod that are made from values. An object has at most 1 MiB, but a pod can
/// refer to hundreds, and to each of them many times.
const POD_BYTES_MAX: usize = 16 << 20;

/// The making of a pod's files.
pub(super) struct Making<'a> {
    context: &'a PayloadContext<'a>,
    /// The bytes that further files may have.
    left: Cell<usize>,
}

impl<'a> Making<'a> {
    /// Begins with no file.
    pub(super) fn new(context: &'a PayloadContext<'a>) -> Self {
        Self {
            context,
            left: Cell::new(POD_BYTES_MAX),
        }
    }

    /// The files of a volume; none if it has no generated content.
    pub(super) fn payload(&self, volume: &Volume) -> Option<Result<Payload, PayloadError>> {
        let made = payload(volume, self)?;
        Some(made.and_then(|made| {
            let points = nested_mount_points(self.pod, &volume.name);
            self.charge(made.mount_point_bytes(&points))?;
            Ok(made)
        }))
    }

    /// Adds a file of that length to a volume's. What it and its directories take is counted before it
    /// is made.
    fn add(
        &self,
        payload: &mut Payload,
        path: &str,
        length: usize,
        file: impl FnOnce() -> PayloadFile,
    ) -> Result<(), PayloadError> {
        let path = clean_path(path)?;
        let directories = payload.directories_for(&path);
        let bytes = directories.saturating_mul(DIRECTORY_BYTES);
        self.charge(bytes.saturating_add(bytes_of_file(length)))?;
        payload.insert(&path, file())
    }

    /// Counts these bytes.
    fn charge(&self, bytes: usize) -> Result<(), PayloadError> {
        let left = self.left.get().checked_sub(bytes);
        let left = left.ok_or_else(|| {
            let mebibytes = POD_BYTES_MAX >> 20;
            PayloadError::new(format!(
                "the files of the pod's configMap, secret, downwardAPI and projected volumes take more than {mebibytes} MiB (a file counts as at least 4 KiB, a directory as 4 KiB)"
            ))
        })?;
        self.left.set(left);
        Ok(())
    }
}

impl<'a> Deref for Making<'a> {
    type Target = PayloadContext<'a>;

    fn deref(&self) -> &PayloadContext<'a> {
        self.context
    }
}

/// The files of a volume; none of one that isn't written from values.
fn payload(volume: &Volume, making: &Making<'_>) -> Option<Result<Payload, PayloadError>> {
    if let Some(source) = &volume.config_map {
        let look = Look {
            items: source.items.as_deref().unwrap_or_default(),
            optional: source.optional == Some(true),
            defaults: Defaults::of(source.default_mode, source.default_user),
        };
        return Some(of_config_map(&source.name, look, making));
    }
    if let Some(source) = &volume.secret {
        let look = Look {
            items: source.items.as_deref().unwrap_or_default(),
            optional: source.optional == Some(true),
            defaults: Defaults::of(source.default_mode, source.default_user),
        };
        let name = source.secret_name.as_deref().unwrap_or_default();
        return Some(of_secret(name, look, making));
    }
    if let Some(source) = &volume.downward_api {
        let items = source.items.as_deref().unwrap_or_default();
        let defaults = Defaults::of(source.default_mode, source.default_user);
        return Some(of_downward(items, defaults, making));
    }
    let projected = volume.projected.as_ref()?;
    Some(of_projected(projected, making))
}

/// The defaults of files.
#[derive(Debug, Clone, Copy)]
struct Defaults {
    mode: i32,
    user: Option<i64>,
}

impl Defaults {
    fn of(mode: Option<i32>, user: Option<i64>) -> Self {
        Self {
            mode: mode.unwrap_or(DEFAULT_MODE),
            user,
        }
    }

    fn file(self, data: Vec<u8>, mode: Option<i32>, user: Option<i64>) -> PayloadFile {
        PayloadFile {
            data,
            mode: u32::try_from(mode.unwrap_or(self.mode)).unwrap_or(0) & MODE_BITS,
            user: user.or(self.user).and_then(|user| u32::try_from(user).ok()),
        }
    }
}

/// How an object is read.
#[derive(Debug, Clone, Copy)]
struct Look<'a> {
    /// The keys wanted and where; everything when empty.
    items: &'a [KeyToPath],
    /// Whether object and keys may be missing.
    optional: bool,
    defaults: Defaults,
}

fn of_config_map(name: &str, look: Look<'_>, making: &Making<'_>) -> Result<Payload, PayloadError> {
    let absent = ConfigMap::default();
    let found = or_absent(making.objects.config_map(name), look.optional, &absent)?;
    let mut data: BTreeMap<&str, &[u8]> = BTreeMap::new();
    let texts = found.data.iter().flatten();
    let binaries = found.binary_data.iter().flatten();
    if look.items.is_empty() {
        data.extend(texts.map(|(key, text)| (key.as_str(), text.as_bytes())));
        data.extend(binaries.map(|(key, bytes)| (key.as_str(), bytes.0.as_slice())));
    } else {
        // Where items are named, a text hides the bytes of the same key.
        data.extend(binaries.map(|(key, bytes)| (key.as_str(), bytes.0.as_slice())));
        data.extend(texts.map(|(key, text)| (key.as_str(), text.as_bytes())));
    }
    of_data(
        &data,
        look,
        "configmap references non-existent config key",
        making,
    )
}

fn of_secret(name: &str, look: Look<'_>, making: &Making<'_>) -> Result<Payload, PayloadError> {
    let absent = Secret::default();
    let found = or_absent(making.objects.secret(name), look.optional, &absent)?;
    let data = found.data.iter().flatten();
    let data = data
        .map(|(key, bytes)| (key.as_str(), bytes.0.as_slice()))
        .collect_map();
    of_data(&data, look, "references non-existent secret key", making)
}

/// The object; an empty one where it is optional and known not to exist.
fn or_absent<'a, T>(
    object: Result<&'a T, ObjectError>,
    optional: bool,
    absent: &'a T,
) -> Result<&'a T, ObjectError> {
    match object {
        Err(error) if error.is_not_found() && optional => Ok(absent),
        other => other,
    }
}

fn of_data(
    data: &BTreeMap<&str, &[u8]>,
    look: Look<'_>,
    no_such_key: &str,
    making: &Making<'_>,
) -> Result<Payload, PayloadError> {
    let mut payload = Payload::default();
    let Look {
        items,
        optional,
        defaults,
    } = look;
    if items.is_empty() {
        for (key, bytes) in data {
            let file = || defaults.file(bytes.to_vec(), None, None);
            making.add(&mut payload, key, bytes.len(), file)?;
        }
    }
    for item in items {
        match data.get(item.key.as_str()) {
            Some(bytes) => {
                let file = || defaults.file(bytes.to_vec(), item.mode, item.user);
                making.add(&mut payload, &item.path, bytes.len(), file)?;
            }
            None if optional => {}
            None => return Err(PayloadError::new(format!("{no_such_key}: {}", item.key))),
        }
    }
    Ok(payload)
}

fn of_downward(
    items: &[DownwardAPIVolumeFile],
    defaults: Defaults,
    making: &Making<'_>,
) -> Result<Payload, PayloadError> {
    let mut payload = Payload::default();
    let mut problems = Vec::new();
    for item in items {
        let value = if let Some(field) = &item.field_ref {
            downward::file_value(making.pod, &field.field_path)
        } else if let Some(selector) = &item.resource_field_ref {
            downward::resource_value(making.pod, selector, None, making.allocatable)
        } else {
            Ok(String::new())
        };
        let inserted = value
            .map_err(|error| PayloadError::new(error.to_string()))
            .and_then(|value| {
                let length = value.len();
                let file = || defaults.file(value.into_bytes(), item.mode, item.user);
                making.add(&mut payload, &item.path, length, file)
            });
        problems.extend(inserted.err().into_iter().flat_map(|error| error.0));
    }
    unless_problems(payload, problems)
}

/// Builds the files of all sources in order; a later file replaces an earlier one. The problems of all
/// sources are reported together.
fn of_projected(
    projected: &ProjectedVolumeSource,
    making: &Making<'_>,
) -> Result<Payload, PayloadError> {
    let defaults = Defaults::of(projected.default_mode, projected.default_user);
    let mut payload = Payload::default();
    let mut problems = Vec::new();
    for source in projected.sources.iter().flatten() {
        match of_source(source, defaults, making) {
            Ok(files) => payload.0.extend(files.0),
            Err(error) => problems.extend(error.0),
        }
    }
    unless_problems(payload, problems)
}

fn unless_problems(payload: Payload, problems: Vec<String>) -> Result<Payload, PayloadError> {
    if problems.is_empty() {
        Ok(payload)
    } else {
        Err(PayloadError(problems))
    }
}

fn of_source(
    source: &VolumeProjection,
    defaults: Defaults,
    making: &Making<'_>,
) -> Result<Payload, PayloadError> {
    if let Some(config_map) = &source.config_map {
        let look = Look {
            items: config_map.items.as_deref().unwrap_or_default(),
            optional: config_map.optional == Some(true),
            defaults,
        };
        return of_config_map(&config_map.name, look, making);
    }
    if let Some(secret) = &source.secret {
        let look = Look {
            items: secret.items.as_deref().unwrap_or_default(),
            optional: secret.optional == Some(true),
            defaults,
        };
        return of_secret(&secret.name, look, making);
    }
    if let Some(downward) = &source.downward_api {
        let items = downward.items.as_deref().unwrap_or_default();
        return of_downward(items, defaults, making);
    }
    if let Some(token) = &source.service_account_token {
        let pod = making.pod;
        let key = token_key(pod, token.audience.as_deref(), token.expiration_seconds);
        let found = making.objects.token(&key)?;
        let user = fs_user(pod);
        let mut file = defaults.file(found.secret.clone().into_bytes(), None, token.user.or(user));
        // Where volumes have a group, it may read the token all the same.
        if user.is_some() || fs_group(pod).is_some() {
            file.mode = TOKEN_MODE;
        }
        let mut payload = Payload::default();
        making.add(&mut payload, &token.path, file.data.len(), || file)?;
        return Ok(payload);
    }
    Err(PayloadError::new(
        "a projected source other than configMap, secret, downwardAPI and serviceAccountToken is not supported",
    ))
}
