//! Limits of concurrent log readers, so that one tenant leaves room for all others.

use std::collections::HashMap;
use std::sync::Arc;

use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use parking_lot::Mutex;

use mirrorlet_core::api::{FullName, PodUid};

/// Most logs read at a time. Each holds a connection to the Engine; a screen full of them is a
/// dozen.
const ALL_MAX: usize = 256;
/// Most of them for one pod.
const POD_MAX: usize = 64;
/// Most of them for the pods of one namespace, which is what a tenant has.
const NAMESPACE_MAX: usize = 128;
/// Maximum per client. All clients behind the API server count as one.
const ASKER_MAX: usize = 192;

/// When one who was refused may ask again, in seconds.
const RETRY_AFTER: &str = "5";

/// The metrics.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Share {
    All,
    Pod(PodUid),
    Namespace(String),
    Asker(String),
}

impl Share {
    fn max(&self) -> usize {
        match self {
            Self::All => ALL_MAX,
            Self::Pod(_) => POD_MAX,
            Self::Namespace(_) => NAMESPACE_MAX,
            Self::Asker(_) => ASKER_MAX,
        }
    }

    fn of(&self) -> &'static str {
        match self {
            Self::All => "this node",
            Self::Pod(_) => "this pod",
            Self::Namespace(_) => "pods of this namespace",
            Self::Asker(_) => "this user",
        }
    }
}

/// Counts those who read logs. Cheap to clone: all clones count together.
#[derive(Debug, Clone, Default)]
pub(super) struct Readers(Arc<Mutex<HashMap<Share, usize>>>);

/// One who reads; dropped, it leaves its room to others.
#[derive(Debug)]
pub(super) struct Reading {
    readers: Readers,
    shares: [Share; 4],
}

/// There is no room for another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Busy {
    of: &'static str,
    max: usize,
}

impl IntoResponse for Busy {
    fn into_response(self) -> Response {
        let words = format!("{} logs of {} are read at present", self.max, self.of);
        let later = [(header::RETRY_AFTER, RETRY_AFTER)];
        (StatusCode::TOO_MANY_REQUESTS, later, words).into_response()
    }
}

impl Readers {
    /// Lets one in.
    pub(super) fn begin(
        &self,
        pod: &PodUid,
        name: &FullName,
        asker: &str,
    ) -> Result<Reading, Busy> {
        let shares = [
            Share::Pod(pod.clone()),
            Share::Namespace(name.namespace.to_string()),
            Share::Asker(asker.to_owned()),
            Share::All,
        ];
        let mut counts = self.0.lock();
        let full = |share: &&Share| counts.get(share).is_some_and(|count| *count >= share.max());
        if let Some(share) = shares.iter().find(full) {
            let (of, max) = (share.of(), share.max());
            return Err(Busy { of, max });
        }
        for share in &shares {
            *counts.entry(share.clone()).or_default() += 1;
        }
        drop(counts);
        Ok(Reading {
            readers: self.clone(),
            shares,
        })
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        let mut counts = self.readers.0.lock();
        for share in &self.shares {
            if let Some(count) = counts.get_mut(share) {
                *count -= 1;
                if *count == 0 {
                    counts.remove(share);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A reader of a pod of a namespace, and who asks.
    fn read(readers: &Readers, who: (&str, &str, &str)) -> Result<Reading, Busy> {
        let (namespace, pod, asker) = who;
        let name = FullName::new(pod, namespace);
        readers.begin(&PodUid::from(pod), &name, asker)
    }

    #[test]
    fn who_reads_many_logs_leaves_room_for_others() {
        let readers = Readers::default();
        let mut held = Vec::new();
        let mut fill =
            |count: usize, who: &dyn Fn(usize) -> String, namespace: &str, asker: &str| {
                for n in 0..count {
                    held.push(read(&readers, (namespace, &who(n), asker)).unwrap());
                }
            };
        fill(POD_MAX, &|_| "busy".to_owned(), "a", "kube-apiserver");
        let refused = |who| read(&readers, who).unwrap_err().of;
        // tenants L2
        assert_eq!(refused(("a", "busy", "somebody")), "this pod");
        let one = |n: usize| format!("a-{n}");
        fill(NAMESPACE_MAX - POD_MAX, &one, "a", "kube-apiserver");
        assert_eq!(
            refused(("a", "other", "somebody")),
            "pods of this namespace"
        );
        fill(
            ASKER_MAX - NAMESPACE_MAX,
            &|n| format!("b-{n}"),
            "b",
            "kube-apiserver",
        );
        assert_eq!(refused(("c", "other", "kube-apiserver")), "this user");
        fill(ALL_MAX - ASKER_MAX, &|n| format!("c-{n}"), "c", "somebody");
        assert_eq!(refused(("d", "other", "nobody")), "this node");
        held.clear();
        assert!(readers.0.lock().is_empty());
        read(&readers, ("a", "busy", "kube-apiserver")).unwrap();
    }

    #[test]
    fn one_who_is_refused_is_told_when_to_ask_again() {
        let busy = Busy {
            of: "this pod",
            max: POD_MAX,
        };
        let answer = busy.into_response();
        // tenants L2
        assert_eq!(answer.status(), StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(answer.headers()[header::RETRY_AFTER], RETRY_AFTER);
    }
}
