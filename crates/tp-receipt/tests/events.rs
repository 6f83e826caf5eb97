//! The event stream: what is written is read back, and what is not known is kept.

use proptest::collection::{btree_map, vec};
use proptest::option;
use proptest::prelude::*;
use serde_json::{Map, Value, json};
use tp_receipt::control::{Order, Start};
use tp_receipt::event::*;
use tp_receipt::record::{CheckNames, Passed, Record, StepEvent, StepKey};

fn number() -> impl Strategy<Value = f64> {
    prop_oneof![-1e15..1e15, any::<f64>().prop_filter("finite", |x| x.is_finite())]
}

fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        "[ -~]{0,20}",
        ".{0,12}",
        "\\PC{0,8}",
        Just("\u{0}\"\\\n\u{2028}".to_owned())
    ]
}

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        number().prop_map(Value::from),
        text().prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 16, 4, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..4).prop_map(Value::from),
            btree_map("[a-z]{1,6}", inner, 0..4).prop_map(|m| Value::Object(m.into_iter().collect())),
        ]
    })
}

/// Fields of a later version: names that no event has today.
fn extra() -> impl Strategy<Value = Map<String, Value>> {
    btree_map("x_[a-z]{1,6}", value(), 0..4).prop_map(|m| m.into_iter().collect())
}

fn kind() -> impl Strategy<Value = Kind> {
    let hello = (
        any::<u32>(),
        text(),
        any::<u32>(),
        text(),
        option::of(text()),
        btree_map(text(), text(), 0..3),
    )
        .prop_map(|(world, session, pid, binary_sha256, image_sha256, versions)| {
            Kind::Hello(Hello {
                world,
                session,
                pid,
                binary_sha256,
                image_sha256,
                versions,
            })
        });
    let setting = (text(), text(), text())
        .prop_map(|(name, value, source)| Kind::Setting(Setting { name, value, source }));
    let port = (text(), any::<u32>(), any::<bool>(), text(), any::<bool>()).prop_map(
        |(device, port, chosen, reason, model)| {
            Kind::Port(Port {
                device,
                port,
                chosen,
                reason,
                model,
            })
        },
    );
    let rail = (
        text(),
        text(),
        text(),
        text(),
        any::<[u32; 4]>(),
        any::<[bool; 2]>(),
    )
        .prop_map(
            |(device, address, peer_device, by, [peer, port, gid_index, peer_port], [probed, model])| {
                Kind::Rail(Rail {
                    peer,
                    device,
                    port,
                    gid_index,
                    address,
                    peer_device,
                    peer_port,
                    by,
                    probed,
                    model,
                })
            },
        );
    let outcome = prop_oneof![
        Just(Outcome::Passed),
        Just(Outcome::Failed),
        Just(Outcome::Skipped)
    ];
    let check = (text(), outcome, text(), option::of(text())).prop_map(|(name, outcome, group, reason)| {
        Kind::Check(Check {
            name,
            outcome,
            group,
            reason,
        })
    });
    let latency = (
        text(),
        option::of(text()),
        text(),
        text(),
        any::<[u64; 2]>(),
        any::<u32>(),
        vec(number(), 3),
    )
        .prop_map(|(backend, wire, op, mode, [bytes, samples], ops_per_graph, us)| {
            let (median_us, p10_us, p90_us) = (us[0], us[1], us[2]);
            Kind::Latency(Latency {
                backend,
                wire,
                op,
                bytes,
                mode,
                median_us,
                p10_us,
                p90_us,
                samples,
                ops_per_graph,
            })
        });
    let inject = (text(), any::<u32>(), any::<u64>()).prop_map(|(what, victim, monotonic_ns)| {
        Kind::Inject(Inject {
            what,
            victim,
            monotonic_ns,
        })
    });
    let fate = (text(), option::of(any::<u32>()), text()).prop_map(|(reason, culprit, phase)| {
        Kind::Fate(Fate {
            reason,
            culprit,
            phase,
        })
    });
    let counter = (text(), text(), any::<u64>(), text()).prop_map(|(place, name, value, when)| {
        Kind::Counter(Counter {
            place,
            name,
            value,
            when,
        })
    });
    let log = (text(), option::of(text()), text())
        .prop_map(|(level, code, text)| Kind::Log(Log { level, code, text }));
    let progress = (text(), any::<u64>(), any::<u64>())
        .prop_map(|(what, done, total)| Kind::Progress(Progress { what, done, total }));
    let summary = any::<[u64; 3]>().prop_map(|[passed, failed, skipped]| {
        Kind::Summary(Summary {
            passed,
            failed,
            skipped,
        })
    });
    let exit = (
        option::of(any::<i32>()),
        option::of(any::<i32>()),
        any::<u64>(),
        option::of(text()),
    )
        .prop_map(|(code, signal, monotonic_ns, ended_by)| {
            Kind::Exit(Exit {
                code,
                signal,
                monotonic_ns,
                ended_by,
            })
        });
    let unknown = ("later_[a-z]{1,6}", extra()).prop_map(|(name, mut map)| {
        map.insert("event".into(), name.into());
        Kind::Unknown(map)
    });
    prop_oneof![
        hello, setting, port, rail, check, latency, inject, fate, counter, log, progress, summary, exit,
        unknown
    ]
}

fn event() -> impl Strategy<Value = Event> {
    (any::<u32>(), number(), option::of(any::<u32>()), kind(), extra()).prop_map(
        |(schema, t, rank, kind, extra)| {
            // What an unknown kind has beyond its name is all its own.
            let extra = if matches!(kind, Kind::Unknown(_)) {
                Map::new()
            } else {
                extra
            };
            Event {
                schema,
                t,
                rank,
                kind,
                extra,
            }
        },
    )
}

proptest! {
    #[test]
    fn an_event_is_read_as_it_was_written(event in event()) {
        let line = event.to_line();
        prop_assert!(!line.contains('\n'));
        prop_assert_eq!(Event::parse(&line).unwrap(), event);
    }

    #[test]
    fn a_record_is_read_as_it_was_written(event in event(), arm in text(), step in text(), attempt in 1u32..9) {
        let key = Some(StepKey { arm, step, attempt });
        let record = Record::Event(StepEvent { key, event });
        prop_assert_eq!(Record::parse(&record.to_line()).unwrap(), record);
    }

    #[test]
    fn passed_checks_are_read_as_they_were_written(
        arm in text(), step in text(), attempt in 1u32..9, rank: u32, checks in vec(any::<(u32, u32)>(), 0..4),
        times in vec(number(), 0..6), first: u32, group in text(), names in vec(text(), 0..4), extra in extra(),
    ) {
        let key = StepKey { arm, step, attempt };
        let names = Record::CheckNames(CheckNames { key: key.clone(), first, group, names, extra: extra.clone() });
        prop_assert_eq!(Record::parse(&names.to_line()).unwrap(), names);
        for extra in [Map::new(), extra] {
            let passed = Passed { key: key.clone(), rank, checks: checks.clone(), times: times.clone(), extra };
            let passed = Record::Passed(passed);
            prop_assert_eq!(Record::parse(&passed.to_line()).unwrap(), passed);
        }
    }

    #[test]
    fn any_object_with_the_three_fields_survives(mut map in extra(), name in "[a-z_]{1,10}") {
        map.insert("schema".into(), 9.into());
        map.insert("t".into(), 1.5.into());
        map.insert("event".into(), format!("later_{name}").into());
        let line = Value::Object(map.clone()).to_string();
        let again: Value = serde_json::from_str(&Event::parse(&line).unwrap().to_line()).unwrap();
        prop_assert_eq!(again, Value::Object(map));
    }

    #[test]
    fn no_line_makes_it_panic(line in prop_oneof![text(), value().prop_map(|v| v.to_string()), ".{0,60}"]) {
        let _ = Event::parse(&line);
        let _ = Record::parse(&line);
        let _ = Order::parse(&line);
    }
}

#[test]
fn unknown_fields_of_known_kinds_survive_null_ones_too() {
    let line = r#"{"schema":1,"t":0.5,"rank":3,"event":"check","name":"n","outcome":"passed","group":"core","code":null,"later":{"a":[1]}}"#;
    let event = Event::parse(line).unwrap();
    assert_eq!(event.extra.len(), 2);
    let again: Value = serde_json::from_str(&event.to_line()).unwrap();
    assert_eq!(again, serde_json::from_str::<Value>(line).unwrap());
}

#[test]
fn an_optional_field_that_is_null_is_no_unknown_field() {
    let line = r#"{"schema":1,"t":0,"event":"exit","code":null,"signal":9,"monotonic_ns":5}"#;
    let event = Event::parse(line).unwrap();
    assert!(event.extra.is_empty());
    assert_eq!(
        event.kind,
        Kind::Exit(Exit {
            code: None,
            signal: Some(9),
            monotonic_ns: 5,
            ended_by: None
        })
    );
}

#[test]
fn what_is_no_event_is_refused_with_the_reason() {
    let cases = [
        ("x", "not JSON"),
        ("[]", "not a JSON object"),
        (r#"{"t":0,"event":"log"}"#, "`schema` is missing"),
        (r#"{"schema":1,"event":"log"}"#, "`t` is missing"),
        (
            r#"{"schema":1,"t":"0","event":"log"}"#,
            "field `t` is \"0\", not a number",
        ),
        (r#"{"schema":1,"t":0}"#, "`event` is missing"),
        (
            r#"{"schema":1,"t":0,"rank":-1,"event":"log"}"#,
            "field `rank` is -1",
        ),
        (
            r#"{"schema":1,"t":0,"event":"check"}"#,
            "event `check`: missing field",
        ),
    ];
    for (line, expected) in cases {
        let error = Event::parse(line).unwrap_err().to_string();
        assert!(error.contains(expected), "{line}: {error}");
    }
    let long = format!(
        "{{\"schema\":1,\"t\":0,\"event\":\"x\",\"a\":\"{}\"}}",
        "y".repeat(LINE_MAX)
    );
    assert!(Event::parse(&long).unwrap_err().to_string().contains("more than"));
}

#[test]
fn an_extra_field_never_replaces_a_known_one() {
    let mut event = Event::new(
        1.0,
        Some(2),
        Kind::Summary(Summary {
            passed: 3,
            failed: 0,
            skipped: 0,
        }),
    );
    event.extra.insert("passed".into(), 99.into());
    event.extra.insert("rank".into(), 7.into());
    let read = Event::parse(&event.to_line()).unwrap();
    assert_eq!(read.rank, Some(2));
    assert_eq!(read.kind, event.kind);
}

#[test]
fn a_time_that_is_no_number_is_written_as_zero() {
    let event = Event::new(
        f64::NAN,
        None,
        Kind::Progress(Progress {
            what: "x".into(),
            done: 1,
            total: 0,
        }),
    );
    assert_eq!(Event::parse(&event.to_line()).unwrap().t, 0.0);
}

#[test]
fn the_start_line_leaves_out_what_is_empty_and_tolerates_what_is_new() {
    let start: Start = serde_json::from_value(json!({ "schema": 2, "session": "s", "later": 1 })).unwrap();
    assert_eq!(
        start,
        Start {
            schema: 2,
            session: "s".into(),
            ..Start::default()
        }
    );
    assert_eq!(
        serde_json::to_string(&start).unwrap(),
        r#"{"schema":2,"session":"s","settings":{}}"#
    );
    for order in [Order::Beat, Order::End] {
        assert_eq!(Order::parse(&format!("{}\r\n", order.as_line())), Some(order));
    }
    assert_eq!(Order::parse("later"), None);
}
