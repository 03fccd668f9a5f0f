use proptest::prelude::*;

use super::*;

const ACCOUNT: &str = "system:serviceaccount:kube-system:mirrorlet";

fn approver() -> Approver {
    Approver::new("kube-system", "mirrorlet", "docker")
}

fn texts(all: &[&str]) -> Vec<String> {
    all.iter().map(|one| (*one).to_owned()).collect()
}

fn seen(is_ours: bool, names: &[&str], addresses: &[&str]) -> NodeSeen {
    NodeSeen {
        is_ours,
        names: names.iter().map(|one| (*one).to_owned()).collect(),
        addresses: addresses.iter().map(|one| one.parse().unwrap()).collect(),
    }
}

/// Hosts `a` and `b`, each with a kubelet's Node and one of ours; `taken-docker` is a kubelet's.
fn nodes() -> Nodes {
    [
        (
            "a",
            seen(false, &["a", "a.example"], &["10.0.0.1", "fd00::1"]),
        ),
        (
            "a-docker",
            seen(true, &["a", "a.example"], &["10.0.0.1", "fd00::1"]),
        ),
        ("b", seen(false, &["b"], &["10.0.0.2"])),
        ("b-docker", seen(true, &["b"], &["10.0.0.2"])),
        ("taken", seen(false, &["taken"], &["10.0.0.3"])),
        (
            "taken-docker",
            seen(false, &["taken-docker"], &["10.0.0.4"]),
        ),
        // Another release's on host `a`, and a machine that is no Node otherwise.
        ("a-x-docker", seen(true, &["a"], &["10.0.0.1"])),
    ]
    .map(|(name, seen)| (name.to_owned(), seen))
    .into()
}

/// The first request of an agent on host `a`.
fn first() -> SigningRequest {
    SigningRequest {
        signer: CLIENT_SIGNER.to_owned(),
        user: ACCOUNT.to_owned(),
        groups: texts(&["system:serviceaccounts", "system:authenticated"]),
        extra: [(BOUND_NODE, "a"), (BOUND_POD, "mirrorlet-x7k2p")]
            .map(|(key, value)| (key.to_owned(), texts(&[value])))
            .into(),
        usages: texts(&["digital signature", "client auth"]),
        wanted: Ok(Wanted {
            common_name: "system:node:a-docker".to_owned(),
            organizations: texts(&["system:nodes"]),
            ..Wanted::default()
        }),
    }
}

/// The Node's request to renew it.
fn renewal() -> SigningRequest {
    SigningRequest {
        user: "system:node:a-docker".to_owned(),
        groups: texts(&["system:nodes", "system:authenticated"]),
        extra: BTreeMap::new(),
        ..first()
    }
}

/// The Node's request for a serving certificate.
fn serving() -> SigningRequest {
    let mut request = renewal();
    request.signer = SERVING_SIGNER.to_owned();
    request.usages = texts(&["digital signature", "server auth"]);
    let wanted = request.wanted.as_mut().unwrap();
    wanted.names = texts(&["a"]);
    wanted.addresses = vec!["10.0.0.1".parse().unwrap(), "fd00::1".parse().unwrap()];
    request
}

/// The decision in one word: the reason of a denial.
fn word(decision: &Decision) -> &str {
    match decision {
        Decision::Approve(_) => "approved",
        Decision::Deny { reason, .. } => reason,
        Decision::Ignore => "ignored",
        Decision::Wait(_) => "waits",
    }
}

type Change = fn(&mut SigningRequest);

fn wanted(request: &mut SigningRequest) -> &mut Wanted {
    request.wanted.as_mut().unwrap()
}

#[test]
fn a_first_certificate_is_for_the_host_that_the_token_is_bound_to() {
    let cases: &[(&str, Change)] = &[
        ("approved", |_| {}),
        ("approved", |r| r.usages.push("key encipherment".to_owned())),
        ("ignored", |r| {
            r.signer = "kubernetes.io/kube-apiserver-client".to_owned();
        }),
        ("ignored", |r| {
            r.signer = "kubernetes.io/legacy-unknown".to_owned();
        }),
        ("ignored", |r| {
            r.user = "system:serviceaccount:default:mirrorlet".to_owned();
        }),
        ("ignored", |r| r.user = "system:bootstrap:abc123".to_owned()),
        ("ignored", |r| r.user = "alice".to_owned()),
        ("NotANode", |r| r.signer = SERVING_SIGNER.to_owned()),
        ("TokenNotBound", |r| r.extra.clear()),
        ("TokenNotBound", |r| drop(r.extra.remove(BOUND_NODE))),
        // A token that is bound to a Node object, not to a pod on it.
        ("TokenNotBound", |r| drop(r.extra.remove(BOUND_POD))),
        ("TokenNotBound", |r| {
            drop(r.extra.insert(BOUND_NODE.to_owned(), vec![]));
        }),
        ("TokenNotBound", |r| {
            drop(r.extra.insert(BOUND_NODE.to_owned(), texts(&[""])));
        }),
        ("TokenNotBound", |r| {
            drop(r.extra.insert(BOUND_NODE.to_owned(), texts(&["a", "b"])));
        }),
        ("WrongNode", |r| {
            drop(r.extra.insert(BOUND_NODE.to_owned(), texts(&["b"])));
        }),
        ("WrongNode", |r| {
            wanted(r).common_name = "system:node:b-docker".to_owned();
        }),
        ("WrongNode", |r| {
            wanted(r).common_name = "system:node:a".to_owned();
        }),
        ("WrongNode", |r| {
            wanted(r).common_name = "a-docker".to_owned();
        }),
        ("WrongNode", |r| {
            wanted(r).common_name = "system:node:A-docker".to_owned();
        }),
        ("WrongNode", |r| {
            wanted(r).common_name = "kubernetes-admin".to_owned();
        }),
        ("WrongGroup", |r| {
            wanted(r).organizations = texts(&["system:masters"]);
        }),
        ("WrongGroup", |r| {
            wanted(r).organizations.push("system:masters".to_owned());
        }),
        ("WrongGroup", |r| wanted(r).organizations.clear()),
        ("UnexpectedNames", |r| wanted(r).names = texts(&["a"])),
        ("UnexpectedNames", |r| {
            wanted(r).addresses = vec!["10.0.0.1".parse().unwrap()];
        }),
        ("WrongUsages", |r| r.usages.clear()),
        ("WrongUsages", |r| r.usages.push("server auth".to_owned())),
        ("WrongUsages", |r| r.usages = texts(&["client auth"])),
        ("Unreadable", |r| {
            r.wanted = Err("it asks for an email address".to_owned());
        }),
        // The agent on a host whose Node's name a kubelet has.
        ("NameTaken", |r| {
            r.extra.insert(BOUND_NODE.to_owned(), texts(&["taken"]));
            wanted(r).common_name = "system:node:taken-docker".to_owned();
        }),
        // A pod of the DaemonSet that was lured to a Node of ours.
        ("NotAHost", |r| {
            r.extra.insert(BOUND_NODE.to_owned(), texts(&["a-docker"]));
            wanted(r).common_name = "system:node:a-docker-docker".to_owned();
        }),
        ("waits", |r| {
            r.extra.insert(BOUND_NODE.to_owned(), texts(&["new"]));
            wanted(r).common_name = "system:node:new-docker".to_owned();
        }),
    ];
    for (expected, change) in cases {
        let mut request = first();
        change(&mut request);
        let decision = approver().decide(&request, &nodes());
        // identity 6
        assert_eq!(word(&decision), *expected, "{request:?}: {decision:?}");
    }
}

#[test]
fn a_node_renews_its_own_certificate_and_no_other() {
    let cases: &[(&str, Change)] = &[
        ("approved", |_| {}),
        ("ignored", |r| r.groups.clear()),
        // A kubelet's: others decide.
        ("ignored", |r| r.user = "system:node:a".to_owned()),
        ("ignored", |r| {
            r.user = "system:node:taken-docker".to_owned();
        }),
        ("ignored", |r| r.user = "system:node:-docker".to_owned()),
        ("ignored", |r| r.user = "system:node:a-x-docker".to_owned()),
        ("waits", |r| r.user = "system:node:new-docker".to_owned()),
        ("WrongNode", |r| {
            wanted(r).common_name = "system:node:b-docker".to_owned();
        }),
        ("WrongNode", |r| {
            wanted(r).common_name = "system:node:a".to_owned();
        }),
        ("WrongGroup", |r| {
            wanted(r).organizations = texts(&["system:masters"]);
        }),
        ("UnexpectedNames", |r| wanted(r).names = texts(&["a"])),
        ("WrongUsages", |r| {
            r.usages = texts(&["digital signature", "server auth"]);
        }),
        ("Unreadable", |r| {
            r.wanted = Err("it is not a request".to_owned());
        }),
    ];
    for (expected, change) in cases {
        let mut request = renewal();
        change(&mut request);
        let decision = approver().decide(&request, &nodes());
        // identity 6
        assert_eq!(word(&decision), *expected, "{request:?}: {decision:?}");
    }
}

#[test]
fn a_serving_certificate_names_the_node_and_its_host_only() {
    let cases: &[(&str, Change)] = &[
        ("approved", |_| {}),
        ("approved", |r| {
            wanted(r).names = texts(&["a-docker", "a", "a.example"]);
        }),
        ("approved", |r| wanted(r).names.clear()),
        ("approved", |r| wanted(r).addresses.clear()),
        ("NoNames", |r| {
            wanted(r).names.clear();
            wanted(r).addresses.clear();
        }),
        ("ForeignAddress", |r| {
            wanted(r).names = texts(&["kubernetes.default.svc"]);
        }),
        ("ForeignAddress", |r| wanted(r).names = texts(&["b"])),
        ("ForeignAddress", |r| {
            wanted(r).names = texts(&["*.example"]);
        }),
        ("ForeignAddress", |r| {
            wanted(r).addresses = vec!["10.0.0.2".parse().unwrap()];
        }),
        ("ForeignAddress", |r| {
            wanted(r).addresses.push("10.96.0.1".parse().unwrap());
        }),
        ("WrongNode", |r| {
            wanted(r).common_name = "system:node:b-docker".to_owned();
        }),
        ("WrongNode", |r| {
            wanted(r).common_name = "system:node:a".to_owned();
        }),
        ("WrongUsages", |r| r.usages.push("client auth".to_owned())),
        ("ignored", |r| r.user = "system:node:a".to_owned()),
        ("ignored", |r| r.user = "alice".to_owned()),
    ];
    for (expected, change) in cases {
        let mut request = serving();
        change(&mut request);
        let decision = approver().decide(&request, &nodes());
        // identity 6
        assert_eq!(word(&decision), *expected, "{request:?}: {decision:?}");
    }
    // A thief of the host can write anything into both Nodes.
    let stolen = ["10.0.0.2", "10.96.0.1"];
    let mut nodes = nodes();
    for name in ["a", "a-docker"] {
        let node = nodes.get_mut(name).unwrap();
        node.addresses = stolen.iter().map(|ip| ip.parse().unwrap()).collect();
        node.names = ["b".to_owned()].into();
    }
    for change in [
        (|r| wanted(r).addresses = vec!["10.0.0.2".parse().unwrap()]) as Change,
        |r| {
            wanted(r).names = texts(&["b"]);
            wanted(r).addresses.clear();
        },
    ] {
        let mut request = serving();
        change(&mut request);
        let decision = approver().decide(&request, &nodes);
        assert_eq!(word(&decision), "ForeignAddress", "{decision:?}");
    }
}

#[test]
fn what_counts_of_a_node_is_whose_it_is_and_where() {
    let node = serde_json::json!({
        "metadata": {"name": "a-docker", "labels": {"mirrorlet.dev/node": "true"}},
        "status": {"addresses": [
            {"type": "InternalIP", "address": "10.0.0.1"},
            {"type": "Hostname", "address": "a"},
        ]},
    });
    let node: Node = serde_json::from_value(node).unwrap();
    // identity 6
    assert_eq!(NodeSeen::of(&node), seen(true, &["a"], &["10.0.0.1"]));
    assert_eq!(NodeSeen::of(&Node::default()), NodeSeen::default());
}

fn one_of(all: &'static [&'static str]) -> impl Strategy<Value = String> {
    prop::sample::select(all).prop_map(str::to_owned)
}

fn some_of(all: &'static [&'static str]) -> impl Strategy<Value = Vec<String>> {
    prop::collection::vec(one_of(all), 0..4)
}

prop_compose! {
    /// Any request that is made of what could make one pass.
    fn requests()(
        signer in one_of(&[CLIENT_SIGNER, CLIENT_SIGNER, SERVING_SIGNER, "kubernetes.io/legacy-unknown"]),
        user in one_of(&[ACCOUNT, ACCOUNT, "system:node:a-docker", "system:node:a", "system:node:b-docker", "alice"]),
        groups in some_of(&["system:nodes", "system:authenticated"]),
        bound in prop::option::of(some_of(&["a", "b", "taken", "a-docker", ""])),
        pod in prop::option::of(some_of(&["web"])),
        usages in some_of(&["digital signature", "client auth", "server auth", "key encipherment"]),
        common_name in one_of(&["system:node:a-docker", "system:node:b-docker", "system:node:a", "system:node:taken-docker", "admin"]),
        organizations in some_of(&["system:nodes", "system:nodes", "system:masters"]),
        names in some_of(&["a", "b", "a-docker", "kubernetes"]),
        addresses in some_of(&["10.0.0.1", "10.0.0.2", "10.96.0.1"]),
    ) -> SigningRequest {
        let extra = [(BOUND_NODE, bound), (BOUND_POD, pod)];
        let extra = extra.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?)));
        SigningRequest {
            signer, user, groups, usages,
            extra: extra.collect(),
            wanted: Ok(Wanted {
                common_name, organizations, names,
                addresses: addresses.iter().map(|ip| ip.parse().unwrap()).collect(),
            }),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    /// An approved certificate is always that of the one Node that the requester proves to be, or
    /// to be on the host of.
    #[test]
    fn nobody_gets_the_certificate_of_another_host(request in requests()) {
        let Decision::Approve(_) = approver().decide(&request, &nodes()) else { return Ok(()) };
        let wanted = request.wanted.as_ref().unwrap();
        let proven = if request.user == ACCOUNT {
            prop_assert_eq!(&request.signer, CLIENT_SIGNER);
            prop_assert_eq!(request.extra[BOUND_POD].len(), 1);
            let [host] = &request.extra[BOUND_NODE][..] else { panic!("{request:?}") };
            format!("system:node:{host}-docker")
        } else {
            request.user.clone()
        };
        // identity 6
        prop_assert_eq!(&wanted.common_name, &proven);
        prop_assert_eq!(&wanted.organizations, &["system:nodes"]);
        let foreign = if proven == "system:node:a-docker" { ["b", "10.0.0.2"] } else { ["a", "10.0.0.1"] };
        let of_it = wanted.names.iter().cloned().chain(wanted.addresses.iter().map(ToString::to_string));
        for name in of_it {
            prop_assert!(request.signer == SERVING_SIGNER, "{name}");
            prop_assert!(!foreign.contains(&name.as_str()) && name != "10.96.0.1" && name != "kubernetes");
        }
    }

    /// Taking anything away from who asks never turns a refusal into a certificate for another.
    #[test]
    fn a_request_of_another_host_is_never_approved(host in "[a-z][a-z0-9.-]{0,20}", other in "[a-z][a-z0-9.-]{0,20}") {
        prop_assume!(host != other);
        let mut request = first();
        request.extra.insert(BOUND_NODE.to_owned(), vec![host.clone()]);
        request.wanted.as_mut().unwrap().common_name = format!("system:node:{other}-docker");
        let nodes: Nodes = [(host, NodeSeen::default()), (other, NodeSeen::default())].into();
        let decision = approver().decide(&request, &nodes);
        // identity 6
        prop_assert_eq!(word(&decision), "WrongNode");
    }
}
