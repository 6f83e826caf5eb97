//! The fuzz target of the plan link's parsers.

use super::PLAN_WORDS_MAX;
use super::frame::{self, Batch, HEADER, Kind};
use crate::fuzz::{Input, within};

/// Frames of the plan link, their words in parts of any size.
pub fn plan(data: &[u8]) {
    // A vector that grows holds its old and its new memory for a moment.
    within("the plan link's frames", 8 * data.len() + (4 << 10), || {
        let mut input = Input(data);
        let step = input.byte();
        while let Some(header) = input.take(HEADER).first_chunk::<HEADER>() {
            let head = match frame::read_head(header) {
                Ok(head) => head,
                Err(why) => {
                    assert!(why.starts_with("sent "));
                    return;
                }
            };
            assert!(head.words <= PLAN_WORDS_MAX && (head.kind != Kind::Stop || head.words == 0));
            let body = input.take(head.words * 8);
            let (mut words, mut rest) = (Vec::new(), Vec::with_capacity(8));
            for part in Input(body).parts(step) {
                frame::append(&mut words, &mut rest, part);
            }
            assert_eq!((words.len(), rest.len()), (body.len() / 8, body.len() % 8));
            if words.len() < head.words {
                return;
            }
            if head.kind == Kind::Batch {
                batch(words);
            }
        }
    });
}

fn batch(words: Vec<i64>) {
    let whole = words.clone();
    let Ok(mut batch) = Batch::check(words) else {
        return;
    };
    let plans: Vec<Vec<i64>> = std::iter::from_fn(|| batch.next()).collect();
    assert_eq!(plans.len() as i64, whole[0]);
    let (last, held) = plans.split_last().expect("a batch has a plan");
    assert_eq!(frame::batch(held, last), whole);
}

#[cfg(test)]
pub fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    let with = |step: u8, frames: &[(Kind, &[i64])]| {
        let (mut out, mut bytes) = (vec![step], Vec::new());
        for (kind, words) in frames {
            frame::encode(&mut bytes, *kind, words);
            out.extend_from_slice(&bytes);
        }
        out
    };
    let held = frame::batch(&[vec![1, 2], Vec::new()], &[i64::MIN, 3]);
    vec![
        ("plan", with(0, &[(Kind::Plan, &[1, -2, i64::MAX])])),
        ("batch", with(5, &[(Kind::Batch, &held), (Kind::Plan, &[])])),
        ("stop", with(0, &[(Kind::Plan, &[4]), (Kind::Stop, &[])])),
    ]
}
