use serde_json::{Value, json};

use super::*;
use crate::api::keys;

fn name(text: &str) -> ClaimName {
    let (namespace, name) = text.split_once('/').unwrap_or(("n", text));
    ClaimName::new(namespace, name)
}

/// A claim of 5Gi, with more of its spec.
fn claim(text: &str, spec: Value) -> Object {
    let ClaimName { namespace, name } = name(text);
    let mut claim = json!({
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "5Gi"}},
        },
    });
    extend(&mut claim["spec"], spec);
    Object::Claim(serde_json::from_value(claim).unwrap())
}

/// A volume with more of its spec.
fn volume(name: &str, size: &str, spec: Value) -> Object {
    let mut volume = json!({
        "metadata": {"name": name, "labels": {"disk": name}},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "capacity": {"storage": size},
            "hostPath": {"path": format!("/srv/{name}")},
        },
    });
    extend(&mut volume["spec"], spec);
    Object::Volume(serde_json::from_value(volume).unwrap())
}

fn extend(object: &mut Value, more: Value) {
    let Value::Object(more) = more else {
        unreachable!()
    };
    object.as_object_mut().unwrap().extend(more);
}

fn known(objects: &[Object]) -> BTreeMap<ObjectKey, Object> {
    objects.iter().map(|o| (o.key(), o.clone())).collect()
}

/// The outcome of binding that claim: the volume, or why there is none.
fn bound(objects: &[Object], before: &Bindings, wanted: &str) -> String {
    let objects = known(objects);
    let claims = |bindings| Claims {
        objects: &objects,
        bindings,
    };
    let bindings = claims(before).bind(&[name(wanted)].into());
    // A bound claim stays bound.
    assert!(before.iter().all(|(name, b)| bindings.get(name) == Some(b)));
    // A second time changes nothing.
    assert_eq!(claims(&bindings).bind(&[name(wanted)].into()), bindings);
    match claims(&bindings).storage(&name(wanted)) {
        Ok(storage) => match storage.place {
            Place::Engine(volume) => volume.name,
            Place::Host { path, kind, .. } => format!("{path} {kind}").trim_end().to_owned(),
            Place::Device { path, .. } => format!("device {path}"),
        },
        Err(why) => format!("- {why}"),
    }
}

#[test]
fn a_claim_is_bound_as_upstream_binds_it_or_has_a_volume_of_the_engine() {
    let class = |class: &str| json!({"storageClassName": class});
    let none = json!({});
    let own = "mirrorlet_n_c";
    let modes = json!({"accessModes": ["ReadWriteOnce", "ReadWriteMany"]});
    let meant = |claim: &str| json!({"claimRef": {"namespace": "n", "name": claim}});
    let local = json!({"hostPath": null, "local": {"path": "/mnt/a"}});
    let named = json!({"volumeName": "a"});
    let selects = json!({"selector": {"matchLabels": {"disk": "b"}}});
    let no_fit = "- no PersistentVolume matches";
    for (spec, volumes, expected) in [
        (none.clone(), vec![], own.to_owned()),
        (
            none.clone(),
            vec![volume("a", "5Gi", none.clone())],
            "/srv/a".to_owned(),
        ),
        (
            none.clone(),
            vec![volume("a", "5Gi", local)],
            "/mnt/a Directory".to_owned(),
        ),
        // Too small, of another class, of other modes.
        (
            none.clone(),
            vec![volume("a", "4Gi", none.clone())],
            own.to_owned(),
        ),
        (
            none.clone(),
            vec![volume("a", "5Gi", class("x"))],
            own.to_owned(),
        ),
        (
            modes.clone(),
            vec![volume("a", "5Gi", none.clone())],
            own.to_owned(),
        ),
        // The smallest; before that, the fewest modes.
        (
            none.clone(),
            vec![
                volume("a", "9Gi", none.clone()),
                volume("b", "6Gi", none.clone()),
            ],
            "/srv/b".to_owned(),
        ),
        (
            none.clone(),
            vec![volume("a", "9Gi", none.clone()), volume("b", "6Gi", modes)],
            "/srv/a".to_owned(),
        ),
        // One reserved for it comes first; one reserved for another claim is left out.
        (
            none.clone(),
            vec![
                volume("a", "9Gi", meant("c")),
                volume("b", "6Gi", none.clone()),
            ],
            "/srv/a".to_owned(),
        ),
        (
            none.clone(),
            vec![volume("a", "9Gi", meant("d"))],
            own.to_owned(),
        ),
        // The empty class, and a class with volumes, need a PersistentVolume.
        (
            class(""),
            vec![volume("a", "5Gi", none.clone())],
            "/srv/a".to_owned(),
        ),
        (
            class(""),
            vec![],
            format!("{no_fit}, and its storageClassName is empty"),
        ),
        (
            class("x"),
            vec![volume("a", "5Gi", none.clone())],
            own.to_owned(),
        ),
        (
            class("x"),
            vec![volume("a", "5Gi", class("x"))],
            "/srv/a".to_owned(),
        ),
        (
            class("x"),
            vec![volume("a", "4Gi", class("x"))],
            format!(
                "{no_fit}: those of class x are too small, do not have its access modes or its volumeMode, or are bound"
            ),
        ),
        // Selectors.
        (
            selects.clone(),
            vec![
                volume("a", "5Gi", none.clone()),
                volume("b", "9Gi", none.clone()),
            ],
            "/srv/b".to_owned(),
        ),
        (
            selects,
            vec![volume("a", "5Gi", none.clone())],
            format!("{no_fit}, and no volume is created for a claim with a selector"),
        ),
        // A name.
        (
            named.clone(),
            vec![],
            "- no manifest defines PersistentVolume a".to_owned(),
        ),
        (
            named.clone(),
            vec![volume("a", "5Gi", none.clone())],
            "/srv/a".to_owned(),
        ),
        (
            named.clone(),
            vec![volume("a", "4Gi", none.clone())],
            "- PersistentVolume a is smaller than the claim asks for".to_owned(),
        ),
        (
            named.clone(),
            vec![volume("a", "5Gi", class("x"))],
            "- PersistentVolume a has a different storageClassName".to_owned(),
        ),
        (
            named.clone(),
            vec![volume("a", "5Gi", json!({"accessModes": ["ReadOnlyMany"]}))],
            "- PersistentVolume a does not have all access modes that the claim asks for"
                .to_owned(),
        ),
        (
            named.clone(),
            vec![volume("a", "5Gi", meant("d"))],
            "- PersistentVolume a is bound to claim n/d".to_owned(),
        ),
        (
            named,
            vec![volume("a", "1Gi", meant("c"))],
            "/srv/a".to_owned(),
        ),
    ] {
        let mut objects = volumes;
        objects.push(claim("c", spec.clone()));
        // box 7
        assert_eq!(
            bound(&objects, &Bindings::new(), "c"),
            expected,
            "{spec} {objects:?}"
        );
    }
}

#[test]
fn a_claim_for_a_device_is_bound_to_a_device_alone() {
    let files = json!({});
    let block = json!({"volumeMode": "Block"});
    let with = |more: Value| {
        let mut spec = block.clone();
        extend(&mut spec, more);
        spec
    };
    let local = with(json!({"hostPath": null, "local": {"path": "/dev/sdb"}}));
    let meant = json!({"claimRef": {"namespace": "n", "name": "c"}});
    let named = json!({"volumeName": "a"});
    let waits = "- no PersistentVolume with volumeMode Block matches, and a volume of the Engine can't be a block device";
    let other_mode = "- PersistentVolume a has a different volumeMode";
    for (claim_spec, volume_spec, expected) in [
        (&block, &block, "device /srv/a"),
        (&block, &local, "device /dev/sdb"),
        (&block, &files, waits),
        (&block, &meant, waits),
        (&files, &block, "mirrorlet_n_c"),
        (&files, &with(meant.clone()), "mirrorlet_n_c"),
        (&json!({"volumeMode": "Filesystem"}), &files, "/srv/a"),
        (&with(named.clone()), &block, "device /srv/a"),
        (&with(named.clone()), &files, other_mode),
        (&named, &block, other_mode),
        // A volume that names its claim is taken as it is, as upstream.
        (&named, &with(meant.clone()), "device /srv/a"),
    ] {
        let objects = [
            volume("a", "5Gi", volume_spec.clone()),
            claim("c", claim_spec.clone()),
        ];
        // box 18
        assert_eq!(
            bound(&objects, &Bindings::new(), "c"),
            expected,
            "{claim_spec} {volume_spec}"
        );
    }
    assert_eq!(bound(&[claim("c", block)], &Bindings::new(), "c"), waits);
}

#[test]
fn the_mode_of_a_volume_stays() {
    let of = |mode: Option<&str>| volume("a", "5Gi", json!({"volumeMode": mode}));
    let (block, files) = (Some("Block"), Some("Filesystem"));
    for (old, new, is_forbidden) in [
        (block, block, false),
        (files, None, false),
        (None, block, true),
        (block, files, true),
    ] {
        let forbidden = of(old).forbidden_fields(&of(new));
        let expected = vec![("volumeMode".to_owned(), "field is immutable")];
        let expected = if is_forbidden { expected } else { Vec::new() };
        // box 18
        assert_eq!(forbidden, expected, "{old:?} {new:?}");
    }
}

#[test]
fn a_binding_stays_whatever_documents_come_and_go() {
    let engine = |name: &str| {
        Bound::Engine(EngineVolume {
            name: name.to_owned(),
            driver: LOCAL_DRIVER.to_owned(),
            options: BTreeMap::new(),
            named: false,
            must_exist: false,
            presence: Presence::Unknown,
        })
    };
    let to = |bound: Bound| Bindings::from([(name("c"), bound)]);
    let by_hand = |name: &str| Bound::Volume(name.to_owned());
    let (c, a) = (claim("c", json!({})), volume("a", "9Gi", json!({})));
    let better = volume(
        "b",
        "5Gi",
        json!({"claimRef": {"namespace": "n", "name": "c"}}),
    );
    for (objects, before, wanted, expected) in [
        // A better volume is added, or its own is removed.
        (vec![c.clone(), a.clone()], to(engine("own")), "c", "own"),
        (
            vec![c.clone(), a.clone(), better],
            to(by_hand("a")),
            "c",
            "/srv/a",
        ),
        (
            vec![c.clone()],
            to(by_hand("a")),
            "c",
            "- no manifest defines PersistentVolume a",
        ),
        // A bound volume stays with its claim, even while the claim has no document.
        (
            vec![claim("d", json!({})), a.clone()],
            to(by_hand("a")),
            "d",
            "mirrorlet_n_d",
        ),
        (
            vec![claim("d", json!({"volumeName": "a"})), a.clone()],
            to(by_hand("a")),
            "d",
            "- PersistentVolume a is bound to claim n/c",
        ),
        (
            vec![claim("d", json!({}))],
            to(engine("mirrorlet_n_d")),
            "d",
            "- volume mirrorlet_n_d of the Engine is bound to claim n/c",
        ),
        // A volume that a claim names is left for it.
        (
            vec![c, claim("d", json!({"volumeName": "a"})), a],
            Bindings::new(),
            "c",
            "mirrorlet_n_c",
        ),
        (vec![], to(engine("own")), "c", "own"),
    ] {
        // box 7
        assert_eq!(
            bound(&objects, &before, wanted),
            expected,
            "{wanted} {objects:?}"
        );
    }
}

#[test]
fn annotations_say_which_volume_of_the_engine() {
    let mut object: PersistentVolumeClaim = serde_json::from_value(json!({
        "metadata": {"name": "c", "namespace": "n", "annotations": {
            keys::VOLUME_NAME: "old_data",
            keys::VOLUME_DRIVER: "local",
            keys::VOLUME_OPTIONS: "type=nfs o=addr=10.0.0.1,rw device=:/export",
            keys::VOLUME_MUST_EXIST: "true",
        }},
    }))
    .unwrap();
    let volume = EngineVolume::of(&name("c"), &object.metadata);
    assert_eq!(
        serde_json::to_value(&volume).unwrap(),
        json!({"name": "old_data", "driver": "local", "named": true, "mustExist": true, "options": {
            "type": "nfs", "o": "addr=10.0.0.1,rw", "device": ":/export",
        }})
    );
    object.metadata.annotations = None;
    let own = EngineVolume::of(&name("c"), &object.metadata);
    assert_eq!(
        serde_json::to_value(&own).unwrap(),
        json!({"name": "mirrorlet_n_c", "driver": "local", "named": false})
    );
    for (text, is_fine) in [("", true), ("a=", true), ("a", false), ("=b", false)] {
        assert_eq!(options_of(text).is_some(), is_fine, "{text}");
    }
    for (text, is_fine) in [
        ("a", false),
        ("a.b_c-1", true),
        ("_a", false),
        ("a/b", false),
    ] {
        assert_eq!(is_volume_name(text), is_fine, "{text}");
    }
}

#[test]
fn no_two_claims_share_a_name_on_the_engine() {
    let long = "a".repeat(253);
    let (alike, namespace) = (format!("{}b", &long[..252]), "x".repeat(63));
    let names = [
        "a/b-c",
        "a-b/c",
        "a/b.c",
        "a/b",
        "b/a",
        "default/data",
        &format!("{namespace}/{long}"),
        &format!("{namespace}/{alike}"),
    ];
    let on_engine: BTreeSet<String> = names.iter().map(|text| name(text).volume_name()).collect();
    // box 7
    assert_eq!(on_engine.len(), names.len(), "{on_engine:?}");
    assert!(
        on_engine.iter().all(|name| is_volume_name(name)),
        "{on_engine:?}"
    );
    assert!(on_engine.contains("mirrorlet_default_data"));
}

#[test]
fn volumes_are_listed_with_claims_that_lost_their_documents_or_bindings() {
    let engine = |text: &str| EngineVolume::of(&name(text), &ObjectMeta::default());
    let objects = known(&[claim("a", json!({})), volume("disk", "9Gi", json!({}))]);
    let bindings = Bindings::from([
        (name("a"), Bound::Engine(engine("a"))),
        (name("b"), Bound::Volume("disk".to_owned())),
        (name("c"), Bound::Volume("gone".to_owned())),
    ]);
    let claims = Claims {
        objects: &objects,
        bindings: &bindings,
    };
    let users = |pods: &[&str], workloads: &[&str]| ClaimUsers {
        pods: pods.iter().copied().map(str::to_owned).collect(),
        workloads: workloads.iter().copied().map(str::to_owned).collect(),
    };
    let users = BTreeMap::from([
        (name("a"), users(&["n/p"], &[])),
        (name("b"), users(&[], &["cronjob/n/w"])),
    ]);
    // The binding of `d` was lost; `a` has another volume now.
    let created = [
        (name("a"), engine("a")),
        (name("a"), engine("old")),
        (name("d"), engine("d")),
    ];
    let listed = claims.volumes_report(&users, &created);
    let lines = listed.iter().map(|v| {
        let place = v.driver.as_deref().or(v.path.as_deref()).unwrap_or("-");
        let claim = &v.claim;
        format!(
            "{claim} {} {:?} {place} {} {}",
            v.name,
            v.state,
            v.created,
            v.users().collect::<String>()
        )
    });
    assert_eq!(
        lines.collect::<Vec<_>>(),
        [
            "a mirrorlet_n_a Bound local true n/p",
            "a mirrorlet_n_old Released local true ",
            "b disk Released /srv/disk false cronjob/n/w",
            "c gone Released - false ",
            "d mirrorlet_n_d Released local true ",
        ]
    );
}

#[test]
fn a_selector_is_that_of_upstream() {
    let metadata = ObjectMeta {
        labels: Some([("disk".to_owned(), "ssd".to_owned())].into()),
        ..ObjectMeta::default()
    };
    let expression = |key: &str, operator: &str, values: Value| json!({"matchExpressions": [{"key": key, "operator": operator, "values": values}]});
    for (selector, expected) in [
        (json!({}), true),
        (json!({"matchLabels": {"disk": "ssd"}}), true),
        (json!({"matchLabels": {"disk": "hdd"}}), false),
        (expression("disk", "In", json!(["hdd", "ssd"])), true),
        (expression("none", "In", json!(["ssd"])), false),
        (expression("disk", "NotIn", json!(["ssd"])), false),
        (expression("none", "NotIn", json!(["ssd"])), true),
        (expression("disk", "Exists", json!([])), true),
        (expression("none", "DoesNotExist", json!([])), true),
        (expression("disk", "Gt", json!(["1"])), false),
    ] {
        let parsed = serde_json::from_value(selector.clone()).unwrap();
        assert_eq!(selects(&parsed, &metadata), expected, "{selector}");
    }
}

#[test]
fn a_volume_is_missing_only_after_it_was_there() {
    // As agents stored it that didn't look.
    let stored = r#"{"engine":{"name":"v","driver":"local","named":false}}"#;
    let new: Bound = serde_json::from_str(stored).unwrap();
    assert_eq!(serde_json::to_string(&new).unwrap(), stored);
    let seen = |name: &str, exists: bool| VolumeSeen {
        name: name.to_owned(),
        exists,
    };
    for (reports, expected) in [
        (vec![], Presence::Unknown),
        (vec![seen("v", false)], Presence::Unknown),
        (vec![seen("w", true)], Presence::Unknown),
        (vec![seen("v", true)], Presence::Present),
        (vec![seen("v", true), seen("v", false)], Presence::Missing),
        (
            vec![seen("v", true), seen("v", false), seen("v", true)],
            Presence::Present,
        ),
    ] {
        let mut bound = new.clone();
        for report in &reports {
            bound.saw(report);
        }
        // box 7
        assert_eq!(bound.presence(), expected, "{reports:?}");
        let stored = serde_json::to_string(&bound).unwrap();
        assert_eq!(serde_json::from_str::<Bound>(&stored).unwrap(), bound);
    }
}
