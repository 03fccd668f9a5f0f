//! `DockerManager`: pods on a Docker Engine. The only module that says bollard.

pub mod bollard_engine;
pub mod engine;
pub mod fake_engine;
pub mod image;
pub mod instrumented;
pub mod logs;
pub mod operation;
pub mod sandbox_image;
pub mod translate;

pub use bollard_engine::BollardEngine;
pub use fake_engine::FakeEngine;
pub use instrumented::{EngineMetrics, InstrumentedEngine};
pub use operation::Operation;
