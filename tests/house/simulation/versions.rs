//! The versions of pods in play, and what is wrong with them.

use std::sync::Arc;
use std::time::Duration;

use mirrorlet_core::api::{FullName, Pod, PodUid, keys};
use mirrorlet_runtime::CommandOutput;
use mirrorlet_testing::fake_runtime::FakeRuntime;

use super::cluster::NODE;
use super::dice::Dice;

/// The namespace of all pods.
pub(super) const NAMESPACE: &str = "ns";
/// The container that crashes, and that is probed.
pub(super) const FIRST: &str = "c0";
/// Times after which a bad version crashes: at once, and before it can be taken for healthy.
const CRASHES_AFTER: [Duration; 2] = [Duration::from_millis(10), Duration::from_secs(4)];

/// How a version does once it runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Temper {
    /// It runs, and is ready.
    Good,
    /// Its first container exits again and again.
    Crashes,
    /// It runs, and is never ready.
    NeverReady,
}

/// One version of a pod.
#[derive(Debug, Clone)]
pub(super) struct Version {
    /// The number of its full name.
    pub(super) name: u64,
    pub(super) temper: Temper,
    pub(super) starts_first: bool,
    pub(super) pod: Arc<Pod>,
}

impl Version {
    /// Throws a version, the `number`th of all, and has the runtime treat it as its temper is.
    pub(super) fn throw(
        dice: &mut Dice,
        fake: &FakeRuntime,
        name: u64,
        number: usize,
        temper: Temper,
    ) -> Self {
        let containers = 1 + dice.roll(3);
        let starts_first = dice.roll(2) == 0;
        let probed = dice.roll(3) == 0 || temper == Temper::NeverReady;
        let ready = format!("ready-{number}");
        let containers: Vec<_> = (0..containers)
            .map(|n| {
                let mut container = serde_json::json!({
                    "name": format!("c{n}"),
                    "image": format!("app:{number}"),
                });
                // A number says it, and no dice: other lives stay as they are.
                if n == 0 && restarts_all(temper, number) {
                    container["restartPolicy"] = "Always".into();
                    container["restartPolicyRules"] = serde_json::json!([{
                        "action": "RestartAllContainers",
                        "exitCodes": {"operator": "In", "values": [1]},
                    }]);
                }
                if n == 0 && probed {
                    container["readinessProbe"] = serde_json::json!({
                        "exec": {"command": [&ready]}, "periodSeconds": 30,
                    });
                }
                container
            })
            .collect();
        let uid = format!("pod-{name}-v{number}");
        let pod = serde_json::json!({
            "metadata": {
                "name": format!("pod-{name}"),
                "namespace": NAMESPACE,
                "uid": uid,
                "annotations": {
                    "mirrorlet.dev/rollout": strategy(starts_first),
                    keys::CONFIG_SOURCE: "file",
                    keys::CONFIG_HASH: uid,
                },
            },
            "spec": {
                "nodeName": NODE,
                "containers": containers,
                "terminationGracePeriodSeconds": 20,
            },
        });
        let version = Self {
            name,
            temper,
            starts_first,
            pod: Arc::new(serde_json::from_value(pod).unwrap()),
        };
        match temper {
            Temper::Good => {}
            Temper::Crashes => {
                let after = dice.one_of(&CRASHES_AFTER);
                fake.set_crash(&version.uid(), FIRST, after, 1);
            }
            Temper::NeverReady => {
                let no = CommandOutput {
                    exit_code: 1,
                    ..CommandOutput::default()
                };
                fake.set_command_result(&[&ready], Ok(no));
            }
        }
        version
    }

    /// Whether all of its containers are restarted when that one exits with that code.
    pub(super) fn restarts_all(&self, container: &str, code: i32) -> bool {
        let containers = self.pod.spec.iter().flat_map(|spec| &spec.containers);
        let mut named = containers.filter(|one| one.name == container);
        named.any(|one| mirrorlet_core::restart::restarts_all(one, code))
    }

    pub(super) fn strategy(&self) -> &'static str {
        strategy(self.starts_first)
    }

    pub(super) fn uid(&self) -> PodUid {
        PodUid::of(&self.pod)
    }

    pub(super) fn full_name(&self) -> FullName {
        FullName::of(&self.pod)
    }

    /// The names of the containers that run when it does as well as it can.
    pub(super) fn running_containers(&self) -> impl Iterator<Item = &str> {
        let containers = self.pod.spec.iter().flat_map(|spec| &spec.containers);
        let crashes = self.temper == Temper::Crashes;
        containers
            .map(|container| container.name.as_str())
            .filter(move |name| !(crashes && *name == FIRST))
    }
}

/// Whether an exit of a version's first container may restart all of its containers. Those of one that
/// crashes again and again would never be left in peace.
fn restarts_all(temper: Temper, number: usize) -> bool {
    temper != Temper::Crashes && number % 3 == 1
}

fn strategy(starts_first: bool) -> &'static str {
    if starts_first {
        "StartFirst"
    } else {
        "Recreate"
    }
}
