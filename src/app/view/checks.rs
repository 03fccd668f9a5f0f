//! The checks of `/readyz`.

use super::View;
use crate::server::view::Check;
use crate::source::SourceReader;
use mirrorlet_core::api::report::{EngineReport, SourceReport};
use mirrorlet_core::desired::PodSource;
use mirrorlet_core::node::RuntimeReach;

impl View {
    /// The checks of the Engine, and one for each source. API pods are delivered only after the Node is
    /// registered, which waits for an Engine that never answered before: a host without one must not
    /// block a rollout to the other hosts.
    pub(super) fn readiness(&self) -> Vec<Check> {
        let before = self.engine_before.as_deref();
        let (reach, engine) = (self.reach.borrow(), self.engine.borrow());
        let mut checks = engine_checks(&reach, &engine, before);
        let has_none = self.engine_is_new && !was_reached(&reach, &engine);
        let reports = self.sources.iter().map(SourceReader::report);
        checks.extend(source_checks(reports, has_none));
        checks
    }
}

/// A check of each source; without that of the API server where the host `has_none`, no Engine.
fn source_checks(
    reports: impl Iterator<Item = SourceReport>,
    has_none: bool,
) -> impl Iterator<Item = Check> {
    let api = PodSource::Api.to_string();
    let reports = reports.filter(move |report| !has_none || report.kind != api);
    reports.map(|report| Check {
        name: format!("source {}", report.location),
        failing: (!report.synced).then(|| {
            let problem = report.problems.first();
            problem.map_or_else(|| "not read yet".to_owned(), ToString::to_string)
        }),
    })
}

/// Whether the Engine has answered this agent: it has a version then.
fn was_reached(reach: &RuntimeReach, engine: &EngineReport) -> bool {
    *reach == RuntimeReach::Up || engine.version.is_some()
}

/// The checks of the Engine: whether it answers, and, if the last agent used another address, `before`,
/// whether it has answered at this one. A wrong address is a configuration error that must stop a
/// rollout, which excludes the first check alone: an unavailable Engine stops none.
fn engine_checks(reach: &RuntimeReach, engine: &EngineReport, before: Option<&str>) -> Vec<Check> {
    let away = match reach {
        RuntimeReach::Up => None,
        RuntimeReach::Unknown => Some("not reached yet".to_owned()),
        RuntimeReach::Down(cause) => Some(cause.clone()),
    };
    let was_reached = was_reached(reach, engine);
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
    fn a_host_without_an_engine_is_not_asked_for_pods_of_the_api_server() {
        let report = |source: PodSource, location: &str| SourceReport {
            kind: source.to_string(),
            location: location.to_owned(),
            synced: false,
            last_success: None,
            pods: 0,
            objects: 0,
            problems: Vec::new(),
            ignored: Vec::new(),
        };
        let reports = || {
            let file = report(PodSource::File, "/manifests");
            [file, report(PodSource::Api, "the API server")].into_iter()
        };
        let names = |has_none| source_checks(reports(), has_none).map(|check| check.name);
        let file = "source /manifests".to_owned();
        // node 6p
        assert!(names(true).eq([file.clone()]));
        assert!(names(false).eq([file, "source the API server".to_owned()]));
        let up = (RuntimeReach::Up, EngineReport::default());
        assert!(was_reached(&up.0, &up.1));
        assert!(!was_reached(&RuntimeReach::Unknown, &up.1));
    }

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
