//! Applies our patches like the API server, for tests. `mirrorlet-testing` includes this file as well,
//! for its API server in memory.

use serde_json::Value;

/// Applies our patches as the API server does. Returns whether the patch is supported.
pub fn apply_patch(status: &mut Value, patch: &Value) -> bool {
    let (Some(patch), Some(_)) = (patch.as_object(), status.as_object()) else {
        return false;
    };
    for (key, change) in patch {
        let Some(list) = change.as_array() else {
            if change.is_null() {
                if let Some(status) = status.as_object_mut() {
                    status.remove(key);
                }
            } else {
                status[key] = change.clone();
            }
            continue;
        };
        if key != "conditions" {
            let replaces = list.first().is_some_and(|d| d["$patch"] == "replace");
            status[key] = list.iter().skip(usize::from(replaces)).cloned().collect();
            continue;
        }
        let mut all = status[key].as_array().cloned().unwrap_or_default();
        for item in list {
            let known = all.iter_mut().find(|c| c["type"] == item["type"]);
            if item.get("$patch").is_some() {
                all.retain(|c| c["type"] != item["type"]);
            } else if let Some(known) = known {
                let _ = apply_patch(known, item);
            } else {
                all.push(item.clone());
            }
        }
        status[key] = all.into();
    }
    true
}
