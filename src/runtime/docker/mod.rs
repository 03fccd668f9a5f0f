//! `DockerManager`: pods on a Docker Engine. The only module that says bollard.

pub mod bollard_engine;
pub mod engine;
pub mod logs;
pub mod sandbox_image;
pub mod translate;

pub use bollard_engine::BollardEngine;
