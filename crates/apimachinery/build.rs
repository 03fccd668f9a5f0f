//! Compresses the schemas of Kubernetes' kinds, which the program carries.

use std::path::Path;
use std::{env, fs, io};

/// The level of the compression: the best, since it is done once.
const LEVEL: u8 = 10;

fn main() -> io::Result<()> {
    let missing = |name: &str| io::Error::other(format!("{name} is not set"));
    let out = env::var_os("OUT_DIR").ok_or_else(|| missing("OUT_DIR"))?;
    for name in ["openapi", "protobuf"] {
        let source = format!("schemas/{name}.txt");
        println!("cargo::rerun-if-changed={source}");
        let compressed = miniz_oxide::deflate::compress_to_vec(&fs::read(&source)?, LEVEL);
        fs::write(Path::new(&out).join(format!("{name}.deflate")), compressed)?;
    }
    println!("cargo::rerun-if-changed=build.rs");
    Ok(())
}
