//! What happens to one owner's containers, by the Engine's own events.

use std::collections::{BTreeSet, HashMap};
use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};

use super::{Bed, eventually};

/// Something that happened to a container.
#[derive(Debug, Clone)]
pub struct Event {
    /// Name of the container.
    pub container: String,
    /// `create`, `start`, `kill`, `die`, `destroy` …
    pub action: String,
    /// Nanoseconds since 1970.
    pub at: u64,
    /// Everything the Engine says about it.
    pub attributes: HashMap<String, String>,
}

/// Records the Engine's events of one owner's containers.
pub struct Recorder {
    client: Child,
    events: Arc<Mutex<Vec<Event>>>,
    /// Names of the containers that ran just after the record began.
    running: BTreeSet<String>,
}

impl Recorder {
    pub(super) fn start(bed: &Bed) -> Self {
        let owner = bed.owner().expect("an agent has made an owner id");
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let since = format!("{}.{:09}", now.as_secs(), now.subsec_nanos());
        let mut client = Command::new("docker")
            .args(["-H", &bed.docker, "events", "--format", "{{json .}}"])
            .args(["--filter", "type=container", "--filter"])
            .arg(format!("label=mirrorlet.dev/owner={owner}"))
            // The client takes a while to arrive; it is told the time as it is now.
            .args(["--since", &since])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(client.stdout.take().unwrap()).lines();
        let events = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&events);
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                sink.lock().unwrap().extend(event(&line));
            }
        });
        let running = bed.running().into_keys().collect();
        Self {
            client,
            events,
            running,
        }
    }

    /// Returns the events so far. A recent one may be missing yet, and the signal that ended a
    /// container may come after its end.
    pub fn events(&self) -> Vec<Event> {
        self.events.lock().unwrap().clone()
    }

    /// The first event of that kind on a container whose name holds `name`.
    pub fn find(&self, action: &str, name: &str) -> Option<Event> {
        self.events()
            .into_iter()
            .find(|event| event.action == action && event.container.contains(name))
    }

    /// Waits for that event.
    pub async fn until(&self, action: &str, name: &str) -> Event {
        let what = format!("{action} of {name} in {:#?}", self.events());
        eventually(&what, || self.find(action, name)).await
    }

    /// Most containers whose name holds `name` that ran at the same time.
    pub fn most_at_once(&self, name: &str) -> usize {
        most_at_once(&self.running, &self.events(), name, &["die"])
    }

    /// The same without those that were sent a signal to end.
    pub fn most_kept_at_once(&self, name: &str) -> usize {
        most_at_once(&self.running, &self.events(), name, &["die", "kill"])
    }
}

/// Most containers whose name holds `name` that ran at the same time, until one of the events `ends`.
/// Those of `listed` ran soon after the first event could come.
pub fn most_at_once(
    listed: &BTreeSet<String>,
    events: &[Event],
    name: &str,
    ends: &[&str],
) -> usize {
    let of_name = |container: &&str| container.contains(name);
    let mut running: BTreeSet<&str> = listed.iter().map(String::as_str).filter(of_name).collect();
    let all = events.iter().filter(|event| of_name(&&*event.container));
    let all: Vec<(&str, bool)> = all
        .filter_map(|event| match event.action.as_str() {
            "start" => Some((&*event.container, true)),
            action => ends.contains(&action).then_some((&*event.container, false)),
        })
        .collect();
    // Of one that was started before it was listed, that is its first event.
    let mut known = BTreeSet::new();
    for (container, starts) in &all {
        if known.insert(*container) && *starts {
            running.remove(container);
        }
    }
    let mut most = running.len();
    for (container, starts) in all {
        if starts {
            running.insert(container);
        } else {
            running.remove(container);
        }
        most = most.max(running.len());
    }
    most
}

impl Drop for Recorder {
    fn drop(&mut self) {
        let _ = self.client.kill();
        let _ = self.client.wait();
    }
}

fn event(line: &str) -> Option<Event> {
    let value: serde_json::Value = serde_json::from_str(line).ok()?;
    let attributes: HashMap<String, String> =
        serde_json::from_value(value["Actor"]["Attributes"].clone()).ok()?;
    Some(Event {
        container: attributes.get("name")?.clone(),
        action: value["Action"].as_str()?.to_owned(),
        at: value["timeNano"].as_u64()?,
        attributes,
    })
}
