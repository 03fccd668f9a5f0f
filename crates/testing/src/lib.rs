//! Stand-ins for a real Engine and a real API server, for tests and benches of mirrorlet:
//! [`FakeRuntime`], which is a scriptable [`Runtime`](mirrorlet_runtime::Runtime), [`FakeEngine`],
//! which answers the Engine's API in memory, and [`FakeApi`], which answers Kubernetes'. A
//! dev-dependency only: nothing of it is in the program.

pub mod fake_api;
pub mod fake_runtime;
#[path = "../../core/src/status/merge/apply.rs"]
pub mod patch;

pub use fake_api::FakeApi;
pub use fake_runtime::FakeRuntime;
pub use mirrorlet_docker::fake_engine::{self, FakeEngine};
