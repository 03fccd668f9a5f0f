//! Log output: to standard error, as text on a terminal and as JSON elsewhere.

use std::io::{self, IsTerminal, Write as _};

use tracing::{Level, Metadata};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::config::{LogFormat, kinds};

/// Why logging can't be set up.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The filter is not one.
    #[error("invalid log level: {0}")]
    Filter(String),
    /// Logging was set up before.
    #[error("logging is already initialized")]
    Twice,
}

/// Targets that are never logged, regardless of the filter: kube's client includes whole objects, even
/// Secrets, in its warnings, and kube's watches repeat what the agent logs once; hickory warns about
/// each malformed query and answer with their bytes and names.
const NEVER: [&str; 5] = [
    "kube_client",
    "kube_runtime",
    "hickory_net",
    "hickory_proto",
    "hickory_resolver",
];

/// The filter for `log_level`. A bare level applies to our own lines; libraries log from warn on.
/// `trace` is accepted, and equals `debug` in a release, which is built without trace lines.
pub fn filter(log_level: &str) -> Result<Targets, LogError> {
    kinds::check_log_filter(log_level).map_err(LogError::Filter)?;
    let directives = match log_level {
        "warn" | "info" | "debug" | "trace" => format!("warn,mirrorlet={log_level}"),
        _ => log_level.to_owned(),
    };
    let unread = |cause| LogError::Filter(format!("{log_level:?}: {cause}"));
    let targets: Targets = directives.parse().map_err(unread)?;
    Ok(targets.with_targets(NEVER.map(|target| (target, LevelFilter::OFF))))
}

/// Starts logging to standard error, for the rest of the process.
///
/// # Errors
/// The filter is invalid, or logging was started before.
pub fn init(format: LogFormat, log_level: &str) -> Result<(), LogError> {
    let filter = filter(log_level)?;
    let terminal = std::io::stderr().is_terminal();
    let stderr = Stderr {
        to_journal: is_journal(),
    };
    let registry = tracing_subscriber::registry().with(filter);
    if as_json(format, terminal) {
        registry.with(json_layer(stderr)).try_init()
    } else {
        registry
            .with(
                tracing_subscriber::fmt::layer()
                    .with_writer(stderr)
                    .with_ansi(terminal && std::env::var_os("NO_COLOR").is_none())
                    .with_target(false),
            )
            .try_init()
    }
    .map_err(|_| LogError::Twice)
}

/// Standard error. Lines to systemd's journal start with their priority, which the journal strips.
struct Stderr {
    to_journal: bool,
}

impl<'a> MakeWriter<'a> for Stderr {
    type Writer = io::StderrLock<'static>;

    fn make_writer(&'a self) -> Self::Writer {
        io::stderr().lock()
    }

    fn make_writer_for(&'a self, meta: &Metadata<'_>) -> Self::Writer {
        let mut stderr = self.make_writer();
        if self.to_journal {
            // An error is returned by the write of the line itself.
            let _ = stderr.write_all(priority(*meta.level()).as_bytes());
        }
        stderr
    }
}

/// The prefix for the priority of that level, as in `sd-daemon(3)`.
fn priority(level: Level) -> &'static str {
    match level {
        Level::ERROR => "<3>",
        Level::WARN => "<4>",
        Level::INFO => "<6>",
        Level::DEBUG | Level::TRACE => "<7>",
    }
}

/// Whether standard error is the journal: `JOURNAL_STREAM` has the device and inode number of the
/// stream that systemd opened for the service.
fn is_journal() -> bool {
    let Some(stream) = std::env::var("JOURNAL_STREAM").ok() else {
        return false;
    };
    rustix::fs::fstat(io::stderr())
        .is_ok_and(|stat| stream == format!("{}:{}", stat.st_dev, stat.st_ino))
}

fn as_json(format: LogFormat, terminal: bool) -> bool {
    match format {
        LogFormat::Auto => !terminal,
        LogFormat::Text => false,
        LogFormat::Json => true,
    }
}

fn json_layer<S, W>(writer: W) -> impl tracing_subscriber::Layer<S>
where
    S: tracing::Subscriber + for<'a> tracing_subscriber::registry::LookupSpan<'a>,
    W: for<'a> MakeWriter<'a> + 'static,
{
    tracing_subscriber::fmt::layer()
        .json()
        .flatten_event(true)
        .with_current_span(true)
        .with_span_list(false)
        .with_writer(writer)
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn json_lines_carry_the_fields_at_top_level() {
        let lines = Lines::default();
        let writer = lines.clone();
        let subscriber = tracing_subscriber::registry()
            .with(filter("info").unwrap())
            .with(json_layer(move || writer.clone()));
        tracing::subscriber::with_default(subscriber, || {
            tracing::info!(target: "mirrorlet", pod = "default/web", "container started");
            tracing::debug!(target: "mirrorlet", "not this");
            tracing::info!(target: "hyper", "nor this");
            tracing::warn!(target: "kube_client::client", "nor an object's text");
            tracing::warn!(target: "hickory_proto::rr::rdata::opt", "nor a pod's bytes");
            tracing::error!(target: "hickory_resolver::name_server_pool", "nor its names");
            tracing::warn!(target: "hickory_net::udp::udp_client_stream", "nor its names");
        });
        let bytes = lines.0.lock().unwrap().clone();
        let text = String::from_utf8(bytes).unwrap();
        assert_eq!(text.lines().count(), 1, "{text}");
        let line: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(line["pod"], "default/web");
        assert_eq!(line["message"], "container started");
        assert_eq!(line["level"], "INFO");
    }

    #[test]
    fn a_line_to_the_journal_has_its_priority() {
        let levels = [
            Level::ERROR,
            Level::WARN,
            Level::INFO,
            Level::DEBUG,
            Level::TRACE,
        ];
        assert_eq!(levels.map(priority), ["<3>", "<4>", "<6>", "<7>", "<7>"]);
    }

    #[test]
    fn text_on_a_terminal_and_json_elsewhere_unless_told() {
        for (format, terminal, json) in [
            (LogFormat::Auto, true, false),
            (LogFormat::Auto, false, true),
            (LogFormat::Text, false, false),
            (LogFormat::Json, true, true),
        ] {
            assert_eq!(as_json(format, terminal), json);
        }
    }

    #[test]
    fn a_filter_that_means_nothing_is_refused() {
        assert!(filter("mirrorlet=loud").is_err());
        assert!(filter("mirrorlet=debug,hyper=info").is_ok());
        // tracing takes a word alone for a target, and then logs nothing of the others.
        let error = filter("warning").unwrap_err().to_string();
        let words = "invalid log level: \"warning\" is not a log level: use off, error, warn, info, debug, trace, or TARGET=LEVEL; did you mean warn?";
        assert_eq!(error, words);
    }
}
