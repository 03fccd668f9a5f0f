use std::collections::BTreeSet;

use axum::http::HeaderValue;
use axum::http::header::AUTHORIZATION;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair,
};

use super::fake::{FakeReviewer, Question};
use super::*;

/// An authority, and what it vouches for.
pub(in crate::server::node) struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    pub(in crate::server::node) fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    pub(in crate::server::node) fn pem(&self) -> String {
        self.0.pem()
    }

    /// The certificates of a client of this authority.
    pub(in crate::server::node) fn shown(
        &self,
        name: &str,
        change: impl FnOnce(&mut CertificateParams),
    ) -> Shown {
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        if !name.is_empty() {
            params.distinguished_name.push(DnType::CommonName, name);
        }
        let group = DnType::OrganizationName;
        params.distinguished_name.push(group, "system:masters");
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        change(&mut params);
        Shown([self.sign(&params).0].into())
    }

    fn sign(&self, params: &CertificateParams) -> (CertificateDer<'static>, Vec<u8>) {
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.0).unwrap();
        (certificate.der().clone(), key.serialize_der())
    }

    /// A client certificate and its key (PKCS #8).
    pub(in crate::server::node) fn holder(&self, name: &str) -> (CertificateDer<'static>, Vec<u8>) {
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.sign(&params)
    }
}

pub(in crate::server::node) struct Bed {
    pub(in crate::server::node) gate: Gate,
    pub(in crate::server::node) reviewer: Arc<FakeReviewer>,
    pub(in crate::server::node) authority: Authority,
    pub(in crate::server::node) metrics: Metrics,
}

impl Bed {
    /// `admin` may everything.
    pub(in crate::server::node) fn new() -> Self {
        let reviewer = Arc::new(FakeReviewer {
            admins: BTreeSet::from(["admin".to_owned()]),
            ..FakeReviewer::default()
        });
        let authority = Authority::new();
        let authorities = Arc::new(ClientAuthorities::default());
        authorities.replace(authority.pem().as_bytes()).unwrap();
        let asked = Arc::clone(&reviewer) as Arc<dyn Reviewer>;
        let metrics = Metrics::new();
        Self {
            gate: Gate::new(asked, authorities, metrics.clone()),
            reviewer,
            authority,
            metrics,
        }
    }

    async fn admit(&self, path: &str, token: &str, shown: &Shown) -> Result<User, Refused> {
        let mut headers = HeaderMap::new();
        if !token.is_empty() {
            let value = format!("Bearer {token}");
            headers.insert(AUTHORIZATION, HeaderValue::from_str(&value).unwrap());
        }
        let source = Source::NONE;
        self.gate.admit("GET", path, &headers, shown, source).await
    }

    fn asked(&self) -> Vec<Question> {
        std::mem::take(&mut *self.reviewer.asked.lock().unwrap())
    }
}

fn access(name: &str, subresource: &str) -> Question {
    Question::Access(name.to_owned(), "get".to_owned(), subresource.to_owned())
}

#[tokio::test]
async fn nobody_is_anybody_without_proof() {
    let bed = Bed::new();
    let refused = bed.admit("/pods", "", &Shown::default()).await;
    assert_eq!(refused, Err(Refused::Unauthorized));
    let refused = bed.admit("/pods", "nonsense", &Shown::default()).await;
    assert_eq!(refused, Err(Refused::Unauthorized));
    assert_eq!(bed.asked(), [Question::Token("nonsense".to_owned())]);
}

#[tokio::test]
async fn a_certificate_says_who_somebody_is() {
    let bed = Bed::new();
    let shown = bed.authority.shown("admin", |_| {});
    let user = bed.admit("/pods", "", &shown).await.unwrap();
    // node-api 6
    assert_eq!(user.name, "admin");
    assert_eq!(user.groups, ["system:masters", AUTHENTICATED]);
    assert!(
        user.extra
            .values()
            .all(|ids| ids[0].starts_with("X509SHA256="))
    );
    assert_eq!(bed.asked(), [access("admin", "pods")]);
}

#[tokio::test]
async fn a_certificate_that_proves_nothing_is_none() {
    let bed = Bed::new();
    let (before, long_ago) = (
        rcgen::date_time_ymd(2001, 1, 1),
        rcgen::date_time_ymd(2000, 1, 1),
    );
    let soon = rcgen::date_time_ymd(4000, 1, 1);
    let signed = |name, change: &dyn Fn(&mut CertificateParams)| bed.authority.shown(name, change);
    let mut broken = bed.authority.shown("admin", |_| {}).0[0].to_vec();
    *broken.last_mut().unwrap() ^= 1;
    for (what, shown) in [
        (
            "another authority's",
            Authority::new().shown("admin", |_| {}),
        ),
        ("nameless", signed("", &|_| {})),
        (
            "a server's",
            signed("admin", &|params| {
                params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
            }),
        ),
        (
            "ended",
            signed("admin", &|params| {
                (params.not_before, params.not_after) = (long_ago, before);
            }),
        ),
        (
            "not yet begun",
            signed("admin", &|params| params.not_before = soon),
        ),
        (
            "broken",
            Shown([CertificateDer::from(broken.clone())].into()),
        ),
        (
            "no certificate",
            Shown([CertificateDer::from(vec![0x30, 0])].into()),
        ),
    ] {
        let refused = bed.admit("/pods", "", &shown).await;
        // node-api 6
        assert_eq!(refused, Err(Refused::Unauthorized), "{what}");
        assert_eq!(bed.asked(), [], "{what}");
        // It is no obstacle for who has a token.
        let user = bed.admit("/pods", "token-of-admin", &shown).await.unwrap();
        assert_eq!(
            (user.name.as_str(), user.groups.len()),
            ("admin", 2),
            "{what}"
        );
        bed.asked();
    }
}

#[tokio::test]
async fn replaced_authorities_count_at_the_next_request() {
    let bed = Bed::new();
    let shown = bed.authority.shown("admin", |_| {});
    let authorities = &bed.gate.authorities;
    assert!(bed.admit("/pods", "", &shown).await.is_ok());
    // Nonsense changes nothing.
    assert!(authorities.replace(b"").is_err());
    assert!(
        authorities
            .replace(b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
            .is_err()
    );
    assert!(bed.admit("/pods", "", &shown).await.is_ok());
    authorities
        .replace(Authority::new().pem().as_bytes())
        .unwrap();
    // node-api 6
    assert!(bed.admit("/pods", "", &shown).await.is_err());
}

#[tokio::test]
async fn any_of_several_rights_will_do_and_none_is_refused_in_upstreams_words() {
    let bed = Bed::new();
    let shown = bed.authority.shown("alice", |_| {});
    let refused = bed.admit("/pods", "", &shown).await.unwrap_err();
    let words = "Forbidden (user=alice, verb=get, resource=nodes, subresource(s)=[pods proxy])\n";
    assert_eq!(refused, Refused::Forbidden(words.to_owned()));
    // node-api 5
    assert_eq!(
        bed.asked(),
        [access("alice", "pods"), access("alice", "proxy")]
    );
    let right = ("alice".to_owned(), "get".to_owned(), "proxy".to_owned());
    bed.reviewer.allowed.lock().unwrap().insert(right);
    // A caller that was refused stays refused until the cached answer is old …
    assert!(bed.admit("/pods", "", &shown).await.is_err());
    let other = bed.authority.shown("alice", |_| {});
    // … and another credential of the same user is another caller.
    assert!(bed.admit("/pods", "", &other).await.is_ok());
    assert!(bed.admit("/stats/summary", "", &other).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn answers_are_kept_as_long_as_a_kubelet_keeps_them() {
    let bed = Bed::new();
    let nobody = Shown::default();
    for _ in 0..100 {
        assert!(
            bed.admit("/metrics", "token-of-admin", &nobody)
                .await
                .is_ok()
        );
        assert!(
            bed.admit("/metrics", "token-of-alice", &nobody)
                .await
                .is_err()
        );
        assert!(bed.admit("/metrics", "forged", &nobody).await.is_err());
    }
    // node-api 7
    assert_eq!(bed.asked().len(), 5, "one question each");
    let after = async |seconds| {
        tokio::time::advance(Duration::from_secs(seconds)).await;
        for token in ["token-of-admin", "token-of-alice", "forged"] {
            let _ = bed.admit("/metrics", token, &nobody).await;
        }
        bed.asked()
    };
    assert_eq!(after(29).await, []);
    assert_eq!(after(1).await, [access("alice", "metrics")]);
    let tokens = |asked: &[Question]| {
        asked
            .iter()
            .filter(|q| matches!(q, Question::Token(_)))
            .count()
    };
    let asked = after(91).await;
    assert_eq!((tokens(&asked), asked.len()), (3, 4), "{asked:?}");
    let asked = after(180).await;
    assert!(asked.contains(&access("admin", "metrics")), "{asked:?}");
}

#[tokio::test]
async fn while_the_api_server_is_away_nobody_new_gets_in() {
    let bed = Bed::new();
    let nobody = Shown::default();
    let shown = bed.authority.shown("admin", |_| {});
    assert!(bed.admit("/pods", "token-of-admin", &nobody).await.is_ok());
    *bed.reviewer.away.lock().unwrap() = true;
    assert!(bed.admit("/pods", "token-of-admin", &nobody).await.is_ok());
    let refused = bed.admit("/pods", "token-of-alice", &nobody).await;
    assert_eq!(refused, Err(Refused::Unauthorized));
    let words = "Authorization error (user=admin, verb=get, resource=nodes, subresource=pods)";
    let refused = bed.admit("/pods", "", &shown).await;
    // node-api 7
    assert_eq!(refused, Err(Refused::Unknown(words.to_owned())));
    // A failed review is not cached.
    *bed.reviewer.away.lock().unwrap() = false;
    assert!(bed.admit("/pods", "", &shown).await.is_ok());
}

#[tokio::test]
async fn no_number_of_strangers_displaces_who_was_let_in() {
    let bed = Bed::new();
    let nobody = Shown::default();
    assert!(bed.admit("/pods", "token-of-admin", &nobody).await.is_ok());
    for n in 0..=ANSWERS_MAX {
        let forged = format!("forged-{n}");
        assert!(bed.admit("/pods", &forged, &nobody).await.is_err());
        // A caller that is authenticated but not authorized counts as a stranger, too.
        let other = format!("token-of-{n}");
        assert!(bed.admit("/pods", &other, &nobody).await.is_err());
    }
    bed.asked();
    assert!(bed.admit("/pods", "token-of-admin", &nobody).await.is_ok());
    // node-api 15
    assert_eq!(bed.asked(), []);
    assert_eq!(bed.gate.tokens.lock().others.len(), ANSWERS_MAX);
}

#[tokio::test]
async fn one_answer_serves_all_who_wait_for_it() {
    let bed = Bed::new();
    let nobody = Shown::default();
    bed.reviewer.holds.send_replace(true);
    // They share a turn's worth of questions: the others find the answer when their turn comes.
    let asking = (0..16).map(|_| bed.admit("/pods", "token-of-admin", &nobody));
    let asking = futures::future::join_all(asking);
    let answering = async {
        tokio::task::yield_now().await;
        bed.reviewer.holds.send_replace(false);
    };
    let (answers, ()) = tokio::join!(asking, answering);
    assert!(answers.iter().all(Result::is_ok));
    let tokens = bed.asked().into_iter();
    let tokens = tokens.filter(|question| matches!(question, Question::Token(_)));
    // node-api 15
    assert_eq!(tokens.count(), TOKEN_REVIEWS.asking);
}
