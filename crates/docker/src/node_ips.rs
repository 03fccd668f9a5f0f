//! The addresses of the node, which may change while the agent runs.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

/// Reads the present addresses of the node, primary first.
#[derive(Clone)]
pub struct NodeIps(Arc<dyn Fn() -> Vec<IpAddr> + Send + Sync>);

impl NodeIps {
    /// Those that `read` returns, which must not block.
    pub fn read_by(read: impl Fn() -> Vec<IpAddr> + Send + Sync + 'static) -> Self {
        Self(Arc::new(read))
    }

    /// The present ones.
    pub(super) fn get(&self) -> Vec<IpAddr> {
        (self.0)()
    }
}

impl fmt::Debug for NodeIps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("NodeIps").field(&self.get()).finish()
    }
}
