use std::time::Duration;

use super::*;
use crate::mirror::ProblemKind as Kind;

/// The words of a real API server (1.35.4), as `tests/cluster/refusals.rs` gets them.
const WORDS: &[(u16, &str, &str, Kind)] = &[
    (
        404,
        "namespaces",
        r#"namespaces "nowhere" not found"#,
        Kind::NamespaceMissing,
    ),
    (
        403,
        "pods",
        r#"pods "web-n1" is forbidden: unable to create new content in namespace going because it is being terminated"#,
        Kind::NamespaceMissing,
    ),
    (
        403,
        "pods",
        r#"pods is forbidden: User "system:serviceaccount:kube-system:mirrorlet" cannot create resource "pods" in API group "" in the namespace "default""#,
        Kind::Forbidden,
    ),
    (
        403,
        "pods",
        r#"pods "web-n1" is forbidden: node "n1" can only create pods with spec.nodeName set to itself"#,
        Kind::NodeRestriction,
    ),
    (
        403,
        "pods",
        r#"pods "web-n1" is forbidden: node n1 UID mismatch: expected a got b"#,
        Kind::NodeRestriction,
    ),
    (
        403,
        "pods",
        r#"pods "web-n1" is forbidden: node "n1" can not create pods that reference secrets"#,
        Kind::NodeRestriction,
    ),
    (
        403,
        "pods",
        r#"pods "web-n1" is forbidden: violates PodSecurity "restricted:latest": allowPrivilegeEscalation != false (container "web" must set securityContext.allowPrivilegeEscalation=false)"#,
        Kind::PodSecurity,
    ),
    (
        403,
        "pods",
        r#"pods "web-n1" is forbidden: exceeded quota: none, requested: pods=1, used: pods=0, limited: pods=0"#,
        Kind::Quota,
    ),
    (
        403,
        "pods",
        r#"pods "web-n1" is forbidden: failed quota: compute: must specify limits.cpu for: web"#,
        Kind::Quota,
    ),
    (
        409,
        "resourcequotas",
        r#"Operation cannot be fulfilled on resourcequotas "none": the object has been modified; please apply your changes to the latest version and try again"#,
        Kind::Quota,
    ),
    (
        403,
        "pods",
        r#"pods "web-n1" is forbidden: maximum cpu usage per Container is 1m, but limit is 1"#,
        Kind::LimitRange,
    ),
    (
        403,
        "pods",
        r#"pods "web-n1" is forbidden: [minimum cpu usage per Container is 4, but request is 1, cpu max limit to request ratio per Container is 1, but provided ratio is 2.000000]"#,
        Kind::LimitRange,
    ),
    (
        400,
        "",
        r#"admission webhook "deny.example.com" denied the request: not here"#,
        Kind::Webhook,
    ),
    (
        500,
        "",
        r#"Internal error occurred: failed calling webhook "deny.example.com": failed to call webhook: Post "https://127.0.0.1:1/?timeout=10s": dial tcp 127.0.0.1:1: connect: connection refused"#,
        Kind::Webhook,
    ),
    (
        422,
        "pods",
        r#"pods "web-n1" is forbidden: ValidatingAdmissionPolicy 'no-web' with binding 'no-web' denied request: no web here"#,
        Kind::Webhook,
    ),
    (
        422,
        "Pod",
        r#"Pod "web-n1" is invalid: spec.containers[0].image: Required value"#,
        Kind::Invalid,
    ),
    (
        403,
        "pods",
        r#"pods "web-n1" is forbidden: a mirror pod may not reference service accounts"#,
        Kind::Invalid,
    ),
    (
        403,
        "pods",
        r#"pods "web-n1" is forbidden: no PriorityClass with name nope was found"#,
        Kind::PriorityClassMissing,
    ),
    (
        403,
        "pods",
        r#"pods "web-n1" is forbidden: pod rejected: RuntimeClass "nope" not found"#,
        Kind::Other,
    ),
    (401, "", "Unauthorized", Kind::Forbidden),
    (
        429,
        "",
        "the server has received too many requests and has asked us to try again later",
        Kind::ApiAway,
    ),
    (
        500,
        "",
        "etcdserver: mvcc: database space exceeded",
        Kind::Other,
    ),
];

#[test]
fn each_refusal_is_told_apart() {
    for (code, kind, message, expected) in WORDS {
        let refusal = Refusal {
            code: *code,
            kind,
            message,
        };
        // pods 35
        assert_eq!(classify(refusal), *expected, "{code} {message}");
    }
}

#[test]
fn pauses_grow_and_end_at_a_minute() {
    let pauses = |kind, watched, age: u64, share| -> Vec<u64> {
        let age = Duration::from_secs(age);
        let pause = |n| retry_after(kind, n, age, watched, share).as_secs();
        (1..=8).map(pause).collect()
    };
    let doubling = vec![1, 2, 4, 8, 16, 32, 60, 60];
    // pods 35
    assert_eq!(pauses(Kind::Quota, false, 0, 0.0), doubling);
    // A change that the watch reports needs no polling.
    assert_eq!(pauses(Kind::NamespaceMissing, true, 0, 0.0), doubling);
    assert_eq!(pauses(Kind::NamespaceMissing, false, 61, 0.0), doubling);
    assert_eq!(pauses(Kind::NamespaceMissing, false, 59, 0.5), vec![2; 8]);
    let of_class = pauses(Kind::PriorityClassMissing, false, 0, 0.5);
    // pods 35
    assert_eq!(of_class, vec![2; 8], "an API server that boots makes it");
    assert_eq!(pauses(Kind::Quota, false, 0, 1.0)[6], 48);
    let many = retry_after(Kind::Other, u32::MAX, Duration::MAX, false, 7.0);
    assert_eq!(many, Duration::from_secs(48));
}

#[test]
fn every_kind_has_a_word_of_its_own() {
    let words: BTreeSet<&str> = Kind::ALL.iter().map(|kind| kind.as_str()).collect();
    assert_eq!(words.len(), Kind::ALL.len());
    for kind in Kind::ALL {
        assert_eq!(format!("{kind:?}"), kind.to_string());
    }
}
