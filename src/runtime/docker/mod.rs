//! `DockerManager`: pods on a Docker Engine. The only module that says bollard.

pub mod engine;
pub mod translate;
