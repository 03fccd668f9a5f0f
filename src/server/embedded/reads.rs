//! `get`, `list` and `watch`.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures::{StreamExt as _, stream};
use mirrorlet_apimachinery::cache::{Change, ChangeKind, Key};
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
use super::{Asked, leases};

/// The length of a watch that asks for none.
///
/// Upstream: `--min-request-timeout` of kube-apiserver.
const WATCH_FOR: Duration = Duration::from_mins(30);
/// Longest time of a watch.
const WATCH_MAX: Duration = Duration::from_hours(2);
/// The period of bookmarks, for a watch that asks for them.
const BOOKMARK_PERIOD: Duration = Duration::from_mins(1);

/// Answers `get`.
pub(super) fn get(
    store: &Store,
    target: &Target,
    name: &str,
    asked: &Asked,
) -> Result<Response, Status> {
    let form = answer::form(&asked.headers, include(asked))?;
    let key = Key::new(target.resource, target.namespace.as_str(), name);
    let found = store.read(|cache| cache.get(&key));
    let object = found.ok_or_else(|| Status::not_found(target.resource, name))?;
    let object = leases::renewed(object, &key, store.node());
    let value = answer::one(target.resource, &object, form);
    Ok(answer::json(200, &value, &asked.headers))
}

/// Which part of objects a table's rows hold.
fn include(asked: &Asked) -> Include {
    let mut query = asked.query.iter();
    match query.find(|(key, _)| key == "includeObject") {
        Some((_, value)) if value == "Object" => Include::Object,
        Some((_, value)) if value == "None" => Include::None,
        Some(_) | None => Include::Metadata,
    }
}

/// Answers `list` and `watch`.
pub(super) fn list(
    store: &Arc<Store>,
    target: &Target,
    asked: &Asked,
    watches: &Watches,
) -> Result<Response, Status> {
    let form = answer::form(&asked.headers, include(asked))?;
    let options = ListOptions::parse(&asked.query)?;
    let resource = target.resource;
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
    let mut value = answer::list(resource, &page.objects, page.revision, form);
    if let Some(token) = page.token {
        value["metadata"]["continue"] = token.into();
    }
    if let Some(remaining) = page.remaining {
        value["metadata"]["remainingItemCount"] = remaining.into();
    }
    Ok(answer::json(200, &value, &asked.headers))
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
    waiting: VecDeque<Bytes>,
    until: Instant,
    bookmarks: bool,
    next_bookmark: Instant,
    /// Whether a table has named its columns.
    has_columns: bool,
    is_over: bool,
    _place: Place,
}

fn watch(
    store: &Arc<Store>,
    target: &Target,
    options: &ListOptions,
    selector: Selector,
    form: Form,
    watches: &Watches,
) -> Result<Response, Status> {
    let place = watches.begin()?;
    let now = Instant::now();
    let lasts = options
        .timeout_seconds
        .map_or(WATCH_FOR, Duration::from_secs);
    // Before the first look, so that no change is missed between the two.
    let changes = store.changes();
    let (newest, existing) = store.read(|cache| {
        let objects = cache.list(target.resource, &target.namespace, &selector);
        (cache.revision(), objects)
    });
    let from_now = matches!(options.resource_version, None | Some(0));
    let begins_with_all = options.initial_events || from_now;
    let revision = match options.resource_version {
        Some(wanted) if !begins_with_all => {
            if wanted > newest {
                return Err(Status::too_large_version(wanted, newest));
            }
            // One that is too old is an event of the watch, as upstream's: kube-rs lists again for that
            // alone, and not for the code of the answer.
            wanted
        }
        Some(_) | None => newest,
    };
    let mut watching = Watching {
        store: Arc::clone(store),
        changes,
        target: target.clone(),
        selector,
        form,
        revision,
        lines: watches.lines.clone(),
        waiting: VecDeque::new(),
        until: now + lasts.min(WATCH_MAX),
        bookmarks: options.bookmarks,
        next_bookmark: now + BOOKMARK_PERIOD,
        has_columns: false,
        is_over: false,
        _place: place,
    };
    if begins_with_all {
        for object in existing {
            watching.send(ChangeKind::Added, &object);
        }
    }
    if options.initial_events {
        watching.bookmark(true);
    }
    let cancel = watches.cancel.clone();
    let pieces = stream::unfold(watching, |mut watching| async move {
        let piece = watching.next().await?;
        Some((Ok::<_, std::io::Error>(piece), watching))
    });
    let body = Body::from_stream(pieces.take_until(cancel.cancelled_owned()));
    let kind = [(header::CONTENT_TYPE, "application/json")];
    Ok((kind, body).into_response())
}

impl Watching {
    /// The next bytes; none at the end.
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if !self.waiting.is_empty() {
                // All that waits goes out at once.
                let pieces: Vec<Bytes> = self.waiting.drain(..).collect();
                return Some(pieces.concat().into());
            }
            if self.is_over {
                return None;
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

    /// Takes the changes since the last one.
    fn take(&mut self) {
        let store = Arc::clone(&self.store);
        let taken = store.read(|cache| {
            let changes = cache.since(self.revision)?;
            let seen: Vec<_> = changes
                .filter(|change| self.concerns(change))
                .filter_map(|change| change.seen_by(&self.selector))
                .collect();
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
                self.waiting.extend(self.lines.of(kind, object));
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
        self.waiting.extend(events::line(kind, object));
    }
}
