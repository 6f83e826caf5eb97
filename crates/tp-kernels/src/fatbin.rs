//! Reads which GPUs a fat binary holds code for.
//!
//! The container is a 16-byte header (magic, version, its own length, the length of what follows) and entries, each with a
//! header of its own: kind at 0 (16 bits: 1 intermediate code, 2 machine code), its length at 4, its payload's length at 8
//! (64 bits), the architecture at 28, as `10 major + minor`. Lengths are checked before use.

use std::fmt;

/// Code for one kind of GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Arch {
    /// Machine code for this architecture: `10 major + minor`.
    Sm(u32),
    /// Intermediate code that a driver compiles for this architecture or a newer one.
    Ptx(u32),
}

impl Arch {
    /// Whether a GPU of this compute capability can run it. Machine code runs on its own major number from its minor
    /// number on.
    pub fn serves(self, major: u32, minor: u32) -> bool {
        match self {
            Self::Sm(arch) => arch / 10 == major && arch % 10 <= minor,
            Self::Ptx(arch) => arch <= 10 * major + minor,
        }
    }
}

impl fmt::Display for Arch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sm(arch) => write!(f, "sm_{arch}"),
            Self::Ptx(arch) => write!(f, "ptx_{arch}"),
        }
    }
}

/// What a fat binary holds, sorted; empty where the bytes are none.
pub fn archs(bytes: &[u8]) -> Vec<Arch> {
    let mut found = Vec::new();
    let mut rest = bytes;
    while let Some((entries, after)) = container(rest) {
        collect(entries, &mut found);
        rest = after;
    }
    found.sort_unstable();
    found.dedup();
    found
}

const MAGIC: u32 = 0xba55_ed50;

/// Splits one container off: its entries, and what comes after it.
fn container(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    if u32_at(bytes, 0)? != MAGIC {
        return None;
    }
    let header = usize::from(u16_at(bytes, 6)?);
    let length = usize::try_from(u64_at(bytes, 8)?).ok()?;
    let end = header.checked_add(length)?;
    Some((bytes.get(header..end)?, bytes.get(end..)?))
}

fn collect(mut entries: &[u8], found: &mut Vec<Arch>) {
    while let Some((kind, arch, length)) = entry(entries) {
        match kind {
            1 => found.push(Arch::Ptx(arch)),
            2 => found.push(Arch::Sm(arch)),
            _ => {}
        }
        let Some(after) = entries.get(length..) else {
            return;
        };
        entries = after;
    }
}

/// Kind, architecture and whole length of the first entry.
fn entry(bytes: &[u8]) -> Option<(u16, u32, usize)> {
    let header = usize::try_from(u32_at(bytes, 4)?).ok()?;
    let payload = usize::try_from(u64_at(bytes, 8)?).ok()?;
    let length = header.checked_add(payload)?;
    (header >= 32).then_some((u16_at(bytes, 0)?, u32_at(bytes, 28)?, length))
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at + N)?.try_into().ok()
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    array(bytes, at).map(u16::from_le_bytes)
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    array(bytes, at).map(u32::from_le_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    array(bytes, at).map(u64::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(entries: &[(u16, u32, usize)]) -> Vec<u8> {
        let mut body = Vec::new();
        for (kind, arch, payload) in entries {
            let mut header = vec![0u8; 64];
            header[0..2].copy_from_slice(&kind.to_le_bytes());
            header[4..8].copy_from_slice(&64u32.to_le_bytes());
            header[8..16].copy_from_slice(&(*payload as u64).to_le_bytes());
            header[28..32].copy_from_slice(&arch.to_le_bytes());
            body.extend(header);
            body.extend(vec![0xaa; *payload]);
        }
        let mut bytes = MAGIC.to_le_bytes().to_vec();
        bytes.extend(1u16.to_le_bytes());
        bytes.extend(16u16.to_le_bytes());
        bytes.extend((body.len() as u64).to_le_bytes());
        bytes.extend(body);
        bytes
    }

    #[test]
    fn entries_of_all_containers_are_found() {
        let mut bytes = made(&[(2, 121, 8), (1, 90, 24), (2, 90, 0)]);
        bytes.extend(made(&[(2, 100, 4)]));
        assert_eq!(
            archs(&bytes),
            [Arch::Sm(90), Arch::Sm(100), Arch::Sm(121), Arch::Ptx(90)]
        );
    }

    #[test]
    fn broken_lengths_end_the_reading() {
        let whole = made(&[(2, 90, 8), (2, 120, 8)]);
        for cut in 0..whole.len() {
            assert!(archs(&whole[..cut]).is_empty(), "a cut container is none");
        }
        let mut huge = whole.clone();
        huge[24..32].fill(0xff);
        assert_eq!(archs(&huge), [], "an entry that claims to be longer than memory");
        assert_eq!(archs(b"\x7fELF and more bytes than a header has"), []);
    }

    #[test]
    fn machine_code_serves_its_major_number_and_intermediate_code_all_newer_gpus() {
        assert!(Arch::Sm(120).serves(12, 1) && !Arch::Sm(121).serves(12, 0));
        assert!(!Arch::Sm(90).serves(10, 0) && Arch::Ptx(90).serves(10, 3));
        assert!(!Arch::Ptx(90).serves(8, 9));
    }
}
