//! Label and annotation keys. Defined in one place, so that modules can't disagree.

/// Annotation of a static pod: its hash, equal to its UID.
pub const CONFIG_HASH: &str = "kubernetes.io/config.hash";
/// Annotation that makes a pod a mirror; its value is the static pod's [`CONFIG_HASH`].
pub const CONFIG_MIRROR: &str = "kubernetes.io/config.mirror";
/// Annotation with the source of a pod: `file`, `http` or `api`.
pub const CONFIG_SOURCE: &str = "kubernetes.io/config.source";
/// Annotation with the time when a pod was first seen (RFC 3339, nanoseconds).
pub const CONFIG_SEEN: &str = "kubernetes.io/config.seen";

/// Container label: name of the pod.
pub const POD_NAME: &str = "io.kubernetes.pod.name";
/// Container label: namespace of the pod.
pub const POD_NAMESPACE: &str = "io.kubernetes.pod.namespace";
/// Container label: UID of the pod.
pub const POD_UID: &str = "io.kubernetes.pod.uid";
/// Container label: name of the container in the pod's spec; [`SANDBOX_NAME`] on a sandbox.
pub const CONTAINER_NAME: &str = "io.kubernetes.container.name";
/// Container label: full id of the sandbox container.
pub const SANDBOX_ID: &str = "io.kubernetes.sandbox.id";
/// Container label: absolute path of the log in the kubelet's layout.
pub const LOG_PATH: &str = "io.kubernetes.container.logpath";
/// Value of [`CONTAINER_NAME`] on a sandbox.
pub const SANDBOX_NAME: &str = "POD";

/// Prefix that the shim uses for CRI annotations in container labels.
pub const ANNOTATION_PREFIX: &str = "annotation.";
/// Container label: container hash, lower-case hex.
pub const CONTAINER_HASH: &str = "annotation.io.kubernetes.container.hash";
/// Container label: restart count, decimal.
pub const RESTART_COUNT: &str = "annotation.io.kubernetes.container.restartCount";
/// Container label: where the termination message is mounted.
pub const TERMINATION_PATH: &str = "annotation.io.kubernetes.container.terminationMessagePath";
/// Container label: `File` or `FallbackToLogsOnError`.
pub const TERMINATION_POLICY: &str = "annotation.io.kubernetes.container.terminationMessagePolicy";
/// Container label: the pod's `terminationGracePeriodSeconds`.
pub const TERMINATION_GRACE: &str = "annotation.io.kubernetes.pod.terminationGracePeriod";
/// Container label: JSON of the container's preStop handler; empty if it has none.
pub const PRE_STOP_HANDLER: &str = "annotation.io.kubernetes.container.preStopHandler";
/// Container label: JSON of the container's ports, for handlers that refer to one by name; empty if it
/// has none.
pub const CONTAINER_PORTS: &str = "annotation.io.kubernetes.container.ports";
/// Label by which cri-dockerd recognizes its containers. Never set by us: see `docs/adr/0003`.
pub const SHIM_TYPE: &str = "io.kubernetes.docker.type";

/// Our ownership label; its value is the owner id that is stored in the root directory.
pub const OWNER: &str = "mirrorlet.dev/owner";
/// Our annotation of a mirror that is not a complete copy: the omitted fields, which the API server
/// forbids for mirrors.
pub const SANITIZED: &str = "mirrorlet.dev/sanitized";
/// Our annotation of a pod that runs in place of a newer revision: the UID of that revision.
pub const HELD_REVISION: &str = "mirrorlet.dev/held-revision";
/// Our annotation beside [`HELD_REVISION`]: why that revision doesn't run, in one word.
pub const HELD_REASON: &str = "mirrorlet.dev/held-reason";
/// Our annotation beside [`HELD_REVISION`]: why that revision doesn't run, in a sentence.
pub const HELD_MESSAGE: &str = "mirrorlet.dev/held-message";
/// All annotations of a pod that runs in place of a newer revision.
pub const HELD: [&str; 3] = [HELD_REVISION, HELD_REASON, HELD_MESSAGE];
/// Our annotation of a revision that runs beside the one that it will replace: its host ports are not
/// forwarded to it yet. Never in a manifest.
pub const BESIDE: &str = "mirrorlet.dev/beside";
/// Our annotation of a pod that a user stopped with `mirrorlet stop`. Never in a manifest.
pub const STOPPED: &str = "mirrorlet.dev/stopped";
/// Value of [`STOPPED`] for a pod that waits until its Node is uncordoned.
pub const CORDONED: &str = "cordoned";
/// Our annotation of a pod with instances that a user wants replaced: their ids, separated by commas.
/// Never in a manifest.
pub const RESTART: &str = "mirrorlet.dev/restart";
/// Annotation of a static pod that makes the referenced objects part of its version.
pub const RESTART_ON: &str = "mirrorlet.dev/restart-on";
/// Our annotation of a pod of a workload in a manifest: the workload, as `Deployment/web`. Never in a
/// manifest.
pub const WORKLOAD: &str = "mirrorlet.dev/workload";
/// Our annotation of a workload's pods: a hash of their template, which identifies the version. Never
/// in a manifest.
pub const TEMPLATE: &str = "mirrorlet.dev/pod-template-hash";
/// Our annotation of a workload's pods: their update strategy, as JSON. Never in a manifest.
pub const UPDATES: &str = "mirrorlet.dev/updates";
/// Our annotation of a pod that the embedded API stores: the UID of the object, which stays the same
/// while the pod's own UID follows its spec. Never in a manifest.
pub const OBJECT_UID: &str = "mirrorlet.dev/object-uid";
/// Label of a pod of a `StatefulSet`: its name, without the node's suffix.
pub const STATEFUL_POD_NAME: &str = "statefulset.kubernetes.io/pod-name";
/// Label of a pod of a `StatefulSet`: its number.
pub const POD_INDEX: &str = "apps.kubernetes.io/pod-index";
/// Our annotation of a pod of a CronJob's run: the CronJob's name. Never in a manifest.
pub const CRON_JOB: &str = "mirrorlet.dev/cron-job";
/// The annotations that only the agent sets, and only for itself.
pub const OWN: [&str; 3] = [BESIDE, STOPPED, RESTART];
/// The annotations of pods that the agent sets. A manifest that was generated from a pod may have some
/// of them.
pub const BY_AGENT: [&str; 12] = [
    SANITIZED,
    HELD_REVISION,
    HELD_REASON,
    HELD_MESSAGE,
    BESIDE,
    STOPPED,
    RESTART,
    WORKLOAD,
    TEMPLATE,
    UPDATES,
    CRON_JOB,
    OBJECT_UID,
];
/// Our label that distinguishes `sandbox` and `container`.
pub const KIND: &str = "mirrorlet.dev/kind";
/// Value of [`KIND`] on a sandbox.
pub const KIND_SANDBOX: &str = "sandbox";
/// Value of [`KIND`] on an app or init container.
pub const KIND_CONTAINER: &str = "container";
/// Our label: sandbox or container attempt, decimal.
pub const ATTEMPT: &str = "mirrorlet.dev/attempt";
/// Our container label: how many times all containers of the pod had been restarted in place at its
/// creation, decimal.
pub const POD_RESTARTS: &str = "mirrorlet.dev/pod-restarts";
/// Our sandbox label: network mode of the sandbox (`host` or `pod`).
pub const NETWORK: &str = "mirrorlet.dev/network";
/// Our sandbox label: the host ports that rules of ours forward to it instead of the Engine, as
/// `host/protocol=container` separated by commas; empty if the Engine publishes them.
pub const HOST_PORTS: &str = "mirrorlet.dev/host-ports";
/// Our sandbox label: when the pod was started (RFC 3339), which may be before its first sandbox was;
/// empty if the time was unknown.
pub const POD_STARTED: &str = "mirrorlet.dev/pod-started";
/// Our label on our Node, always [`NODE_LABEL_VALUE`].
pub const NODE_LABEL: &str = "mirrorlet.dev/node";
/// Value of [`NODE_LABEL`].
pub const NODE_LABEL_VALUE: &str = "true";
/// Our label: the role of a container in its pod (`init`, `sidecar` or `app`).
pub const ROLE: &str = "mirrorlet.dev/role";

/// Our container label: its image in the form of the container's status (`imageID`).
pub const IMAGE_ID: &str = "mirrorlet.dev/image-id";

/// Namespace of a pod that names none.
pub const DEFAULT_NAMESPACE: &str = "default";

/// Our annotation of a claim: the name of its volume on the Engine, which may exist already.
pub const VOLUME_NAME: &str = "mirrorlet.dev/volume-name";
/// Our annotation of a claim: the driver of its volume on the Engine.
pub const VOLUME_DRIVER: &str = "mirrorlet.dev/volume-driver";
/// Our annotation of a claim: options of the driver, `key=value` separated by whitespace.
pub const VOLUME_OPTIONS: &str = "mirrorlet.dev/volume-options";
/// Our annotation of a claim: `true` if the agent must never create its volume.
pub const VOLUME_MUST_EXIST: &str = "mirrorlet.dev/volume-must-exist";
/// Our annotations that configure the volume of a claim. They are read when it is bound.
pub const VOLUME_SETTINGS: [&str; 4] = [
    VOLUME_NAME,
    VOLUME_DRIVER,
    VOLUME_OPTIONS,
    VOLUME_MUST_EXIST,
];
/// Label of a volume on the Engine: the namespace of its claim.
pub const CLAIM_NAMESPACE: &str = "mirrorlet.dev/claim-namespace";
/// Label of a volume on the Engine: the name of its claim.
pub const CLAIM_NAME: &str = "mirrorlet.dev/claim-name";

/// Label with the name of the Job that a pod belongs to.
pub const JOB_NAME: &str = "batch.kubernetes.io/job-name";

/// Annotation of the agent's copy of an API pod from which values were dropped because it has too many.
/// It is never in the API server.
pub const TOO_LARGE: &str = "mirrorlet.dev/too-large";
