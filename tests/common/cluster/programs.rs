//! Where hack/kube-build.sh puts the programs of Kubernetes, by version.

use std::path::PathBuf;

use sha2::{Digest, Sha256};

/// The version of the control plane: what `KUBE_VERSION` says (`v1.36.3`), or what hack/kube/go.mod
/// pins.
pub fn version() -> String {
    std::env::var("KUBE_VERSION").unwrap_or_else(|_| {
        let pinned = include_str!("../../../hack/kube/go.mod");
        let mut lines = pinned.lines();
        let version = lines.find_map(|line| line.trim().strip_prefix("k8s.io/kubernetes "));
        version.unwrap().to_owned()
    })
}

/// The version of kubectl: what `KUBECTL_VERSION` says, or that of the control plane.
pub fn kubectl_version() -> String {
    std::env::var("KUBECTL_VERSION").unwrap_or_else(|_| version())
}

/// The directory of the programs of the control plane.
pub(super) fn control_plane() -> PathBuf {
    for program in [
        "kube-apiserver",
        "kube-controller-manager",
        "kube-scheduler",
    ] {
        built(&version(), program);
    }
    kubectl();
    directory(&version())
}

/// kubectl, for an agent that runs alone.
pub fn embedded_kubectl() -> PathBuf {
    kubectl()
}

pub(super) fn kubectl() -> PathBuf {
    built(&kubectl_version(), "kubectl")
}

/// The client of exec and port-forward that is made of client-go, from this very source.
pub fn stream_client() -> PathBuf {
    let source = include_bytes!("../../../hack/kube/streamclient/main.go");
    of_source("streamclient", source)
}

/// The informer that is made of client-go, from this very source.
pub fn informer() -> PathBuf {
    let source = include_bytes!("../../../hack/kube/informer/main.go");
    of_source("informer", source)
}

/// The reader of manifests that is made of the kubelet, from this very source.
pub fn manifest_reader() -> PathBuf {
    let source = include_bytes!("../../../hack/kube/manifests/main.go");
    of_source("manifests", source)
}

fn of_source(program: &str, source: &[u8]) -> PathBuf {
    let sum = mirrorlet_core::api::hex(&Sha256::digest(source)[..8]);
    built(&version(), &format!("{program}-{sum}"))
}

/// Helm, of the version that hack/lib.sh names.
pub fn helm() -> PathBuf {
    let library = include_str!("../../../hack/lib.sh");
    let mut lines = library.lines();
    let version = lines.find_map(|line| line.strip_prefix("HELM_VERSION="));
    let file = cache().join("helm").join(version.unwrap()).join("helm");
    assert!(
        file.exists(),
        "no {}: run hack/helm-build.sh",
        file.display()
    );
    file
}

fn built(version: &str, program: &str) -> PathBuf {
    let file = directory(version).join(program);
    let make = "run `make kube`, or `make kube-versions` for another version than the usual one";
    assert!(file.exists(), "no {}: {make}", file.display());
    file
}

fn directory(version: &str) -> PathBuf {
    cache().join("kube").join(version)
}

fn cache() -> PathBuf {
    let cache = std::env::var_os("XDG_CACHE_HOME").map_or_else(
        || PathBuf::from(std::env::var_os("HOME").unwrap_or_else(|| "/root".into())).join(".cache"),
        PathBuf::from,
    );
    cache.join("mirrorlet-dev")
}
