use std::slice::from_ref;

use super::*;

const MIRROR: (&str, &str) = (keys::CONFIG_MIRROR, "h");

fn pod(uid: &str, name: &str, namespace: &str, annotations: &[(&str, &str)]) -> Arc<Pod> {
    let mut pod = Pod::default();
    pod.metadata.uid = Some(uid.into());
    pod.metadata.name = Some(name.into());
    pod.metadata.namespace = Some(namespace.into());
    let annotations = annotations.iter();
    let annotations = annotations.map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
    pod.metadata.annotations = Some(annotations.collect());
    Arc::new(pod)
}

fn static_pod(uid: &str, name: &str) -> Arc<Pod> {
    pod(
        uid,
        name,
        "ns",
        &[(keys::CONFIG_SOURCE, "file"), (keys::CONFIG_HASH, "h")],
    )
}

/// As the API server returns it: every annotation of the static pod, and its own.
fn mirror(uid: &str, name: &str) -> Arc<Pod> {
    let source = (keys::CONFIG_SOURCE, "file");
    pod(uid, name, "ns", &[source, (keys::CONFIG_HASH, "h"), MIRROR])
}

fn api_pod(uid: &str, name: &str) -> Arc<Pod> {
    pod(uid, name, "ns", &[(keys::CONFIG_SOURCE, "api")])
}

fn table(pods: &[&Arc<Pod>]) -> PodTable {
    let mut table = PodTable::default();
    for pod in pods {
        table.add_pod(Arc::clone(pod));
    }
    table
}

fn name(text: &str) -> FullName {
    text.parse().unwrap()
}

#[test]
fn what_is_static_and_what_is_a_mirror() {
    let source = |value| [(keys::CONFIG_SOURCE, value)];
    for (annotations, is_static, is_mirror) in [
        (&[][..], false, false),
        (&source("file"), true, false),
        (&source("http"), true, false),
        (&source("api"), false, false),
        (&source("elsewhere"), false, false),
        // A mirror copies its static pod's source: it is a mirror all the same.
        (&[(keys::CONFIG_SOURCE, "file"), MIRROR], false, true),
        (&[(keys::CONFIG_SOURCE, "api"), MIRROR], false, true),
        (&[(keys::CONFIG_MIRROR, "")], false, true),
    ] {
        let pod = pod("u", "n", "ns", annotations);
        assert_eq!(is_static_pod(&pod), is_static, "{annotations:?}");
        assert_eq!(is_mirror_pod(&pod), is_mirror, "{annotations:?}");
    }
}

#[test]
fn whose_mirror_it_is() {
    let web = static_pod("s", "web");
    let hashless = pod("s", "web", "ns", &[(keys::CONFIG_SOURCE, "file")]);
    let foreign = [(keys::CONFIG_MIRROR, "other")];
    for (mirror_pod, pod, expected, why) in [
        (mirror("m", "web"), &web, true, "same name and hash"),
        (mirror("m", "other"), &web, false, "other name"),
        (
            pod("m", "web", "other", &[MIRROR]),
            &web,
            false,
            "other namespace",
        ),
        (pod("m", "web", "ns", &foreign), &web, false, "other hash"),
        (pod("m", "web", "ns", &[]), &web, false, "not a mirror"),
        (
            pod("m", "web", "ns", &[]),
            &hashless,
            false,
            "neither has a hash",
        ),
        (
            pod("m", "web", "ns", &[MIRROR]),
            &web,
            true,
            "nothing else is compared",
        ),
    ] {
        assert_eq!(is_mirror_pod_of(&mirror_pod, pod), expected, "{why}");
    }
}

#[test]
fn translation_works_in_either_order_of_insertion() {
    let (web, its_mirror) = (static_pod("s", "web"), mirror("m", "web"));
    for order in [[&web, &its_mirror], [&its_mirror, &web]] {
        let table = table(&order);
        for (uid, resolved) in [("m", "s"), ("s", "s"), ("unknown", "unknown"), ("", "")] {
            // pods 37
            assert_eq!(
                table.translate_pod_uid(&uid.into()),
                resolved.into(),
                "{uid:?}"
            );
        }
        let statics = table.get_static_pod_to_mirror_pod_map();
        assert_eq!(statics, [(web.clone(), Some(its_mirror.clone()))]);
        assert_eq!(table.get_pods(), *from_ref(&web));
        assert_eq!(table.get_orphaned_mirror_pod_names(), []);
    }
}

#[test]
fn a_static_pod_without_mirror_translates_to_nothing() {
    let table = table(&[&static_pod("s", "web"), &api_pod("a", "api")]);
    // The API pod is not in it: it never has a mirror.
    let statics = table.get_static_pod_to_mirror_pod_map();
    // pods 38
    assert_eq!(statics, [(static_pod("s", "web"), None)]);
    assert_eq!(table.translate_pod_uid(&"s".into()), "s".into());
}

#[test]
fn a_removed_static_pod_leaves_an_orphan_that_still_translates() {
    let (web, its_mirror) = (static_pod("s", "web"), mirror("m", "web"));
    let mut table = table(&[&web, &its_mirror]);
    table.remove_pod(&web);
    assert_eq!(table.get_orphaned_mirror_pod_names(), [name("web_ns")]);
    // pods 39
    assert_eq!(table.translate_pod_uid(&"m".into()), "s".into());
    assert_eq!(table.get_pod_by_name("ns", "web"), None);
    table.remove_pod(&its_mirror);
    assert_eq!(table.get_orphaned_mirror_pod_names(), []);
    assert_eq!(table.translate_pod_uid(&"m".into()), "m".into());
    assert_eq!(table, PodTable::default());
}

#[test]
fn lookups_never_return_mirrors() {
    let (web, its_mirror, orphan) = (
        static_pod("s", "web"),
        mirror("m", "web"),
        mirror("o", "orphan"),
    );
    let table = table(&[&its_mirror, &web, &orphan]);
    assert_eq!(table.get_pods(), *from_ref(&web));
    assert_eq!(table.get_pod_by_uid(&"s".into()), Some(web.clone()));
    // pods 40
    assert_eq!(table.get_pod_by_uid(&"m".into()), None);
    assert_eq!(
        table.get_pod_by_full_name(&name("web_ns")),
        Some(web.clone())
    );
    assert_eq!(table.get_pod_by_full_name(&name("orphan_ns")), None);
    assert_eq!(table.get_pod_by_name("ns", "web"), Some(web.clone()));
    assert_eq!(table.get_pod_by_name("ns", "orphan"), None);
    assert_eq!(table.get_mirror_pod_by_pod(&web), Some(its_mirror.clone()));
    assert_eq!(table.get_mirror_pod_by_pod(&static_pod("x", "other")), None);
    assert_eq!(table.get_orphaned_mirror_pod_names(), [name("orphan_ns")]);

    for known in [its_mirror, orphan] {
        let found = table.get_mirror_pod_by_full_name(&FullName::of(&known));
        assert_eq!(found, Some(known));
    }
}

#[test]
fn equal_names_in_two_namespaces_do_not_collide() {
    let (a, b) = (pod("1", "web", "a", &[]), pod("2", "web", "b", &[]));
    let mut table = table(&[&a, &b]);
    // pods 40
    assert_eq!(table.get_pod_by_name("a", "web"), Some(a.clone()));
    assert_eq!(table.get_pod_by_name("b", "web"), Some(b.clone()));
    table.remove_pod(&a);
    assert_eq!(table.get_pod_by_name("a", "web"), None);
    assert_eq!(table.get_pods(), [b]);
}

#[test]
fn an_update_replaces_in_place() {
    let mut table = table(&[&api_pod("a", "web")]);
    let newer = pod(
        "a",
        "web",
        "ns",
        &[(keys::CONFIG_SOURCE, "api"), ("x", "y")],
    );
    table.add_pod(Arc::clone(&newer));
    assert_eq!(table.get_pods(), *from_ref(&newer));
    assert_eq!(table.get_pod_by_name("ns", "web"), Some(newer));
}

#[test]
fn an_edit_moves_the_mirror_to_the_successor() {
    let its_mirror = mirror("m", "web");
    let mut table = table(&[&static_pod("old", "web"), &its_mirror]);
    table.remove_pod(&static_pod("old", "web"));
    table.add_pod(static_pod("new", "web"));
    // pods 37
    assert_eq!(table.translate_pod_uid(&"m".into()), "new".into());
    // The recreated mirror has a UID of its own; the old one goes with the old mirror.
    table.remove_pod(&its_mirror);
    table.add_pod(mirror("m2", "web"));
    assert_eq!(table.translate_pod_uid(&"m2".into()), "new".into());
    assert_eq!(table.translate_pod_uid(&"m".into()), "m".into());
}

#[test]
fn a_late_removal_takes_the_successors_full_name() {
    // Why removals are delivered first, as upstream.
    let mut table = table(&[&static_pod("old", "web"), &static_pod("new", "web")]);
    table.remove_pod(&static_pod("old", "web"));
    assert_eq!(table.get_pod_by_name("ns", "web"), None);
    assert!(table.get_pod_by_uid(&"new".into()).is_some());
}

#[test]
fn setting_all_pods_forgets_the_rest_and_no_mirror() {
    let its_mirror = mirror("m", "web");
    let mut table = table(&[&static_pod("old", "web"), &its_mirror]);
    // The successor keeps the name, whatever the order of UIDs.
    for uid in ["a", "z"] {
        table.set_pods([static_pod(uid, "web"), api_pod("p", "api")]);
        let (web, api) = (static_pod(uid, "web"), api_pod("p", "api"));
        let all: BTreeSet<_> = table.get_pods().iter().map(|pod| PodUid::of(pod)).collect();
        assert_eq!(all, [PodUid::of(&web), PodUid::of(&api)].into());
        assert_eq!(table.get_pod_by_name("ns", "web"), Some(web));
        assert_eq!(table.translate_pod_uid(&"m".into()), uid.into());
    }
    // One that is renamed leaves nothing under its old name.
    table.set_pods([static_pod("z", "other")]);
    assert_eq!(table.get_pod_by_name("ns", "web"), None);
    table.set_pods([]);
    assert_eq!(table.get_orphaned_mirror_pod_names(), [name("web_ns")]);
    assert_eq!(
        table.get_mirror_pod_by_full_name(&name("web_ns")),
        Some(its_mirror)
    );
}

#[test]
fn setting_all_mirrors_forgets_the_rest_and_no_pod() {
    let web = static_pod("s", "web");
    let mut table = table(&[&web, &mirror("m", "web"), &mirror("o", "orphan")]);
    for uid in ["a", "z"] {
        table.set_mirror_pods([mirror(uid, "web")]);
        assert_eq!(table.get_mirror_pod_by_pod(&web), Some(mirror(uid, "web")));
        assert_eq!(table.translate_pod_uid(&uid.into()), "s".into());
        assert_eq!(table.translate_pod_uid(&"m".into()), "m".into());
        assert_eq!(table.get_orphaned_mirror_pod_names(), []);
    }
    table.set_mirror_pods([]);
    assert_eq!(table, self::table(&[&web]));
}
