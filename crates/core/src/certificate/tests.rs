use proptest::prelude::*;

use super::*;

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + seconds).unwrap()
}

fn certificate(ends: i64, user: &str, is_ours: bool) -> Held {
    Held::Certificate {
        validity: Validity {
            not_before: at(-1000),
            not_after: at(ends),
        },
        user: user.to_owned(),
        is_ours,
    }
}

#[test]
fn an_identity_is_needed_where_there_is_none_or_it_has_ended() {
    let user = node_user("box");
    assert_eq!(user, "system:node:box");
    let judged = |held: &Held| judge(held, &user, at(0));
    for held in [Held::Other, certificate(1, "admin", false)] {
        assert_eq!(judged(&held), Verdict::Good, "{held:?}");
    }
    let validity = Validity {
        not_before: at(-1000),
        not_after: at(1),
    };
    assert_eq!(
        judged(&certificate(1, &user, true)),
        Verdict::Ours(validity)
    );
    for (held, words) in [
        (Held::Missing, "the kubeconfig does not exist yet"),
        (Held::Unusable("it is no YAML".to_owned()), "it is no YAML"),
        (
            certificate(0, &user, true),
            "its client certificate expired at 2027-01-15T08:00:00Z",
        ),
        (
            certificate(-1, "admin", false),
            "its client certificate expired at 2027-01-15T07:59:59Z",
        ),
        (
            certificate(1, "system:node:other", true),
            "its client certificate is for system:node:other, not for system:node:box",
        ),
    ] {
        // identity 1
        assert_eq!(judged(&held), Verdict::Needed(words.to_owned()), "{held:?}");
    }
}

#[test]
fn a_request_waits_for_people_as_long_as_it_exists() {
    let secs = Duration::from_secs;
    for (waited, pause) in [(0, 2), (59, 2), (60, 5), (899, 5), (900, 30), (1 << 30, 30)] {
        let next = next(Outcome::Pending, secs(waited));
        // identity 1
        assert_eq!(next, Next::Wait(secs(pause)), "{waited}");
        assert_eq!(is_overdue(secs(waited)), waited >= 60, "{waited}");
    }
    let now = |outcome| next(outcome, secs(0));
    assert_eq!(now(Outcome::Issued("c".into())), Next::Take("c".into()));
    assert_eq!(
        now(Outcome::Refused("no".into())),
        Next::Refused("no".into())
    );
    assert_eq!(now(Outcome::Gone), Next::AskAgain);
}

#[test]
fn pauses_after_refusals_grow_to_ten_minutes() {
    let pauses = (1..7).map(|n| refused_pause(n).as_secs() / 60);
    // identity 1
    assert_eq!(pauses.collect::<Vec<_>>(), [1, 2, 4, 8, 10, 10]);
    assert_eq!(refused_pause(u32::MAX), Duration::from_mins(10));
    assert_eq!(unanswered_pause(true, 9), Duration::from_secs(10));
    assert_eq!(unanswered_pause(false, 1), Duration::from_mins(1));
}

proptest! {
    #[test]
    fn it_is_renewed_in_the_third_tenth_before_its_end(
        life in 10_i64..400_000_000, jitter in -0.5_f64..1.5,
    ) {
        let validity = Validity { not_before: at(0), not_after: at(life) };
        let renew_at = validity.renew_at(jitter);
        // identity 1
        prop_assert!(renew_at >= at(life * 7 / 10 - 1) && renew_at <= at(life * 9 / 10 + 1));
        prop_assert!(renew_at < validity.not_after);
    }

    #[test]
    fn a_certificate_from_after_its_end_is_renewed_at_its_end(life in 1_i64..1000) {
        let validity = Validity { not_before: at(life), not_after: at(0) };
        prop_assert_eq!(validity.renew_at(0.5), at(0));
    }
}
