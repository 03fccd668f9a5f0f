use proptest::prelude::*;

use super::*;

const REPOSITORY: &str = "r.io/team/app";

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + seconds).unwrap()
}

fn secret(namespace: &str, name: &str, hash: &str) -> SecretUse {
    SecretUse {
        namespace: namespace.into(),
        name: name.into(),
        uid: format!("{namespace}/{name}"),
        credential_hash: hash.into(),
    }
}

fn with(policy: VerificationPolicy, allowlist: &[&str]) -> Verification {
    let allowlist = allowlist.iter().map(|text| AllowedImages::parse(text));
    Verification {
        policy,
        allowlist: allowlist.collect::<Result<_, _>>().unwrap(),
    }
}

fn record(repository: &str, access: Access) -> PulledRecord {
    let mut record = PulledRecord::new(at(0));
    record.add(repository, access, at(0));
    record
}

#[test]
fn the_policy_says_which_images_are_verified() {
    use VerificationPolicy::{
        AlwaysVerify, NeverVerify, NeverVerifyAllowlistedImages, NeverVerifyPreloadedImages,
    };
    let of_others = record(REPOSITORY, Access::Secrets(vec![secret("a", "s", "1")]));
    let for_all = record(REPOSITORY, Access::Node);
    for (policy, allowlist, known, used) in [
        (NeverVerify, &[][..], Known::Pulled, true),
        (NeverVerify, &[], Known::Record(&of_others), true),
        (NeverVerifyPreloadedImages, &[], Known::Preloaded, true),
        (NeverVerifyPreloadedImages, &[], Known::Pulled, false),
        (
            NeverVerifyPreloadedImages,
            &[],
            Known::Record(&of_others),
            false,
        ),
        (
            NeverVerifyPreloadedImages,
            &[],
            Known::Record(&for_all),
            true,
        ),
        (NeverVerifyAllowlistedImages, &[], Known::Preloaded, false),
        (
            NeverVerifyAllowlistedImages,
            &[REPOSITORY],
            Known::Preloaded,
            true,
        ),
        (
            NeverVerifyAllowlistedImages,
            &["r.io/team/*"],
            Known::Record(&of_others),
            true,
        ),
        (
            NeverVerifyAllowlistedImages,
            &["r.io/tea/*", "r.io/team/ap"],
            Known::Preloaded,
            false,
        ),
        (AlwaysVerify, &[], Known::Preloaded, false),
        (AlwaysVerify, &[], Known::Pulled, false),
        (AlwaysVerify, &[], Known::Record(&for_all), true),
    ] {
        let verdict = verdict(&with(policy, allowlist), REPOSITORY, known, &[]);
        let what = format!("{policy:?} {allowlist:?} {known:?}");
        // docker 67
        assert_eq!(verdict == Verdict::Use, used, "{what}: {verdict:?}");
    }
}

#[test]
fn a_pod_needs_credentials_that_pulled_the_image_under_its_name() {
    let noted = secret("a", "s", "1");
    let record = record(REPOSITORY, Access::Secrets(vec![noted.clone()]));
    let verification = Verification::default();
    let ask = |repository: &str, secrets: &[SecretUse]| {
        verdict(&verification, repository, Known::Record(&record), secrets)
    };
    let note = |secret: &SecretUse| Verdict::UseAndNote(secret.clone());
    let copied = secret("b", "copy", "1");
    let changed = secret("a", "s", "2");
    let mut recreated = changed.clone();
    recreated.uid = "another".into();
    for (secrets, expected) in [
        (vec![], Verdict::Pull),
        (vec![noted.clone()], Verdict::Use),
        (vec![copied.clone()], note(&copied)),
        (vec![changed.clone()], note(&changed)),
        (vec![recreated], Verdict::Pull),
        (vec![secret("b", "s", "2")], Verdict::Pull),
        (vec![secret("b", "s", "2"), noted.clone()], Verdict::Use),
    ] {
        // docker 67
        assert_eq!(ask(REPOSITORY, &secrets), expected, "{secrets:?}");
    }
    // Under another name nobody has shown that it may.
    assert_eq!(ask("other.io/app", &[noted]), Verdict::Pull);
}

#[test]
fn entries_of_the_list_are_repositories_or_all_below_a_path() {
    for (text, fits) in [
        ("r.io/team/app", true),
        ("docker.io/library/busybox", true),
        ("r.io/*", true),
        ("r.io/team/*", true),
        ("busybox", false),
        ("r.io/app:1", false),
        ("r.io/te*", false),
        ("*/app/*", false),
        ("/*", false),
        ("*", false),
        ("", false),
        (" r.io/app", false),
    ] {
        let parsed = AllowedImages::parse(text);
        // docker 67
        assert_eq!(parsed.is_ok(), fits, "{text:?}: {parsed:?}");
        assert!(parsed.is_err() || parsed.is_ok_and(|entry| entry.text() == text));
    }
}

proptest! {
    /// A pod uses an image without a pull only where a pull of that repository showed that every
    /// pod may, or one with its credentials or its secret did. The record stays bounded.
    #[test]
    fn nobody_uses_what_no_pull_has_shown(
        steps in prop::collection::vec((0..3_usize, 0..200_u32, 0..40_u32, 0..20_u8), 0..400),
    ) {
        let repositories = ["r.io/a", "r.io/b", "r.io/c"];
        let verification = Verification::default();
        let mut record = PulledRecord::new(at(0));
        // The credentials that were shown, by repository, and whether everyone may use it.
        let mut shown = vec![(Vec::<SecretUse>::new(), false); repositories.len()];
        for (which, name, hash, what) in steps {
            let repository = repositories[which];
            let mine = secret("ns", &name.to_string(), &hash.to_string());
            let (secrets, all) = &mut shown[which];
            match what {
                0 => {
                    record.add(repository, Access::Node, at(1));
                    *all = true;
                }
                1..10 => {
                    record.add(repository, Access::Secrets(vec![mine.clone()]), at(1));
                    secrets.push(mine);
                }
                _ => {
                    let known = Known::Record(&record);
                    let verdict = verdict(&verification, repository, known, std::slice::from_ref(&mine));
                    let may = *all || secrets.iter().any(|of| {
                        of.credential_hash == mine.credential_hash || of.is_same_secret(&mine)
                    });
                    // docker 67
                    prop_assert!(may || verdict == Verdict::Pull, "{verdict:?}");
                    if let Verdict::UseAndNote(noted) = verdict {
                        record.add(repository, Access::Secrets(vec![noted.clone()]), at(1));
                        secrets.push(noted);
                    }
                }
            }
            for access in record.repositories.values() {
                let bounded = matches!(access, Access::Secrets(of) if of.len() > SECRETS_MAX);
                prop_assert!(!bounded);
            }
        }
    }
}
