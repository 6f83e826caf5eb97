//! Which backend a group takes where nobody names one. Pure.

use crate::types::{BackendKind, World};

/// What one rank has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capability {
    /// Its host.
    pub host: String,
    /// A GPU that the kernels of its binary serve.
    pub gpu: bool,
    /// A usable libnccl.
    pub nccl: bool,
}

impl Capability {
    /// The bytes that travel.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![u8::from(self.gpu), u8::from(self.nccl)];
        out.extend_from_slice(self.host.as_bytes());
        out
    }

    /// Reads what [`encode`](Self::encode) wrote.
    pub fn decode(raw: &[u8]) -> Option<Self> {
        let [gpu, nccl, host @ ..] = raw else { return None };
        Some(Self {
            host: String::from_utf8_lossy(host).into_owned(),
            gpu: *gpu == 1,
            nccl: *nccl == 1,
        })
    }
}

/// The best backend that all these ranks can have: shared inboxes on one host, NCCL across hosts, the exchange by post
/// where there is no NCCL, host memory where some rank has no GPU.
pub fn choose(ranks: &[Capability]) -> BackendKind {
    let world = World(ranks.len() as u32);
    let one_host = ranks.windows(2).all(|two| two[0].host == two[1].host);
    if !ranks.iter().all(|rank| rank.gpu) {
        return BackendKind::Host;
    }
    match (2..=8).contains(&world.0) {
        true if one_host => BackendKind::Mailbox,
        _ if ranks.iter().all(|rank| rank.nccl) => BackendKind::Nccl,
        true => BackendKind::Roce,
        false => BackendKind::Host,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rank(host: &str, gpu: bool, nccl: bool) -> Capability {
        let host = host.to_owned();
        Capability { host, gpu, nccl }
    }

    #[test]
    fn the_weakest_rank_decides() {
        let (full, bare) = (rank("a", true, true), rank("a", true, false));
        assert_eq!(choose(&[full.clone(), bare.clone()]), BackendKind::Mailbox);
        assert_eq!(choose(&[full.clone(), rank("a", false, true)]), BackendKind::Host);
        assert_eq!(choose(&[full.clone(), rank("b", true, true)]), BackendKind::Nccl);
        assert_eq!(choose(&[full.clone(), rank("b", true, false)]), BackendKind::Roce);
        assert_eq!(choose(&vec![full.clone(); 9]), BackendKind::Nccl);
        assert_eq!(choose(&vec![bare; 9]), BackendKind::Host);
        assert_eq!(choose(&[full]), BackendKind::Nccl);
    }

    #[test]
    fn capabilities_travel() {
        let mine = rank("boot/4026531840", true, false);
        assert_eq!(Capability::decode(&mine.encode()), Some(mine));
        assert_eq!(Capability::decode(&[1]), None);
    }
}
