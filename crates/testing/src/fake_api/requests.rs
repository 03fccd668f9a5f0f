//! Requests: on their way, and carried out.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use mirrorlet_apimachinery::cache::Key;
use mirrorlet_apimachinery::options::{ListOptions, VersionMatch};
use mirrorlet_apimachinery::resources::{NODES, PODS, Target, target};
use mirrorlet_apimachinery::selector::Selector;
use mirrorlet_apimachinery::status::Status;
use mirrorlet_apimachinery::{garbage, meta, paging, patch};
use serde_json::{Value, json};
use tokio::time::sleep;

use super::faults::{ApiFault, Reach};
use super::{FakeApi, LATENCY, State, rules};

/// How many revisions old a list is that any version is good enough for: as old as it is known.
const STALE_BY: [u64; 4] = [900, 400, 200, 20];

/// An error of the network.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;
/// Body of an answer.
pub type AnswerBody = UnsyncBoxBody<Bytes, BoxError>;
type Answer = Response<AnswerBody>;

/// A request that has arrived.
pub(super) struct Call {
    method: Method,
    pub(super) target: Target,
    pub(super) options: ListOptions,
    content_type: String,
    body: Bytes,
    /// Whether it is carried out late: what its sender knew may be old.
    is_late: bool,
}

impl Call {
    fn parse(parts: &http::request::Parts, body: Bytes) -> Result<Self, Status> {
        let query = parts.uri.query().unwrap_or_default();
        let query: Vec<_> = form_urlencoded::parse(query.as_bytes())
            .map(|(key, value)| (key.into_owned(), value.into_owned()))
            .collect();
        let content_type = parts.headers.get(header::CONTENT_TYPE);
        let content_type = content_type.and_then(|text| text.to_str().ok());
        Ok(Self {
            method: parts.method.clone(),
            target: target(parts.uri.path())?,
            options: ListOptions::parse(&query)?,
            content_type: content_type.unwrap_or_default().to_owned(),
            body,
            is_late: false,
        })
    }

    /// The name that faults and counts know it by.
    fn name(&self) -> String {
        let method = match (self.method.as_str(), &self.target.name) {
            ("GET", _) if self.options.watch => "WATCH",
            ("GET", None) => "LIST",
            (method, _) => method,
        };
        let plural = self.target.resource.plural;
        match &self.target.subresource {
            Some(below) => format!("{method} {plural}/{below}"),
            None => format!("{method} {plural}"),
        }
    }

    pub(super) fn selector(&self) -> Result<Selector, Status> {
        let options = &self.options;
        Selector::parse(
            &options.label_selector,
            &options.field_selector,
            self.target.resource,
        )
    }

    fn object(&self) -> Result<Value, Status> {
        serde_json::from_slice(&self.body)
            .map_err(|error| Status::bad_request(format!("the body can't be read: {error}")))
    }
}

fn reset() -> BoxError {
    "connection reset by peer".into()
}

fn answered(code: u16, value: &Value) -> Answer {
    let body = Full::from(value.to_string()).map_err(|never| match never {});
    let mut answer = Response::new(body.boxed_unsync());
    *answer.status_mut() = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    answer
}

fn refused(status: &Status) -> Answer {
    answered(status.code, &status.to_value())
}

fn failing(code: u16) -> Status {
    Status {
        code,
        reason: match code {
            429 => "TooManyRequests",
            503 => "ServiceUnavailable",
            _ => "InternalError",
        },
        ..Status::internal("dice")
    }
}

impl FakeApi {
    /// Answers a request.
    ///
    /// # Errors
    /// The server is unreachable, or the connection is reset.
    pub async fn answer<B>(&self, request: Request<B>) -> Result<Answer, BoxError>
    where
        B: http_body_util::BodyExt<Data = Bytes>,
        B::Error: Into<BoxError>,
    {
        let (parts, body) = request.into_parts();
        let body = body.collect().await.map_err(Into::into)?.to_bytes();
        self.arrive().await?;
        let mut call = match Call::parse(&parts, body) {
            Ok(call) => call,
            Err(status) => return Ok(refused(&status)),
        };
        let name = call.name();
        let fault = self.change(|state| {
            *state.calls.entry(name.clone()).or_default() += 1;
            state.take_fault(&name)
        });
        match fault {
            Some(ApiFault::Refused(code)) => Ok(refused(&failing(code))),
            Some(ApiFault::AnswerLost) => {
                self.carry_out(&call);
                Err(reset())
            }
            Some(ApiFault::Late(after)) => {
                call.is_late = true;
                self.carry_out_after(after, call).await
            }
            None => Ok(self.carry_out(&call)),
        }
    }

    /// The way of a request to the server.
    async fn arrive(&self) -> Result<(), BoxError> {
        sleep(LATENCY).await;
        let mut woken = self.inner.woken.subscribe();
        loop {
            let reach = self.inner.state.lock().reach;
            match reach {
                Reach::Up => return Ok(()),
                Reach::Refused => return Err("connection refused".into()),
                Reach::Silent => {}
            }
            // The server itself holds the sender.
            let _ = woken.changed().await;
            if self.inner.state.lock().reach != Reach::Silent {
                return Err(reset());
            }
        }
    }

    /// Carries a request out though its caller may give it up.
    async fn carry_out_after(&self, after: Duration, call: Call) -> Result<Answer, BoxError> {
        let api = self.clone();
        let late = tokio::spawn(async move {
            sleep(after).await;
            api.carry_out(&call)
        });
        late.await.map_err(Into::into)
    }

    fn carry_out(&self, call: &Call) -> Answer {
        if call.options.watch {
            return match self.watch(call) {
                Ok(body) => Response::new(body),
                Err(status) => refused(&status),
            };
        }
        match self.change(|state| state.answer(call)) {
            Ok((code, value)) => answered(code, &value),
            Err(status) => refused(&status),
        }
    }
}

impl State {
    fn answer(&mut self, call: &Call) -> Result<(u16, Value), Status> {
        let target = &call.target;
        let Some(name) = &target.name else {
            return match call.method {
                Method::GET => Ok((200, self.list(call)?)),
                Method::POST => Ok((201, self.create(call)?)),
                _ => Err(Status::not_allowed(call.method.as_str(), target.resource)),
            };
        };
        let key = Key::new(target.resource, target.namespace.as_str(), name.as_str());
        let found = self.cache.get(&key);
        let before = found.ok_or_else(|| Status::not_found(target.resource, name))?;
        let after = match call.method {
            Method::GET => return Ok((200, (*before).clone())),
            Method::DELETE => {
                let options = if call.body.is_empty() {
                    Value::Null
                } else {
                    call.object()?
                };
                let deleted = self.delete(&key, &options)?;
                if target.resource == &PODS {
                    self.violations.extend(rules::broken_by_deletion(&before));
                }
                return Ok((200, deleted));
            }
            Method::PUT => call.object()?,
            Method::PATCH => patch::apply(&before, &call.content_type, &call.body)?,
            _ => return Err(Status::not_allowed(call.method.as_str(), target.resource)),
        };
        Ok((200, self.update(&key, &before, after, call)?))
    }

    fn list(&self, call: &Call) -> Result<Value, Status> {
        let target = &call.target;
        let (resource, selector) = (target.resource, call.selector()?);
        let page = |options: &ListOptions| {
            paging::page(&self.cache, resource, &target.namespace, &selector, options)
        };
        // For version 0 any state will do that there was. A server that lags gives an old one.
        let asks_for_any = call.options.resource_version == Some(0);
        let mut old = STALE_BY.iter().filter(|_| asks_for_any);
        let stale = old.find_map(|by| {
            let options = ListOptions {
                resource_version: Some(self.cache.revision().checked_sub(*by)?),
                version_match: Some(VersionMatch::Exact),
                ..call.options.clone()
            };
            page(&options).ok()
        });
        let page = stale.map_or_else(|| page(&call.options), Ok)?;
        let items: Vec<&Value> = page.objects.iter().map(Arc::as_ref).collect();
        let mut metadata = json!({"resourceVersion": page.revision.to_string()});
        if let Some(token) = page.token {
            metadata["continue"] = token.into();
        }
        Ok(json!({
            "apiVersion": resource.api_version(),
            "kind": format!("{}List", resource.kind),
            "metadata": metadata,
            "items": items,
        }))
    }

    fn create(&mut self, call: &Call) -> Result<Value, Status> {
        let target = &call.target;
        let resource = target.resource;
        let mut object = call.object()?;
        let key = Key::new(resource, target.namespace.as_str(), meta::name(&object));
        if let Some(there) = self.cache.get(&key) {
            let name = key.name.as_str();
            return Err(if garbage::is_deleted(&there) {
                Status::being_deleted(resource, name)
            } else {
                Status::already_exists(resource, name)
            });
        }
        meta::place(&mut object, resource, &target.namespace)?;
        if resource == &PODS {
            let nodes = self.cache.list(&NODES, "", &Selector::default());
            rules::admit(&object, &nodes)?;
        }
        Ok(self.begin(&key, object))
    }

    /// Puts a new object.
    pub(super) fn begin(&mut self, key: &Key, mut object: Value) -> Value {
        let resource = key.resource;
        self.uids += 1;
        let uid = format!("00000000-0000-4000-8000-{:012x}", self.uids);
        let now = (self.clock)().to_string();
        let status = object.get("status").cloned();
        meta::begin(&mut object, resource, &uid, &now);
        object["apiVersion"] = resource.api_version().into();
        object["kind"] = resource.kind.into();
        if resource == &PODS {
            object["status"] = json!({"phase": "Pending"});
        } else if let Some(status) = status {
            // A node registers with its status.
            object["status"] = status;
        }
        self.cache.put(key.clone(), object);
        self.stored(key)
    }

    fn update(
        &mut self,
        key: &Key,
        before: &Value,
        mut after: Value,
        call: &Call,
    ) -> Result<Value, Status> {
        let target = &call.target;
        let status = after.get("status").cloned();
        meta::succeed(&mut after, before, target.resource)?;
        let is_status = target.subresource.as_deref() == Some("status");
        if is_status {
            after["spec"] = before["spec"].clone();
            after["status"] = status.unwrap_or_default();
        }
        if target.resource == &PODS && !call.is_late {
            let broken = rules::broken_promise(before, &after);
            self.violations.extend(broken);
            let lost = rules::lost_end(before, &after).filter(|_| self.is_calm());
            self.violations.extend(lost);
        }
        self.cache.put(key.clone(), after);
        Ok(self.stored(key))
    }

    /// Deletes an object. A pod that may still run is only marked, and stays until its node ends it.
    pub(super) fn delete(&mut self, key: &Key, options: &Value) -> Result<Value, Status> {
        let found = self.cache.get(key);
        let before = found.ok_or_else(|| Status::not_found(key.resource, &key.name))?;
        meta::check_preconditions(options, &before, key.resource)?;
        let grace = if key.resource == &PODS {
            rules::grace(&before, options)
        } else {
            0
        };
        if grace == 0 {
            self.cache.remove(key);
            return Ok((*before).clone());
        }
        let mut object = (*before).clone();
        if !garbage::is_deleted(&before) {
            let ends = (self.clock)()
                .checked_add(Duration::from_secs(grace.unsigned_abs()))
                .unwrap_or_default();
            object["metadata"]["deletionTimestamp"] = ends.to_string().into();
            object["metadata"]["deletionGracePeriodSeconds"] = grace.into();
            self.cache.put(key.clone(), object);
        }
        Ok(self.stored(key))
    }

    fn stored(&self, key: &Key) -> Value {
        let stored = self.cache.get(key);
        stored.map(|object| (*object).clone()).unwrap_or_default()
    }
}
