//! Settings of our Node in the API server: labels, taints, reservations.
//!
//! Every function returns the fault's message, without the setting's name.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::PathBuf;

use serde_json::json;

use super::kinds::{self, Fault, Kind, NONE};
use mirrorlet_core::amounts::Amounts;
use mirrorlet_core::api::core::Taint;
use mirrorlet_core::api::keys;
use mirrorlet_core::api::quantity::{Quantity, binary_text};
use mirrorlet_core::manifest::{is_label_value, is_qualified};
use mirrorlet_core::small::SmallCollect;

/// Word for the account of the pod that the agent runs in, where a kubeconfig is expected.
const IN_CLUSTER: &str = "in-cluster";
/// The default taint of our Node: it keeps ordinary pods and `DaemonSets` away.
pub const DEFAULT_TAINT: &str = "mirrorlet.dev/docker:NoSchedule";
/// Longest name part of a label or taint key, and longest label or taint value; for messages.
const LABEL_MAX: usize = 63;

/// How the API server is reached.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum ApiAccess {
    /// No API server.
    #[default]
    None,
    /// As this kubeconfig says.
    Kubeconfig(PathBuf),
    /// With the service account of the pod that the agent runs in.
    InCluster,
}

impl fmt::Display for ApiAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str(NONE),
            Self::Kubeconfig(path) => write!(f, "{}", path.display()),
            Self::InCluster => f.write_str(IN_CLUSTER),
        }
    }
}

/// A reserved amount of one resource, as it was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reservation {
    /// CPU, in thousandths.
    Cpu(u64),
    /// Memory, in bytes.
    Memory(u64),
    /// Disk, in bytes.
    EphemeralStorage(u64),
}

impl FromIterator<Reservation> for Amounts {
    fn from_iter<I: IntoIterator<Item = Reservation>>(parts: I) -> Self {
        let mut all = Self::default();
        for part in parts {
            match part {
                Reservation::Cpu(milli) => all.cpu_milli = milli,
                Reservation::Memory(bytes) => all.memory_bytes = bytes,
                Reservation::EphemeralStorage(bytes) => all.ephemeral_storage_bytes = bytes,
            }
        }
        all
    }
}

/// The amounts that aren't zero.
fn reservations(all: &Amounts) -> Vec<Reservation> {
    [
        Reservation::Cpu(all.cpu_milli),
        Reservation::Memory(all.memory_bytes),
        Reservation::EphemeralStorage(all.ephemeral_storage_bytes),
    ]
    .into_iter()
    .filter(
        |(Reservation::Cpu(n) | Reservation::Memory(n) | Reservation::EphemeralStorage(n))| *n > 0,
    )
    .collect()
}

impl fmt::Display for Reservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu(milli) => write!(f, "cpu={milli}m"),
            Self::Memory(bytes) => write!(f, "memory={}", binary_text(*bytes)),
            Self::EphemeralStorage(bytes) => write!(f, "ephemeral-storage={}", binary_text(*bytes)),
        }
    }
}

/// A taint as it is written: `key=value:Effect`, `key:Effect`.
fn taint_text(taint: &Taint) -> String {
    match &taint.value {
        Some(value) => format!("{}={value}:{}", taint.key, taint.effect),
        None => format!("{}:{}", taint.key, taint.effect),
    }
}

/// A number of bytes, as a quantity, of at least `min`.
pub fn bytes(min: u64) -> Kind<u64> {
    let schema = json!({
        "type": "string",
        "pattern": "^[0-9.]+([kMGTPE]i?|Ki|[eE][0-9]+)?$",
        "$comment": format!("at least {}", binary_text(min)),
    });
    let parse = move |text: &str, _: &std::path::Path| {
        let quantity: Quantity = text
            .parse()
            .map_err(|error| format!("{text:?} is not a quantity: {error}"))?;
        let bytes = u64::try_from(quantity.ceil()).unwrap_or_default();
        if bytes < min {
            return Err(format!("{text:?} is less than {}", binary_text(min)));
        }
        Ok(bytes)
    };
    Kind::one("QUANTITY", schema, parse, |bytes| binary_text(*bytes))
}

/// A path of a kubeconfig, `in-cluster` or `none`.
pub fn api_access() -> Kind<ApiAccess> {
    let schema = json!({"type": "string", "minLength": 1});
    Kind::one(
        "FILE",
        schema,
        |text, cwd| match text {
            NONE => Ok(ApiAccess::None),
            IN_CLUSTER => Ok(ApiAccess::InCluster),
            _ => kinds::path_of(text, cwd).map(ApiAccess::Kubeconfig),
        },
        ApiAccess::to_string,
    )
}

/// Labels of a Node, as `key=value` or, in the file, as a map.
pub fn labels() -> Kind<BTreeMap<String, String>> {
    let schema = json!({"type": "string", "pattern": "^[^=]+="});
    let show = |(key, value): &(String, String)| format!("{key}={value}");
    pairs(Kind::one("KEY=VALUE", schema, |text, _| label(text), show)).map(
        |labels| Ok(labels.into_iter().collect_map()),
        |labels: &BTreeMap<_, _>| labels.clone().into_iter().collect(),
    )
}

/// Taints, as `key=value:Effect`; `none` for none.
pub fn taints() -> Kind<Vec<Taint>> {
    let schema =
        json!({"type": "string", "pattern": "^none$|:(NoSchedule|PreferNoSchedule|NoExecute)$"});
    let show = |taint: &Option<Taint>| taint.as_ref().map_or_else(|| NONE.to_owned(), taint_text);
    let kind = Kind::one("KEY=VALUE:EFFECT", schema, |text, _| taint(text), show);
    pairs(kind).map(
        |taints| {
            let taints: Vec<Taint> = taints.into_iter().flatten().collect();
            match doubled_taint(&taints) {
                Some(doubled) => Err(format!("the taint {doubled} is given twice")),
                None => Ok(taints),
            }
        },
        |taints| match taints.as_slice() {
            [] => vec![None],
            taints => taints.iter().cloned().map(Some).collect(),
        },
    )
}

/// Resources reserved for the system, as `resource=quantity` or, in the file, as a map: allocatable is
/// capacity minus these.
pub fn reserved() -> Kind<Amounts> {
    let schema = json!({"type": "string", "pattern": "^(cpu|memory|ephemeral-storage)="});
    let kind = Kind::one(
        "RESOURCE=QUANTITY",
        schema,
        |text, _| reservation(text),
        Reservation::to_string,
    );
    pairs(kind).map(|parts| Ok(parts.into_iter().collect()), reservations)
}

/// A list of pairs, which the file may also have as a map.
pub(super) fn pairs<T: 'static>(kind: Kind<T>) -> Kind<Vec<T>> {
    let mut list = kind.list(',');
    let map = json!({"type": "object", "additionalProperties": {"type": ["string", "number"]}});
    list.schema = json!({"anyOf": [list.schema, map]});
    list
}

/// A label: `key=value`.
fn label(text: &str) -> Result<(String, String), Fault> {
    let (key, value) = text
        .split_once('=')
        .ok_or_else(|| format!("{text:?} is not a label: write key=value"))?;
    let key = qualified_name(key, "label")?;
    let value = label_value(value, "label")?;
    if key == keys::NODE_LABEL {
        return Err(format!("the label {key} is set by mirrorlet itself"));
    }
    Ok((key, value))
}

/// A taint, `key=value:Effect` or `key:Effect`; nothing for `none`.
fn taint(text: &str) -> Result<Option<Taint>, Fault> {
    if text == NONE {
        return Ok(None);
    }
    let (rest, effect) = text
        .rsplit_once(':')
        .ok_or_else(|| format!("{text:?} is not a taint: write key=value:Effect"))?;
    if !["NoSchedule", "PreferNoSchedule", "NoExecute"].contains(&effect) {
        return Err(format!(
            "the effect {effect:?} of a taint is not one of NoSchedule, PreferNoSchedule, NoExecute"
        ));
    }
    let (key, value) = rest.split_once('=').unwrap_or((rest, ""));
    let value = label_value(value, "taint")?;
    Ok(Some(Taint {
        key: qualified_name(key, "taint")?,
        value: Some(value).filter(|value| !value.is_empty()),
        effect: effect.to_owned(),
        time_added: None,
    }))
}

/// The first key and effect that two taints share; the API server refuses such a Node.
fn doubled_taint(taints: &[Taint]) -> Option<String> {
    let mut seen = BTreeSet::new();
    taints
        .iter()
        .find(|taint| !seen.insert((&taint.key, &taint.effect)))
        .map(|taint| format!("{}:{}", taint.key, taint.effect))
}

/// One reservation: `cpu=500m`, `memory=1Gi`, `ephemeral-storage=1Gi`.
fn reservation(text: &str) -> Result<Reservation, Fault> {
    let (resource, amount) = text
        .split_once('=')
        .ok_or_else(|| format!("{text:?} is not a reservation: write resource=quantity"))?;
    let quantity: Quantity = amount
        .parse()
        .map_err(|error| format!("{amount:?} is not a quantity: {error}"))?;
    if quantity.is_negative() {
        return Err(format!("{text:?} is negative"));
    }
    let positive = |amount: i64| u64::try_from(amount).unwrap_or_default();
    match resource {
        "cpu" => Ok(Reservation::Cpu(positive(quantity.milli_ceil()))),
        "memory" => Ok(Reservation::Memory(positive(quantity.ceil()))),
        "ephemeral-storage" => Ok(Reservation::EphemeralStorage(positive(quantity.ceil()))),
        other => Err(format!(
            "{other:?} can't be reserved, only cpu, memory and ephemeral-storage"
        )),
    }
}

/// `[prefix/]name`, as upstream's `IsQualifiedName`.
fn qualified_name(text: &str, of: &str) -> Result<String, Fault> {
    // The parts of a prefix are no longer than those of a host's name.
    let prefix = text.split_once('/').map(|(prefix, _)| prefix);
    if is_qualified(text) && prefix.is_none_or(|prefix| kinds::subdomain(prefix).is_ok()) {
        Ok(text.to_owned())
    } else {
        Err(format!(
            "{text:?} is not the key of a {of}: a name of at most {LABEL_MAX} letters, digits, '-', '_' and '.', optionally prefixed with a DNS name and '/'"
        ))
    }
}

fn label_value(text: &str, of: &str) -> Result<String, Fault> {
    if is_label_value(text) {
        Ok(text.to_owned())
    } else {
        Err(format!(
            "{text:?} is not the value of a {of}: at most {LABEL_MAX} letters, digits, '-', '_' and '.', beginning and ending with a letter or digit"
        ))
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn taints_are_read_as_kubectl_writes_them() {
        for (text, key, value, effect) in [
            (
                "mirrorlet.dev/docker=:NoSchedule",
                "mirrorlet.dev/docker",
                None,
                "NoSchedule",
            ),
            ("a=b:NoExecute", "a", Some("b"), "NoExecute"),
            ("a:PreferNoSchedule", "a", None, "PreferNoSchedule"),
        ] {
            let taint = taint(text).unwrap().unwrap();
            assert_eq!(
                (
                    taint.key.as_str(),
                    taint.value.as_deref(),
                    taint.effect.as_str()
                ),
                (key, value, effect),
                "{text}"
            );
        }
        assert_eq!(taint("none"), Ok(None));
        for bad in [
            "",
            "a",
            "a=b",
            "a=b:Never",
            "=b:NoSchedule",
            "a b:NoSchedule",
            "a=b=c:NoSchedule",
        ] {
            assert!(taint(bad).is_err(), "{bad}");
        }
        let one = taint(DEFAULT_TAINT).unwrap().unwrap();
        assert_eq!(one.key, "mirrorlet.dev/docker");
        assert_eq!(taint_text(&one), DEFAULT_TAINT);
        assert_eq!(doubled_taint(std::slice::from_ref(&one)), None);
        assert_eq!(
            doubled_taint(&[one.clone(), one]).as_deref(),
            Some("mirrorlet.dev/docker:NoSchedule")
        );
    }

    #[test]
    fn labels_are_checked_as_the_api_server_checks_them() {
        assert_eq!(label("disk=ssd"), Ok(("disk".to_owned(), "ssd".to_owned())));
        assert_eq!(label("a.b/c="), Ok(("a.b/c".to_owned(), String::new())));
        let long = format!("{}=x", "k".repeat(64));
        let long_part = format!("{}.b/c=x", "a".repeat(64));
        for bad in [
            "disk",
            "=x",
            "a/b/c=x",
            "A_/b=x",
            "a=-x",
            "a=x y",
            long.as_str(),
            long_part.as_str(),
            "mirrorlet.dev/node=false",
        ] {
            assert!(label(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn reservations_are_quantities_of_three_resources() {
        let parse = |texts: &[&str]| {
            texts
                .iter()
                .map(|text| reservation(text))
                .collect::<Result<Amounts, _>>()
        };
        let all = parse(&["cpu=500m", "memory=1Gi", "ephemeral-storage=1500M"]).unwrap();
        assert_eq!(all.cpu_milli, 500);
        assert_eq!(all.memory_bytes, 1 << 30);
        assert_eq!(
            reserved().show(&all),
            ["cpu=500m", "memory=1Gi", "ephemeral-storage=1500000000"]
        );
        for bad in ["cpu", "cpu=", "cpu=-1", "gpu=1", "memory=1 Gi"] {
            assert!(parse(&[bad]).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_api_server_is_named_by_a_file_or_a_word() {
        let read = |text: &str| api_access().parse(&[text.to_owned()], Path::new("/w"));
        assert_eq!(read("none"), Ok(ApiAccess::None));
        assert_eq!(read("in-cluster"), Ok(ApiAccess::InCluster));
        let file = ApiAccess::Kubeconfig("/w/k.conf".into());
        assert_eq!(read("k.conf"), Ok(file.clone()));
        assert_eq!(file.to_string(), "/w/k.conf");
        assert!(read("").is_err());
    }
}
