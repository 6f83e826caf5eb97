//! A file that is to be on the hosts: its hash, its size, and for which systems it is.

use crate::Error;
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

/// A file that is to be on the hosts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Artifact {
    /// The file here.
    pub path: PathBuf,
    /// Its name there.
    pub name: String,
    /// SHA-256, lower-case hex.
    pub sha256: String,
    /// Bytes.
    pub size: u64,
    /// The system that it runs on, e.g. `aarch64-linux`; `None` where it is no program of a known machine.
    pub system: Option<String>,
}

impl Artifact {
    /// Reads and hashes a file.
    ///
    /// # Errors
    /// Refused: it cannot be read.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let failed = |e: std::io::Error| Error::Refused(format!("failed to read {}: {e}", path.display()));
        let mut file = File::open(path).map_err(failed)?;
        let mut hash = Sha256::new();
        let mut head = Vec::new();
        let mut size = 0;
        let mut buffer = vec![0; 1 << 18];
        loop {
            match file.read(&mut buffer) {
                Ok(0) => break,
                Ok(n) => {
                    if head.is_empty() {
                        head = buffer[..n.min(64)].to_vec();
                    }
                    hash.update(&buffer[..n]);
                    size += n as u64;
                }
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                Err(e) => return Err(failed(e)),
            }
        }
        let name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default();
        let plain = |c: char| c.is_ascii_alphanumeric() || "._+-".contains(c);
        if name.is_empty() || name.starts_with(['.', '-']) || !name.chars().all(plain) {
            return Err(Error::Usage(format!(
                "{} cannot be sent: on the hosts it keeps its name, which takes A-Z a-z 0-9 . _ + - only",
                path.display()
            )));
        }
        Ok(Self {
            path: path.to_owned(),
            name: name.to_owned(),
            sha256: hex::encode(hash.finalize()),
            size,
            system: system_of(&head),
        })
    }

    /// The directory of its content below the host's directory of ours.
    pub fn dir(&self, host_dir: &str) -> String {
        format!("{host_dir}/bin/{}", self.sha256)
    }

    /// Its path on a host.
    pub fn path_on(&self, host_dir: &str) -> String {
        format!("{}/{}", self.dir(host_dir), self.name)
    }
}

/// The system that an ELF file's first bytes name.
fn system_of(head: &[u8]) -> Option<String> {
    if !head.starts_with(b"\x7fELF") {
        return None;
    }
    let order = *head.get(5)?;
    let field: [u8; 2] = head.get(18..20)?.try_into().ok()?;
    let machine = if order == 2 {
        u16::from_be_bytes(field)
    } else {
        u16::from_le_bytes(field)
    };
    let name = match machine {
        62 => "x86_64",
        183 => "aarch64",
        243 => "riscv64",
        21 => "ppc64",
        _ => return None,
    };
    Some(format!("{name}-linux"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_system_stands_in_the_file() {
        let own = Artifact::read(&std::env::current_exe().unwrap()).unwrap();
        assert_eq!(own.system, Some(format!("{}-linux", std::env::consts::ARCH)));
        assert_eq!(own.sha256.len(), 64);
        let mut arm = b"\x7fELF\x02\x01\x01".to_vec();
        arm.resize(18, 0);
        arm.extend([183, 0]);
        assert_eq!(system_of(&arm).as_deref(), Some("aarch64-linux"));
        assert_eq!(system_of(b"#!/bin/sh\n"), None);
        assert_eq!(system_of(b"\x7fELF"), None);
    }
}
