//! An [`AgentView`] for tests: says what it is told to say.

use std::sync::Mutex;

use async_trait::async_trait;
use futures::{StreamExt, stream};
use tokio::sync::watch;

use super::view::{AgentView, Check, ViewError};
use crate::api::report::{AgentReport, EngineReport, ExplainReport, StatusReport};
use crate::api::{PodUid, Timestamp};
use crate::runtime::{LogChunk, LogOptions, LogStream, RuntimeError};

/// What a log request asked for.
pub(crate) type Asked = (PodUid, Option<String>, LogOptions, bool);

pub(crate) struct FakeView {
    changes: watch::Sender<u64>,
    pub(crate) report: Mutex<StatusReport>,
    pub(crate) checks: Mutex<Vec<Check>>,
    pub(crate) asked: Mutex<Vec<Asked>>,
}

impl FakeView {
    pub(crate) fn new() -> Self {
        Self {
            changes: watch::Sender::new(0),
            report: Mutex::new(StatusReport {
                pulls: Vec::new(),
                image_gc: None,
                agent: AgentReport {
                    version: "0.1.0".to_owned(),
                    pid: 1,
                    started_at: Timestamp::UNIX_EPOCH,
                    node_name: "box".to_owned(),
                    root: "/r".to_owned(),
                    owner: "o".to_owned(),
                },
                engine: EngineReport::default(),
                api: None,
                node: None,
                sources: Vec::new(),
                pods: Vec::new(),
                problems: Vec::new(),
            }),
            checks: Mutex::default(),
            asked: Mutex::default(),
        }
    }

    /// Changes the report, or only says so when `version` is the present one.
    pub(crate) fn set_version(&self, version: &str) {
        self.report.lock().unwrap().agent.version = version.to_owned();
        self.changes.send_modify(|count| *count += 1);
    }
}

#[async_trait]
impl AgentView for FakeView {
    fn status(&self) -> StatusReport {
        self.report.lock().unwrap().clone()
    }

    fn changed(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Pod `gone` does not exist, pod `broken` breaks off, pod `endless` goes on for ever.
    async fn logs(
        &self,
        uid: &PodUid,
        container: Option<&str>,
        options: &LogOptions,
        previous: bool,
    ) -> Result<LogStream, ViewError> {
        let asked = (
            uid.clone(),
            container.map(str::to_owned),
            options.clone(),
            previous,
        );
        self.asked.lock().unwrap().push(asked);
        let head = vec![
            Ok(LogChunk::Stdout("out\n".into())),
            Ok(LogChunk::Stderr("err\n".into())),
        ];
        match uid.as_str() {
            "gone" => Err(ViewError::NotFound {
                message: "there is no pod gone".to_owned(),
                help: Some("look again".to_owned()),
            }),
            "broken" => {
                let cause = RuntimeError::Unavailable("socket gone".to_owned());
                Ok(stream::iter(head).chain(stream::iter([Err(cause)])).boxed())
            }
            "endless" => Ok(stream::iter(head).chain(stream::pending()).boxed()),
            _ => Ok(stream::iter(head).boxed()),
        }
    }

    /// Pod `gone` has a story, and is gone; all others never were.
    fn explain(&self, pod: &str) -> Result<ExplainReport, ViewError> {
        if pod != "ns/gone" {
            return Err(ViewError::NotFound {
                message: format!("there is no pod {pod:?}"),
                help: None,
            });
        }
        Ok(ExplainReport {
            name: "gone".to_owned(),
            namespace: "ns".to_owned(),
            pod: None,
            source_read: None,
            truncated: false,
            story: Vec::new(),
        })
    }

    fn config(&self) -> serde_json::Value {
        serde_json::json!([{"key": "root"}])
    }

    fn checks(&self) -> Vec<Check> {
        self.checks.lock().unwrap().clone()
    }
}
