//! Meetings: every follower gives, rank 0 answers all with the same bytes. The cost of one is linear in the world.

use super::frame::{ANSWER_MAX, FAILED_MAX, Frame, GIVE_MAX, Kind, OP_MAX};
use super::pump::{Party, Trouble, pump};
use super::{BootError, Bootstrap};
use crate::meeting::MeetingError;
use crate::text::{cut, field, line, ranks};
use crate::types::{Rank, World};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// How much longer a follower waits than rank 0, which knows who is missing and says so at its own deadline.
const PATIENCE: Duration = Duration::from_secs(2);

/// How long rank 0 tries to tell the others of a failure.
const TELL: Duration = Duration::from_secs(1);

/// One meeting: `answer` turns what all gave, in rank order, into what all get. It runs on rank 0 alone; its error is
/// every rank's error.
pub(super) fn exchange(
    boot: &mut Bootstrap,
    op: &str,
    mine: &[u8],
    answer: impl FnOnce(&[Vec<u8>]) -> Result<Vec<u8>, MeetingError>,
) -> Result<Vec<u8>, MeetingError> {
    let op = cut(op, OP_MAX);
    // protocol 3.3
    let number = boot.number;
    boot.number += 1;
    if mine.len() > GIVE_MAX {
        let reason = format!("it gives {} bytes; {GIVE_MAX} are the most", mine.len());
        return Err(MeetingError::Refused {
            op: op.to_owned(),
            rank: boot.rank,
            reason,
        });
    }
    let deadline = Instant::now() + boot.limit;
    if boot.rank == Rank(0) {
        let result = collect(boot, op, number, mine, deadline).and_then(|all| answer(&all));
        match result.and_then(|body| spread(boot, op, number, body)) {
            Ok(body) => Ok(body),
            Err(error) => {
                let text = describe(&error);
                tell(&boot.plan.iter().collect::<Vec<_>>(), op, number, &text);
                Err(error)
            }
        }
    } else {
        // protocol 3.10
        give(boot, op, number, mine, deadline + PATIENCE)
    }
}

/// What all gave, on every rank.
pub(super) fn all_gather(boot: &mut Bootstrap, op: &str, mine: &[u8]) -> Result<Vec<Vec<u8>>, MeetingError> {
    let world = boot.world;
    let table = exchange(boot, op, mine, |all| Ok(join(all)))?;
    split(&table, world).ok_or_else(|| lost(op, Rank(0), "its table of answers is garbled"))
}

/// Every rank's verdict: nothing where all went well, else the lowest rank's reason.
pub(super) fn judge(op: &str, all: &[Vec<u8>]) -> Result<Vec<u8>, MeetingError> {
    for (index, verdict) in all.iter().enumerate() {
        let reason = match verdict.split_first() {
            Some((1, _)) => continue,
            Some((_, reason)) => String::from_utf8_lossy(reason).into_owned(),
            None => "gave an empty verdict".to_owned(),
        };
        return Err(MeetingError::Refused {
            op: op.to_owned(),
            rank: nth(index),
            reason,
        });
    }
    Ok(Vec::new())
}

/// Rank 0 reads what every follower gives.
fn collect(
    boot: &Bootstrap,
    op: &str,
    number: u64,
    mine: &[u8],
    deadline: Instant,
) -> Result<Vec<Vec<u8>>, MeetingError> {
    let mut parties: Vec<Party<'_>> = boot.plan.iter().map(|socket| Party::ask(socket, &[])).collect();
    pump(&mut parties, deadline).map_err(|trouble| blame(boot, op, trouble))?;
    let mut all = Vec::with_capacity(boot.world.size());
    all.push(mine.to_vec());
    for (index, party) in parties.into_iter().enumerate() {
        let rank = nth(index + 1);
        match party.got {
            Some(frame) if frame.kind == Kind::Give && (frame.number, frame.op.as_str()) == (number, op) => {
                all.push(frame.body);
            }
            // protocol 3.4
            Some(frame) if frame.kind == Kind::Give => {
                return Err(MeetingError::OutOfStep {
                    mine: op.to_owned(),
                    mine_number: number,
                    rank,
                    theirs: frame.op,
                    theirs_number: frame.number,
                });
            }
            _ => return Err(lost(op, rank, "sent a frame that only rank 0 sends")),
        }
    }
    Ok(all)
}

/// Rank 0 sends the answer to every follower.
fn spread(boot: &Bootstrap, op: &str, number: u64, body: Vec<u8>) -> Result<Vec<u8>, MeetingError> {
    if body.len() > ANSWER_MAX {
        let reason = format!(
            "the answer would be {} bytes; {ANSWER_MAX} are the most",
            body.len()
        );
        return Err(MeetingError::Refused {
            op: op.to_owned(),
            rank: Rank(0),
            reason,
        });
    }
    let frame = Frame {
        kind: Kind::Answer,
        number,
        op: op.to_owned(),
        body,
    };
    let bytes = frame.encode();
    let mut parties: Vec<Party<'_>> = boot
        .plan
        .iter()
        .map(|socket| Party::tell(socket, &bytes))
        .collect();
    pump(&mut parties, Instant::now() + boot.limit).map_err(|trouble| blame(boot, op, trouble))?;
    Ok(frame.body)
}

/// A follower gives and waits for the answer.
fn give(
    boot: &Bootstrap,
    op: &str,
    number: u64,
    mine: &[u8],
    deadline: Instant,
) -> Result<Vec<u8>, MeetingError> {
    let Some(socket) = boot.plan.first() else {
        return Err(lost(op, Rank(0), "there is no connection to it any more"));
    };
    let bytes = Frame {
        kind: Kind::Give,
        number,
        op: op.to_owned(),
        body: mine.to_vec(),
    }
    .encode();
    let mut parties = [Party::ask(socket, &bytes)];
    pump(&mut parties, deadline).map_err(|trouble| blame(boot, op, trouble))?;
    let [party] = parties;
    let Some(frame) = party.got else {
        return Err(lost(op, Rank(0), "it did not answer"));
    };
    match frame.kind {
        Kind::Answer if (frame.number, frame.op.as_str()) == (number, op) => Ok(frame.body),
        Kind::Answer => Err(MeetingError::OutOfStep {
            mine: op.to_owned(),
            mine_number: number,
            rank: Rank(0),
            theirs: frame.op,
            theirs_number: frame.number,
        }),
        Kind::Failed => Err(told(boot.rank, op, number, &frame)),
        Kind::Give => Err(lost(op, Rank(0), "sent a frame that only followers send")),
    }
}

/// Rank 0 could not bring the ranks together: those who are in and wait are told.
pub(super) fn announce_failure(waiting: &[&TcpStream], error: &BootError) {
    let rank = match error {
        BootError::Missing { ranks, .. } => ranks.first().copied().unwrap_or(Rank(0)),
        BootError::Lost { rank, .. } => *rank,
        _ => Rank(0),
    };
    let error = lost("meet", rank, &error.to_string());
    tell(waiting, "meet", 0, &describe(&error));
}

/// Sends a failure to all who can still be told. Those who cannot find the end of the connection instead.
fn tell(sockets: &[&TcpStream], op: &str, number: u64, text: &str) {
    let body = cut(text, FAILED_MAX).as_bytes().to_vec();
    let bytes = Frame {
        kind: Kind::Failed,
        number,
        op: op.to_owned(),
        body,
    }
    .encode();
    for socket in sockets {
        let _ = pump(&mut [Party::tell(socket, &bytes)], Instant::now() + TELL);
    }
}

// protocol 3.5
pub(super) fn describe(error: &MeetingError) -> String {
    match error {
        MeetingError::Refused { rank, reason, .. } => {
            format!("failed=refused\nrank={rank}\nreason={}\n", line(reason, 4096))
        }
        MeetingError::Lost { rank, reason, .. } => {
            format!("failed=lost\nrank={rank}\nreason={}\n", line(reason, 4096))
        }
        MeetingError::OutOfStep {
            rank,
            theirs,
            theirs_number,
            ..
        } => {
            format!(
                "failed=out-of-step\nrank={rank}\nnumber={theirs_number}\nop={}\n",
                line(theirs, OP_MAX)
            )
        }
    }
}

pub(super) fn told(me: Rank, op: &str, number: u64, frame: &Frame) -> MeetingError {
    let text = String::from_utf8_lossy(&frame.body);
    let rank = field(&text, "rank")
        .and_then(|text| text.parse().ok())
        .map_or(Rank(0), Rank);
    let reason = line(field(&text, "reason").unwrap_or("rank 0 does not say why"), 4096);
    match field(&text, "failed") {
        Some("refused") => MeetingError::Refused {
            op: op.to_owned(),
            rank,
            reason,
        },
        Some("out-of-step") => {
            let (rank, theirs, theirs_number) = if rank == me {
                (Rank(0), frame.op.clone(), frame.number)
            } else {
                let number = field(&text, "number")
                    .and_then(|text| text.parse().ok())
                    .unwrap_or(0);
                (rank, line(field(&text, "op").unwrap_or("?"), OP_MAX), number)
            };
            MeetingError::OutOfStep {
                mine: op.to_owned(),
                mine_number: number,
                rank,
                theirs,
                theirs_number,
            }
        }
        _ => lost(op, rank, &reason),
    }
}

fn blame(boot: &Bootstrap, op: &str, trouble: Trouble) -> MeetingError {
    let leads = boot.rank == Rank(0);
    let rank = |index: usize| if leads { nth(index + 1) } else { Rank(0) };
    match trouble {
        Trouble::Ended { index, reason } => {
            let rank = rank(index);
            let host = boot.hosts.get(rank.index()).map_or("?", String::as_str);
            lost(op, rank, &format!("on {host}: {reason}"))
        }
        Trouble::Late { indices } => {
            let late: Vec<Rank> = indices.iter().map(|index| rank(*index)).collect();
            let first = late.first().copied().unwrap_or(Rank(0));
            let seconds = boot.limit.as_secs_f64();
            lost(
                op,
                first,
                &format!("rank {} did not come to it within {seconds:.1} s", ranks(&late)),
            )
        }
        Trouble::System(reason) => lost(op, boot.rank, &format!("this rank failed to poll: {reason}")),
    }
}

fn lost(op: &str, rank: Rank, reason: &str) -> MeetingError {
    MeetingError::Lost {
        op: op.to_owned(),
        rank,
        reason: reason.to_owned(),
    }
}

/// The rank at an index; a world is far below 2^32.
fn nth(index: usize) -> Rank {
    Rank(u32::try_from(index).unwrap_or(u32::MAX))
}

// protocol 3.6
pub(super) fn join(all: &[Vec<u8>]) -> Vec<u8> {
    let mut out = Vec::with_capacity(all.iter().map(|blob| 4 + blob.len()).sum());
    for blob in all {
        // Each is at most `GIVE_MAX`.
        out.extend_from_slice(&u32::try_from(blob.len()).unwrap_or(0).to_le_bytes());
        out.extend_from_slice(blob);
    }
    out
}

pub(super) fn split(mut table: &[u8], world: World) -> Option<Vec<Vec<u8>>> {
    let mut all = Vec::new();
    for _ in world.ranks() {
        let (length, rest) = table.split_first_chunk::<4>()?;
        let (blob, rest) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
        all.push(blob.to_vec());
        table = rest;
    }
    table.is_empty().then_some(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_taken_whole_or_not_at_all() {
        let all = vec![b"a".to_vec(), Vec::new(), b"ccc".to_vec()];
        let table = join(&all);
        assert_eq!(split(&table, World(3)), Some(all));
        assert_eq!(split(&table, World(2)), None);
        assert_eq!(split(&table, World(4)), None);
        for end in 0..table.len() {
            assert_eq!(split(&table[..end], World(3)), None);
        }
    }
}
