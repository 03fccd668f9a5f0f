use std::collections::BTreeMap;

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::resources::{CONFIG_MAPS, PODS};

const NOW: &str = "2026-01-02T03:04:05Z";

fn map(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": "a", "uid": format!("uid-{name}")}})
}

fn reference(owner: &str, blocks: bool) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "name": owner, "uid": format!("uid-{owner}"),
        "blockOwnerDeletion": blocks})
}

fn owned(name: &str, owners: &[Value]) -> Value {
    let mut object = map(name);
    object["metadata"]["ownerReferences"] = owners.into();
    object
}

fn held(mut object: Value, finalizers: &[&str]) -> Value {
    object["metadata"]["finalizers"] = finalizers.into();
    object
}

fn deleted(mut object: Value, propagation: Propagation) -> Value {
    mark(&mut object, propagation, NOW, 0);
    object
}

/// A store of `ConfigMap`s, with the rules of deletion.
#[derive(Debug, Default)]
struct Maps(BTreeMap<Key, Value>);

impl Maps {
    fn of(objects: impl IntoIterator<Item = Value>) -> Self {
        let key = |object: &Value| Key::new(&CONFIG_MAPS, "a", meta::name(object));
        Self(
            objects
                .into_iter()
                .map(|object| (key(&object), object))
                .collect(),
        )
    }

    fn put(&mut self, key: Key, object: Value) {
        if is_deleted(&object) && !has_finalizers(&object) {
            self.0.remove(&key);
        } else {
            self.0.insert(key, object);
        }
    }

    fn delete(&mut self, name: &str, propagation: Propagation) {
        let key = Key::new(&CONFIG_MAPS, "a", name);
        if let Some(object) = self.0.get(&key).cloned() {
            self.put(key, deleted(object, propagation));
        }
    }

    /// One round; whether it did anything.
    fn collect_once(&mut self) -> bool {
        let members: Vec<_> = self
            .0
            .iter()
            .map(|(key, object)| Member {
                key,
                object,
                is_stored: true,
            })
            .collect();
        let steps = collect(&members, |_, _| false);
        let did = !steps.is_empty();
        for step in steps {
            match step {
                Step::Delete(key, propagation) => self.delete(&key.name, propagation),
                Step::Update(key, object) => self.put(key, object),
            }
        }
        did
    }

    fn collect(&mut self) {
        let mut rounds = 0;
        while self.collect_once() {
            rounds += 1;
            assert!(rounds < 100, "the collection doesn't end: {:?}", self.0);
        }
    }

    fn names(&self) -> Vec<&str> {
        self.0.keys().map(|key| key.name.as_str()).collect()
    }
}

#[test]
fn what_has_lost_its_owners_goes() {
    let elsewhere = |key: &str, value: &str| {
        let mut reference = reference("owner", false);
        reference[key] = value.into();
        reference
    };
    let owner = || map("owner");
    let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "name": "leader", "uid": "uid-leader"});
    // The objects, and the names of those that are left.
    for (objects, left) in [
        (
            vec![owner(), owned("x", &[reference("owner", true)])],
            vec!["owner", "x"],
        ),
        (vec![owned("x", &[reference("owner", true)])], vec![]),
        // A chain.
        (
            vec![
                owned("x", &[reference("owner", false)]),
                owned("y", &[reference("x", false)]),
            ],
            vec![],
        ),
        // One owner is left.
        (
            vec![
                owner(),
                owned("x", &[reference("gone", true), reference("owner", true)]),
            ],
            vec!["owner", "x"],
        ),
        // Another object of the owner's name, and references that say another object than the UID.
        (
            vec![owner(), owned("x", &[elsewhere("uid", "older")])],
            vec!["owner"],
        ),
        (
            vec![owner(), owned("x", &[elsewhere("name", "other")])],
            vec!["owner"],
        ),
        // Nobody knows whether an object of a kind that isn't served is there.
        (
            vec![owned("x", &[elsewhere("kind", "Certificate")])],
            vec!["x"],
        ),
        (
            vec![owned("x", &[elsewhere("apiVersion", "example.com/v1")])],
            vec!["x"],
        ),
        // Leases are forgotten with the agent.
        (vec![owned("x", std::slice::from_ref(&lease))], vec!["x"]),
        // Its own finalizer holds it.
        (
            vec![held(
                owned("x", &[reference("owner", true)]),
                &["example.com/keep"],
            )],
            vec!["x"],
        ),
    ] {
        let mut maps = Maps::of(objects.clone());
        maps.collect();
        // embedded 44
        assert_eq!(maps.names(), left, "{objects:?}");
    }
    let mut maps = Maps::of([
        owner(),
        owned("x", &[reference("gone", true), reference("owner", true)]),
    ]);
    maps.collect();
    let left = &maps.0[&Key::new(&CONFIG_MAPS, "a", "x")];
    assert_eq!(
        left["metadata"]["ownerReferences"],
        json!([reference("owner", true)])
    );
}

#[test]
fn dependents_go_after_before_or_not_at_all() {
    let family = || {
        Maps::of([
            map("owner"),
            owned("x", &[reference("owner", true)]),
            owned("y", &[reference("x", true)]),
        ])
    };
    for (propagation, left) in [
        (Propagation::Background, vec![]),
        (Propagation::Foreground, vec![]),
        (Propagation::Orphan, vec!["x", "y"]),
    ] {
        let mut maps = family();
        maps.delete("owner", propagation);
        maps.collect();
        // embedded 45
        assert_eq!(maps.names(), left, "{propagation:?}");
    }
    // The owner waits for what blocks it, and for nothing else.
    for (blocks, left) in [(true, vec!["owner", "x"]), (false, vec!["x"])] {
        let x = held(
            owned("x", &[reference("owner", blocks)]),
            &["example.com/keep"],
        );
        let mut maps = Maps::of([map("owner"), x]);
        maps.delete("owner", Propagation::Foreground);
        maps.collect();
        assert_eq!(maps.names(), left);
        let x = maps.0[&Key::new(&CONFIG_MAPS, "a", "x")].clone();
        assert!(is_deleted(&x));
        maps.put(
            Key::new(&CONFIG_MAPS, "a", "x"),
            without_finalizer(&x, "example.com/keep"),
        );
        maps.collect();
        assert_eq!(maps.names(), Vec::<&str>::new());
    }
    // An owner that makes others waits for them.
    let owner = deleted(map("owner"), Propagation::Foreground);
    let other = map("other");
    let keys = ["owner", "other"].map(|name| Key::new(&CONFIG_MAPS, "a", name));
    let members = [(&keys[0], &owner), (&keys[1], &other)];
    let members = members.map(|(key, object)| Member {
        key,
        object,
        is_stored: true,
    });
    assert_eq!(collect(&members, |_, made| meta::name(made) == "other"), []);
}

#[test]
fn owners_in_a_circle_go() {
    let mut maps = Maps::of([
        owned("x", &[reference("z", true)]),
        owned("y", &[reference("x", true)]),
        owned("z", &[reference("y", true)]),
    ]);
    maps.collect();
    assert_eq!(maps.names(), ["x", "y", "z"]);
    maps.delete("x", Propagation::Foreground);
    maps.collect();
    // embedded 45
    assert_eq!(maps.names(), Vec::<&str>::new());
}

#[test]
fn what_is_not_stored_here_is_left_alone() {
    let lost = owned("x", &[reference("owner", true)]);
    let key = Key::new(&CONFIG_MAPS, "a", "x");
    let member = Member {
        key: &key,
        object: &lost,
        is_stored: false,
    };
    assert_eq!(collect(&[member], |_, _| false), []);
    // An owner in another namespace is none.
    let owner = map("owner");
    let far = Key::new(&CONFIG_MAPS, "b", "owner");
    let members = [
        Member {
            key: &far,
            object: &owner,
            is_stored: true,
        },
        Member {
            is_stored: true,
            ..member
        },
    ];
    let gone = Step::Delete(key.clone(), Propagation::Background);
    assert_eq!(collect(&members, |_, _| false), [gone]);
}

#[test]
fn a_deletion_says_what_becomes_of_dependents() {
    for (options, expected) in [
        (json!(null), Ok(Propagation::Background)),
        (
            json!({"propagationPolicy": "Background"}),
            Ok(Propagation::Background),
        ),
        (
            json!({"propagationPolicy": "Foreground"}),
            Ok(Propagation::Foreground),
        ),
        (
            json!({"propagationPolicy": "Orphan"}),
            Ok(Propagation::Orphan),
        ),
        (json!({"orphanDependents": true}), Ok(Propagation::Orphan)),
        (
            json!({"orphanDependents": false}),
            Ok(Propagation::Background),
        ),
        (json!({"propagationPolicy": "Some"}), Err(422)),
        (
            json!({"propagationPolicy": "Orphan", "orphanDependents": true}),
            Err(422),
        ),
    ] {
        let propagation = Propagation::of(&options).map_err(|status| status.code);
        assert_eq!(propagation, expected, "{options}");
        if let Ok(propagation) = propagation {
            let again = json!({"propagationPolicy": propagation.as_str()});
            assert_eq!(Propagation::of(&again).unwrap(), propagation);
        }
    }
}

#[test]
fn an_object_that_is_being_deleted_gets_no_new_finalizers() {
    let mut object = held(map("x"), &["example.com/a"]);
    object["metadata"]["generation"] = 3.into();
    let before = deleted(object, Propagation::Foreground);
    assert_eq!(before["metadata"]["deletionTimestamp"], NOW);
    assert_eq!(before["metadata"]["generation"], 4);
    let all: Vec<_> = finalizers(&before).collect();
    assert_eq!(all, ["example.com/a", FOREGROUND]);
    // A later deletion says otherwise, and the time stays.
    let mut again = before.clone();
    mark(&mut again, Propagation::Background, "later", 7);
    assert_eq!(finalizers(&again).collect::<Vec<_>>(), ["example.com/a"]);
    assert_eq!(again["metadata"]["deletionTimestamp"], NOW);
    // embedded 46
    assert!(check_finalizers(&again, &before, &CONFIG_MAPS).is_ok());
    let more = held(again, &["example.com/b"]);
    let refused = check_finalizers(&more, &before, &PODS).unwrap_err();
    assert_eq!(
        (refused.code, refused.to_string().as_str()),
        (
            422,
            "Pod \"x\" is invalid: metadata.finalizers: Forbidden: no new finalizers can be added if the object is being deleted, found new finalizers []string{\"example.com/b\"}"
        )
    );
}

#[test]
fn what_has_ended_keeps_its_content_whatever_form_a_client_gives_it() {
    let mut before = deleted(map("x"), Propagation::Foreground);
    before["spec"] = json!({
        "replicas": 1,
        "template": {"spec": {"hostNetwork": false, "containers": [{"cpu": "0.5"}]}},
    });
    // As a client in Go writes it.
    let mut same = before.clone();
    same["metadata"]["labels"] = json!({"a": "b"});
    same["spec"] = json!({
        "replicas": 1, "strategy": {}, "paused": false,
        "template": {
            "metadata": {"creationTimestamp": null},
            "spec": {"containers": [{"cpu": "500m", "resources": {}}]},
        },
    });
    keep_content(&mut same, &before, &CONFIG_MAPS).unwrap();
    // embedded 46
    assert_eq!(same["spec"], before["spec"]);
    assert_eq!(same["metadata"]["labels"], json!({"a": "b"}));
    for (name, value) in [
        ("spec", json!("x")),
        ("spec", json!(null)),
        ("spec", json!({"replicas": 2})),
        ("data", json!({"a": ""})),
        ("data", json!({"a": "1"})),
    ] {
        let mut other = before.clone();
        other[name] = value.clone();
        let refused = keep_content(&mut other, &before, &CONFIG_MAPS).err();
        let field =
            refused.map(|status| status.to_value()["details"]["causes"][0]["field"].clone());
        // A value that is empty is left out by clients in Go.
        let expected = (value != json!({"a": ""})).then(|| json!(name));
        // embedded 46
        assert_eq!(field, expected, "{name} {value}");
    }
}

/// Objects that own one another in any way, some with finalizers of a client.
fn any_maps() -> impl Strategy<Value = Vec<Value>> {
    let of_one = (
        prop::collection::vec((0_usize..7, any::<bool>()), 0..3),
        any::<bool>(),
    );
    prop::collection::vec(of_one, 1..6).prop_map(|all| {
        let objects = all.into_iter().enumerate().map(|(at, (owners, is_held))| {
            let owners = owners
                .iter()
                .map(|(owner, blocks)| reference(&format!("m{owner}"), *blocks));
            let object = owned(&format!("m{at}"), &owners.collect::<Vec<_>>());
            if is_held {
                held(object, &["example.com/keep"])
            } else {
                object
            }
        });
        objects.collect()
    })
}

proptest! {
    /// The collection ends, and what is left has an owner, never had one, or is held by its client.
    #[test]
    fn nothing_without_an_owner_is_left(
        objects in any_maps(),
        first in 0_usize..6,
        propagation in prop::sample::select(vec![
            Propagation::Background, Propagation::Foreground, Propagation::Orphan,
        ]),
    ) {
        let mut maps = Maps::of(objects.clone());
        maps.delete(&format!("m{first}"), propagation);
        maps.collect();
        for (key, object) in &maps.0 {
            let had = objects.iter().find(|one| meta::name(one) == key.name).unwrap();
            let client_holds = finalizers(object).any(|one| one == "example.com/keep");
            if is_deleted(object) {
                // It waits for a client, if only for that of a dependent.
                prop_assert!(
                    maps.0.values().any(|one| is_deleted(one) && finalizers(one).any(|one| one == "example.com/keep")),
                    "{object}"
                );
                continue;
            }
            let is_there = |reference: &Value| {
                maps.0.values().any(|one| meta::uid(one) == uid_in(reference))
            };
            let lost_by_order = propagation == Propagation::Orphan;
            // embedded 44
            prop_assert!(
                owners(had).next().is_none() || owners(object).any(is_there) || lost_by_order || client_holds,
                "{object}"
            );
        }
    }
}
