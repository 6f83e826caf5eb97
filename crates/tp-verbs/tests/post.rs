//! The posting layer, without RDMA: nothing that leaves a region, has a wrong key, is over the limit or carries no flag is
//! ever turned into a request.

use proptest::prelude::*;
use tp_verbs::post::{Flag, MAX_CHAIN, MAX_WRITE, Poster, Put, Refused, Source, Window, Write, stripe};

const LOCAL: Window = Window {
    start: 0x10_0000,
    length: 0x40_0000,
    key: 0x11,
};
const REMOTE: Window = Window {
    start: 0x7f00_0000_0000,
    length: 0x40_0000,
    key: 0x22,
};
const POSTER: Poster = Poster {
    local: LOCAL,
    remote: REMOTE,
    max_inline: 256,
};

/// The rule, said in wide arithmetic: every byte lies inside.
fn inside(window: Window, address: u64, length: u32) -> bool {
    let (start, end) = (
        u128::from(window.start),
        u128::from(window.start) + u128::from(window.length),
    );
    u128::from(address) >= start && u128::from(address) + u128::from(length) <= end
}

/// Addresses around a window's edges, far away, and at the ends of the address space.
fn address(window: Window) -> impl Strategy<Value = u64> {
    prop_oneof![
        4 => window.start..window.start + window.length,
        1 => window.start.saturating_sub(8)..window.start + 8,
        2 => window.start + window.length - 64..window.start + window.length + 64,
        1 => any::<u64>(),
        1 => u64::MAX - 64..=u64::MAX,
    ]
}

fn length() -> impl Strategy<Value = u32> {
    prop_oneof![8 => 1u32..4096, 1 => Just(0), 1 => Just(MAX_WRITE), 1 => MAX_WRITE - 1..=MAX_WRITE + 1, 1 => any::<u32>()]
}

fn write() -> impl Strategy<Value = Write> {
    (address(LOCAL), address(REMOTE), length()).prop_map(|(local, remote, length)| Write {
        local,
        remote,
        length,
    })
}

fn flag() -> impl Strategy<Value = Flag> {
    let value = prop_oneof![6 => 1u32.., 1 => Just(0)];
    let remote = prop_oneof![4 => address(REMOTE).prop_map(|address| address & !3), 1 => address(REMOTE)];
    (remote, value).prop_map(|(remote, value)| Flag { remote, value })
}

fn key(window: Window) -> impl Strategy<Value = u32> {
    prop_oneof![8 => Just(window.key), 1 => any::<u32>()]
}

/// Whether the put keeps every rule, judged as a whole and not in the order of the checks.
fn allowed(put: &Put<'_>) -> bool {
    let shape = match (put.flags_inside, put.writes.last()) {
        (Some(value), Some(last)) => value != 0 && put.flags.is_empty() && last.remote.is_multiple_of(4),
        (Some(_), None) => false,
        (None, _) => !put.flags.is_empty(),
    };
    let keys = (put.writes.is_empty() || put.local_key == LOCAL.key) && put.remote_key == REMOTE.key;
    let writes = put.writes.iter().all(|write| {
        (1..=MAX_WRITE).contains(&write.length)
            && inside(LOCAL, write.local, write.length)
            && inside(REMOTE, write.remote, write.length)
    });
    let flags = put
        .flags
        .iter()
        .all(|flag| flag.value != 0 && flag.remote.is_multiple_of(4) && inside(REMOTE, flag.remote, 4));
    shape && keys && writes && flags && put.writes.len() + put.flags.len() <= MAX_CHAIN
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_put_becomes_requests_exactly_if_it_keeps_every_rule(
        writes in prop::collection::vec(write(), 0..5),
        flags in prop::collection::vec(flag(), 0..6),
        local_key in key(LOCAL),
        remote_key in key(REMOTE),
        flags_inside in prop_oneof![4 => Just(None), 1 => prop_oneof![1 => Just(0), 6 => 1u32..].prop_map(Some)],
        id in any::<u64>(),
    ) {
        let put = Put { id, local_key, remote_key, writes: &writes, flags: &flags, flags_inside };
        let chain = match POSTER.chain(&put) {
            Err(refused) => {
                prop_assert!(!allowed(&put), "refused without cause: {refused}");
                return Ok(());
            }
            Ok(chain) => chain,
        };
        prop_assert!(allowed(&put), "{put:?} was let through");
        let requests = chain.requests();
        prop_assert_eq!(chain.id(), id);
        prop_assert_eq!(requests.len(), writes.len() + flags.len());
        for (number, request) in requests.iter().enumerate() {
            prop_assert_eq!(request.remote_key, REMOTE.key);
            prop_assert!(inside(REMOTE, request.remote, request.length));
            prop_assert_eq!(request.signaled, number + 1 == requests.len(), "only the last leaves a completion");
            match request.source {
                Source::Memory { address, key, inline } => {
                    prop_assert_eq!((address, key), (writes[number].local, LOCAL.key));
                    prop_assert_eq!(request.length, writes[number].length);
                    let last = flags_inside.is_some() && number + 1 == requests.len();
                    prop_assert_eq!(inline, last && request.length <= POSTER.max_inline);
                }
                Source::Value(value) => {
                    let flag = flags[number - writes.len()];
                    prop_assert_eq!((value, request.remote, request.length), (flag.value, flag.remote, 4));
                }
            }
        }
    }

    #[test]
    fn stripes_are_contiguous_whole_packs_that_cover_everything(packs in 0u64..100_000, rails in 1u64..9) {
        let bytes = packs * 16;
        let mut at = 0;
        let mut sizes = Vec::new();
        for rail in 0..rails {
            let part = stripe(bytes, rail, rails);
            prop_assert_eq!(part.start, at);
            prop_assert_eq!((part.end - part.start) % 16, 0);
            sizes.push(part.end - part.start);
            at = part.end;
        }
        prop_assert_eq!(at, bytes);
        prop_assert!(sizes.is_sorted_by(|a, b| a >= b), "the first rails carry the rest");
        prop_assert!(sizes[0] - sizes[sizes.len() - 1] <= 16);
    }
}

/// One put that is right, for the cases below to break.
fn right<'a>(writes: &'a [Write], flags: &'a [Flag]) -> Put<'a> {
    Put {
        id: 7,
        local_key: LOCAL.key,
        remote_key: REMOTE.key,
        writes,
        flags,
        flags_inside: None,
    }
}

#[test]
fn each_rule_names_what_broke_it() {
    let good = Write {
        local: LOCAL.start,
        remote: REMOTE.start,
        length: 16,
    };
    let flag = Flag {
        remote: REMOTE.start + 4096,
        value: 1,
    };
    let (one, flags) = ([good], [flag]);
    let refused = |put: &Put<'_>| POSTER.chain(put).err();
    assert_eq!(refused(&right(&[good], &[flag])), None);
    assert_eq!(refused(&right(&[], &[])), Some(Refused::Nothing));
    assert_eq!(refused(&right(&[good], &[])), Some(Refused::NoFlag));
    assert_eq!(
        refused(&right(&[good], &[Flag { value: 0, ..flag }])),
        Some(Refused::ZeroFlag { number: 0 })
    );
    let unaligned = Flag {
        remote: flag.remote + 2,
        value: 1,
    };
    let expected = Refused::FlagUnaligned {
        number: 0,
        address: unaligned.remote,
    };
    assert_eq!(refused(&right(&[good], &[unaligned])), Some(expected));
    assert_eq!(
        refused(&right(&[Write { length: 0, ..good }], &[flag])),
        Some(Refused::Empty { number: 0 })
    );
    let long = Write {
        length: MAX_WRITE + 1,
        ..good
    };
    assert_eq!(
        refused(&right(&[long], &[flag])),
        Some(Refused::TooLong {
            number: 0,
            length: MAX_WRITE + 1
        })
    );
    let last = Write {
        local: LOCAL.start + LOCAL.length - 16,
        ..good
    };
    assert_eq!(
        refused(&right(&[last], &[flag])),
        None,
        "the last bytes of the region are inside"
    );
    let beyond = Write {
        local: last.local + 1,
        ..good
    };
    assert!(matches!(
        refused(&right(&[beyond], &[flag])),
        Some(Refused::LocalRange { .. })
    ));
    let beyond = Write {
        remote: REMOTE.start + REMOTE.length - 15,
        ..good
    };
    assert!(matches!(
        refused(&right(&[beyond], &[flag])),
        Some(Refused::RemoteRange { .. })
    ));
    let wrong = Put {
        remote_key: 0x23,
        ..right(&one, &flags)
    };
    assert_eq!(
        refused(&wrong),
        Some(Refused::RemoteKey {
            given: 0x23,
            expected: REMOTE.key
        })
    );
    let wrong = Put {
        local_key: 0x12,
        ..right(&one, &flags)
    };
    assert_eq!(
        refused(&wrong),
        Some(Refused::LocalKey {
            given: 0x12,
            expected: LOCAL.key
        })
    );
    let inside = Put {
        flags_inside: Some(1),
        ..right(&one, &flags)
    };
    assert_eq!(refused(&inside), Some(Refused::FlagsInside));
    let zero = Put {
        flags_inside: Some(0),
        ..right(&one, &[])
    };
    assert_eq!(refused(&zero), Some(Refused::ZeroFlag { number: 0 }));
    let odd = [Write {
        remote: good.remote + 2,
        ..good
    }];
    let odd = Put {
        flags_inside: Some(1),
        ..right(&odd, &[])
    };
    assert!(matches!(refused(&odd), Some(Refused::FlagUnaligned { .. })));
    let many = [good; MAX_CHAIN];
    assert_eq!(
        refused(&right(&many, &[flag])),
        Some(Refused::TooMany {
            requests: MAX_CHAIN + 1
        })
    );
    let text = refused(&right(&[beyond], &[flag]))
        .map(|refused| refused.to_string())
        .unwrap_or_default();
    assert!(
        text.contains("0x7f0000000000+0x400000"),
        "the region is named: {text}"
    );
}

#[test]
fn a_small_put_with_its_flags_inside_is_one_request() {
    let small = Write {
        local: LOCAL.start,
        remote: REMOTE.start,
        length: 256,
    };
    let put = Put {
        flags_inside: Some(1),
        ..right(std::slice::from_ref(&small), &[])
    };
    let chain = POSTER.chain(&put).unwrap();
    let [request] = chain.requests() else {
        panic!("one request, not {}", chain.requests().len())
    };
    assert!(matches!(request.source, Source::Memory { inline: true, .. }) && request.signaled);
}

#[test]
fn a_payload_and_a_line_with_its_flags_inside_are_two_requests_and_only_the_line_is_inline() {
    let write = |at: u64, length| Write {
        local: LOCAL.start + at,
        remote: REMOTE.start + at,
        length,
    };
    let writes = [write(0, 128), write(4096, 48)];
    let put = Put {
        flags_inside: Some(9),
        ..right(&writes, &[])
    };
    let chain = POSTER.chain(&put).unwrap();
    let inline: Vec<bool> = chain
        .requests()
        .iter()
        .map(|request| matches!(request.source, Source::Memory { inline: true, .. }))
        .collect();
    assert_eq!(inline, [false, true]);
}
