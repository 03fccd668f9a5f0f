//! The names of the [`Engine`](super::engine::Engine) calls, for metrics, scripts and logs.

mirrorlet_core::words! {
    /// A kind of Engine call.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum Operation {
        /// `GET /version`.
        Version = "version",
        /// `GET /info`.
        Info = "info",
        /// `GET /containers/json`.
        ListContainers = "list_containers",
        /// `GET /containers/{id}/json`.
        InspectContainer = "inspect_container",
        /// `POST /containers/create`.
        CreateContainer = "create_container",
        /// `POST /containers/{id}/start`.
        StartContainer = "start_container",
        /// `POST /containers/{id}/stop`.
        StopContainer = "stop_container",
        /// `DELETE /containers/{id}`.
        RemoveContainer = "remove_container",
        /// `POST /containers/{id}/exec`.
        CreateExec = "create_exec",
        /// `POST /exec/{id}/start`.
        StartExec = "start_exec",
        /// `GET /exec/{id}/json`.
        InspectExec = "inspect_exec",
        /// `POST /exec/{id}/resize`.
        ResizeExec = "resize_exec",
        /// `POST /containers/{id}/attach`.
        AttachContainer = "attach",
        /// `POST /containers/{id}/resize`.
        ResizeContainer = "resize_container",
        /// `HEAD /containers/{id}/archive`.
        StatPath = "stat_path",
        /// `GET /containers/{id}/archive`.
        Download = "download_archive",
        /// `PUT /containers/{id}/archive`.
        Upload = "upload_archive",
        /// `GET /images/{name}/json`.
        InspectImage = "inspect_image",
        /// `GET /images/json`.
        ListImages = "list_images",
        /// `POST /images/create`.
        PullImage = "pull_image",
        /// `POST /images/load`.
        LoadImage = "load_image",
        /// `GET /containers/json` of all containers.
        ImagesInUse = "images_in_use",
        /// `DELETE /images/{name}`.
        RemoveImage = "remove_image",
        /// `GET /events`.
        Events = "events",
        /// `GET /containers/{id}/logs`.
        Logs = "logs",
        /// `GET /networks/{name}`.
        InspectNetwork = "inspect_network",
        /// `POST /volumes/create`.
        CreateVolume = "create_volume",
        /// `GET /volumes/{name}`
        InspectVolume = "inspect_volume",
        /// `GET /volumes`.
        ListVolumes = "list_volumes",
        /// `DELETE /volumes/{name}`.
        RemoveVolume = "remove_volume",
    }
    /// Name in metrics and logs, the same as in upstream's `docker_operations` metrics.
    pub fn as_str;
    impl Display;
}
