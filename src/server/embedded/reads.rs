//! `get`, `list` and `watch`.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures::{StreamExt as _, stream};
use mirrorlet_apimachinery::cache::{Change, ChangeKind, Version};
use mirrorlet_apimachinery::meta;
use mirrorlet_apimachinery::options::ListOptions;
use mirrorlet_apimachinery::paging;
use mirrorlet_apimachinery::resources::Target;
use mirrorlet_apimachinery::selector::Selector;
use mirrorlet_apimachinery::status::Status;
use mirrorlet_apimachinery::table::{self, Include};
use mirrorlet_core::api::Timestamp;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::answer::{self, Form};
use super::events::{self, Lines, Place, Watches};
use super::store::{Changes, Store};
use super::{Call, leases, texts};

/// The default duration of a watch.
///
/// Upstream: `--min-request-timeout` of kube-apiserver.
const WATCH_FOR: Duration = Duration::from_mins(30);
/// Longest time of a watch.
const WATCH_MAX: Duration = Duration::from_hours(2);
/// The interval of bookmarks, for a watch that requests them.
const BOOKMARK_PERIOD: Duration = Duration::from_mins(1);

/// Number of bytes of events that are encoded before the client has read them. A longer event is
/// encoded alone.
const AHEAD_BYTES: usize = 64 << 10;

/// Answers `get`.
pub(super) fn get(store: &Store, call: &Call) -> Result<Response, Status> {
    let form = answer::form(&call.headers, include(call))?;
    let key = call.key();
    let found = store.read(|cache| cache.get(&key));
    let object = found.ok_or_else(|| Status::not_found(key.resource, &key.name))?;
    let object = leases::renewed(object, &key, store.node());
    Ok(call.object(200, key.resource, object, form))
}

/// Which part of objects a table's rows hold.
fn include(call: &Call) -> Include {
    let mut query = call.query.iter();
    match query.find(|(key, _)| key == "includeObject") {
        Some((_, value)) if value == "Object" => Include::Object,
        Some((_, value)) if value == "None" => Include::None,
        Some(_) | None => Include::Metadata,
    }
}

/// Answers `list` and `watch`.
pub(super) fn list(store: &Arc<Store>, call: &Call, watches: &Watches) -> Result<Response, Status> {
    let form = answer::form(&call.headers, include(call))?;
    let options = ListOptions::parse(&call.query)?;
    let (target, resource) = (&call.target, call.target.resource);
    let mut fields = options.field_selector.clone();
    // A watch of one object is one of the collection with its name.
    if let Some(name) = &target.name {
        fields = [format!("metadata.name={name}"), fields].join(",");
    }
    let selector = Selector::parse(&options.label_selector, &fields, resource)?;
    if options.watch {
        return watch(store, target, &options, selector, form, watches);
    }
    let namespace = target.namespace.as_str();
    let page = store.read(|cache| paging::page(cache, resource, namespace, &selector, &options))?;
    let texts = &watches.lines.texts;
    Ok(answer::list(resource, page, form, &call.headers, texts))
}

/// An initial event of a watch.
enum Initial {
    /// An object that exists already.
    Object(Version),
    /// The bookmark behind these.
    End,
}

/// One watch.
struct Watching {
    store: Arc<Store>,
    changes: Changes,
    target: Target,
    selector: Selector,
    form: Form,
    /// Changes up to this revision were sent, or are waiting.
    revision: u64,
    lines: Lines,
    /// The initial events that are not written yet.
    initial: VecDeque<Initial>,
    /// Lines that were written, and not sent.
    waiting: VecDeque<Bytes>,
    until: Instant,
    bookmarks: bool,
    next_bookmark: Instant,
    /// Whether a table has named its columns.
    has_columns: bool,
    is_over: bool,
    _place: Place,
}

/// Answers `watch`.
fn watch(
    store: &Arc<Store>,
    target: &Target,
    options: &ListOptions,
    selector: Selector,
    form: Form,
    watches: &Watches,
) -> Result<Response, Status> {
    let watching = begin(store, target, options, selector, form, watches)?;
    let cancel = watches.cancel.clone();
    let pieces = stream::unfold(watching, |mut watching| async move {
        let piece = watching.next().await?;
        Some((
            stream::iter(texts::slices(piece).map(Ok::<_, Infallible>)),
            watching,
        ))
    });
    let pieces = pieces.flatten();
    let body = Body::from_stream(pieces.take_until(cancel.cancelled_owned()));
    let kind = [(header::CONTENT_TYPE, "application/json")];
    Ok((kind, body).into_response())
}

fn begin(
    store: &Arc<Store>,
    target: &Target,
    options: &ListOptions,
    selector: Selector,
    form: Form,
    watches: &Watches,
) -> Result<Watching, Status> {
    let place = watches.begin()?;
    let now = Instant::now();
    let lasts = options
        .timeout_seconds
        .map_or(WATCH_FOR, Duration::from_secs);
    // Before the first look, so that no change is missed between the two.
    let changes = store.changes();
    let from_now = matches!(options.resource_version, None | Some(0));
    let begins_with_all = options.initial_events || from_now;
    let (newest, existing) = store.read(|cache| {
        let objects =
            begins_with_all.then(|| cache.versions(target.resource, &target.namespace, &selector));
        (cache.revision(), objects.unwrap_or_default())
    });
    let initial = existing.into_iter().map(Initial::Object);
    let end = options.initial_events.then_some(Initial::End);
    let revision = match options.resource_version {
        // One that is too old, or that isn't reached yet, is an event of the watch, as upstream's of an
        // old one: kube-rs lists again for that alone, and not for the code of the answer.
        Some(wanted) if !begins_with_all => wanted,
        Some(_) | None => newest,
    };
    Ok(Watching {
        store: Arc::clone(store),
        changes,
        target: target.clone(),
        selector,
        form,
        revision,
        lines: watches.lines.clone(),
        initial: initial.chain(end).collect(),
        waiting: VecDeque::new(),
        until: now + lasts.min(WATCH_MAX),
        bookmarks: options.bookmarks,
        next_bookmark: now + BOOKMARK_PERIOD,
        has_columns: false,
        is_over: false,
        _place: place,
    })
}

impl Watching {
    /// The next bytes; none at the end.
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if let Some(piece) = self.piece() {
                return Some(piece);
            }
            if self.is_over {
                return None;
            }
            if self.write_initial() {
                continue;
            }
            self.take();
            if !self.waiting.is_empty() {
                continue;
            }
            let wake = if self.bookmarks {
                self.until.min(self.next_bookmark)
            } else {
                self.until
            };
            tokio::select! {
                () = self.changes.changed() => {}
                () = tokio::time::sleep_until(wake) => {
                    let now = Instant::now();
                    self.is_over = now >= self.until;
                    if self.bookmarks && (self.is_over || now >= self.next_bookmark) {
                        self.next_bookmark = now + BOOKMARK_PERIOD;
                        self.bookmark(false);
                    }
                }
            }
        }
    }

    /// The next lines to send: at most [`AHEAD_BYTES`], or one longer line.
    fn piece(&mut self) -> Option<Bytes> {
        let first = self.waiting.pop_front()?;
        let mut bytes = first.len();
        let mut lines = vec![first];
        while let Some(line) = self
            .waiting
            .pop_front_if(|line| bytes + line.len() <= AHEAD_BYTES)
        {
            bytes += line.len();
            lines.push(line);
        }
        match &lines[..] {
            [line] => Some(line.clone()),
            lines => Some(lines.concat().into()),
        }
    }

    /// Writes the next initial events; returns whether there were some left.
    fn write_initial(&mut self) -> bool {
        let mut bytes = 0;
        while bytes < AHEAD_BYTES {
            match self.initial.pop_front() {
                Some(Initial::Object(version)) => self.send(ChangeKind::Added, &version.object()),
                Some(Initial::End) => self.bookmark(true),
                None => break,
            }
            bytes += self.waiting.back().map_or(0, Bytes::len);
        }
        bytes > 0
    }

    /// Takes the changes since the last one, as many as are written ahead.
    fn take(&mut self) {
        let store = Arc::clone(&self.store);
        let taken = store.read(|cache| {
            let (mut seen, mut bytes) = (Vec::new(), 0);
            for change in cache.since(self.revision)? {
                if !self.concerns(change) {
                    continue;
                }
                if bytes >= AHEAD_BYTES {
                    // This one and those after it come next time.
                    return Ok((change.revision.saturating_sub(1), seen));
                }
                if let Some(event) = change.seen_by(&self.selector) {
                    seen.push(event);
                    bytes += change.bytes();
                }
            }
            Ok((cache.revision(), seen))
        });
        match taken {
            Ok((revision, seen)) => {
                self.revision = revision;
                for (kind, object) in seen {
                    self.send(kind, &object);
                }
            }
            // So many changes at once that some are forgotten: the client lists again.
            Err::<_, Status>(status) => {
                self.is_over = true;
                self.push("ERROR", &status.to_value());
            }
        }
    }

    fn concerns(&self, change: &Change) -> bool {
        change.key.resource == self.target.resource
            && (self.target.namespace.is_empty() || change.key.namespace == self.target.namespace)
    }

    fn send(&mut self, kind: ChangeKind, object: &Arc<Value>) {
        let value = match self.form {
            Form::Whole => {
                self.waiting.push_back(self.lines.of(kind, object));
                return;
            }
            Form::Partial => meta::partial(object),
            Form::Table(include) => {
                let columns = !std::mem::replace(&mut self.has_columns, true);
                let (resource, now) = (self.target.resource, Timestamp::now());
                let objects = [Arc::clone(object)];
                let revision = meta::revision(object);
                table::table(resource, &objects, revision, include, columns, now)
            }
        };
        self.push(kind.as_str(), &value);
    }

    fn bookmark(&mut self, ends_initial_events: bool) {
        let resource = self.target.resource;
        let mut object = json!({
            "kind": resource.kind,
            "apiVersion": resource.api_version(),
            "metadata": {"resourceVersion": self.revision.to_string()},
        });
        if ends_initial_events {
            object["metadata"]["annotations"] = json!({"k8s.io/initial-events-end": "true"});
        }
        let value = match self.form {
            Form::Whole => object,
            Form::Partial => meta::partial(&object),
            Form::Table(_) => table::bookmark(&object),
        };
        self.push("BOOKMARK", &value);
    }

    fn push(&mut self, kind: &str, object: &Value) {
        self.waiting.push_back(events::line(kind, object).into());
    }
}

#[cfg(test)]
mod tests {
    use mirrorlet_apimachinery::resources::CONFIG_MAPS;
    use mirrorlet_core::desired::{Origin, PodSource};

    use super::*;
    use crate::server::embedded::bed::Bed;
    use crate::server::embedded::store::DELIVERY_MAX;

    fn show(bed: &Bed, name: &str, bytes: usize) {
        let object = json!({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": name, "namespace": "default"},
            "data": {"text": "x".repeat(bytes)},
        });
        bed.show(&object, Origin::whole(PodSource::File, "f.yaml"));
        bed.api.store.touch();
    }

    fn watching(bed: &Bed, query: &str) -> Watching {
        let query: Vec<_> = form_urlencoded::parse(query.as_bytes())
            .into_owned()
            .collect();
        let options = ListOptions::parse(&query).unwrap();
        let target = Target {
            resource: &CONFIG_MAPS,
            namespace: "default".to_owned(),
            name: None,
            subresource: None,
        };
        let selector = Selector::default();
        let (store, watches) = (&bed.api.store, &bed.api.watches);
        begin(store, &target, &options, selector, Form::Whole, watches).unwrap()
    }

    /// The names of the objects of the events in a piece.
    fn names(piece: &[u8]) -> Vec<String> {
        let lines = piece.split_inclusive(|byte| *byte == b'\n');
        let name = |line| {
            let event: Value = serde_json::from_slice(line).unwrap();
            let name = event["object"]["metadata"]["name"].as_str();
            name.unwrap_or("bookmark").to_owned()
        };
        lines.map(name).collect()
    }

    const MAPS: &str = "/api/v1/namespaces/default/configmaps";

    /// An agent whose sources have delivered nothing yet.
    fn incomplete() -> Bed {
        let bed = Bed::new();
        bed.view.shown.lock().unwrap().complete = false;
        bed
    }

    /// Has the agent load the `ConfigMap` `a`, and tell nobody of it.
    fn load(bed: &Bed, source: PodSource) {
        let object = json!({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "a", "namespace": "default"},
        });
        bed.show(&object, Origin::whole(source, "f.yaml"));
        bed.view.shown.lock().unwrap().complete = true;
    }

    /// The collection of garbage looks before the stored objects are loaded.
    #[tokio::test]
    async fn the_first_list_has_what_was_loaded_before_the_agent_tells_of_it() {
        let bed = incomplete();
        assert!(bed.api.store.is_collectable());
        load(&bed, PodSource::File);
        let (code, list) = bed.ask("GET", MAPS, &Value::Null).await;
        let first = list["items"][0]["metadata"]["name"].as_str();
        // embedded 36
        assert_eq!((code, first), (200, Some("a")));
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_list_waits_for_what_manifest_urls_serve() {
        let bed = incomplete();
        let (code, refused) = bed.ask("GET", MAPS, &Value::Null).await;
        assert_eq!(code, 503, "{refused}");
        load(&bed, PodSource::Http);
        let (code, list) = bed.ask("GET", MAPS, &Value::Null).await;
        let first = list["items"][0]["metadata"]["name"].as_str();
        // embedded 36
        assert_eq!((code, first), (200, Some("a")));
    }

    #[tokio::test(start_paused = true)]
    async fn a_manifest_url_that_never_answers_keeps_nobody_from_a_list() {
        let bed = incomplete();
        let (code, refused) = bed.ask("GET", "/readyz", &Value::Null).await;
        assert_eq!(code, 503, "{refused}");
        tokio::time::advance(DELIVERY_MAX).await;
        let (code, list) = bed.ask("GET", MAPS, &Value::Null).await;
        // embedded 36
        assert_eq!(code, 200, "{list}");
    }

    #[tokio::test]
    async fn initial_events_are_written_as_they_are_read() {
        let bed = Bed::new();
        for name in ["a", "b", "z"] {
            show(&bed, name, 2 * AHEAD_BYTES);
        }
        for number in 0..20 {
            show(&bed, &format!("m{number:02}"), AHEAD_BYTES / 8);
        }
        let query = "watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
        let mut watching = watching(&bed, query);
        assert_eq!((watching.waiting.len(), watching.initial.len()), (0, 24));
        let mut sent = Vec::new();
        while !sent.contains(&"bookmark".to_owned()) {
            let piece = watching.next().await.unwrap();
            let found = names(&piece);
            assert!(piece.len() <= AHEAD_BYTES || found.len() == 1, "{found:?}");
            let ahead: usize = watching.waiting.iter().map(Bytes::len).sum();
            assert!(ahead <= 3 * AHEAD_BYTES, "{ahead}");
            sent.extend(found);
            // Each long one is written alone.
            if sent.len() < 3 {
                assert_eq!(watching.initial.len(), 24 - sent.len());
            }
        }
        let middle = (0..20).map(|number| format!("m{number:02}"));
        let mut expected = vec!["a".to_owned(), "b".to_owned()];
        expected.extend(middle);
        expected.extend(["z".to_owned(), "bookmark".to_owned()]);
        // embedded 59
        assert_eq!(sent, expected);
    }

    #[tokio::test]
    async fn changes_are_written_as_they_are_read() {
        let bed = Bed::new();
        let revision = bed
            .api
            .store
            .read(mirrorlet_apimachinery::cache::Cache::revision);
        for number in 0..9 {
            show(&bed, &format!("m{number}"), AHEAD_BYTES / 3);
        }
        let mut watching = watching(&bed, &format!("watch=true&resourceVersion={revision}"));
        let mut sent = Vec::new();
        while sent.len() < 9 {
            let piece = watching.next().await.unwrap();
            assert!(piece.len() <= AHEAD_BYTES, "{}", piece.len());
            sent.extend(names(&piece));
            assert!(watching.waiting.len() <= 3, "{}", watching.waiting.len());
        }
        let expected: Vec<_> = (0..9).map(|number| format!("m{number}")).collect();
        assert_eq!(sent, expected);
    }
}
