//! Decides the addresses of our Node if none are configured.

use std::net::IpAddr;

/// The addresses after `known`, when `seen` are the machine's current addresses for outgoing traffic.
/// An address is replaced by another one of its family and never removed, because a machine whose link
/// is down for a moment has no address; the order, and so the primary family, stays.
pub fn next_addresses(known: &[IpAddr], seen: &[IpAddr]) -> Vec<IpAddr> {
    let of = |list: &[IpAddr], family: bool| list.iter().find(|ip| ip.is_ipv4() == family).copied();
    let kept = known.iter().map(|ip| of(seen, ip.is_ipv4()).unwrap_or(*ip));
    let new = seen
        .iter()
        .copied()
        .filter(|ip| of(known, ip.is_ipv4()).is_none());
    kept.chain(new).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_replaced_and_never_taken_away() {
        let list = |text: &str| -> Vec<IpAddr> {
            let addresses = text.split_whitespace();
            addresses.map(|ip| ip.parse().unwrap()).collect()
        };
        for (known, seen, expected) in [
            ("", "", ""),
            ("", "10.0.0.1 fd00::1", "10.0.0.1 fd00::1"),
            ("10.0.0.1", "10.0.0.2", "10.0.0.2"),
            ("10.0.0.1", "", "10.0.0.1"),
            ("10.0.0.1 fd00::1", "10.0.0.2", "10.0.0.2 fd00::1"),
            ("10.0.0.1 fd00::1", "fd00::2", "10.0.0.1 fd00::2"),
            ("10.0.0.1", "10.0.0.1 fd00::1", "10.0.0.1 fd00::1"),
            // IPv6 came first, and stays first.
            ("fd00::1", "10.0.0.1 fd00::1", "fd00::1 10.0.0.1"),
        ] {
            let next = next_addresses(&list(known), &list(seen));
            // node 6m
            assert_eq!(next, list(expected), "{known} → {seen}");
        }
    }
}
