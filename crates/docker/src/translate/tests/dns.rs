//! Name resolution, host names, hosts files.

use super::*;

fn dns_of(spec: &Value, cluster_dns: &[&str]) -> (PodDns, Vec<&'static str>) {
    let node = HostFacts {
        cluster_dns: cluster_dns.iter().map(|ip| ip.parse().unwrap()).collect(),
        ..node()
    };
    let (dns, notes) = compute_dns(&pod(spec), &node);
    (dns, notes.iter().map(|note| note.reason).collect())
}

fn texts(list: &[&str]) -> Vec<String> {
    list.iter().map(|text| (*text).to_owned()).collect()
}

const CLUSTER_SEARCHES: [&str; 4] = [
    "prod.svc.cluster.local",
    "svc.cluster.local",
    "cluster.local",
    "example.org",
];

#[test]
fn pods_that_want_the_clusters_dns_ask_the_gateway() {
    for (policy, host_network, asks) in [
        (json!(null), false, true),
        (json!("ClusterFirst"), false, true),
        (json!("ClusterFirst"), true, false),
        (json!("ClusterFirstWithHostNet"), true, true),
        (json!("Default"), false, false),
        (json!("None"), false, false),
    ] {
        let spec = json!({"dnsPolicy": policy, "hostNetwork": host_network, "containers": []});
        // names 14
        assert_eq!(asks_cluster(&pod(&spec)), asks, "{policy} {host_network}");
    }
}

#[test]
fn policies_choose_between_cluster_node_and_nothing() {
    let cluster = (
        texts(&["10.96.0.10"]),
        texts(&CLUSTER_SEARCHES),
        texts(&["ndots:5"]),
    );
    let from_node = (texts(&["192.0.2.53"]), texts(&["example.org"]), texts(&[]));
    let nothing = (texts(&[]), texts(&[]), texts(&[]));
    let have = &["10.96.0.10"][..];
    let missing = vec!["MissingClusterDNS"];
    for (policy, host_network, servers, expected, notes) in [
        (json!("ClusterFirst"), false, have, &cluster, vec![]),
        (json!(null), false, have, &cluster, vec![]),
        (json!("ClusterFirst"), true, have, &from_node, vec![]),
        (
            json!("ClusterFirstWithHostNet"),
            true,
            have,
            &cluster,
            vec![],
        ),
        (
            json!("ClusterFirstWithHostNet"),
            false,
            have,
            &cluster,
            vec![],
        ),
        (json!("Default"), false, have, &from_node, vec![]),
        (json!("None"), false, have, &nothing, vec![]),
        (
            json!("ClusterFirst"),
            false,
            &[],
            &from_node,
            missing.clone(),
        ),
        (json!("ClusterFirst"), true, &[], &from_node, vec![]),
        (
            json!("ClusterFirstWithHostNet"),
            true,
            &[],
            &from_node,
            missing,
        ),
        (json!("Default"), false, &[], &from_node, vec![]),
    ] {
        let spec = json!({
            "containers": [], "dnsPolicy": policy, "hostNetwork": host_network,
        });
        let (dns, got_notes) = dns_of(&spec, servers);
        // docker 20
        assert_eq!(
            (dns.conf.servers, dns.conf.searches, dns.conf.options),
            *expected,
            "{policy} {host_network}"
        );
        assert_eq!(got_notes, notes, "{policy} {host_network}");
        assert_eq!(dns.inherited, *expected == from_node, "{policy}");
    }
}

#[test]
fn dns_config_is_added_without_doubles() {
    let spec = json!({
        "containers": [],
        "dnsConfig": {
            "nameservers": ["10.96.0.10", "192.0.2.99"],
            "searches": ["cluster.local", "corp.example"],
            "options": [{"name": "ndots", "value": "2"}, {"name": "edns0"}],
        },
    });
    let (dns, notes) = dns_of(&spec, &["10.96.0.10"]);
    assert_eq!(dns.conf.servers, texts(&["10.96.0.10", "192.0.2.99"]));
    assert_eq!(
        dns.conf.searches,
        [&texts(&CLUSTER_SEARCHES)[..], &texts(&["corp.example"])].concat()
    );
    assert_eq!(dns.conf.options, texts(&["ndots:2", "edns0"]));
    assert!(notes.is_empty());
}

#[test]
fn servers_on_a_loopback_address_are_kept_where_a_pod_names_them() {
    let local = HostFacts {
        resolv_conf: ResolvConf::parse("nameserver 127.0.0.53\nnameserver 192.0.2.53\n"),
        ..node()
    };
    for (config, host_network, expected) in [
        (json!({"searches": ["x"]}), false, &["192.0.2.53"][..]),
        (
            json!({"searches": ["x"]}),
            true,
            &["127.0.0.53", "192.0.2.53"],
        ),
        (
            json!({"nameservers": ["127.0.0.1", "::1"]}),
            false,
            &["192.0.2.53", "127.0.0.1", "::1"],
        ),
        (
            json!({"nameservers": ["127.0.0.53"]}),
            false,
            &["192.0.2.53", "127.0.0.53"],
        ),
    ] {
        let spec = json!({
            "containers": [], "dnsPolicy": "Default", "dnsConfig": config,
            "hostNetwork": host_network,
        });
        let (dns, notes) = compute_dns(&pod(&spec), &local);
        assert_eq!(
            (dns.conf.servers, notes),
            (texts(expected), vec![]),
            "{config}"
        );
    }
}

#[test]
fn limits_drop_what_is_too_much_and_say_so() {
    let with = |config: Value| {
        let (dns, notes) = dns_of(
            &json!({"containers": [], "dnsPolicy": "None", "dnsConfig": config}),
            &[],
        );
        (dns, notes == ["DNSConfigForming"])
    };
    let (dns, noted) = with(json!({"nameservers": ["192.0.2.1", "192.0.2.2", "192.0.2.3"]}));
    // docker 20
    assert_eq!((dns.conf.servers.len(), noted), (3, false));
    let (dns, noted) =
        with(json!({"nameservers": ["192.0.2.1", "192.0.2.2", "192.0.2.3", "192.0.2.4"]}));
    assert_eq!(
        dns.conf.servers,
        texts(&["192.0.2.1", "192.0.2.2", "192.0.2.3"])
    );
    assert!(noted);

    let many = |count: usize, len: usize| -> Vec<String> {
        (0..count)
            .map(|n| format!("{n:02}{}", "x".repeat(len - 2)))
            .collect()
    };
    for (searches, kept, noted) in [
        (many(32, 10), 32, false),
        (many(33, 10), 32, true),
        // 16 × 127 and 15 spaces between make 2047; one more is too long.
        (many(16, 127), 16, false),
        (many(17, 127), 16, true),
        (many(1, 255), 1, false),
        (many(1, 256), 0, true),
    ] {
        let (dns, got_noted) = with(json!({"searches": searches}));
        assert_eq!(
            (dns.conf.searches.len(), got_noted),
            (kept, noted),
            "{searches:?}"
        );
    }
}

#[test]
fn resolv_conf_is_read_as_the_resolver_does() {
    let conf = ResolvConf::parse(
        "# comment\n; other\nnameserver 192.0.2.1\nnameserver\t2001:db8::1 trailing\n\
         search old.example\nsearch a.example. . b.example\noptions ndots:1 edns0\n\
         options ndots:3\nsortlist x\nnameserver\n",
    );
    assert_eq!(conf.servers, texts(&["192.0.2.1", "2001:db8::1"]));
    assert_eq!(conf.searches, texts(&["a.example", "b.example"]));
    assert_eq!(conf.options, texts(&["ndots:3", "edns0"]));
    assert_eq!(ResolvConf::parse(""), ResolvConf::default());
    // A written value is read back unchanged.
    let text = "nameserver 192.0.2.1\nnameserver 2001:db8::1\nsearch a.example b.example\noptions ndots:3 edns0\n";
    assert_eq!(conf.to_string(), text);
    assert_eq!(ResolvConf::parse(text), conf);
    assert_eq!(ResolvConf::default().to_string(), "");
}

#[test]
fn host_names_fit_the_kernel() {
    let name_of = |spec: &Value| compute_hostname(&pod(spec), "cluster.local");
    let simple = name_of(&json!({"containers": []})).unwrap();
    assert_eq!((&*simple.host, &*simple.domain), ("web", ""));

    let long = format!("{}-.-{}", "a".repeat(60), "b".repeat(10));
    let cut = name_of(&json!({"containers": [], "hostname": long})).unwrap();
    assert_eq!(cut.host, "a".repeat(60));
    let seventy = name_of(&json!({"containers": [], "hostname": "a".repeat(70)})).unwrap();
    // docker 20
    assert_eq!(seventy.kernel.len(), 63);

    let with_domain = json!({"containers": [], "hostname": "h", "subdomain": "sub"});
    let named = name_of(&with_domain).unwrap();
    assert_eq!(named.domain, "sub.prod.svc.cluster.local");
    assert_eq!(named.kernel, "h");
    let mut fqdn = with_domain;
    fqdn["setHostnameAsFQDN"] = json!(true);
    assert_eq!(
        name_of(&fqdn).unwrap().kernel,
        "h.sub.prod.svc.cluster.local"
    );
    // ".sub.prod.svc.cluster.local" has 27 characters.
    fqdn["hostname"] = json!("a".repeat(37));
    assert_eq!(name_of(&fqdn).unwrap().kernel.len(), 64);
    fqdn["hostname"] = json!("a".repeat(38));
    assert_eq!(
        name_of(&fqdn).unwrap_err().to_string(),
        format!(
            "failed to construct FQDN from pod hostname and cluster domain, FQDN \
             {}.sub.prod.svc.cluster.local is too long (64 is the max length)",
            "a".repeat(38)
        )
    );
}

const MANAGED: &str = "# Kubernetes-managed hosts file.\n\
    127.0.0.1\tlocalhost\n\
    ::1\tlocalhost ip6-localhost ip6-loopback\n\
    fe00::0\tip6-localnet\n\
    fe00::0\tip6-mcastprefix\n\
    fe00::1\tip6-allnodes\n\
    fe00::2\tip6-allrouters\n";

#[test]
fn hosts_files_are_upstreams_to_the_byte() {
    let aliases = json!([
        {"ip": "192.0.2.7", "hostnames": ["db", "db.example"]},
        {"ip": "192.0.2.8", "hostnames": ["mq"]},
    ]);
    let alias_text = "\n# Entries added by HostAliases.\n\
        192.0.2.7\tdb\tdb.example\n192.0.2.8\tmq\n";
    let node_text = "# Kubernetes-managed hosts file (host network).\n\
        127.0.0.1 localhost\n192.0.2.1 box\n";
    let host = json!({"containers": [], "hostNetwork": true});
    for (spec, ips, expected) in [
        (
            json!({"containers": []}),
            &["172.17.0.2"][..],
            format!("{MANAGED}172.17.0.2\tweb\n"),
        ),
        (
            json!({"containers": [], "subdomain": "sub"}),
            &["172.17.0.2", "fd00::2"],
            format!(
                "{MANAGED}172.17.0.2\tweb.sub.prod.svc.cluster.local\tweb\n\
                 fd00::2\tweb.sub.prod.svc.cluster.local\tweb\n"
            ),
        ),
        (
            json!({"containers": [], "hostAliases": aliases}),
            &["172.17.0.2"],
            format!("{MANAGED}172.17.0.2\tweb\n{alias_text}"),
        ),
        (host.clone(), &[], node_text.to_owned()),
        (
            json!({"containers": [], "hostNetwork": true, "hostAliases": aliases}),
            &["192.0.2.1"],
            format!("{node_text}{alias_text}"),
        ),
    ] {
        let ips: Vec<IpAddr> = ips.iter().map(|ip| ip.parse().unwrap()).collect();
        // docker 21
        assert_eq!(hosts_file(&pod(&spec), &ips, &node()).unwrap(), expected);
    }
}
