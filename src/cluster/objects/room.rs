//! The room for objects that pods refer to.

use std::collections::BTreeMap;

use mirrorlet_core::objects::{ObjectError, ObjectKey};
use mirrorlet_core::shares::ShareLimits;

use super::Watched;

/// Most bytes of the objects that the pods of a namespace refer to, and all pods.
const LIMITS: ShareLimits = ShareLimits {
    namespace: 16 << 20,
    all: 40 << 20,
};

/// Checks that an object of that size fits beside the others.
///
/// # Errors
/// Those of its namespace, or all together, would exceed the limit.
pub(super) fn room_for(
    watched: &BTreeMap<ObjectKey, Watched>,
    key: &ObjectKey,
    size: usize,
) -> Result<(), ObjectError> {
    let others = watched.iter().filter(|(other, _)| *other != key);
    let others = others.map(|(other, watched)| (other.namespace.as_str(), watched.bytes));
    LIMITS.check(&key.namespace, size, others).map_err(|excess| {
        let whose = if excess.of_namespace {
            format!("pods of namespace {}", key.namespace)
        } else {
            "pods".to_owned()
        };
        let (bytes, max) = (excess.bytes, excess.max);
        ObjectError::TooMuch {
            what: key.to_string(),
            cause: format!(
                "the ConfigMaps and Secrets that {whose} refer to on this node would take {bytes} bytes, more than {max}"
            ),
        }
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use mirrorlet_core::api::ByteString;
    use mirrorlet_core::api::core::Secret;
    use mirrorlet_core::objects::ObjectKind;
    use mirrorlet_core::small::SmallCollect;
    use tokio::sync::watch;

    use super::super::{ENTRY_BYTES, Object};
    use super::*;

    fn key(namespace: &str, name: &str) -> ObjectKey {
        ObjectKey {
            kind: ObjectKind::Secret,
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        }
    }

    fn secret(mebibytes: usize) -> Object {
        let length = (mebibytes << 20) - 1 - ENTRY_BYTES;
        let data = [("k".to_owned(), ByteString(vec![0; length]))];
        Object::Secret(Arc::new(Secret {
            data: Some(data.into()),
            ..Secret::default()
        }))
    }

    #[test]
    fn a_namespace_and_all_objects_have_a_bound() {
        let mut watched: BTreeMap<ObjectKey, Watched> = BTreeMap::new();
        let mut hold = |namespace: &str, name: &str, mebibytes: usize| {
            let key = key(namespace, name);
            let size = secret(mebibytes).size();
            assert_eq!(size, mebibytes << 20);
            let room = room_for(&watched, &key, size);
            if room.is_ok() {
                let entry = watched.entry(key).or_insert_with(|| Watched {
                    number: 0,
                    known: watch::channel(None).0,
                    bytes: 0,
                });
                entry.bytes = size;
            }
            room.map_err(|error| error.to_string())
        };
        assert_eq!(hold("a", "1", 12), Ok(()));
        assert_eq!(hold("a", "2", 4), Ok(()));
        let error = hold("a", "3", 1).unwrap_err();
        // tenants M9
        assert!(error.contains("pods of namespace a refer to"), "{error}");
        // One that is known has room for another version of its size.
        assert_eq!(hold("a", "1", 12), Ok(()));
        assert_eq!(hold("b", "1", 16), Ok(()));
        assert_eq!(hold("c", "1", 8), Ok(()));
        let error = hold("c", "2", 1).unwrap_err();
        assert!(error.contains("that pods refer to"), "{error}");
    }

    #[test]
    fn empty_keys_count_as_what_they_take() {
        let data = (0..10_000).map(|n| (format!("k{n}"), ByteString(Vec::new())));
        let object = Object::Secret(Arc::new(Secret {
            data: Some(data.collect_map()),
            ..Secret::default()
        }));
        // tenants M9
        assert!(object.size() > 1_500_000, "{}", object.size());
    }
}
