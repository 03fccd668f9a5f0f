//! The checks of `/readyz`.

use super::View;
use crate::server::view::Check;
use mirrorlet_core::api::report::EngineReport;
use mirrorlet_core::node::RuntimeReach;

impl View {
    /// The checks of the Engine, and one of each source.
    pub(super) fn readiness(&self) -> Vec<Check> {
        let before = self.engine_before.as_deref();
        let mut checks = engine_checks(&self.reach.borrow(), &self.engine.borrow(), before);
        checks.extend(self.sources.iter().map(|source| {
            let report = source.report();
            Check {
                name: format!("source {}", report.location),
                failing: (!report.synced).then(|| {
                    report
                        .problems
                        .first()
                        .map_or_else(|| "not read yet".to_owned(), ToString::to_string)
                }),
            }
        }));
        checks
    }
}

/// The checks of the Engine: whether it answers, and, if the last agent used another address, `before`,
/// whether it has answered at this one. A wrong address is an error of the configuration, so that a
/// rollout of it has to stop, which excludes the first check alone: an Engine that is away stops none.
fn engine_checks(reach: &RuntimeReach, engine: &EngineReport, before: Option<&str>) -> Vec<Check> {
    let away = match reach {
        RuntimeReach::Up => None,
        RuntimeReach::Unknown => Some("not reached yet".to_owned()),
        RuntimeReach::Down(cause) => Some(cause.clone()),
    };
    // It has a version once it was reached.
    let was_reached = away.is_none() || engine.version.is_some();
    let address = before.map(|before| Check {
        name: "engine-address".to_owned(),
        failing: (!was_reached).then(|| {
            let now = &engine.endpoint;
            format!("the Docker Engine at {now} has not answered yet; the last agent used {before}")
        }),
    });
    let engine = Check {
        name: "engine".to_owned(),
        failing: away,
    };
    [Some(engine), address].into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_address_of_the_engine_is_checked_until_it_has_answered() {
        let down = || RuntimeReach::Down("refused".to_owned());
        let address = "engine-address: the Docker Engine at unix:///new has not answered yet; the last agent used unix:///old";
        let (engine, is_up, was_up) = ("engine: refused", "engine: ok", "engine-address: ok");
        for (reach, version, before, expected) in [
            (RuntimeReach::Up, Some("1"), None, vec![is_up]),
            (
                RuntimeReach::Unknown,
                None,
                None,
                vec!["engine: not reached yet"],
            ),
            // The Engine that was used before, or none ever.
            (down(), None, None, vec![engine]),
            (down(), Some("1"), None, vec![engine]),
            (
                RuntimeReach::Unknown,
                None,
                Some("unix:///old"),
                vec!["engine: not reached yet", address],
            ),
            (down(), None, Some("unix:///old"), vec![engine, address]),
            (
                RuntimeReach::Up,
                None,
                Some("unix:///old"),
                vec![is_up, was_up],
            ),
            (down(), Some("1"), Some("unix:///old"), vec![engine, was_up]),
        ] {
            let report = EngineReport {
                endpoint: "unix:///new".to_owned(),
                version: version.map(str::to_owned),
                ..EngineReport::default()
            };
            let checks = engine_checks(&reach, &report, before).into_iter();
            let lines = checks.map(|Check { name, failing }| {
                format!("{name}: {}", failing.unwrap_or_else(|| "ok".to_owned()))
            });
            let lines: Vec<String> = lines.collect();
            assert_eq!(lines, expected);
        }
    }
}
