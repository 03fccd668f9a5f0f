//! Ordinary pods: bound to the Node by a scheduler, ended by whoever deletes them.

use std::time::Duration;

use mirrorlet_apimachinery::meta;
use mirrorlet_apimachinery::resources::PODS;
use mirrorlet_core::api::{ContainerId, PodUid};
use mirrorlet_core::observed::PodStatus;
use serde_json::{Value, json};

use super::cluster::NODE;
use super::invariants::runs;
use super::versions::NAMESPACE;
use super::world::World;

/// The only container of an ordinary pod.
const CONTAINER: &str = "main";
/// Most ordinary pods at a time.
const PODS_MAX: usize = 4;
/// Longer than a pod needs to start when nothing goes wrong.
const STARTED: Duration = Duration::from_millis(50);

/// How an ordinary pod ends if nobody deletes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// The node refuses it.
    Refused,
    /// A container that ends is started again.
    Restarts,
    /// It is over when its container ends.
    Ends,
}

/// An ordinary pod that somebody made.
#[derive(Debug)]
pub(super) struct Ordinary {
    name: String,
    pub(super) uid: PodUid,
    fate: Fate,
    /// The exit code of its only instance, if it has ended by itself.
    code: Option<i32>,
    /// Whether it may have been ended by something else.
    uncertain: bool,
    deleted: bool,
    /// The instance that ran at the last peace, if nothing has happened to it since.
    calm: Option<ContainerId>,
}

impl World {
    /// Somebody makes a pod on our Node.
    pub(super) async fn bind(&mut self) {
        let (restarts, soon) = (self.dice.roll(2) == 0, self.dice.roll(2) == 0);
        let Some(api) = self.api.clone() else {
            return;
        };
        if self.ordinary.iter().filter(|pod| !pod.deleted).count() >= PODS_MAX {
            return;
        }
        let name = format!("job-{}", self.ordinary.len());
        let policy = if restarts { "Always" } else { "Never" };
        let refused = self.dice.roll(4) == 0;
        let (os, words) = if refused {
            ("windows", ", and is for another system")
        } else {
            ("linux", "")
        };
        self.note(&format!(
            "{name}, which restarts {policy}, is bound to the Node{words}"
        ));
        let uid = api.make_pod(json!({
            "metadata": {"name": name, "namespace": NAMESPACE},
            "spec": {
                "nodeName": NODE,
                "os": {"name": os},
                "restartPolicy": policy,
                "terminationGracePeriodSeconds": 20,
                "containers": [{"name": CONTAINER, "image": "app:1"}],
            },
        }));
        self.ordinary.push(Ordinary {
            name,
            uid: uid.as_str().into(),
            fate: match (refused, restarts) {
                (true, _) => Fate::Refused,
                (false, true) => Fate::Restarts,
                (false, false) => Fate::Ends,
            },
            code: None,
            uncertain: false,
            deleted: false,
            calm: None,
        });
        if soon {
            tokio::time::sleep(STARTED).await;
        }
    }

    /// Somebody deletes an ordinary pod.
    pub(super) fn unbind(&mut self) {
        let is_forced = self.dice.roll(3) == 0;
        let Some((api, pod)) = self.api.clone().zip(self.one_of_ordinary()) else {
            return;
        };
        let pod = &mut self.ordinary[pod];
        (pod.deleted, pod.calm) = (true, None);
        let name = pod.name.clone();
        let words = if is_forced { ", by force" } else { "" };
        self.note(&format!("somebody deletes {name}{words}"));
        if is_forced {
            api.remove_pod(NAMESPACE, &name);
        } else {
            api.delete_pod(NAMESPACE, &name);
        }
    }

    /// The container of an ordinary pod ends.
    pub(super) fn exit_ordinary(&mut self) {
        let code = i32::try_from(self.dice.roll(2)).unwrap();
        let Some(number) = self.one_of_ordinary() else {
            return;
        };
        let pod = &mut self.ordinary[number];
        let (name, uid) = (pod.name.clone(), pod.uid.clone());
        pod.calm = None;
        let runs = runs(&self.fake.pod(&uid), CONTAINER);
        if runs {
            pod.code.get_or_insert(code);
            self.fake.exit_container(&uid, CONTAINER, code);
        }
        self.note(&format!("{name} exits with {code}, if it runs"));
    }

    fn one_of_ordinary(&mut self) -> Option<usize> {
        let pods = self.ordinary.iter().enumerate();
        let there: Vec<usize> = pods
            .filter(|(_, pod)| !pod.deleted)
            .map(|(number, _)| number)
            .collect();
        let roll = usize::try_from(self.dice.roll(1 << 16)).unwrap();
        there.get(roll % there.len().max(1)).copied()
    }

    /// Everything that runs has been ended.
    pub(super) fn touch_ordinary(&mut self) {
        for pod in &mut self.ordinary {
            (pod.uncertain, pod.calm) = (true, None);
        }
    }

    /// The ordinary pods to which nothing has happened run on, as they were.
    pub(super) fn check_calm_ordinary(&self) {
        for pod in &self.ordinary {
            if let Some(id) = &pod.calm {
                let seen = self.fake.pod(&pod.uid);
                let mut running = seen.running_containers();
                assert!(
                    running.any(|container| container.id == *id),
                    "{} was stopped, and nothing had happened to it: {seen:#?}",
                    pod.name
                );
            }
        }
    }

    /// Asserts that ordinary pods do as they should, and that those that were deleted are gone.
    pub(super) fn check_ordinary(&mut self) {
        let Some(api) = self.api.clone() else {
            return;
        };
        for pod in &mut self.ordinary {
            let seen = self.fake.pod(&pod.uid);
            let object = api.get(&PODS, NAMESPACE, &pod.name);
            if pod.deleted {
                assert!(seen.is_empty(), "{} is left: {seen:#?}", pod.name);
                assert_eq!(object, None, "{} is still shown", pod.name);
                continue;
            }
            let object = object.unwrap_or_else(|| panic!("{} is gone", pod.name));
            assert_eq!(meta::uid(&object), pod.uid.as_str());
            pod.check(&seen, &object["status"]);
            let running = seen.running_containers().next();
            pod.calm = running.map(|container| container.id.clone());
        }
    }

    /// The UIDs of ordinary pods that the agent deals with, the ended ones too. Of a refused one
    /// nothing is kept at rest.
    pub(super) fn ordinary_uids(&self) -> impl Iterator<Item = PodUid> {
        let there = self.ordinary.iter();
        let there = there.filter(|pod| !pod.deleted && pod.fate != Fate::Refused);
        there.map(|pod| pod.uid.clone())
    }
}

impl Ordinary {
    fn check(&self, seen: &PodStatus, status: &Value) {
        let (name, phase) = (&self.name, status["phase"].as_str());
        if self.fate == Fate::Refused {
            assert_eq!(phase, Some("Failed"), "{name}: {status:#}");
            assert!(seen.is_empty(), "{name} is here: {seen:#?}");
            return;
        }
        let state = &status["containerStatuses"][0]["state"];
        if self.fate == Fate::Restarts {
            assert!(runs(seen, CONTAINER), "{name} does not run: {seen:#?}");
            assert_eq!(phase, Some("Running"), "{name}: {status:#}");
        }
        if runs(seen, CONTAINER) {
            assert_eq!(phase, Some("Running"), "{name}: {status:#}");
            assert!(state["running"].is_object(), "{name}: {status:#}");
            let mut running = seen.running_containers();
            let id = &status["containerStatuses"][0]["containerID"];
            assert!(
                running.any(|container| *id == *container.id.to_string()),
                "{name}: {status:#}"
            );
        } else {
            let is_over = matches!(phase, Some("Succeeded" | "Failed"));
            assert!(is_over, "{name} does not run, and is not over: {status:#}");
        }
        let Some(code) = self
            .code
            .filter(|_| self.fate == Fate::Ends && !self.uncertain)
        else {
            return;
        };
        let expected = if code == 0 { "Succeeded" } else { "Failed" };
        assert_eq!(phase, Some(expected), "{name}: {status:#}");
        assert_eq!(state["terminated"]["exitCode"], code, "{name}: {status:#}");
    }
}
