use proptest::prelude::*;
use serde_json::{Map, json};

use super::strategic::{merge_list, set_order};
use super::*;

fn strategic(object: &Value, patch: &Value) -> Result<Value, u16> {
    apply(object, STRATEGIC, &serde_json::to_vec(patch).unwrap()).map_err(|e| e.code)
}

#[test]
fn strategic_patches_merge_lists_by_their_keys() {
    let pod = json!({"metadata": {"finalizers": ["a"]}, "spec": {
        "containers": [{"name": "web", "image": "a", "env": [{"name": "X", "value": "1"}], "args": ["x", "y"], "ports": [{"containerPort": 80}]}, {"name": "side", "image": "b"}],
        "volumes": [{"name": "v", "emptyDir": {}}],
    }});
    for (patch, at, expected) in [
        (
            json!({"spec": {"containers": [{"name": "web", "image": "c"}]}}),
            "/spec/containers/0",
            json!({"name": "web", "image": "c", "env": [{"name": "X", "value": "1"}], "args": ["x", "y"], "ports": [{"containerPort": 80}]}),
        ),
        (
            json!({"spec": {"containers": [{"name": "web", "env": [{"name": "Y", "value": "2"}, {"name": "X", "$patch": "delete"}], "args": ["z"]}]}}),
            "/spec/containers/0/env",
            json!([{"name": "Y", "value": "2"}]),
        ),
        (
            json!({"spec": {"containers": [{"name": "web", "args": ["z"]}]}}),
            "/spec/containers/0/args",
            json!(["z"]),
        ),
        (
            json!({"spec": {"containers": [{"name": "web", "ports": [{"containerPort": 81}]}]}}),
            "/spec/containers/0/ports",
            json!([{"containerPort": 80}, {"containerPort": 81}]),
        ),
        (
            json!({"spec": {"$setElementOrder/containers": [{"name": "new"}, {"name": "side"}, {"name": "web"}], "containers": [{"name": "new", "image": "n"}, {"name": "web", "$patch": "delete"}]}}),
            "/spec/containers",
            json!([{"name": "new", "image": "n"}, {"name": "side", "image": "b"}]),
        ),
        (
            json!({"spec": {"volumes": [{"name": "v", "$retainKeys": ["name", "hostPath"], "hostPath": {"path": "/x"}}]}}),
            "/spec/volumes",
            json!([{"name": "v", "hostPath": {"path": "/x"}}]),
        ),
        (
            json!({"metadata": {"finalizers": ["b", "a"]}}),
            "/metadata/finalizers",
            json!(["a", "b"]),
        ),
        (
            json!({"metadata": {"$deleteFromPrimitiveList/finalizers": ["a"]}}),
            "/metadata/finalizers",
            json!([]),
        ),
        (
            json!({"spec": {"volumes": [{"$patch": "replace"}, {"name": "w"}]}}),
            "/spec/volumes",
            json!([{"name": "w"}]),
        ),
        (
            json!({"spec": {"volumes": null}}),
            "/spec/volumes",
            Value::Null,
        ),
    ] {
        let patched = strategic(&pod, &patch).unwrap();
        let found = patched.pointer(at).cloned().unwrap_or_default();
        // embedded 20
        assert_eq!(found, expected, "{patch}");
    }
    // Without the key of its list an element can't be found.
    assert_eq!(
        strategic(&pod, &json!({"spec": {"containers": [{"image": "x"}]}})),
        Err(400)
    );
}

#[test]
fn a_list_is_taken_as_it_is_sent_where_there_is_none() {
    let pod = json!({"spec": {"containers": [{"name": "dns"}]}});
    let ports =
        json!([{"containerPort": 53, "protocol": "UDP"}, {"containerPort": 53, "protocol": "TCP"}]);
    for (sent, expected) in [
        (ports.clone(), ports.clone()),
        (
            json!([{"$patch": "replace"}, {"containerPort": 53, "name": null}, {"containerPort": 54, "$patch": "delete"}]),
            json!([{"containerPort": 53}]),
        ),
        (json!([{"name": "dns"}]), json!([{"name": "dns"}])),
        (json!([]), json!([])),
    ] {
        let patch = json!({"spec": {"containers": [{"name": "dns", "ports": sent}]}});
        let patched = strategic(&pod, &patch).unwrap();
        // embedded 20
        assert_eq!(patched["spec"]["containers"][0]["ports"], expected);
    }
    let both = json!({"spec": {"containers": [{"name": "dns", "ports": ports}]}});
    let patched = strategic(&json!({}), &both).unwrap();
    // embedded 20
    assert_eq!(patched, both);
}

#[test]
fn patches_that_do_not_apply_are_told_from_those_that_are_none() {
    let object = json!({"metadata": {"name": "web"}, "data": {"a": "1"}});
    for (content_type, body, expected) in [
        (
            JSON,
            r#"[{"op": "replace", "path": "/data/a", "value": "2"}]"#,
            Ok("2"),
        ),
        (
            JSON,
            r#"[{"op": "test", "path": "/data/a", "value": "3"}]"#,
            Err(422),
        ),
        // As kube-rs adds the first finalizer.
        (
            JSON,
            r#"[{"op": "test", "path": "/data/b", "value": null}, {"op": "add", "path": "/data/b", "value": "1"}]"#,
            Ok("1"),
        ),
        (
            JSON,
            r#"[{"op": "test", "path": "/data/a", "value": null}]"#,
            Err(422),
        ),
        (
            JSON,
            r#"[{"op": "test", "path": "/spec/a", "value": null}]"#,
            Err(422),
        ),
        (JSON, r#"[{"op": "remove", "path": "/data/x"}]"#, Err(422)),
        (JSON, "{", Err(400)),
        (MERGE, r#"{"data": {"a": "4"}}"#, Ok("4")),
        (MERGE, r#"{"data": {"a": null}}"#, Ok("")),
        (MERGE, "[]", Err(400)),
        (STRATEGIC, "nonsense", Err(400)),
        ("application/apply-patch+yaml", "{}", Err(415)),
    ] {
        let patched = apply(&object, content_type, body.as_bytes());
        let value = patched
            .as_ref()
            .map(|o| o["data"]["a"].as_str().unwrap_or_default())
            .map_err(|status| status.code);
        // embedded 20
        assert_eq!(value, expected, "{body}");
    }
    let mut deep = json!({"a": 1});
    for _ in 0..100 {
        deep = json!({"a": deep});
    }
    assert_eq!(strategic(&object, &deep), Err(400));
}

/// A copy of the whole object into its deepest field doubles its depth.
fn deepening(copies: usize) -> String {
    let mut operations = Vec::new();
    let mut path = String::new();
    for _ in 0..copies {
        let depth = path.matches("/a").count();
        path.push_str("/a");
        operations.push(json!({"op": "copy", "from": "", "path": path}));
        path.push_str(&"/a".repeat(depth));
    }
    json!(operations).to_string()
}

#[test]
fn a_json_patch_copies_no_more_than_its_budget() {
    let doubling = |copies: usize| {
        let copy = json!({"op": "copy", "from": "/data", "path": "/data/x"});
        let double: Vec<_> = (0..copies)
            .map(|n| {
                let mut copy = copy.clone();
                copy["path"] = format!("/data/x{n}").into();
                copy
            })
            .collect();
        json!(double).to_string()
    };
    let object = |text: &str| json!({"data": {"a": text, "b": {}}});
    let code = |object: &Value, body: &str| {
        apply(object, JSON, body.as_bytes()).map_or_else(|status| status.code, |_| 200)
    };
    assert_eq!(code(&object("x"), &doubling(10)), 200);
    assert_eq!(code(&object("x"), &doubling(40)), 413);
    // One copy of a large value is fine, four are not.
    let large = object(&"x".repeat(1 << 20));
    let to = |n: u32| json!({"op": "copy", "from": "/data/a", "path": format!("/data/c{n}")});
    assert_eq!(code(&large, &json!([to(1)]).to_string()), 200);
    let four = json!([to(1), to(1), to(1), to(1)]).to_string();
    assert_eq!(code(&large, &four), 413);
    let refused = apply(&large, JSON, four.as_bytes()).unwrap_err();
    assert!(
        refused.message.contains("limit of 3145728 bytes"),
        "{refused}"
    );
    // Many small values cost more than their text.
    let many = json!({"data": {"a": vec![json!({"a": 0}); 30_000], "b": {}}});
    let two = json!([to(1), to(2)]).to_string();
    assert_eq!(code(&many, &json!([to(1)]).to_string()), 200);
    assert_eq!(code(&many, &two), 413);
    // The second finds nothing to move.
    let moves = two.replace("copy", "move");
    let there_and_back = json!([
        {"op": "move", "from": "/data/a", "path": "/data/c"},
        {"op": "move", "from": "/data/c", "path": "/data/a"},
    ]);
    assert_eq!(code(&many, &moves), 422);
    // embedded 59
    assert_eq!(code(&many, &there_and_back.to_string()), 413);
}

#[test]
fn a_json_patch_does_not_nest_values_without_limit() {
    let code = |body: &str| {
        let object = json!({"b": {"b": {}}});
        apply(&object, JSON, body.as_bytes()).map_or_else(|status| status.code, |_| 200)
    };
    assert_eq!(code(&deepening(4)), 200);
    // Without a limit the thread's stack would not do to drop the result.
    assert_eq!(code(&deepening(16)), 400);
    let mut deep = json!({"a": 1});
    for _ in 0..40 {
        deep = json!({"a": deep});
    }
    let add = |path: String| json!({"op": "add", "path": path, "value": deep});
    let twice = json!([add("/a".to_owned()), add("/a".repeat(40))]);
    assert_eq!(code(&twice.to_string()), 400);
    let twice = json!([
        add("/a".to_owned()),
        add("/b/b/c".to_owned()),
        {"op": "move", "from": "/b", "path": "/a".repeat(30)},
    ]);
    // embedded 59
    assert_eq!(code(&twice.to_string()), 400);
}

#[test]
fn patches_of_too_many_values_are_refused_before_they_are_decoded() {
    let code = |kind: &str, body: &str| {
        apply(&json!({"data": {}}), kind, body.as_bytes())
            .map_or_else(|status| status.code, |_| 200)
    };
    let list = |values: usize| format!("[{}{{}}]", r#"{"a":0},"#.repeat(values));
    for values in [10, bounds::VALUES_MAX] {
        let expected = if values == 10 { 200 } else { 413 };
        let merge = format!(r#"{{"data":{{"a":{}}}}}"#, list(values));
        assert_eq!(code(MERGE, &merge), expected);
        assert_eq!(code(STRATEGIC, &merge), expected);
        let add = format!(
            r#"[{{"op":"add","path":"/data/a","value":{}}}]"#,
            list(values)
        );
        // embedded 59
        assert_eq!(code(JSON, &add), expected);
    }
}

/// [`merge_list`] and [`set_order`] as they read, looking through the list for each element.
mod plain {
    use super::*;

    pub(super) fn merge_list(
        list: &str,
        known: &mut Vec<Value>,
        patch: Vec<Value>,
    ) -> Result<(), Status> {
        if is_set(list) {
            for item in patch {
                if !known.contains(&item) {
                    known.push(item);
                }
            }
            return Ok(());
        }
        let element = patch.iter().chain(known.iter()).find(|e| e.is_object());
        let Some(key) = merge_key(list, element) else {
            *known = patch;
            return Ok(());
        };
        if patch.iter().any(|item| item["$patch"] == "replace") {
            known.clear();
            known.extend(patch.into_iter().filter(|item| item["$patch"] != "replace"));
            return Ok(());
        }
        for item in patch {
            let Value::Object(mut fields) = item else {
                return Err(Status::bad_request("not an object"));
            };
            let Some(id) = fields.get(key).cloned() else {
                return Err(Status::bad_request("no key"));
            };
            let is_it = |element: &Value| element.get(key) == Some(&id);
            if fields.get("$patch").and_then(Value::as_str) == Some("delete") {
                known.retain(|element| !is_it(element));
                continue;
            }
            let same = known.iter_mut().find(|element| is_it(element));
            if let Some(Value::Object(element)) = same {
                merge_map(element, fields, 10)?;
            } else {
                fields.remove("$patch");
                let mut made = Map::new();
                merge_map(&mut made, fields, 10)?;
                known.push(Value::Object(made));
            }
        }
        Ok(())
    }

    pub(super) fn set_order(list: &str, known: &mut [Value], order: &[Value]) {
        let key = merge_key(list, known.first());
        let id = |item: &Value| match key {
            Some(key) => item.get(key).cloned().unwrap_or(Value::Null),
            None => item.clone(),
        };
        let order: Vec<_> = order.iter().map(id).collect();
        let mut before = 0;
        let mut ranked: Vec<(usize, Value)> = Vec::new();
        for item in known.iter() {
            let rank = order.iter().position(|other| *other == id(item));
            before = rank.unwrap_or(before);
            ranked.push((before, item.clone()));
        }
        ranked.sort_by_key(|(rank, _)| *rank);
        for (place, (_, item)) in known.iter_mut().zip(ranked) {
            *place = item;
        }
    }
}

/// An element of a list: mostly an object with a key of a few, of all types.
fn element() -> impl Strategy<Value = Value> {
    let id = prop_oneof![
        6 => "[a-d]".prop_map(Value::from),
        1 => Just(Value::Null),
        1 => (0..3).prop_map(Value::from),
        1 => Just(json!(-0.0)),
        1 => Just(json!(0.0)),
        1 => Just(json!({"x": null})),
        1 => Just(json!({})),
        1 => Just(json!(["x"])),
    ];
    let directive = prop_oneof![
        12 => Just(None),
        3 => Just(Some("delete")),
        1 => Just(Some("merge")),
    ];
    let object = (prop::option::weighted(0.98, id.clone()), directive, 0..3_u8);
    let object = object.prop_map(|(id, directive, value)| {
        let mut object = json!({"value": value});
        if let Some(id) = id {
            object["name"] = id;
        }
        if let Some(directive) = directive {
            object["$patch"] = directive.into();
        }
        object
    });
    prop_oneof![
        60 => object,
        1 => Just(json!({"$patch": "replace"})),
        1 => id,
    ]
}

proptest! {
    #[test]
    fn lists_are_merged_and_ordered_as_by_looking_through_them(
        list in prop_oneof![Just("volumes"), Just("finalizers"), Just("args")],
        known in prop::collection::vec(element(), 0..12),
        patch in prop::collection::vec(element(), 0..12),
        order in prop::collection::vec(element(), 0..12),
    ) {
        let (mut found, mut expected) = (known.clone(), known);
        let merged = merge_list(list, &mut found, patch.clone(), 11).is_ok();
        prop_assert_eq!(merged, plain::merge_list(list, &mut expected, patch).is_ok());
        // A patch that is refused changes nothing.
        if merged {
            prop_assert_eq!(&found, &expected);
            set_order(list, &mut found, &order);
            plain::set_order(list, &mut expected, &order);
            prop_assert_eq!(&found, &expected);
        }
    }
}

/// Each of them would take minutes if it looked through a list for each element.
#[test]
fn long_lists_are_merged_and_ordered() {
    const LONG: usize = 200_000;
    let element = |n: usize, image: &str| json!({"name": n.to_string(), "image": image});
    let elements = |image: &str| (0..LONG).map(|n| element(n, image)).collect::<Vec<_>>();
    let mut known = elements("a");
    merge_list("containers", &mut known, elements("b"), 9).unwrap();
    assert!(known.len() == LONG && known[LONG - 1] == element(LONG - 1, "b"));
    let reversed: Vec<_> = known.iter().rev().cloned().collect();
    set_order("containers", &mut known, &reversed);
    assert!(known == reversed);
    let gone = (1..LONG).map(|n| json!({"name": n.to_string(), "$patch": "delete"}));
    merge_list("containers", &mut known, gone.collect(), 9).unwrap();
    assert_eq!(known, [element(0, "b")]);
    let names: Vec<Value> = (0..LONG).map(|n| n.to_string().into()).collect();
    let mut known = names[1..].to_vec();
    merge_list("finalizers", &mut known, names.clone(), 9).unwrap();
    assert!(known.len() == LONG && known[LONG - 1] == names[0]);
    let fields = names
        .iter()
        .map(|name| (name.as_str().unwrap().to_owned(), json!(1)));
    let mut target: Map<String, Value> = fields.collect();
    target.insert("finalizers".to_owned(), known.into());
    let retained = [&names[..], &["finalizers".into()]].concat();
    let patch = json!({
        "$retainKeys": retained,
        "$deleteFromPrimitiveList/finalizers": names,
    });
    let Value::Object(patch) = patch else {
        unreachable!()
    };
    merge_map(&mut target, patch, 9).unwrap();
    // embedded 59
    assert!(target.len() == LONG + 1 && target["finalizers"] == json!([]));
}
