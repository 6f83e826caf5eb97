//! The fuzz target of the fate channel's parser.

use super::FateConfig;
use super::frame::{BODY_MAX, Decoder, Frame};
use super::watch::Watch;
use crate::fuzz::{Input, within};
use crate::types::Rank;
use std::time::{Duration, Instant};

/// Three ranks' hosts, one frame that is not whole, one read, and the texts of a report.
const LIMIT: usize = 32 << 10;

/// Bytes of two followers, as rank 0 takes them: frames, reports, and the end of a connection.
pub fn fate(data: &[u8]) {
    within("the fate channel's frames", LIMIT, || {
        let mut input = Input(data);
        let (step, ends) = (input.byte().max(1), input.byte());
        let config = FateConfig {
            rank: Rank(0),
            hosts: ["alpha", "beta", "gamma"].map(str::to_owned).to_vec(),
            heartbeat: Duration::from_millis(250),
            limit: Duration::from_secs(3),
            grace: Duration::from_secs(1),
            memory_every: Duration::from_secs(1),
        };
        let now = Instant::now();
        let mut watch = Watch::new(&config, now);
        let mut decoder = Decoder::default();
        let mut decodes = true;
        for (number, part) in input.parts(step).enumerate() {
            let report = watch.bytes(number % 2, part, now);
            if let Some(report) = &report {
                assert!(
                    report.culprit.index() < 3 && report.to_string().lines().count() == 1,
                    "{report}"
                );
            }
            decoder.push(part);
            while decodes {
                match decoder.next() {
                    Ok(None) => break,
                    Ok(Some(frame)) => reads_the_same_again(&frame),
                    Err(why) => {
                        assert!(why.starts_with("sent "));
                        decodes = false;
                    }
                }
            }
            if !decodes || report.is_some() {
                break;
            }
        }
        let end = watch.end(usize::from(ends & 1), "end of stream");
        assert!(end.is_none_or(|report| report.culprit == Rank(1 + u32::from(ends & 1))));
        let _ = watch.tick(now + Duration::from_secs(10));
    });
}

fn reads_the_same_again(frame: &Frame) {
    let bytes = frame.encode();
    assert!(bytes.len() <= 12 + BODY_MAX);
    let mut decoder = Decoder::default();
    decoder.push(&bytes);
    let again = decoder
        .next()
        .expect("what this rank passes on is a frame")
        .expect("a whole one");
    match (frame, &again) {
        // Passed on, its texts are cut to their limits and stripped of control characters.
        (Frame::Fail { culprit, .. }, Frame::Fail { culprit: same, .. }) => assert_eq!(culprit, same),
        _ => assert_eq!(frame, &again),
    }
}

#[cfg(test)]
pub fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    let beat = Frame::Beat {
        phase: "run".to_owned(),
    };
    let memory = Frame::Memory { available: 1 << 34 };
    let fail = Frame::Fail {
        culprit: Rank(2),
        host: "gamma".to_owned(),
        phase: "load".to_owned(),
        reason: "no memory left".to_owned(),
    };
    let with = |head: [u8; 2], frames: &[&Frame]| {
        let mut out = head.to_vec();
        out.extend(frames.iter().flat_map(|frame| frame.encode()));
        out
    };
    vec![
        ("beats", with([255, 0], &[&beat, &memory, &beat])),
        ("in-parts", with([15, 0], &[&beat, &beat])),
        ("fail", with([255, 1], &[&fail])),
        ("bye", with([24, 1], &[&Frame::Stop, &Frame::Bye, &Frame::Bye])),
    ]
}
