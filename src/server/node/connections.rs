//! Limits of open connections: for all, for each source, and for unauthenticated ones.
//!
//! A connection is proven once one of its requests was authorized. Anyone on the network can open
//! others, so at the limit a new connection displaces the oldest unproven one: a flood displaces its
//! own connections, and a client that authenticates within moments gets in.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use mirrorlet_host::telemetry::{Metrics, NodeApiRefusal};

/// Maximum number of connections. A stream of `exec` or `port-forward` uses one, a log that is followed
/// at most one: hundreds at once are a busy day.
pub(super) const CONNECTIONS_MAX: usize = 1024;
/// Maximum number of connections of one source. All clients of an API server come from its address, so
/// this is most of them, but leaves room for a second API server and for metrics.
const SOURCE_MAX: usize = 768;
/// Maximum number of unproven connections: a client is unproven for milliseconds, so this allows
/// thousands of new clients per second. Together they can make the agent buffer some 16 MiB of request
/// headers.
pub(super) const UNPROVEN_MAX: usize = 256;
/// Most unproven connections of one source: half, so that one source doesn't displace others.
const UNPROVEN_SOURCE_MAX: usize = UNPROVEN_MAX / 2;

/// The source of a connection, such that one attacker is one source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Source(IpAddr);

impl Source {
    /// That of a request without a connection.
    pub(super) const NONE: Self = Self(IpAddr::V6(Ipv6Addr::UNSPECIFIED));

    /// The address; for IPv6 the /64 network, from which one machine can use any address.
    pub(super) fn of(address: IpAddr) -> Self {
        Self(match address.to_canonical() {
            IpAddr::V6(address) => {
                let network = address.to_bits() & !u128::from(u64::MAX);
                Ipv6Addr::from_bits(network).into()
            }
            v4 @ IpAddr::V4(_) => v4,
        })
    }
}

/// Connections at one moment, as seen by a new one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Seen {
    proven: usize,
    unproven: usize,
    /// Those of the new one's source.
    source: Counts,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Counts {
    proven: usize,
    unproven: usize,
}

/// The decision on a new connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Decision {
    Keep,
    /// It displaces the oldest unproven connection of its own source.
    DisplaceOfSource,
    /// It displaces the oldest unproven connection of the source with the most of them.
    DisplaceOfLargest,
    Refuse,
}

/// Decides on a new connection. A proven connection is never displaced.
fn decide(seen: Seen) -> Decision {
    let all = seen.proven + seen.unproven;
    let of_source = seen.source.proven + seen.source.unproven;
    if of_source >= SOURCE_MAX || seen.source.unproven >= UNPROVEN_SOURCE_MAX {
        match seen.source.unproven {
            0 => Decision::Refuse,
            _ => Decision::DisplaceOfSource,
        }
    } else if all >= CONNECTIONS_MAX || seen.unproven >= UNPROVEN_MAX {
        match seen.unproven {
            0 => Decision::Refuse,
            _ => Decision::DisplaceOfLargest,
        }
    } else {
        Decision::Keep
    }
}

/// The connections of the node API. Cheap to clone: clones share them.
#[derive(Debug, Clone)]
pub(super) struct Connections {
    table: Arc<Mutex<Table>>,
    metrics: Metrics,
}

#[derive(Debug, Default)]
struct Table {
    next: u64,
    proven: usize,
    /// By age, the oldest first.
    unproven: BTreeMap<u64, (Source, CancellationToken)>,
    /// Sources without a connection have no entry.
    sources: HashMap<Source, Counts>,
}

impl Table {
    fn open(&mut self, source: Source, displaced: &CancellationToken) -> (Decision, u64) {
        let decision = decide(Seen {
            proven: self.proven,
            unproven: self.unproven.len(),
            source: self.sources.get(&source).copied().unwrap_or_default(),
        });
        let of = match decision {
            Decision::Refuse => return (decision, 0),
            Decision::Keep => None,
            Decision::DisplaceOfSource => Some(source),
            Decision::DisplaceOfLargest => {
                let largest = self.sources.iter().max_by_key(|(_, has)| has.unproven);
                largest.map(|(source, _)| *source)
            }
        };
        if let Some(of) = of {
            let oldest = self.unproven.iter().find(|(_, (source, _))| *source == of);
            if let Some((id, (_, token))) = oldest {
                token.cancel();
                let id = *id;
                self.close(id, of);
            }
        }
        let id = self.next;
        self.next += 1;
        self.unproven.insert(id, (source, displaced.clone()));
        self.sources.entry(source).or_default().unproven += 1;
        (decision, id)
    }

    /// Does nothing for a connection that was displaced before.
    fn prove(&mut self, id: u64) {
        if let Some((source, _)) = self.unproven.remove(&id) {
            self.proven += 1;
            let has = self.sources.entry(source).or_default();
            has.unproven -= 1;
            has.proven += 1;
        }
    }

    /// Forgets an unproven connection.
    fn close(&mut self, id: u64, source: Source) {
        if self.unproven.remove(&id).is_some() {
            self.forget(source, |has| &mut has.unproven);
        }
    }

    fn forget(&mut self, source: Source, which: impl Fn(&mut Counts) -> &mut usize) {
        if let Some(has) = self.sources.get_mut(&source) {
            *which(has) -= 1;
            if *has == Counts::default() {
                self.sources.remove(&source);
            }
        }
    }
}

impl Connections {
    pub(super) fn new(metrics: Metrics) -> Self {
        Self {
            table: Arc::default(),
            metrics,
        }
    }

    /// Accepts a new connection, if the limits allow it.
    pub(super) fn open(&self, address: IpAddr) -> Option<Claim> {
        let (source, displaced) = (Source::of(address), CancellationToken::new());
        let (decision, id) = self.table.lock().open(source, &displaced);
        match decision {
            Decision::Keep => {}
            Decision::DisplaceOfSource | Decision::DisplaceOfLargest => {
                self.refused(NodeApiRefusal::Displaced);
            }
            Decision::Refuse => {
                self.refused(NodeApiRefusal::Connections);
                return None;
            }
        }
        Some(Claim(Arc::new(Held {
            connections: self.clone(),
            id,
            source,
            displaced,
        })))
    }

    /// Counts a connection that was closed before it authenticated.
    pub(super) fn refused(&self, why: NodeApiRefusal) {
        self.metrics.node_api_refused(why);
    }
}

/// A connection's share of [`CONNECTIONS_MAX`]. It is in the extensions of each of its requests; a
/// handler that takes over the connection keeps it.
#[derive(Debug, Clone)]
pub(super) struct Claim(Arc<Held>);

#[derive(Debug)]
struct Held {
    connections: Connections,
    id: u64,
    source: Source,
    displaced: CancellationToken,
}

impl Claim {
    pub(super) fn source(&self) -> Source {
        self.0.source
    }

    /// Completes when the connection was displaced and must be closed.
    pub(super) async fn displaced(&self) {
        self.0.displaced.cancelled().await;
    }

    /// Records that the gate let a request in.
    pub(super) fn prove(&self) {
        self.0.connections.table.lock().prove(self.0.id);
    }

    pub(super) fn is_proven(&self) -> bool {
        let table = self.0.connections.table.lock();
        !table.unproven.contains_key(&self.0.id) && !self.0.displaced.is_cancelled()
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut table = self.connections.table.lock();
        if table.unproven.contains_key(&self.id) {
            table.close(self.id, self.source);
        } else if !self.displaced.is_cancelled() {
            table.proven -= 1;
            table.forget(self.source, |has| &mut has.proven);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn room_is_made_among_the_unproven() {
        use Decision::{DisplaceOfLargest, DisplaceOfSource, Keep, Refuse};
        const HALF: usize = CONNECTIONS_MAX / 2;
        // All proven and unproven, then those of the new connection's source.
        for (proven, unproven, source_proven, source_unproven, expected) in [
            (0, 0, 0, 0, Keep),
            (HALF, UNPROVEN_MAX - 1, 0, 0, Keep),
            // One source has its share of the unproven …
            (0, 127, 0, 127, Keep),
            (0, 128, 0, 128, DisplaceOfSource),
            // … whatever it has proven beside.
            (500, 128, 500, 128, DisplaceOfSource),
            (0, 128, 0, 0, Keep),
            // All sources together.
            (0, UNPROVEN_MAX, 0, 0, DisplaceOfLargest),
            (0, UNPROVEN_MAX, 0, 100, DisplaceOfLargest),
            (HALF, UNPROVEN_MAX, 0, 0, DisplaceOfLargest),
            (1023, 0, 0, 0, Keep),
            (1023, 1, 0, 0, DisplaceOfLargest),
            (1024, 0, 0, 0, Refuse),
            // One source never has all.
            (767, 0, 767, 0, Keep),
            (768, 0, 768, 0, Refuse),
            (767, 1, 767, 1, DisplaceOfSource),
            (767, 1, 767, 0, Keep),
            (768, 5, 768, 0, Refuse),
        ] {
            let source = Counts {
                proven: source_proven,
                unproven: source_unproven,
            };
            let seen = Seen {
                proven,
                unproven,
                source,
            };
            // node-api 14
            assert_eq!(decide(seen), expected, "{seen:?}");
        }
    }

    #[test]
    fn one_machine_is_one_source() {
        let source = |text: &str| Source::of(text.parse().unwrap());
        // node-api 14
        assert_eq!(source("::ffff:192.0.2.1"), source("192.0.2.1"));
        assert_ne!(source("192.0.2.1"), source("192.0.2.2"));
        assert_eq!(source("2001:db8::1"), source("2001:db8::ffff:0:0:1"));
        assert_ne!(source("2001:db8:0:1::1"), source("2001:db8:0:2::1"));
        assert_ne!(source("::1"), source("127.0.0.1"));
    }

    proptest! {
        /// The limits hold for any clients, a proven connection stays, and a client with less than
        /// its share gets in as long as not all are proven.
        #[test]
        fn limits_hold_and_the_proven_stay(
            steps in prop::collection::vec((0..4_u8, 0..6_u8, any::<prop::sample::Index>()), 0..3000),
        ) {
            let connections = Connections::new(Metrics::new());
            let mut open: Vec<Claim> = Vec::new();
            for (source, what, which) in steps {
                match what {
                    0 if !open.is_empty() => drop(open.swap_remove(which.index(open.len()))),
                    1 if !open.is_empty() => open[which.index(open.len())].prove(),
                    _ => {
                        let before = connections.table.lock().proven;
                        let claim = connections.open([192, 0, 2, source].into());
                        // node-api 14
                        prop_assert!(claim.is_some() || before >= SOURCE_MAX);
                        open.extend(claim);
                        prop_assert_eq!(before, connections.table.lock().proven);
                        open.retain(|claim| !claim.0.displaced.is_cancelled());
                    }
                }
                let table = connections.table.lock();
                prop_assert!(table.unproven.len() <= UNPROVEN_MAX);
                prop_assert_eq!(table.proven + table.unproven.len(), open.len());
                for counts in table.sources.values() {
                    prop_assert!(counts.unproven <= UNPROVEN_SOURCE_MAX);
                    prop_assert!(counts.proven + counts.unproven <= SOURCE_MAX);
                }
            }
            drop(open);
            let table = connections.table.lock();
            prop_assert!(table.sources.is_empty() && table.unproven.is_empty());
            prop_assert_eq!(table.proven, 0);
        }
    }
}
