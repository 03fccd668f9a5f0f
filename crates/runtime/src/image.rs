//! Images as a runtime tells of them: the seeds' `Image` and `ImageStats`.
//!
//! Upstream: `pkg/kubelet/container/runtime.go`.

/// An image.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Image {
    /// The runtime's id of it.
    pub id: String,
    /// Its tags; none for one that has lost them.
    pub repo_tags: Vec<String>,
    /// Its digests: `name@sha256:…`; none for one that was built or loaded.
    pub repo_digests: Vec<String>,
    /// Its size in bytes, layers that it shares with others included.
    pub size_bytes: u64,
    /// Whether it stays whatever happens: it is that of sandboxes.
    pub pinned: bool,
}

/// What all images take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ImageStats {
    /// The sum of their sizes in bytes. Approximate, never too small: a layer counts with every
    /// image that has it.
    pub total_storage_bytes: u64,
}
