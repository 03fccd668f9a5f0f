use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::resources::{CONFIG_MAPS, PODS};

fn pod(name: &str, uid: &str, phase: &str) -> (Key, Value) {
    let metadata = json!({"name": name, "namespace": "a", "uid": uid});
    let object = json!({"metadata": metadata, "status": {"phase": phase}});
    (Key::new(&PODS, "a", name), object)
}

fn told(cache: &Cache, since: u64) -> Vec<String> {
    let words = |c: &Change| format!("{} {} {}", c.revision, c.kind.as_str(), c.key.name);
    cache.since(since).unwrap().map(words).collect()
}

#[test]
fn only_what_changed_gets_a_revision() {
    let mut cache = Cache::new(100);
    cache.replace([pod("web", "1", "Pending"), pod("db", "2", "Running")].into());
    assert_eq!(told(&cache, 100), ["101 ADDED db", "102 ADDED web"]);
    // embedded 2
    assert!(!cache.replace([pod("web", "1", "Pending"), pod("db", "2", "Running")].into()));
    cache.replace([pod("web", "1", "Running"), pod("db", "2", "Running")].into());
    assert_eq!(told(&cache, 102), ["103 MODIFIED web"]);
    // Another pod of the same name, and one that is gone.
    cache.replace([pod("web", "3", "Running")].into());
    assert_eq!(
        told(&cache, 103),
        ["104 DELETED db", "105 DELETED web", "106 ADDED web"]
    );
    let kept = cache.get(&Key::new(&PODS, "a", "web")).unwrap();
    assert_eq!(kept["metadata"]["resourceVersion"], "106");
}

#[test]
fn an_object_that_came_from_the_cache_is_not_copied() {
    let mut cache = Cache::new(0);
    let (key, object) = pod("web", "1", "Running");
    cache.put(key.clone(), object);
    let known = cache.get(&key).unwrap();
    assert!(!cache.replace([(key.clone(), Arc::clone(&known))].into()));
    assert!(Arc::ptr_eq(&known, &cache.get(&key).unwrap()));
    assert_eq!(known["metadata"]["resourceVersion"], "1");
}

#[test]
fn objects_that_are_put_one_by_one_stay() {
    let mut cache = Cache::new(0).with_apart(&CONFIG_MAPS);
    let map = Key::new(&CONFIG_MAPS, "a", "map");
    let object = |data: &str| json!({"metadata": {"name": "map", "uid": "9"}, "data": data});
    cache.put(map.clone(), object("x"));
    cache.replace([pod("web", "1", "Running")].into());
    cache.put(map.clone(), object("x"));
    cache.replace(BTreeMap::<Key, Value>::new());
    assert_eq!(
        told(&cache, 0),
        ["1 ADDED map", "2 ADDED web", "3 DELETED web"]
    );
    cache.put(map.clone(), object("y"));
    let kept = cache.get(&map).unwrap();
    assert_eq!(
        (&kept["data"], meta::revision(&kept)),
        (&json!("y"), Some(4))
    );
    assert_eq!(cache.list(&CONFIG_MAPS, "a", &Selector::default()), [kept]);
    cache.remove(&map);
    assert_eq!(cache.get(&map), None);
    cache.remove(&map);
    assert_eq!(told(&cache, 3), ["4 MODIFIED map", "5 DELETED map"]);
}

#[test]
fn a_watch_from_a_forgotten_revision_expires() {
    let mut cache = Cache::new(0);
    for turn in 0..=CHANGES_MAX {
        cache.replace([pod("web", "1", &turn.to_string())].into());
    }
    // embedded 17
    assert_eq!(cache.since(0).err().unwrap().code, 410);
    assert_eq!(cache.since(1).unwrap().count(), CHANGES_MAX);
    // An agent that starts anew knows no change of before.
    assert_eq!(Cache::new(5000).since(4999).err().unwrap().code, 410);
}

#[test]
fn a_watch_from_a_revision_that_is_not_reached_expires() {
    let mut cache = Cache::new(5000);
    cache.replace([pod("web", "1", "Running")].into());
    let found = |revision| cache.since(revision).map(Iterator::count);
    // embedded 17
    assert_eq!(found(5002).unwrap_err().code, 410);
    assert_eq!(found(u64::MAX).unwrap_err().code, 410);
    assert_eq!(found(5001).unwrap(), 0);
    assert_eq!(found(5000).unwrap(), 1);
    assert_eq!(Cache::new(5000).since(5000).unwrap().count(), 0);
}

#[test]
fn changes_that_are_held_as_json_are_what_they_were() {
    let mut cache = Cache::new(0);
    for turn in 0..CHANGES_MAX {
        cache.replace([pod("web", "1", &turn.to_string())].into());
    }
    for (number, change) in cache.since(1).unwrap().enumerate() {
        let phase = |object: &Value| object["status"]["phase"].as_str().map(str::to_owned);
        assert_eq!(phase(&change.object()), Some((number + 1).to_string()));
        assert_eq!(
            change.before().as_deref().and_then(phase),
            Some(number.to_string())
        );
        assert_eq!(meta::revision(&change.object()), Some(change.revision));
    }
}

#[test]
fn changes_of_large_objects_are_bounded_by_their_bytes() {
    let large = |turn: usize| {
        let (key, mut object) = pod("web", "1", &turn.to_string());
        object["spec"] = "x".repeat(1 << 20).into();
        (key, object)
    };
    let mut cache = Cache::new(0);
    for turn in 1..=40 {
        cache.replace([large(turn), pod("small", "2", &turn.to_string())].into());
    }
    let kept: Vec<_> = cache.since(cache.forgotten).unwrap().collect();
    assert!((2..32).contains(&kept.len()), "{}", kept.len());
    assert_eq!(cache.since(0).err().unwrap().code, 410);
    let bytes: usize = kept.iter().map(|change| change.bytes()).sum();
    assert!(
        bytes == cache.bytes && bytes <= CHANGES_BYTES_MAX,
        "{bytes}"
    );
    let fresh = kept.iter().rev().take(cache.fresh);
    let memory: usize = fresh.map(|change| change.memory()).sum();
    assert_eq!(cache.fresh_memory, memory);
    assert!(cache.fresh_memory <= FRESH_BYTES_MAX);
    for change in kept.iter().rev().skip(cache.fresh) {
        assert!(matches!(change.object.held, Held::Text(_)));
    }
    for change in &kept {
        let revision = change.before().map(|before| meta::revision(&before));
        // The others were changed in turn.
        assert_eq!(revision, Some(Some(change.revision - 2)));
    }
    // The newest stays, however large it is.
    let (key, mut huge) = large(0);
    huge["spec"] = "x".repeat(CHANGES_BYTES_MAX).into();
    cache.put(key.clone(), huge.clone());
    assert_eq!(cache.since(cache.revision() - 1).unwrap().count(), 1);
    huge["spec"] = "y".into();
    cache.put(key, huge);
    assert_eq!(cache.since(cache.revision() - 1).unwrap().count(), 1);
    assert_eq!(cache.changes.len(), 1);
    // embedded 59
    assert_eq!(cache.bytes, cache.changes[0].bytes());
}

/// Many small values take eighty times the memory of their JSON.
#[test]
fn changes_that_take_much_memory_are_held_as_json() {
    let mut cache = Cache::new(0);
    for turn in 0..20 {
        let (key, mut object) = pod("web", "1", &turn.to_string());
        object["spec"] = vec![json!({"a": 0}); 10_000].into();
        cache.put(key, object);
    }
    let is_value = |version: &Version| matches!(version.held, Held::Value(_));
    let changes = cache.changes.iter();
    let values = changes.clone().filter(|change| is_value(&change.object));
    assert_eq!((cache.changes.len(), values.count()), (20, cache.fresh));
    assert!(cache.fresh < 3, "{}", cache.fresh);
    // The text of a version is shared by the change that made it and the one that ended it.
    for (made, ended) in changes.clone().zip(changes.skip(1)) {
        let before = &ended.before.as_ref().unwrap().held;
        match (&made.object.held, before) {
            (Held::Text(made), Held::Text(ended)) => assert!(Arc::ptr_eq(made, ended)),
            (_, held) => assert!(matches!(held, Held::Value(_))),
        }
    }
}

#[test]
fn selections_are_entered_and_left() {
    let mut cache = Cache::new(0);
    let running = Selector::parse("", "status.phase=Running", &PODS).unwrap();
    for phase in ["Pending", "Running", "Running ", "Failed"] {
        cache.replace([pod("web", "1", phase.trim())].into());
    }
    let seen: Vec<_> = cache
        .since(0)
        .unwrap()
        .filter_map(|change| change.seen_by(&running))
        .map(|(kind, object)| {
            let revision = object["metadata"]["resourceVersion"].as_str();
            format!("{} {}", kind.as_str(), revision.unwrap())
        })
        .collect();
    // embedded 18
    assert_eq!(seen, ["ADDED 2", "DELETED 3"]);
}

#[test]
fn lists_are_of_one_resource_and_namespace() {
    let mut cache = Cache::new(0);
    let map = (
        Key::new(&CONFIG_MAPS, "a", "web"),
        json!({"metadata": {"name": "web"}}),
    );
    let other = (
        Key::new(&PODS, "b", "web"),
        json!({"metadata": {"name": "web"}}),
    );
    cache.replace(
        [
            pod("web", "1", "Running"),
            pod("db", "2", "Running"),
            map,
            other,
        ]
        .into(),
    );
    let all = Selector::default();
    assert_eq!(cache.list(&PODS, "a", &all).len(), 2);
    assert_eq!(cache.list(&PODS, "", &all).len(), 3);
    assert_eq!(cache.list(&PODS, "c", &all).len(), 0);
}

#[test]
fn a_list_of_an_older_revision_is_what_it_was() {
    let mut cache = Cache::new(100);
    let all = Selector::default();
    let steps = [
        vec![("web", "1", "Pending")],
        vec![("web", "1", "Running"), ("db", "2", "Running")],
        vec![("web", "3", "Running")],
        vec![],
    ];
    let mut seen = vec![(100, Vec::new())];
    for step in steps {
        cache.replace(step.iter().map(|(n, u, p)| pod(n, u, p)).collect());
        seen.push((cache.revision(), cache.list(&PODS, "a", &all)));
    }
    for (revision, objects) in seen {
        // embedded 28
        assert_eq!(cache.list_at(revision, &PODS, "a", &all).unwrap(), objects);
        assert!(
            cache
                .list_at(revision, &PODS, "b", &all)
                .unwrap()
                .is_empty()
        );
    }
    let code = |revision| cache.list_at(revision, &PODS, "", &all).unwrap_err().code;
    assert_eq!((code(99), code(1000)), (410, 504));
}

/// Makes these all pods, as sets are replaced or one by one.
fn show(cache: &mut Cache, pods: BTreeMap<Key, Value>, one_by_one: bool) {
    if !one_by_one {
        cache.replace(pods);
        return;
    }
    for known in cache.list(&PODS, "", &Selector::default()) {
        let key = Key::new(&PODS, meta::namespace(&known), meta::name(&known));
        if !pods.contains_key(&key) {
            cache.remove(&key);
        }
    }
    for (key, pod) in pods {
        cache.put(key, pod);
    }
}

proptest! {
    /// Whoever lists, and applies all changes since, has what a list gives.
    #[test]
    fn changes_lead_from_one_list_to_the_next(
        steps in prop::collection::vec(prop::collection::btree_map(0..6_u8, (0..3_u8, 0..3_u8), 0..6), 1..40),
        from in 0..40_usize,
        one_by_one in any::<bool>(),
    ) {
        let mut cache = Cache::new(7);
        if one_by_one {
            cache = cache.with_apart(&PODS);
        }
        let all = Selector::default();
        let (mut mirror, mut revision) = (BTreeMap::new(), 7);
        for (turn, step) in steps.iter().enumerate() {
            let objects = step.iter().map(|(name, (uid, phase))| {
                pod(&name.to_string(), &uid.to_string(), &phase.to_string())
            });
            show(&mut cache, objects.collect(), one_by_one);
            if turn == from {
                mirror = cache.list(&PODS, "", &all).into_iter()
                    .map(|object| (meta::name(&object).to_owned(), object)).collect();
                revision = cache.revision();
            }
        }
        if from < steps.len() {
            for change in cache.since(revision).unwrap() {
                prop_assert!(change.revision > revision);
                revision = change.revision;
                match change.kind {
                    ChangeKind::Deleted => {
                        prop_assert!(mirror.remove(&change.key.name).is_some());
                    }
                    ChangeKind::Added => {
                        let known = mirror.insert(change.key.name.clone(), change.object());
                        prop_assert!(known.is_none());
                    }
                    ChangeKind::Modified => {
                        let known = mirror.insert(change.key.name.clone(), change.object());
                        prop_assert!(known.is_some());
                    }
                }
            }
            let listed: Vec<_> = cache.list(&PODS, "", &all);
            // embedded 17
            prop_assert_eq!(mirror.into_values().collect::<Vec<_>>(), listed);
        }
    }
}
