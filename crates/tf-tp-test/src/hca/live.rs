//! `hca` over the bootstrap: every rank gives its facts, every rank makes the same pick of all.

use super::{Live, facts, report, root};
use crate::exit_code::Refusal;
use crate::group::{hooks, refusal};
use crate::sink::Sink;
use tp_fabric::session::Group;
use tp_hca::{Document, Options, PickDocument, RankFacts};

/// Meets the other ranks, trades facts, picks and reports. Ends with the pick's exit code on every rank.
pub fn run(live: &Live<'_>, sink: &Sink) -> Result<u8, Refusal> {
    let rank = live.settings.rank.0;
    let mine = facts(root(live.args), live.sources, rank, sink);
    let mut group = Group::open(live.settings, hooks(sink)).map_err(refusal)?;
    group.fate().set_phase("hca");
    let all = match group.meeting().all_gather("hca facts", &mine.to_bytes()) {
        Ok(all) => all,
        Err(error) => return Err(refusal(group.settle(error))),
    };
    let document = match document(&all) {
        Ok(facts) => tp_hca::pick(&facts, &Options::default()),
        Err(error) => PickDocument::refused(error.into()),
    };
    group.close();
    report(&document, live.args.json, Some(rank), false, sink)
}

fn document(all: &[Vec<u8>]) -> Result<Document, tp_hca::facts::FactsError> {
    let ranks: Result<Vec<RankFacts>, _> = all.iter().map(|bytes| RankFacts::from_bytes(bytes)).collect();
    Document::of_ranks(ranks?)
}
