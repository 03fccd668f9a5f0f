//! The calls of the [`Engine`](super::engine::Engine) by name: for counting, scripting, logging.

use std::fmt;

/// A kind of Engine call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Operation {
    /// `GET /version`.
    Version,
    /// `GET /info`.
    Info,
    /// `GET /containers/json`.
    ListContainers,
    /// `GET /containers/{id}/json`.
    InspectContainer,
    /// `POST /containers/create`.
    CreateContainer,
    /// `POST /containers/{id}/start`.
    StartContainer,
    /// `POST /containers/{id}/stop`.
    StopContainer,
    /// `DELETE /containers/{id}`.
    RemoveContainer,
    /// `POST /containers/{id}/exec`.
    CreateExec,
    /// `POST /exec/{id}/start`.
    StartExec,
    /// `GET /exec/{id}/json`.
    InspectExec,
    /// `POST /exec/{id}/resize`.
    ResizeExec,
    /// `POST /containers/{id}/attach`.
    AttachContainer,
    /// `POST /containers/{id}/resize`.
    ResizeContainer,
    /// `HEAD /containers/{id}/archive`.
    StatPath,
    /// `GET /containers/{id}/archive`.
    Download,
    /// `PUT /containers/{id}/archive`.
    Upload,
    /// `GET /images/{name}/json`.
    InspectImage,
    /// `GET /images/json`.
    ListImages,
    /// `POST /images/create`.
    PullImage,
    /// `POST /images/load`.
    LoadImage,
    /// `GET /containers/json` of all containers.
    ImagesInUse,
    /// `DELETE /images/{name}`.
    RemoveImage,
    /// `GET /events`.
    Events,
    /// `GET /containers/{id}/logs`.
    Logs,
    /// `GET /networks/{name}`.
    InspectNetwork,
    /// `POST /volumes/create`.
    CreateVolume,
    /// `GET /volumes/{name}`
    InspectVolume,
    /// `GET /volumes`.
    ListVolumes,
    /// `DELETE /volumes/{name}`.
    RemoveVolume,
}

impl Operation {
    /// Every operation, in the order of [`index`](Self::index).
    pub const ALL: [Self; 30] = [
        Self::Version,
        Self::Info,
        Self::ListContainers,
        Self::InspectContainer,
        Self::CreateContainer,
        Self::StartContainer,
        Self::StopContainer,
        Self::RemoveContainer,
        Self::CreateExec,
        Self::StartExec,
        Self::InspectExec,
        Self::ResizeExec,
        Self::AttachContainer,
        Self::ResizeContainer,
        Self::StatPath,
        Self::Download,
        Self::Upload,
        Self::InspectImage,
        Self::ListImages,
        Self::PullImage,
        Self::LoadImage,
        Self::ImagesInUse,
        Self::RemoveImage,
        Self::Events,
        Self::Logs,
        Self::InspectNetwork,
        Self::CreateVolume,
        Self::InspectVolume,
        Self::ListVolumes,
        Self::RemoveVolume,
    ];

    /// Place in [`ALL`](Self::ALL).
    pub const fn index(self) -> usize {
        self as usize
    }

    /// Name in metrics and logs, as upstream's `docker_operations` metrics have it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Version => "version",
            Self::Info => "info",
            Self::ListContainers => "list_containers",
            Self::InspectContainer => "inspect_container",
            Self::CreateContainer => "create_container",
            Self::StartContainer => "start_container",
            Self::StopContainer => "stop_container",
            Self::RemoveContainer => "remove_container",
            Self::CreateExec => "create_exec",
            Self::StartExec => "start_exec",
            Self::InspectExec => "inspect_exec",
            Self::ResizeExec => "resize_exec",
            Self::AttachContainer => "attach",
            Self::ResizeContainer => "resize_container",
            Self::StatPath => "stat_path",
            Self::Download => "download_archive",
            Self::Upload => "upload_archive",
            Self::InspectImage => "inspect_image",
            Self::ListImages => "list_images",
            Self::PullImage => "pull_image",
            Self::LoadImage => "load_image",
            Self::ImagesInUse => "images_in_use",
            Self::RemoveImage => "remove_image",
            Self::Events => "events",
            Self::Logs => "logs",
            Self::InspectNetwork => "inspect_network",
            Self::CreateVolume => "create_volume",
            Self::InspectVolume => "inspect_volume",
            Self::ListVolumes => "list_volumes",
            Self::RemoveVolume => "remove_volume",
        }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operation_is_at_its_index() {
        for (index, operation) in Operation::ALL.into_iter().enumerate() {
            assert_eq!(operation.index(), index);
        }
    }
}
