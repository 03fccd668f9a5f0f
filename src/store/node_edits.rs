//! Changes that users made to the Node through the embedded API: labels, annotations, cordon.
//!
//! One small file below the directory of stored objects; its name begins with a dot, because it is not
//! a manifest.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::sync::watch;

use mirrorlet_core::node::NodeEdits;
use mirrorlet_host::disk::{self, IfThere as _};

/// Name of the file.
const FILE: &str = ".node.json";
/// Largest file that is read: that of the largest body of a request.
const FILE_MIB_MAX: u64 = 4;

/// Reads and makes changes.
#[derive(Debug, Clone)]
pub struct NodeEditsHandle {
    path: PathBuf,
    edits: Arc<watch::Sender<Arc<NodeEdits>>>,
}

impl NodeEditsHandle {
    /// Loads the changes stored in that directory. Blocks on the disk.
    ///
    /// # Errors
    /// The file can't be read. The handle then has a Node without changes.
    pub fn load(directory: &Path) -> (Self, io::Result<()>) {
        let path = directory.join(FILE);
        let (edits, read) = match read(&path) {
            Ok(edits) => (edits, Ok(())),
            Err(error) => (NodeEdits::default(), Err(error)),
        };
        let edits = Arc::new(watch::Sender::new(Arc::new(edits)));
        (Self { path, edits }, read)
    }

    /// A Node that can't be changed here: a cluster's Node is changed in the cluster.
    pub fn none() -> Self {
        Self {
            path: PathBuf::new(),
            edits: Arc::new(watch::Sender::new(Arc::default())),
        }
    }

    /// The changes made so far.
    pub fn get(&self) -> Arc<NodeEdits> {
        Arc::clone(&self.edits.borrow())
    }

    /// Changes value with each change.
    pub fn subscribe(&self) -> watch::Receiver<Arc<NodeEdits>> {
        self.edits.subscribe()
    }

    /// Stores changes. Blocks on the disk.
    ///
    /// # Errors
    /// The system's error; nothing has changed then.
    pub fn set(&self, edits: NodeEdits) -> io::Result<()> {
        let text = serde_json::to_vec_pretty(&edits)?;
        disk::replace(&self.path, &text)?;
        if let Some(directory) = self.path.parent() {
            disk::sync_directory(directory)?;
        }
        self.edits.send_replace(Arc::new(edits));
        Ok(())
    }
}

fn read(path: &Path) -> io::Result<NodeEdits> {
    let bytes = disk::read_small(path, FILE_MIB_MAX).if_there()?;
    let edits = bytes
        .map(|bytes| serde_json::from_slice(&bytes))
        .transpose();
    Ok(edits?.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_of_the_node_outlive_the_agent() {
        let root = tempfile::tempdir().unwrap();
        let (handle, read) = NodeEditsHandle::load(root.path());
        read.unwrap();
        let edits = NodeEdits {
            labels: [("disk".to_owned(), "fast".to_owned())].into(),
            unschedulable: true,
            ..NodeEdits::default()
        };
        handle.set(edits.clone()).unwrap();
        let (again, read) = NodeEditsHandle::load(root.path());
        read.unwrap();
        // embedded 30
        assert_eq!(*again.get(), edits);
        std::fs::write(root.path().join(FILE), "no JSON").unwrap();
        let (broken, read) = NodeEditsHandle::load(root.path());
        assert_eq!(*broken.get(), NodeEdits::default());
        read.unwrap_err();
    }
}
