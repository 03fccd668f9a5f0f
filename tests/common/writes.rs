//! Clients that write through the embedded API as fast as they can, while the agent is killed again
//! and again; and many watches of what they write.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures::TryStreamExt as _;
use futures::future::join_all;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{
    DeleteParams, ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams,
};
use kube::{Api, Client};
use serde_json::json;

use super::alone::Alone;
use super::{Bed, PATIENCE};

/// Objects of one writer.
const OBJECTS: usize = 4;
/// Clients that write at a time.
const WRITERS: usize = 4;

/// The options of a run with kills.
#[derive(Debug, Clone, Copy)]
pub struct Kills {
    /// How often the agent is killed.
    pub kills: usize,
    /// Acknowledged writes before each kill.
    pub writes: usize,
}

/// The observations.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Acknowledged writes.
    pub acknowledged: usize,
    /// Objects that aren't what was acknowledged, nor what was under way.
    pub lost: Vec<String>,
    /// Files that are neither an old nor a new version.
    pub half_written: Vec<PathBuf>,
    /// Revisions that aren't beyond all those before.
    pub backwards: Vec<String>,
    /// Requests that failed while the agent ran.
    pub refused: Vec<String>,
}

impl Outcome {
    /// The number of everything that must not be.
    pub fn faults(&self) -> usize {
        let words = [&self.lost, &self.backwards, &self.refused];
        words.iter().map(|list| list.len()).sum::<usize>() + self.half_written.len()
    }
}

/// The known state of an object: the number of its acknowledged write, none where it was deleted, and
/// what a write that was cut off would have made of it; the same where there was none.
#[derive(Debug, Clone, Copy, Default)]
struct Known {
    sure: Option<u64>,
    maybe: Option<u64>,
}

impl Known {
    fn of(number: Option<u64>) -> Self {
        Self {
            sure: number,
            maybe: number,
        }
    }
}

/// One client and its objects.
struct Writer {
    known: BTreeMap<String, Known>,
    next: u64,
}

/// State that all writers share.
struct Round {
    api: Api<ConfigMap>,
    killed: AtomicBool,
    /// Whether a request failed.
    over: AtomicBool,
    acknowledged: AtomicUsize,
    newest: Arc<AtomicU64>,
}

fn config_map(name: &str, number: u64) -> ConfigMap {
    // Of many sizes, some over several blocks.
    let filler = "x".repeat(usize::try_from(number * 997 % 30_000).unwrap());
    let data = json!({"number": number.to_string(), "filler": filler});
    let object =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data});
    serde_json::from_value(object).unwrap()
}

fn number(object: &ConfigMap) -> u64 {
    let data = object.data.as_ref().unwrap();
    data["number"].parse().unwrap()
}

fn revision(object: &ConfigMap) -> u64 {
    let version = object.metadata.resource_version.as_ref();
    version.unwrap().parse().unwrap()
}

impl Writer {
    fn new(writer: usize) -> Self {
        let names = (0..OBJECTS).map(|object| format!("w{writer}-{object}"));
        Self {
            known: names.map(|name| (name, Known::default())).collect(),
            next: 1,
        }
    }

    /// Writes until the agent is gone. Returns what went wrong before.
    async fn write(&mut self, round: &Round) -> (Vec<String>, Vec<String>) {
        let (mut backwards, mut refused) = (Vec::new(), Vec::new());
        let names: Vec<String> = self.known.keys().cloned().collect();
        for name in names.iter().cycle() {
            self.next += 1;
            let known = self.known.get_mut(name).unwrap();
            let wanted =
                (!self.next.is_multiple_of(9) || known.sure.is_none()).then_some(self.next);
            known.maybe = wanted;
            let newest = round.newest.load(Ordering::SeqCst);
            match act(&round.api, name, known.sure, wanted).await {
                Ok(revision) => {
                    *known = Known::of(wanted);
                    round.acknowledged.fetch_add(1, Ordering::SeqCst);
                    if let Some(revision) = revision {
                        if revision <= newest {
                            backwards.push(format!("{name}: {revision} after {newest}"));
                        }
                        round.newest.fetch_max(revision, Ordering::SeqCst);
                    }
                }
                Err(kube::Error::Api(status)) => {
                    refused.push(format!("{name}: {status:?}"));
                    break;
                }
                Err(_) if round.killed.load(Ordering::SeqCst) => break,
                Err(error) => {
                    refused.push(format!("{name}: {error}"));
                    break;
                }
            }
        }
        round.over.fetch_or(!refused.is_empty(), Ordering::SeqCst);
        (backwards, refused)
    }
}

/// One write. Returns the revision that it made; a deletion answers with none.
async fn act(
    api: &Api<ConfigMap>,
    name: &str,
    before: Option<u64>,
    wanted: Option<u64>,
) -> kube::Result<Option<u64>> {
    let written = match (before, wanted) {
        (_, None) => {
            api.delete(name, &DeleteParams::default()).await?;
            return Ok(None);
        }
        (None, Some(number)) => {
            let object = config_map(name, number);
            api.create(&PostParams::default(), &object).await?
        }
        (Some(_), Some(number)) if number.is_multiple_of(2) => {
            let object = config_map(name, number);
            api.replace(name, &PostParams::default(), &object).await?
        }
        (Some(_), Some(number)) => {
            let patch = Patch::Merge(config_map(name, number));
            api.patch(name, &PatchParams::default(), &patch).await?
        }
    };
    Ok(Some(revision(&written)))
}

/// Has clients write, kills the agent in the midst of it, starts it again, and compares what it has
/// with what it had acknowledged.
pub async fn write_and_kill(binary: &Path, bed: &Bed, options: Kills) -> Outcome {
    let mut outcome = Outcome::default();
    let mut writers: Vec<Writer> = (0..WRITERS).map(Writer::new).collect();
    let newest = Arc::new(AtomicU64::new(0));
    for _ in 0..options.kills {
        let agent = Alone::serve(binary, bed);
        let api = Api::namespaced(agent.client().await, "default");
        check(&api, &mut writers, &newest, &mut outcome).await;
        let round = Round {
            api,
            killed: AtomicBool::new(false),
            over: AtomicBool::new(false),
            acknowledged: AtomicUsize::new(0),
            newest: Arc::clone(&newest),
        };
        let writing = join_all(writers.iter_mut().map(|writer| writer.write(&round)));
        let killing = async {
            let end = Instant::now() + PATIENCE;
            while round.acknowledged.load(Ordering::SeqCst) < options.writes
                && !round.over.load(Ordering::SeqCst)
            {
                assert!(Instant::now() < end, "nothing is written");
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            // At any point of a write.
            let micros = u64::from(rand_micros());
            tokio::time::sleep(Duration::from_micros(micros)).await;
            round.killed.store(true, Ordering::SeqCst);
            agent.kill();
        };
        let (wrong, ()) = tokio::join!(writing, killing);
        for (backwards, refused) in wrong {
            outcome.backwards.extend(backwards);
            outcome.refused.extend(refused);
        }
        outcome.acknowledged += round.acknowledged.load(Ordering::SeqCst);
        outcome
            .half_written
            .extend(half_written(&bed.path().join("api")));
    }
    let agent = Alone::serve(binary, bed);
    let api = Api::namespaced(agent.client().await, "default");
    check(&api, &mut writers, &newest, &mut outcome).await;
    outcome
}

/// Up to twenty milliseconds.
fn rand_micros() -> u32 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.unwrap().subsec_nanos() / 7 % 20_000
}

/// Compares what the agent has with what is known, and takes that for known.
async fn check(
    api: &Api<ConfigMap>,
    writers: &mut [Writer],
    newest: &AtomicU64,
    outcome: &mut Outcome,
) {
    let listed = api.list(&ListParams::default()).await.unwrap();
    let found: BTreeMap<String, &ConfigMap> = listed
        .items
        .iter()
        .map(|object| (object.metadata.name.clone().unwrap(), object))
        .collect();
    let before = newest.load(Ordering::SeqCst);
    for writer in writers {
        for (name, known) in &mut writer.known {
            let has = found.get(name).map(|object| number(object));
            if has != known.sure && has != known.maybe {
                outcome
                    .lost
                    .push(format!("{name} is {has:?}, and not {known:?}"));
            }
            *known = Known::of(has);
        }
    }
    let list = listed.metadata.resource_version.unwrap().parse().unwrap();
    for revision in found.values().map(|object| revision(object)).chain([list]) {
        if revision <= before {
            let words = format!("{revision} after a restart, {before} before");
            outcome.backwards.push(words);
        }
    }
    newest.fetch_max(list, Ordering::SeqCst);
}

/// Files of objects that lack their first or last line.
fn half_written(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let Ok(entries) = std::fs::read_dir(directory) else {
        return found;
    };
    for path in entries.map(|entry| entry.unwrap().path()) {
        if path.is_dir() {
            found.extend(half_written(&path));
        } else if path.extension().is_some_and(|end| end == "yaml") {
            let text = std::fs::read_to_string(&path).unwrap();
            if !text.starts_with("# Stored by the API") || !text.ends_with("\n# end\n") {
                found.push(path);
            }
        }
    }
    found
}

/// The options of a run with watches.
#[derive(Debug, Clone, Copy)]
pub struct Load {
    /// Watches of all objects.
    pub watches: usize,
    /// Changes, all in all.
    pub changes: u64,
    /// Time between two changes.
    pub pause: Duration,
}

/// The events of all watches together.
#[derive(Debug, Default)]
pub struct Seen {
    /// Acknowledged changes that a watch never saw.
    pub lost: usize,
    /// Changes that came after a later one.
    pub out_of_order: usize,
    /// Changes that came twice, or that nobody made.
    pub doubled: usize,
    /// How long the changes took.
    pub took: Duration,
}

/// Has clients change objects, and watches look at all of them.
pub async fn watch_changes(client: Client, load: Load) -> Seen {
    let api: Api<ConfigMap> = Api::namespaced(client, "default");
    let names: Vec<String> = (0..WRITERS * OBJECTS).map(|n| format!("c{n}")).collect();
    for name in &names {
        let object = config_map(name, 0);
        api.create(&PostParams::default(), &object).await.unwrap();
    }
    let from = api.list(&ListParams::default()).await.unwrap();
    let from = from.metadata.resource_version.unwrap();
    let last = Arc::new(AtomicU64::new(u64::MAX));
    let watching: Vec<_> = (0..load.watches)
        .map(|_| {
            let (api, from, last) = (api.clone(), from.clone(), Arc::clone(&last));
            tokio::spawn(async move { watched(&api, &from, &last).await })
        })
        .collect();
    let began = Instant::now();
    let made = changes(&api, &names, load).await;
    let took = began.elapsed();
    last.store(made.keys().copied().max().unwrap_or(0), Ordering::SeqCst);
    // Whoever still waits for a change reads on until it has come; another one wakes it.
    let marker = Patch::Merge(json!({"metadata": {"annotations": {"marker": "x"}}}));
    api.patch(&names[0], &PatchParams::default(), &marker)
        .await
        .unwrap();
    let mut seen = Seen {
        took,
        ..Seen::default()
    };
    for watch in watching {
        let events = watch.await.unwrap();
        let mut before = 0;
        let mut times: BTreeMap<u64, usize> = BTreeMap::new();
        for (revision, number) in events {
            seen.out_of_order += usize::from(revision < before);
            before = before.max(revision);
            if made.get(&revision) == Some(&number) {
                *times.entry(revision).or_default() += 1;
            } else {
                seen.doubled += 1;
            }
        }
        seen.lost += made.len() - times.len();
        seen.doubled += times.values().map(|times| times - 1).sum::<usize>();
    }
    seen
}

/// The changes that one watch sees, by revision and number, up to the last one.
async fn watched(api: &Api<ConfigMap>, from: &str, last: &AtomicU64) -> Vec<(u64, u64)> {
    let params = WatchParams::default();
    let mut stream = Box::pin(api.watch(&params, from).await.unwrap());
    let mut events = Vec::new();
    let read = async {
        while let Some(event) = stream.try_next().await.unwrap() {
            let object = match event {
                WatchEvent::Added(object)
                | WatchEvent::Modified(object)
                | WatchEvent::Deleted(object) => object,
                WatchEvent::Bookmark(_) => continue,
                WatchEvent::Error(error) => panic!("{error:?}"),
            };
            if revision(&object) > last.load(Ordering::SeqCst) {
                break;
            }
            events.push((revision(&object), number(&object)));
        }
    };
    tokio::time::timeout(PATIENCE, read).await.unwrap();
    events
}

/// Makes the changes: by revision, the number that each wrote.
async fn changes(api: &Api<ConfigMap>, names: &[String], load: Load) -> BTreeMap<u64, u64> {
    let next = AtomicU64::new(1);
    let began = Instant::now();
    // Each writer has its own objects, so that it knows which change made which revision.
    let writers = names.chunks(OBJECTS).map(|names| async {
        let mut made = BTreeMap::new();
        for name in names.iter().cycle() {
            let number = next.fetch_add(1, Ordering::SeqCst);
            if number > load.changes {
                break;
            }
            let due = load.pause * u32::try_from(number).unwrap();
            tokio::time::sleep(due.saturating_sub(began.elapsed())).await;
            let patch = Patch::Merge(json!({"data": {"number": number.to_string()}}));
            let params = PatchParams::default();
            let changed = api.patch(name, &params, &patch).await.unwrap();
            made.insert(revision(&changed), number);
        }
        made
    });
    join_all(writers).await.into_iter().flatten().collect()
}
