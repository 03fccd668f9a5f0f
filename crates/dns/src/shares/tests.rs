use super::*;

fn client(last: u8) -> IpAddr {
    IpAddr::from([10, 9, 0, last])
}

fn shares() -> Arc<Shares> {
    Shares::new(Bounds {
        all: 5,
        each: 3,
        in_use: 2,
    })
}

#[test]
fn no_client_takes_the_shares_of_the_others() {
    let shares = shares();
    let first: Vec<Share> = (0..9).filter_map(|_| shares.take(client(1))).collect();
    assert_eq!(first.len(), 3);
    let mut second: Vec<Share> = (0..9).filter_map(|_| shares.take(client(2))).collect();
    assert_eq!(second.len(), 2, "the bound of all");
    second.pop();
    assert!(shares.take(client(1)).is_none());
    assert!(shares.take(client(3)).is_some());
}

#[test]
fn clients_that_hold_nothing_are_forgotten() {
    let shares = shares();
    for last in 0..=255 {
        let taken: Vec<Share> = (0..9).filter_map(|_| shares.take(client(last))).collect();
        assert_eq!(taken.len(), 3);
    }
    assert!(shares.held().clients.is_empty());
    assert_eq!(shares.held().all, 0);
}

#[tokio::test]
async fn a_client_waits_only_for_its_own_turns() {
    let shares = shares();
    let taken: Vec<Share> = (0..3).filter_map(|_| shares.take(client(1))).collect();
    let [first, second, third] = &taken[..] else {
        panic!("{taken:?}");
    };
    let turns = (first.turn().await, second.turn().await);
    assert_eq!(third.turns.available_permits(), 0);
    let other = shares.take(client(2)).unwrap();
    assert!(other.turn().await.is_some());
    drop(turns);
    assert!(third.turn().await.is_some());
}
