//! Both sides against each other and against bytes that neither sends.

use super::*;
use crate::bootstrap::auth::{Side, prove};
use crate::bootstrap::hello::Hello;
use crate::bootstrap::hello::Role;
use crate::types::{Rank, World};
use proptest::prelude::*;

fn hello() -> Hello {
    Hello {
        world: World(2),
        rank: Rank(1),
        role: Role::Control,
        instance: "i".into(),
        session: String::new(),
        host: "beta".into(),
        pid: 1,
    }
}

fn secret(text: &str) -> Option<Secret> {
    (!text.is_empty()).then(|| Secret::from_text(text).unwrap())
}

/// Runs both machines against each other, `step` bytes at a time; gives what each came to.
fn play(leader: &str, follower: &str, step: usize) -> (Accepting, Connecting) {
    let mut acceptor = Acceptor::new(secret(leader), [1; NONCE]);
    let (mut connector, first) = Connector::new(secret(follower), [2; NONCE], &hello());
    let (mut to_leader, mut to_follower) = (first, Vec::new());
    let (mut accepted, mut connected) = (Accepting::More, Connecting::More);
    for _ in 0..100_000 {
        let take = step.min(acceptor.wants()).min(to_leader.len());
        if take > 0 {
            let bytes: Vec<u8> = to_leader.drain(..take).collect();
            accepted = acceptor.push(&bytes);
            match &accepted {
                Accepting::Send(bytes) => to_follower.extend(bytes),
                Accepting::Hello(_) => {
                    to_follower.extend(acceptor.verdict(&Verdict::Welcome { host: "alpha" }))
                }
                Accepting::Reject { reply, .. } => to_follower.extend(reply),
                Accepting::More => {}
            }
        }
        let take = step.min(connector.wants()).min(to_follower.len());
        if take > 0 {
            let bytes: Vec<u8> = to_follower.drain(..take).collect();
            connected = connector.push(&bytes);
            if let Connecting::Send(bytes) = &connected {
                to_leader.extend(bytes);
            }
        }
        if matches!(connected, Connecting::Welcome { .. } | Connecting::Refused { .. }) {
            break;
        }
    }
    (accepted, connected)
}

const A: &str = "a secret of some length";
const B: &str = "another secret of a length";

#[test]
fn both_sides_prove_the_secret_whatever_the_cut() {
    for step in [1, 2, 7, 44, 10_000] {
        for secret in ["", A] {
            let (accepted, connected) = play(secret, secret, step);
            assert_eq!(accepted, Accepting::Hello(hello()));
            assert_eq!(connected, Connecting::Welcome { host: "alpha".into() });
        }
    }
}

#[test]
fn a_wrong_or_missing_secret_is_refused_and_told() {
    for (leader, follower) in [(A, B), (A, ""), ("", A)] {
        let (accepted, connected) = play(leader, follower, 16);
        assert!(
            matches!(accepted, Accepting::Reject { known: true, .. }),
            "{accepted:?}"
        );
        let Connecting::Refused { why, proved: false } = connected else {
            panic!("{connected:?}")
        };
        assert!(why.contains("TF_TP_SECRET"), "{why}");
    }
}

#[test]
fn a_replayed_handshake_proves_nothing() {
    let mut acceptor = Acceptor::new(secret(A), [1; NONCE]);
    let (mut connector, first) = Connector::new(secret(A), [2; NONCE], &hello());
    let Accepting::Send(answer) = acceptor.push(&first) else {
        panic!()
    };
    let Connecting::Send(recorded) = connector.push(&answer) else {
        panic!()
    };
    assert!(matches!(acceptor.push(&recorded), Accepting::Hello(_)));
    // The same bytes at another time meet another nonce.
    let mut later = Acceptor::new(secret(A), [3; NONCE]);
    assert!(matches!(later.push(&first), Accepting::Send(_)));
    assert!(matches!(
        later.push(&recorded),
        Accepting::Reject { known: true, .. }
    ));
}

#[test]
fn rank_zeros_own_proof_sent_back_proves_nothing() {
    let mut acceptor = Acceptor::new(secret(A), [1; NONCE]);
    let (_, first) = Connector::new(secret(A), [2; NONCE], &hello());
    acceptor.push(&first);
    let text = hello().to_text();
    let proof = prove(
        secret(A).as_ref(),
        Side::Leader,
        &[2; NONCE],
        &[1; NONCE],
        text.as_bytes(),
    );
    assert!(matches!(
        acceptor.push(&proved(&proof, &text)),
        Accepting::Reject { .. }
    ));
}

#[test]
fn another_version_is_told_both_versions() {
    let mut acceptor = Acceptor::new(secret(A), [1; NONCE]);
    let (_, mut first) = Connector::new(secret(A), [2; NONCE], &hello());
    first[4] = 99;
    let Accepting::Reject {
        reply,
        why,
        known: true,
    } = acceptor.push(&first)
    else {
        panic!()
    };
    assert_eq!(why, "it speaks protocol 99, rank 0 speaks 1");
    assert!(String::from_utf8_lossy(&reply).contains("protocol 99"));

    let (mut connector, _) = Connector::new(secret(A), [2; NONCE], &hello());
    let mut answer = preface(secret(A).as_ref(), &[1; NONCE]);
    answer[4] = 99;
    assert_eq!(connector.push(&answer), Connecting::More);
    assert_eq!(
        connector.hopeless(),
        Some("rank 0 speaks protocol 99, this rank speaks 1")
    );
}

#[test]
fn a_scanner_is_known_by_its_first_byte() {
    let mut acceptor = Acceptor::new(secret(A), [1; NONCE]);
    assert!(matches!(
        acceptor.push(b"G"),
        Accepting::Reject { known: false, .. }
    ));
    let (mut connector, _) = Connector::new(secret(A), [2; NONCE], &hello());
    assert!(matches!(
        connector.push(b"SSH-"),
        Connecting::Refused { proved: false, .. }
    ));
}

#[test]
fn a_hello_beyond_the_limit_is_refused_before_it_is_read() {
    let mut acceptor = Acceptor::new(secret(A), [1; NONCE]);
    let (_, first) = Connector::new(secret(A), [2; NONCE], &hello());
    acceptor.push(&first);
    let mut header = vec![0; NONCE];
    header.extend(u32::MAX.to_le_bytes());
    assert!(matches!(
        acceptor.push(&header),
        Accepting::Reject { known: false, .. }
    ));
}

proptest! {
    #[test]
    fn no_bytes_make_either_side_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300), preface_first: bool) {
        let (mut connector, first) = Connector::new(secret(A), [2; NONCE], &hello());
        let mut acceptor = Acceptor::new(secret(A), [1; NONCE]);
        if preface_first {
            acceptor.push(&first);
            connector.push(&preface(secret(A).as_ref(), &[1; NONCE]));
        }
        for byte in bytes {
            if acceptor.wants() > 0 {
                acceptor.push(&[byte]);
            }
            if connector.wants() > 0 {
                connector.push(&[byte]);
            }
        }
    }
}
