//! How many containers ran at the same time, by a record of events that began while some of them ran.

use std::collections::{BTreeSet, HashMap};

use crate::common::recorder::{Event, most_at_once};

#[test]
fn what_ran_before_a_record_counts_until_it_ends() {
    const DIE: &[&str] = &["die"];
    const TOLD: &[&str] = &["die", "kill"];
    let table: [(&[&str], &str, &[&str], usize); 9] = [
        // The new one is started beside the old one, after it, and while it is being stopped.
        (&["old"], "start new, die old", DIE, 2),
        (&["old"], "die old, start new", DIE, 1),
        (&["old"], "kill old, start new, die old", DIE, 2),
        (&["old"], "kill old, start new, die old", TOLD, 1),
        (&["old"], "", DIE, 1),
        (&[], "start new", DIE, 1),
        // Restarted as it is, and started before it was listed.
        (&["old"], "die old, start old", DIE, 1),
        (&["new"], "die old, start new", DIE, 1),
        (&["old", "other"], "start new, die old", DIE, 2),
    ];
    for (listed, happened, ends, most) in table {
        let names = listed.iter().map(|&name| match name {
            "other" => "k8s_else_other".to_owned(),
            name => format!("k8s_web_{name}"),
        });
        let listed: BTreeSet<String> = names.collect();
        let events = happened
            .split(", ")
            .filter_map(|event| event.split_once(' '));
        let events = events.map(|(action, name)| Event {
            container: format!("k8s_web_{name}"),
            action: action.to_owned(),
            at: 0,
            attributes: HashMap::new(),
        });
        let events: Vec<Event> = events.collect();
        let seen = most_at_once(&listed, &events, "k8s_web_", ends);
        assert_eq!(seen, most, "{listed:?}, {happened}");
    }
}
