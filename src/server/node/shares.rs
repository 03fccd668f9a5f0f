//! Limits of clients' concurrent logs, sessions and forwarded connections, and of the bytes buffered
//! for them. One tenant's share leaves room for all others.

use std::collections::HashMap;
use std::fmt;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use mirrorlet_streaming::{Budget, Limits};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::server::remote;
use mirrorlet_core::api::{FullName, PodUid};
use mirrorlet_host::telemetry::{Metrics, NodeApiRefusal};
use mirrorlet_runtime::DuplexStream;

/// When a refused client may retry, in seconds.
const RETRY_AFTER: &str = "5";

/// Something that a client has open of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Resource {
    /// A log that is being read. It holds a connection to the Engine; a screen full of them is a dozen.
    Log,
    /// An exec, attach or port-forward. It holds a connection of its client, and usually one to the
    /// Engine.
    Session,
    /// A forwarded connection of a port-forward. It holds a socket of the pod.
    Connection,
}

/// Most at a time.
#[derive(Debug, Clone, Copy)]
struct Most {
    all: usize,
    pod: usize,
    /// For the pods of one namespace, which is what a tenant has.
    namespace: usize,
    /// For one client. All clients behind the API server count as one.
    asker: usize,
}

impl Resource {
    const fn most(self) -> Most {
        match self {
            Self::Log | Self::Session => Most {
                all: 256,
                pod: 64,
                namespace: 128,
                asker: 192,
            },
            // A browser opens half a dozen for each page.
            Self::Connection => Most {
                all: 1024,
                pod: 256,
                namespace: 512,
                asker: 768,
            },
        }
    }

    fn words(self) -> &'static str {
        match self {
            Self::Log => "log readers",
            Self::Session => "exec, attach and port-forward sessions",
            Self::Connection => "forwarded connections",
        }
    }

    fn refusal(self) -> NodeApiRefusal {
        match self {
            Self::Log => NodeApiRefusal::Logs,
            Self::Session => NodeApiRefusal::Sessions,
            Self::Connection => NodeApiRefusal::ForwardedConnections,
        }
    }
}

/// A holder of a share: the node, or one of its users, namespaces or pods.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Share {
    All,
    Pod(PodUid),
    Namespace(String),
    Asker(String),
}

impl Share {
    fn most(&self, resource: Resource) -> usize {
        let most = resource.most();
        match self {
            Self::All => most.all,
            Self::Pod(_) => most.pod,
            Self::Namespace(_) => most.namespace,
            Self::Asker(_) => most.asker,
        }
    }

    /// Bytes that may wait for its clients and for the processes that they feed: as much of those of the
    /// node as of its sessions.
    fn bytes(&self) -> usize {
        match self {
            Self::All => Budget::BYTES,
            Self::Pod(_) => Budget::BYTES / 4,
            Self::Namespace(_) => Budget::BYTES / 2,
            Self::Asker(_) => Budget::BYTES / 4 * 3,
        }
    }

    fn of(&self) -> &'static str {
        match self {
            Self::All => "this node",
            Self::Pod(_) => "this pod",
            Self::Namespace(_) => "the pods of this namespace",
            Self::Asker(_) => "this user",
        }
    }
}

/// Counts what clients have open. Cheap to clone: clones share the counts.
#[derive(Debug, Clone)]
pub(super) struct Shares {
    open: Arc<Mutex<Open>>,
    /// Of all streams.
    limits: Limits,
    metrics: Metrics,
}

/// The open logs, sessions and connections, and the budgets of their users.
#[derive(Debug, Default)]
struct Open {
    counts: HashMap<(Resource, Share), usize>,
    /// The budget of each share, and how many have it.
    budgets: HashMap<Share, (usize, Budget)>,
}

impl Open {
    /// Lets one more have the budget of a share.
    fn budget(&mut self, share: &Share) -> Budget {
        let new = || (0, Budget::new(share.bytes()));
        let (users, budget) = self.budgets.entry(share.clone()).or_insert_with(new);
        *users += 1;
        budget.clone()
    }

    fn leave_budget(&mut self, share: &Share) {
        if let Some((users, _)) = self.budgets.get_mut(share) {
            *users -= 1;
            if *users == 0 {
                self.budgets.remove(share);
            }
        }
    }
}

/// A unit in use; released on drop.
#[derive(Debug)]
pub(super) struct Taken {
    shares: Shares,
    resource: Resource,
    of: [Share; 4],
    budgets: [Budget; 4],
}

impl Taken {
    /// The limits of its streams: bytes that wait for its client count in each of its shares.
    pub(super) fn limits(&self) -> Limits {
        let limits = self.shares.limits.clone();
        Limits {
            budget: limits.budget.within(&self.budgets),
            ..limits
        }
    }
}

/// There is no room for another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Busy {
    resource: Resource,
    of: &'static str,
    most: usize,
}

impl fmt::Display for Busy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (resource, of, most) = (self.resource.words(), self.of, self.most);
        write!(
            f,
            "too many {resource} of {of}: at most {most} may be open at a time; close some, or try again later"
        )
    }
}

impl IntoResponse for Busy {
    fn into_response(self) -> Response {
        let later = [(header::RETRY_AFTER, RETRY_AFTER)];
        (StatusCode::TOO_MANY_REQUESTS, later, self.to_string()).into_response()
    }
}

impl Shares {
    pub(super) fn new(metrics: Metrics) -> Self {
        Self {
            open: Arc::default(),
            limits: remote::limits(),
            metrics,
        }
    }

    /// Opens one for a pod, for the user `asker`, if the limits allow it.
    pub(super) fn take(
        &self,
        resource: Resource,
        pod: &PodUid,
        name: &FullName,
        asker: &str,
    ) -> Result<Taken, Busy> {
        let of = [
            Share::Pod(pod.clone()),
            Share::Namespace(name.namespace.to_string()),
            Share::Asker(asker.to_owned()),
            Share::All,
        ];
        let mut open = self.open.lock();
        let full = |share: &&Share| {
            let count = open.counts.get(&(resource, (*share).clone()));
            count.is_some_and(|count| *count >= share.most(resource))
        };
        if let Some(share) = of.iter().find(full) {
            self.metrics.node_api_refused(resource.refusal());
            return Err(Busy {
                resource,
                of: share.of(),
                most: share.most(resource),
            });
        }
        for share in &of {
            *open.counts.entry((resource, share.clone())).or_default() += 1;
        }
        let budgets = of.each_ref().map(|share| open.budget(share));
        drop(open);
        Ok(Taken {
            shares: self.clone(),
            resource,
            of,
            budgets,
        })
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        let mut open = self.shares.open.lock();
        for share in &self.of {
            open.leave_budget(share);
            let share = (self.resource, share.clone());
            if let Some(count) = open.counts.get_mut(&share) {
                *count -= 1;
                if *count == 0 {
                    open.counts.remove(&share);
                }
            }
        }
    }
}

/// A connection to a pod that counts until it is dropped.
pub(super) struct Counted {
    stream: DuplexStream,
    _taken: Taken,
}

impl Counted {
    pub(super) fn new(stream: DuplexStream, taken: Taken) -> Self {
        Self {
            stream,
            _taken: taken,
        }
    }
}

impl AsyncRead for Counted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Counted {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use bytes::Bytes;
    use futures::{StreamExt as _, stream};
    use mirrorlet_streaming::Chunk;
    use mirrorlet_streaming::gather::gathered;

    use super::*;

    /// Bytes of a log that are sent together.
    const PIECE: usize = 64 << 10;
    /// Bytes that go to a client for whom there is no budget.
    const LEAN: usize = 4 << 10;

    /// Opens one of a pod of a namespace, for whoever asks.
    fn open(shares: &Shares, what: Resource, who: (&str, &str, &str)) -> Result<Taken, Busy> {
        let (namespace, pod, asker) = who;
        let name = FullName::new(pod, namespace);
        shares.take(what, &PodUid::from(pod), &name, asker)
    }

    /// Opens as many as may be, and looks at whose share is refused when.
    fn leaves_room(shares: &Shares, what: Resource) {
        let most = what.most();
        let mut held = Vec::new();
        let mut fill =
            |count: usize, who: &dyn Fn(usize) -> String, namespace: &str, asker: &str| {
                for n in 0..count {
                    held.push(open(shares, what, (namespace, &who(n), asker)).unwrap());
                }
            };
        fill(most.pod, &|_| "busy".to_owned(), "a", "kube-apiserver");
        let refused = |who| open(shares, what, who).unwrap_err().of;
        // tenants L2, tenants S2
        assert_eq!(refused(("a", "busy", "somebody")), "this pod", "{what:?}");
        let one = |n: usize| format!("a-{n}");
        fill(most.namespace - most.pod, &one, "a", "kube-apiserver");
        assert_eq!(
            refused(("a", "other", "somebody")),
            "the pods of this namespace"
        );
        fill(
            most.asker - most.namespace,
            &|n| format!("b-{n}"),
            "b",
            "kube-apiserver",
        );
        assert_eq!(refused(("c", "other", "kube-apiserver")), "this user");
        fill(
            most.all - most.asker,
            &|n| format!("c-{n}"),
            "c",
            "somebody",
        );
        assert_eq!(refused(("d", "other", "nobody")), "this node");
        held.clear();
        open(shares, what, ("a", "busy", "kube-apiserver")).unwrap();
    }

    #[test]
    fn who_reads_many_logs_leaves_room_for_others() {
        let shares = Shares::new(Metrics::new());
        leaves_room(&shares, Resource::Log);
        let open = shares.open.lock();
        assert!(open.counts.is_empty() && open.budgets.is_empty());
    }

    #[test]
    fn who_opens_many_streams_leaves_room_for_others() {
        let shares = Shares::new(Metrics::new());
        // Logs take nothing from either, and neither takes from the other.
        let log = open(&shares, Resource::Log, ("a", "busy", "kube-apiserver"));
        for what in [Resource::Session, Resource::Connection] {
            leaves_room(&shares, what);
        }
        drop(log);
        let open = shares.open.lock();
        assert!(open.counts.is_empty() && open.budgets.is_empty());
    }

    /// The first piece of a long log, for a client that takes it.
    async fn piece(taken: &Taken) -> Bytes {
        let page = Bytes::from(vec![b'x'; PIECE]);
        let log = stream::iter([Ok::<_, Infallible>(Chunk::Stdout(page))]);
        let written = |mut pieces: Vec<Result<Chunk, Infallible>>| {
            let piece = pieces.pop().and_then(Result::ok);
            piece.map_or_else(Bytes::new, |piece| piece.bytes().clone())
        };
        let mut log = Box::pin(gathered(log, taken.limits().budget, written));
        log.next().await.unwrap()
    }

    /// Pieces that wait for a client of a log until its next would be a lean one.
    async fn pieces(taken: &Taken) -> Vec<Bytes> {
        let mut held = Vec::new();
        loop {
            let next = piece(taken).await;
            match next.len() {
                PIECE => held.push(next),
                LEAN => return held,
                other => panic!("{other} bytes"),
            }
        }
    }

    #[tokio::test]
    async fn what_waits_for_one_tenants_clients_leaves_room_for_others() {
        let mut shares = Shares::new(Metrics::new());
        shares.limits = Limits::default();
        let whole = shares.limits.budget.clone();
        let quarter = Budget::BYTES / 4;
        let mut held = Vec::new();
        for (who, what, bytes) in [
            // A pod has a quarter, for logs and sessions together.
            (("a", "busy", "api"), Resource::Log, quarter),
            (("a", "busy", "api"), Resource::Session, 0),
            // Its namespace has half,
            (("a", "other", "api"), Resource::Session, quarter),
            (("a", "third", "somebody"), Resource::Log, 0),
            // and all that ask through the API server have three quarters.
            (("b", "fourth", "api"), Resource::Log, quarter),
            (("b", "fifth", "api"), Resource::Log, 0),
            (("b", "fifth", "somebody"), Resource::Log, quarter),
            (("c", "one", "somebody"), Resource::Log, 0),
        ] {
            let taken = open(&shares, what, who).unwrap();
            let waiting = pieces(&taken).await;
            // tenants S1
            assert_eq!(waiting.len() * PIECE, bytes, "{who:?}");
            held.push((taken, waiting));
        }
        assert_eq!(whole.left(), 0);
        // Clients of the first pod take what waits for them.
        held.truncate(1);
        held[0].1.clear();
        assert_eq!(whole.left(), Budget::BYTES);
        // tenants S1
        assert_eq!(piece(&held[0].0).await.len(), PIECE);
    }

    #[test]
    fn one_who_is_refused_is_told_when_to_ask_again() {
        let busy = Busy {
            resource: Resource::Session,
            of: Share::Namespace("a".to_owned()).of(),
            most: 128,
        };
        let words = "too many exec, attach and port-forward sessions of the pods of this namespace: at most 128 may be open at a time; close some, or try again later";
        // tenants S2
        assert_eq!(busy.to_string(), words);
        let answer = busy.into_response();
        // tenants L2
        assert_eq!(answer.status(), StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(answer.headers()[header::RETRY_AFTER], RETRY_AFTER);
    }
}
