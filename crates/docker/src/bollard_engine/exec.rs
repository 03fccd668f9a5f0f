//! Execs: created and inspected through bollard, with their streams directly on the connection.
//!
//! bollard decodes a terminal's output by guessing, and loses bytes that look like a frame's header; so
//! the connection is *hijacked* and passed on as it is.

use bollard::models::ExecConfig;
use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{Request, StatusCode};
use http_body_util::Full;
use hyper_util::rt::TokioIo;
use serde_json::json;

use super::BollardEngine;
use super::streams::refused;
use crate::engine::{CALL_DEADLINE, ExecState, READ_DEADLINE, Result};
use crate::operation::Operation;
use mirrorlet_runtime::exec::DuplexStream;
use mirrorlet_runtime::{ExecOptions, StreamOptions, TerminalSize};

impl BollardEngine {
    pub(super) async fn make_exec(&self, id: &str, options: &ExecOptions) -> Result<String> {
        let streams = options.streams;
        let config = ExecConfig {
            attach_stdin: Some(streams.stdin),
            attach_stdout: Some(streams.stdout),
            attach_stderr: Some(streams.stderr),
            tty: Some(streams.tty),
            // Engines before API 1.42 don't know it; they get a resize after the start.
            console_size: options
                .size
                .map(|size| vec![size.height.into(), size.width.into()]),
            cmd: Some(options.command.clone()),
            ..ExecConfig::default()
        };
        let work = self.docker.create_exec(id, config);
        Ok(self
            .call(Operation::CreateExec, id, CALL_DEADLINE, work)
            .await?
            .id)
    }

    pub(super) async fn open_exec(&self, exec: &str, tty: bool) -> Result<DuplexStream> {
        let body = json!({ "Detach": false, "Tty": tty }).to_string();
        let request = Request::post(format!("/exec/{exec}/start"))
            .header(CONTENT_TYPE, "application/json")
            .body(Full::from(body));
        self.hijack(Operation::StartExec, exec, request).await
    }

    pub(super) async fn open_attach(
        &self,
        id: &str,
        streams: StreamOptions,
    ) -> Result<DuplexStream> {
        let wanted = [
            ("&stdin=1", streams.stdin),
            ("&stdout=1", streams.stdout),
            ("&stderr=1", streams.stderr),
        ];
        let wanted = wanted.into_iter().filter(|(_, wanted)| *wanted);
        let query: String = wanted.map(|(flag, _)| flag).collect();
        let request =
            Request::post(format!("/containers/{id}/attach?stream=1{query}")).body(Full::default());
        self.hijack(Operation::AttachContainer, id, request).await
    }

    pub(super) async fn look_at_exec(&self, exec: &str) -> Result<ExecState> {
        let work = self.docker.inspect_exec(exec);
        let found = self
            .call(Operation::InspectExec, exec, READ_DEADLINE, work)
            .await?;
        let number = |n: i64| i32::try_from(n).ok();
        Ok(ExecState {
            running: found.running.unwrap_or(false),
            exit_code: found.exit_code.and_then(number),
            pid: found.pid.and_then(number).filter(|pid| *pid > 0),
        })
    }

    pub(super) async fn resize(
        &self,
        operation: Operation,
        target: &str,
        path: &str,
        size: TerminalSize,
    ) -> Result<()> {
        let query = format!("{path}?h={}&w={}", size.height, size.width);
        self.open(operation, target, READ_DEADLINE, Request::post(query))
            .await
            .map(drop)
    }

    /// Sends a request that hijacks its connection, and returns the connection.
    pub(super) async fn hijack(
        &self,
        operation: Operation,
        target: &str,
        request: Result<Request<Full<Bytes>>, http::Error>,
    ) -> Result<DuplexStream> {
        let work = async {
            let response = self.transport.hijack(request?).await?;
            if response.status() != StatusCode::SWITCHING_PROTOCOLS {
                return Err(refused(response).await);
            }
            Ok(hyper::upgrade::on(response).await?)
        };
        let upgraded = self.call(operation, target, CALL_DEADLINE, work).await?;
        Ok(Box::new(TokioIo::new(upgraded)))
    }
}
