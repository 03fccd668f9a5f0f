//! One reading of all running pods and the machine.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::cgroups::{Buffer, Cgroups};
use super::disks::{Disks, Target};
use super::usages::{Owner, Usages};
use super::{EngineDirs, StatsError, StatsOptions, machine};
use crate::store::board::PodView;
use mirrorlet_core::api::{Pod, PodUid, Timestamp, core, keys};
use mirrorlet_core::clock::since;
use mirrorlet_core::observed::{ContainerState, PodStatus, SandboxStatus};
use mirrorlet_core::payload;
use mirrorlet_core::resources::{cgroup_root, qos_class};
use mirrorlet_core::small::SmallSort;
use mirrorlet_core::spec;
use mirrorlet_core::stats::{
    ContainerReading, Disk, Network, PodReading, Reading, Scope, SystemReading, Usage,
    VolumeReading, cgroup, place, proc, sum,
};
use mirrorlet_core::volumes::{PodPaths, is_local_ephemeral};
use mirrorlet_host::telemetry::occurrences;

/// Shortest time between two searches of all cgroups for those that aren't where they should be.
const SEARCH_WAIT: Duration = Duration::from_mins(1);

/// The service that an Engine installed as a package runs in.
const ENGINE_SERVICE: &str = "system.slice/docker.service";

/// A question.
pub(super) struct Asked<'a> {
    pub(super) options: &'a StatsOptions,
    pub(super) disks: &'a Disks,
    pub(super) scope: Scope,
    /// The Engine's directories, where they are this machine's.
    pub(super) engine_dirs: Option<&'a EngineDirs>,
    pub(super) now: Timestamp,
}

/// The paths of a container.
#[derive(Clone)]
struct Place {
    cgroup: Arc<str>,
    upper: Upper,
}

/// The upper directory of a container.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Upper {
    /// It has not been read yet.
    Unknown,
    /// It has no upper directory, or an unknown one.
    None,
    At(PathBuf),
}

/// Reads the usage, and keeps the data for rates and the next search.
pub(super) struct UsageReader {
    cgroups: Cgroups,
    buffer: Buffer,
    usages: Usages,
    places: HashMap<Arc<str>, Place>,
    searched: Option<Timestamp>,
    /// Whether the disks of all pods were measured at the last reading, as far as possible.
    pub(super) is_measured: bool,
    created_at: Timestamp,
}

impl UsageReader {
    pub(super) fn new(options: &StatsOptions, fresh: Duration) -> Self {
        Self {
            cgroups: Cgroups::new(&options.kernel.cgroup),
            buffer: Buffer::default(),
            usages: Usages::new(fresh),
            places: HashMap::new(),
            searched: None,
            is_measured: false,
            created_at: (options.now)(),
        }
    }

    /// Reads the machine and all pods with running containers. Blocks.
    ///
    /// # Errors
    /// The machine's own numbers can't be read.
    pub(super) fn look(
        &mut self,
        asked: &Asked<'_>,
        views: &[PodView],
    ) -> Result<Reading, StatsError> {
        self.usages.begin();
        let options = asked.options;
        let mut node = machine::read(
            &options.kernel,
            &options.node_name,
            &options.root,
            asked.scope,
            asked.now,
            &mut self.buffer,
        )?;
        node.usage = self.usages.rated("".into(), node.usage, asked);
        if let Some(dirs) = asked.engine_dirs
            && let Some(disk) = machine::file_system(&dirs.images, asked.now)
        {
            let whole = machine::with_use(disk);
            node.image_fs = Some(Disk {
                used_bytes: options.engine.image_bytes(),
                ..whole
            });
        }
        node.systems = self.systems(asked);
        let pods = self.pods(asked, views);
        Ok(Reading {
            time: asked.now,
            node,
            pods,
        })
    }

    /// Reads these pods, and forgets all others. Blocks.
    pub(super) fn look_at_pods(&mut self, asked: &Asked<'_>, views: &[PodView]) -> Vec<PodReading> {
        self.usages.begin();
        self.pods(asked, views)
    }

    /// The pods of which something runs, by namespace and name.
    fn pods(&mut self, asked: &Asked<'_>, views: &[PodView]) -> Vec<PodReading> {
        self.find(asked.options, views, asked.now);
        let mut pods: Vec<PodReading> = views
            .iter()
            .filter_map(|view| self.pod(view, asked))
            .collect();
        pods.small_sort_by(|a, b| {
            (&a.namespace, &a.name, &a.uid).cmp(&(&b.namespace, &b.name, &b.uid))
        });
        if asked.scope > Scope::CpuAndMemory {
            self.measure(&mut pods, views, asked);
        }
        self.usages.forget_unread();
        pods
    }

    /// Finds the cgroups of all containers that run and weren't found before.
    fn find(&mut self, options: &StatsOptions, views: &[PodView], now: Timestamp) {
        let mut running: HashSet<&str> = HashSet::new();
        let mut missing: HashSet<&str> = HashSet::new();
        for view in views {
            let (mut class, pod) = (None, view.pod.as_deref());
            let root = pod.map_or(&*options.cgroup_root, |pod| {
                cgroup_root(&options.cgroup_root, pod)
            });
            for id in running_ids(&view.observed) {
                running.insert(id);
                if self.places.contains_key(id) {
                    continue;
                }
                let class = *class.get_or_insert_with(|| pod.map(qos_class));
                let may_be = place::candidates(root, class, &view.uid, id);
                match may_be.into_iter().find(|path| self.cgroups.exists(path)) {
                    Some(path) => self.found(id, &path),
                    None => {
                        missing.insert(id);
                    }
                }
            }
        }
        self.places.retain(|id, _| running.contains(&**id));
        let may_search = |at: Timestamp| since(at, now) >= SEARCH_WAIT;
        if missing.is_empty() || !self.searched.is_none_or(may_search) {
            return;
        }
        self.searched = Some(now);
        let found = self.cgroups.search(&missing);
        for (id, path) in &found {
            self.found(id, path);
        }
        if found.len() < missing.len() {
            occurrences::cgroups_missing(missing.len() - found.len());
        }
    }

    fn found(&mut self, id: &str, path: &str) {
        let place = Place {
            cgroup: path.into(),
            upper: Upper::Unknown,
        };
        self.places.insert(id.into(), place);
    }

    /// The usage of a cgroup, read now or cached; `None` if it is gone.
    fn usage(&mut self, path: &Arc<str>, asked: &Asked<'_>) -> Option<Usage> {
        let Self {
            cgroups, buffer, ..
        } = self;
        self.usages.read(cgroups, buffer, path, asked, Owner::Other)
    }

    fn pod(&mut self, view: &PodView, asked: &Asked<'_>) -> Option<PodReading> {
        let sandbox = running_sandbox(&view.observed).and_then(|sandbox| {
            let place = self.places.get(&*sandbox.id.id)?;
            Some((sandbox, Arc::clone(&place.cgroup)))
        });
        let mut containers = self.containers(view, asked);
        // The cgroup of the pod is the parent of any of its containers'.
        let child = match (&sandbox, containers.first()) {
            (Some((_, path)), _) => path.to_string(),
            (None, Some(container)) => container.cgroup.trim_start_matches('/').to_owned(),
            (None, None) => return None,
        };
        containers.small_sort_by(|a, b| a.name.cmp(&b.name));
        let own = child.rsplit_once('/').map(|(parent, _)| parent);
        let own = own.filter(|parent| place::is_of_pod(parent, &view.uid));
        let own = own.and_then(|parent| Some((parent, self.usage(&parent.into(), asked)?)));
        let with_sandbox = asked.scope == Scope::Detailed;
        let sandbox_usage = match &sandbox {
            Some((_, path)) if with_sandbox || own.is_none() => {
                let (cgroups, buffer) = (&mut self.cgroups, &mut self.buffer);
                self.usages
                    .read(cgroups, buffer, path, asked, Owner::Sandbox)
            }
            _ => None,
        };
        let parts = containers.iter().map(|container| &container.usage);
        let parts: Vec<&Usage> = parts.chain(&sandbox_usage).collect();
        let summed = sum(asked.now, &parts);
        let network = match &sandbox {
            Some((sandbox, path)) if asked.scope > Scope::CpuAndMemory && !sandbox.host_network => {
                self.network(path, asked)
            }
            _ => None,
        };
        let sandbox = sandbox.zip(sandbox_usage.filter(|_| with_sandbox));
        Some(PodReading {
            name: (*view.full_name.name).into(),
            namespace: (*view.full_name.namespace).into(),
            uid: view.uid.clone(),
            started_at: started_at(view),
            cgroup: own.as_ref().map(|(parent, _)| format!("/{parent}")),
            usage: match own {
                // Processes are in the cgroups below.
                Some((_, usage)) => Usage {
                    processes: summed.processes,
                    ..usage
                },
                None => summed,
            },
            network,
            sandbox: sandbox.map(|((sandbox, path), usage)| ContainerReading {
                name: keys::SANDBOX_NAME.into(),
                engine_name: engine_name(view, asked, keys::SANDBOX_NAME, sandbox.attempt),
                image: asked.options.sandbox_image.as_str().into(),
                started_at: sandbox.created_at,
                cgroup: format!("/{path}"),
                usage,
                rootfs: None,
                logs: None,
            }),
            containers,
            ..PodReading::default()
        })
    }

    /// The usage of a pod's containers, one instance of each.
    fn containers(&mut self, view: &PodView, asked: &Asked<'_>) -> Vec<ContainerReading> {
        let mut names = HashSet::new();
        let mut running: Vec<_> = view.observed.running_containers().collect();
        running.retain(|container| names.insert(&*container.name));
        let readings = running.into_iter().filter_map(|container| {
            let path = Arc::clone(&self.places.get(&*container.id.id)?.cgroup);
            let owner = Owner::Container(view, &container.name);
            let (cgroups, buffer) = (&mut self.cgroups, &mut self.buffer);
            let usage = self.usages.read(cgroups, buffer, &path, asked, owner)?;
            Some(ContainerReading {
                name: Arc::clone(&container.name),
                engine_name: engine_name(view, asked, &container.name, container.restart_count),
                image: Arc::clone(&container.image),
                started_at: container.started_at.unwrap_or(container.created_at),
                cgroup: format!("/{path}"),
                usage,
                rootfs: None,
                logs: None,
            })
        });
        readings.collect()
    }

    /// The network that the process in that cgroup is in.
    fn network(&mut self, path: &str, asked: &Asked<'_>) -> Option<Network> {
        let mut files = self.cgroups.open(path, &mut self.buffer);
        let pid = cgroup::first_process(&mut files)?;
        let net_dev = asked.options.kernel.proc.join(format!("{pid}/net/dev"));
        Some(Network {
            time: asked.now,
            interfaces: proc::interfaces(self.buffer.read(net_dev)?),
        })
    }

    /// Adds what is known of the pods' disks, and has the rest measured.
    fn measure(&mut self, pods: &mut [PodReading], views: &[PodView], asked: &Asked<'_>) {
        let by_uid: HashMap<&PodUid, &PodView> = views.iter().map(|v| (&v.uid, v)).collect();
        let mut targets = HashSet::new();
        let mut of_pods = Vec::with_capacity(pods.len());
        for pod in &*pods {
            let view = by_uid.get(&pod.uid);
            let found = view.map(|view| self.targets(pod, view, asked));
            let found = found.unwrap_or_default();
            targets.extend(found.all().cloned());
            of_pods.push(found);
        }
        let known = asked.disks.ask(&targets);
        self.is_measured = known.is_complete;
        let get = |target: &Target| known.disks.get(target).copied();
        for (pod, targets) in pods.iter_mut().zip(of_pods) {
            for container in &mut pod.containers {
                let of_it = |of: &BTreeMap<Arc<str>, Target>| of.get(&container.name).and_then(get);
                let (rootfs, logs) = (of_it(&targets.rootfs), of_it(&targets.logs));
                (container.rootfs, container.logs) = (rootfs, logs);
            }
            let volumes = targets.volumes.into_iter();
            pod.volumes = volumes
                .filter_map(|volume| {
                    Some(VolumeReading {
                        name: volume.name,
                        disk: get(&volume.target)?,
                        is_ephemeral: volume.is_ephemeral,
                    })
                })
                .collect();
        }
    }

    fn targets(&mut self, pod: &PodReading, view: &PodView, asked: &Asked<'_>) -> Targets {
        let mut targets = Targets::default();
        for container in &pod.containers {
            let name = &container.name;
            let instance = view.observed.find_container_status_by_name(name);
            let Some(instance) = instance.filter(|c| c.state == ContainerState::Running) else {
                continue;
            };
            let id = &*instance.id.id;
            if let Some(upper) = self.upper(id, asked) {
                targets.rootfs.insert(Arc::clone(name), Target::Tree(upper));
            }
            if let Some(dirs) = asked.engine_dirs {
                let directory = dirs.root.join("containers").join(id);
                targets
                    .logs
                    .insert(Arc::clone(name), Target::Logs(directory));
            }
        }
        let paths = PodPaths::new(&asked.options.root, &view.uid);
        let sandbox = running_sandbox(&view.observed).map(|sandbox| &sandbox.id.id);
        let sandbox = sandbox.map_or_else(|| "".into(), Arc::clone);
        let volumes = view
            .pod
            .as_deref()
            .map(|pod| volumes(pod, &paths, &sandbox));
        targets.volumes = volumes.unwrap_or_default();
        targets
    }

    /// The upper directory of a container.
    fn upper(&mut self, id: &str, asked: &Asked<'_>) -> Option<PathBuf> {
        let place = self.places.get(id)?;
        match &place.upper {
            Upper::Unknown => {}
            Upper::None => return None,
            Upper::At(path) => return Some(path.clone()),
        }
        let mut files = self.cgroups.open(&place.cgroup, &mut self.buffer);
        let pid = cgroup::first_process(&mut files)?;
        let mountinfo = asked.options.kernel.proc.join(format!("{pid}/mountinfo"));
        let upper = self.buffer.read(mountinfo).map(proc::upper_dir)?;
        // The kernel has the path of the Engine's machine.
        let upper = upper.and_then(|path| asked.options.engine.seen(Path::new(&path)));
        let known = upper.clone().map_or(Upper::None, Upper::At);
        self.places.get_mut(id)?.upper = known;
        upper
    }

    /// The system containers that a kubelet reports besides the pods.
    ///
    /// Upstream: `pkg/kubelet/server/stats/summary_sys_containers.go`.
    fn systems(&mut self, asked: &Asked<'_>) -> Vec<SystemReading> {
        let own = self.own_cgroup(asked);
        let pods = asked.options.cgroup_root.trim_matches('/').to_owned();
        let parts = [
            ("kubelet", own, Some(self.created_at)),
            ("runtime", Some(ENGINE_SERVICE.to_owned()), None),
            ("pods", Some(pods), None),
        ];
        parts
            .into_iter()
            .filter_map(|(name, path, started_at)| {
                let path = path.filter(|path| !path.is_empty())?;
                let usage = self.usage(&path.as_str().into(), asked)?;
                Some(SystemReading {
                    name,
                    cgroup: format!("/{path}"),
                    started_at,
                    usage,
                })
            })
            .collect()
    }

    /// Our own cgroup; none if we have none, or if its path is not valid here.
    fn own_cgroup(&mut self, asked: &Asked<'_>) -> Option<String> {
        let text = self
            .buffer
            .read(asked.options.kernel.proc.join("self/cgroup"))?;
        let path = match self.cgroups.version() {
            cgroup::Version::V2 => proc::cgroup_of(text, None)?,
            cgroup::Version::V1 => {
                let memory = proc::cgroup_of(text, Some("memory"))?;
                let cpu = proc::cgroup_of(text, Some("cpuacct"))?;
                (memory == cpu).then_some(memory)?
            }
        };
        (!path.contains("..")).then(|| path.trim_matches('/').to_owned())
    }
}

/// The disk targets of a pod.
#[derive(Default)]
struct Targets {
    rootfs: BTreeMap<Arc<str>, Target>,
    logs: BTreeMap<Arc<str>, Target>,
    volumes: Vec<VolumeTarget>,
}

struct VolumeTarget {
    name: String,
    target: Target,
    is_ephemeral: bool,
}

impl Targets {
    fn all(&self) -> impl Iterator<Item = &Target> {
        let volumes = self.volumes.iter().map(|volume| &volume.target);
        self.rootfs
            .values()
            .chain(self.logs.values())
            .chain(volumes)
    }
}

fn running_sandbox(observed: &PodStatus) -> Option<&SandboxStatus> {
    let mut sandboxes = observed.sandboxes.iter();
    sandboxes.find(|sandbox| sandbox.state == ContainerState::Running)
}

fn running_ids(observed: &PodStatus) -> impl Iterator<Item = &str> {
    let sandboxes = observed.sandboxes.iter();
    let sandboxes = sandboxes.filter(|sandbox| sandbox.state == ContainerState::Running);
    let containers = observed.running_containers().map(|c| &*c.id.id);
    sandboxes.map(|sandbox| &*sandbox.id.id).chain(containers)
}

/// Name of a container on the Engine, which only cAdvisor's page has.
fn engine_name(view: &PodView, asked: &Asked<'_>, container: &str, attempt: u32) -> String {
    if asked.scope < Scope::Detailed {
        return String::new();
    }
    (asked.options.engine_name)(container, &view.full_name, &view.uid, attempt)
}

fn started_at(view: &PodView) -> Option<Timestamp> {
    let reported = view
        .status
        .as_ref()
        .and_then(|status| status.start_time.as_ref());
    reported
        .map(|time| time.0)
        .or_else(|| view.observed.pod_started_at())
}

/// A pod's volumes on this machine's disks and in its memory, as far as their files are the pod's own.
fn volumes(pod: &Pod, paths: &PodPaths, sandbox: &Arc<str>) -> Vec<VolumeTarget> {
    let all = spec::spec(pod).volumes.iter().flatten();
    all.filter_map(|volume: &core::Volume| {
        let name = &volume.name;
        let path = if volume.empty_dir.is_some() {
            paths.empty_dir(name)
        } else {
            paths.volume(payload::Kind::of(volume)?.plugin(), name)
        };
        let sandbox = Arc::clone(sandbox);
        Some(VolumeTarget {
            name: name.clone(),
            target: Target::Volume { path, sandbox },
            is_ephemeral: is_local_ephemeral(volume),
        })
    })
    .collect()
}
