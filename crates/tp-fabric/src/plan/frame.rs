//! The plan link's frames: words to bytes and back. A frame is taken whole or not at all.

use super::PLAN_WORDS_MAX;

/// First bytes of every frame.
const MAGIC: [u8; 4] = *b"TPPL";
/// Magic, kind, number of words.
pub(super) const HEADER: usize = 12;

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// One plan.
    Plan,
    /// Several plans: their number, then each with its length in front.
    Batch,
    /// No more plans will come.
    Stop,
}

/// The head of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    pub kind: Kind,
    pub words: usize,
}

// protocol 5.1
pub(super) fn encode(out: &mut Vec<u8>, kind: Kind, words: &[i64]) {
    let word: u32 = match kind {
        Kind::Plan => 1,
        Kind::Batch => 2,
        Kind::Stop => 3,
    };
    out.clear();
    out.reserve(HEADER + 8 * words.len());
    out.extend_from_slice(&MAGIC);
    out.extend_from_slice(&word.to_le_bytes());
    // The senders keep to `PLAN_WORDS_MAX`, far below 2^32.
    out.extend_from_slice(&u32::try_from(words.len()).unwrap_or(u32::MAX).to_le_bytes());
    for word in words {
        out.extend_from_slice(&word.to_le_bytes());
    }
}

// protocol 5.2
pub(super) fn read_head(bytes: &[u8; HEADER]) -> Result<Head, String> {
    let word = |at: usize| {
        let bytes = bytes.get(at..).and_then(|rest| rest.first_chunk::<4>());
        bytes.map_or(0, |bytes| u32::from_le_bytes(*bytes))
    };
    if bytes.first_chunk::<4>() != Some(&MAGIC) {
        return Err("sent bytes that are no plan".to_owned());
    }
    let kind = match word(4) {
        1 => Kind::Plan,
        2 => Kind::Batch,
        3 => Kind::Stop,
        other => return Err(format!("sent a plan of unknown kind {other}")),
    };
    let words = word(8) as usize;
    // A batch of held plans has a count and one length per plan on top.
    if words > PLAN_WORDS_MAX || (kind == Kind::Stop && words > 0) {
        return Err(format!(
            "sent a plan that claims {words} words; {PLAN_WORDS_MAX} are the most"
        ));
    }
    Ok(Head { kind, words })
}

/// Appends words from bytes; a rest of less than a word stays in `rest`.
pub(super) fn append(words: &mut Vec<i64>, rest: &mut Vec<u8>, mut bytes: &[u8]) {
    while !rest.is_empty() && !bytes.is_empty() {
        let take = (8 - rest.len()).min(bytes.len());
        let (head, tail) = bytes.split_at(take);
        rest.extend_from_slice(head);
        bytes = tail;
        if let Some(word) = rest.first_chunk::<8>() {
            words.push(i64::from_le_bytes(*word));
            rest.clear();
        }
    }
    let (whole, tail) = bytes.as_chunks::<8>();
    words.extend(whole.iter().map(|word| i64::from_le_bytes(*word)));
    rest.extend_from_slice(tail);
}

/// The words of a batch that holds these plans.
pub(super) fn batch(plans: &[Vec<i64>], last: &[i64]) -> Vec<i64> {
    let length = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
    let mut out = vec![length(plans.len() + 1)];
    for plan in plans.iter().map(Vec::as_slice).chain([last]) {
        out.push(length(plan.len()));
        out.extend_from_slice(plan);
    }
    out
}

/// A batch whose plans are taken out one by one, so that it never takes more memory than the frame it came in and one
/// plan.
#[derive(Debug, Default)]
pub(super) struct Batch {
    words: Vec<i64>,
    at: usize,
}

impl Batch {
    /// A batch of these words, or why they are none. All of it is checked before any of its plans counts.
    // protocol 5.3
    pub fn check(words: Vec<i64>) -> Result<Self, String> {
        let garbled = || "sent a garbled batch of plans".to_owned();
        let (count, mut rest) = words.split_first().ok_or_else(garbled)?;
        let count = usize::try_from(*count).map_err(|_| garbled())?;
        // Every plan takes at least the word of its length.
        if count == 0 || count > rest.len() {
            return Err(garbled());
        }
        for _ in 0..count {
            let (length, tail) = rest.split_first().ok_or_else(garbled)?;
            let length = usize::try_from(*length).map_err(|_| garbled())?;
            rest = tail.get(length..).ok_or_else(garbled)?;
        }
        if rest.is_empty() {
            Ok(Self { words, at: 1 })
        } else {
            Err(garbled())
        }
    }

    /// The next plan; `None` when all are out.
    pub fn next(&mut self) -> Option<Vec<i64>> {
        let (length, rest) = self.words.get(self.at..)?.split_first()?;
        let plan = rest.get(..usize::try_from(*length).ok()?)?.to_vec();
        self.at += 1 + plan.len();
        if self.at == self.words.len() {
            *self = Self::default();
        }
        Some(plan)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_batch_is_whole_or_nothing() {
        let held = [vec![1, 2], Vec::new()];
        let words = batch(&held, &[i64::MIN, 3]);
        let mut batch = Batch::check(words.clone()).unwrap();
        let all: Vec<_> = std::iter::from_fn(|| batch.next()).collect();
        assert_eq!(all, [vec![1, 2], vec![], vec![i64::MIN, 3]]);
        assert_eq!(batch.next(), None);
        for end in 0..words.len() {
            assert!(Batch::check(words[..end].to_vec()).is_err(), "cut to {end} words");
        }
        for garbage in [
            vec![-1],
            vec![i64::MAX, 0],
            vec![1, -5],
            vec![1, i64::MAX],
            vec![1, 0, 0],
            vec![0],
        ] {
            assert!(Batch::check(garbage.clone()).is_err(), "{garbage:?}");
        }
    }

    proptest! {
        #[test]
        fn words_survive_any_cut(words in proptest::collection::vec(any::<i64>(), 0..40), step in 1usize..30) {
            let mut bytes = Vec::new();
            encode(&mut bytes, Kind::Plan, &words);
            let head = read_head(bytes.first_chunk().unwrap()).unwrap();
            prop_assert_eq!(head, Head { kind: Kind::Plan, words: words.len() });
            let (mut got, mut rest) = (Vec::new(), Vec::new());
            for chunk in bytes[HEADER..].chunks(step) {
                append(&mut got, &mut rest, chunk);
            }
            prop_assert_eq!(got, words);
            prop_assert!(rest.is_empty());
        }

        #[test]
        fn no_words_make_a_batch_panic(words in proptest::collection::vec(-3i64..6, 0..20)) {
            let _ = Batch::check(words);
        }

        #[test]
        fn no_bytes_make_a_head_panic(bytes: [u8; HEADER]) {
            let _ = read_head(&bytes);
        }
    }
}
