//! The sandbox's image: a program of 202 bytes, embedded here and loaded into the Engine.
//!
//! Nothing has to be pulled or built. The program blocks its signals and waits: SIGCHLD makes it reap
//! ended processes, SIGTERM and SIGINT make it exit with 0. The archive is built in memory, byte for
//! byte the same every time, so that loading it again changes nothing.

use std::io;

use bytes::Bytes;
use serde_json::json;

use super::engine::{Engine, EngineError, Result};
use super::image::{self, ImagePuller};
use super::operation::Operation;
use mirrorlet_core::credentials::PullSecrets;
use mirrorlet_core::reference::Reference;

pub use super::image::SANDBOX_IMAGE;

/// Bytes of an ELF header and one program header, after which the code starts.
const HEADERS_BYTES: u16 = 120;
/// The load address of the program.
const BASE: u64 = 0x40_0000;

#[cfg(target_arch = "x86_64")]
mod arch {
    //! Code, ELF machine, segment alignment and Docker's architecture name of x86-64.
    pub(super) const CODE: &str = "68024001004889e531ff4889ee31d26a08415a6a0e580f054889ef31f631d26a08\
        415ab8800000000f0583f811740d85c078e531ffb8e70000000f056aff5f31f66a015a4531d26a3d580f0585c07f\
        ecebc6";
    pub(super) const MACHINE: u16 = 62;
    pub(super) const ALIGN: u64 = 0x1000;
    pub(super) const DOCKER_NAME: &str = "amd64";
}

#[cfg(target_arch = "aarch64")]
mod arch {
    //! Code, ELF machine, segment alignment and Docker's architecture name of arm64.
    pub(super) const CODE: &str = "530088d23300a0f2f30f1ff8000080d2e1030091020080d2030180d2e81080d201\
        0000d4e0030091010080d2020080d2030180d2281180d2010000d41f440071a000005400ffff37000080d2c80b80\
        d2010000d400008092010080d2220080d2030080d2882080d2010000d41f0000712cffff54ecffff17";
    pub(super) const MACHINE: u16 = 183;
    pub(super) const ALIGN: u64 = 0x1_0000;
    pub(super) const DOCKER_NAME: &str = "arm64";
}

/// The bytes of a hexadecimal text.
fn unhex(text: &str) -> Vec<u8> {
    let nibble = |c: u8| match c {
        b'0'..=b'9' => c - b'0',
        _ => c - b'a' + 10,
    };
    text.as_bytes()
        .chunks_exact(2)
        .map(|pair| nibble(pair[0]) << 4 | nibble(pair[1]))
        .collect()
}

/// The program: an ELF executable of one segment.
fn program() -> Vec<u8> {
    let code = unhex(arch::CODE);
    let size = u64::from(HEADERS_BYTES) + code.len() as u64;
    let mut elf = Vec::with_capacity(256);
    elf.extend(b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0");
    elf.extend(2_u16.to_le_bytes()); // ET_EXEC
    elf.extend(arch::MACHINE.to_le_bytes());
    elf.extend(1_u32.to_le_bytes()); // version
    elf.extend((BASE + u64::from(HEADERS_BYTES)).to_le_bytes()); // entry
    elf.extend(64_u64.to_le_bytes()); // program headers start
    elf.extend(0_u64.to_le_bytes()); // no section headers
    elf.extend(0_u32.to_le_bytes()); // flags
    for field in [64_u16, 56, 1, 0, 0, 0] {
        elf.extend(field.to_le_bytes()); // sizes and counts
    }
    elf.extend(1_u32.to_le_bytes()); // PT_LOAD
    elf.extend(5_u32.to_le_bytes()); // readable, executable
    for field in [0, BASE, BASE, size, size, arch::ALIGN] {
        elf.extend(field.to_le_bytes());
    }
    elf.extend(code);
    elf
}

/// Appends a file with no owner and no time to a tar archive.
fn append(tar: &mut tar::Builder<Vec<u8>>, path: &str, mode: u32, data: &[u8]) -> io::Result<()> {
    let mut header = tar::Header::new_ustar();
    header.set_path(path)?;
    header.set_size(data.len() as u64);
    header.set_mode(mode);
    header.set_mtime(0);
    header.set_uid(0);
    header.set_gid(0);
    header.set_cksum();
    tar.append(&header, data)
}

/// The image in the format of `docker load`, and its id in an Engine with the classic image store: the
/// SHA-256 of its configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SandboxArchive {
    /// `sha256:…` of the configuration. An Engine with the containerd store has another id.
    pub id: String,
    /// The archive.
    pub tar: Bytes,
}

/// Builds the archive.
///
/// # Errors
/// None in practice: everything happens in memory and all names are short.
pub fn archive() -> io::Result<SandboxArchive> {
    let mut layer = tar::Builder::new(Vec::new());
    append(&mut layer, "pause", 0o555, &program())?;
    let layer = layer.into_inner()?;
    let config = json!({
        "architecture": arch::DOCKER_NAME,
        "os": "linux",
        "created": "1970-01-01T00:00:00Z",
        "config": { "Entrypoint": ["/pause"], "WorkingDir": "/" },
        "rootfs": { "type": "layers", "diff_ids": [image::digest(&layer)] },
    })
    .to_string();
    let id = image::digest(config.as_bytes());
    let config_name = format!("{}.json", id.trim_start_matches("sha256:"));
    let manifest = json!([{
        "Config": config_name,
        "RepoTags": [SANDBOX_IMAGE],
        "Layers": ["layer.tar"],
    }])
    .to_string();
    let mut whole = tar::Builder::new(Vec::new());
    append(&mut whole, &config_name, 0o444, config.as_bytes())?;
    append(&mut whole, "layer.tar", 0o444, &layer)?;
    append(&mut whole, "manifest.json", 0o444, manifest.as_bytes())?;
    Ok(SandboxArchive {
        id,
        tar: whole.into_inner()?.into(),
    })
}

/// Ensures that the sandbox image is present, and returns its name.
///
/// Our image is loaded without a check: one small call that changes nothing if the image is present. An
/// `override_image` is inspected, and pulled with the node's credentials if it is missing: pods'
/// secrets don't apply to it. Call this at start, and again when creating a sandbox fails because the
/// image is missing.
///
/// # Errors
/// An error of the Engine.
pub async fn ensure_sandbox_image(
    engine: &dyn Engine,
    images: &ImagePuller,
    override_image: Option<&str>,
) -> Result<String> {
    let Some(image) = override_image else {
        let archive = archive().map_err(|e| EngineError::Decode {
            operation: Operation::LoadImage.as_str(),
            cause: e.to_string(),
        })?;
        engine.load_image(archive.tar).await?;
        return Ok(SANDBOX_IMAGE.to_owned());
    };
    let reference = Reference::parse(image).map_err(|e| {
        EngineError::api(
            http::StatusCode::BAD_REQUEST,
            format!("the sandbox image {image:?} is unusable: {e}"),
        )
    })?;
    let image = reference.as_str();
    match engine.inspect_image(image).await {
        Ok(_) => {}
        Err(error) if error.is_not_found() => {
            images.pull(image, &PullSecrets::default()).await?;
        }
        Err(error) => return Err(error),
    }
    Ok(image.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn the_program_has_its_202_bytes() {
        let program = program();
        assert_eq!(program.len(), 202);
        assert_eq!(&program[..4], b"\x7fELF");
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn the_archive_never_changes() {
        let first = archive().unwrap();
        assert_eq!(first, archive().unwrap());
        assert!(first.tar.len() < 8 << 10);
        // Pinned: a changed image must come with a changed tag.
        insta::assert_snapshot!(first.id);
    }
}
