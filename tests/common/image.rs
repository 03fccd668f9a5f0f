//! Archives of images with a busybox, as `docker load` takes them.

use std::io;

use mirrorlet_docker::image::digest;

/// A tar of these files: path, mode, content.
pub fn tar_of(files: &[(&str, u32, &[u8])]) -> io::Result<Vec<u8>> {
    let mut tar = tar::Builder::new(Vec::new());
    for (path, mode, data) in files {
        let mut header = tar::Header::new_ustar();
        header.set_size(data.len() as u64);
        header.set_mode(*mode);
        header.set_mtime(0);
        tar.append_data(&mut header, path, *data)?;
    }
    tar.into_inner()
}

/// An image of that name and configuration, with a busybox.
pub fn image_archive(name: &str, config: &serde_json::Value) -> io::Result<Vec<u8>> {
    let busybox = std::fs::read("/bin/busybox")?;
    let layer = tar_of(&[("busybox", 0o755, &busybox)])?;
    let config = serde_json::json!({
        "architecture": if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" },
        "os": "linux",
        "config": config,
        "rootfs": { "type": "layers", "diff_ids": [digest(&layer)] },
    })
    .to_string();
    let manifest = serde_json::json!([
        { "Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"] }
    ])
    .to_string();
    tar_of(&[
        ("config.json", 0o644, config.as_bytes()),
        ("layer.tar", 0o644, &layer),
        ("manifest.json", 0o644, manifest.as_bytes()),
    ])
}
