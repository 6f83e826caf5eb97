//! A large file to many hosts: it goes over this machine's link once, to the first host, and from there from host to host
//! while it arrives. Whoever the chain does not reach gets the rest directly, and it is said why.

use super::chain::chain;
use super::put::{Sent, There, look, put};
use super::{Artifact, Member, each};
use crate::host::HostError;
use std::collections::BTreeMap;
use std::sync::Arc;

/// From so many hosts on that lack the file.
const HOSTS_MIN: usize = 8;
/// A smaller file is sent to each directly, bytes.
const SIZE_MIN: u64 = 16 << 20;

/// Brings a file to every host; `relayed` is false where each is to get it directly.
pub fn spread(members: &[Member<'_>], artifact: &Artifact, relayed: bool) -> Vec<Result<Sent, HostError>> {
    let mut known: Vec<Option<Result<Sent, HostError>>> = each(members, |member| look(&member.ssh, artifact))
        .into_iter()
        .map(|state| match state {
            Ok(There::Whole) => Some(Ok(Sent::nothing())),
            Ok(There::Tampered | There::Part(_)) => None,
            Err(error) => Some(Err(error)),
        })
        .collect();
    let mut missed: BTreeMap<usize, String> = BTreeMap::new();
    let lacking: Vec<usize> = (0..members.len())
        .filter(|index| known[*index].is_none())
        .collect();
    if relayed && artifact.size >= SIZE_MIN && lacking.len() >= HOSTS_MIN {
        let whole = known.iter().position(|state| matches!(state, Some(Ok(_))));
        let places: Vec<usize> = whole.into_iter().chain(lacking).collect();
        let stops: Vec<&Member<'_>> = places.iter().map(|index| &members[*index]).collect();
        for (index, outcome) in places.iter().zip(chain(&stops, whole.is_some(), artifact)) {
            match outcome {
                Ok(sent) if known[*index].is_none() => known[*index] = Some(Ok(sent)),
                Ok(_) => {}
                Err(why) => drop(missed.insert(*index, why)),
            }
        }
    }
    // What the chain left is sent from here.
    each(members, |member| {
        let index = members
            .iter()
            .position(|other| Arc::ptr_eq(&other.ssh, &member.ssh))
            .unwrap_or_default();
        if let Some(known) = &known[index] {
            return known.clone();
        }
        let sent = put(&member.ssh, artifact)?;
        Ok(Sent {
            missed: missed.get(&index).cloned(),
            ..sent
        })
    })
}
