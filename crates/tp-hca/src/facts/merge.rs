//! Joining facts of single hosts into one document, and facts on the wire between ranks.

use super::{Document, FactsError, RankFacts, SCHEMA};
use std::path::Path;

/// Longest facts of one rank that [`RankFacts::from_bytes`] takes, in bytes.
pub const MAX_BYTES: usize = 4 << 20;

impl Document {
    /// A document of these ranks, ascending. A rank given twice is refused.
    pub fn of_ranks(mut ranks: Vec<RankFacts>) -> Result<Self, FactsError> {
        ranks.sort_by_key(|facts| facts.rank);
        if let Some(pair) = ranks.windows(2).find(|pair| pair[0].rank == pair[1].rank) {
            return Err(FactsError::of_text(format!(
                "rank {} is given twice ({} and {}); give every rank its own number",
                pair[0].rank,
                pair[0].place(),
                pair[1].place()
            )));
        }
        Ok(Self {
            schema: SCHEMA,
            ranks,
        })
    }

    /// Joins documents into one; a rank given twice is refused.
    pub fn merge(documents: impl IntoIterator<Item = Document>) -> Result<Self, FactsError> {
        Self::of_ranks(
            documents
                .into_iter()
                .flat_map(|document| document.ranks)
                .collect(),
        )
    }

    /// Joins one-rank facts files, one a rank in this order, whatever rank each file says it is.
    pub fn from_host_files<P: AsRef<Path>>(paths: &[P]) -> Result<Self, FactsError> {
        let mut ranks = Vec::with_capacity(paths.len());
        for (rank, path) in (0u32..).zip(paths) {
            ranks.push(Self::load(path.as_ref())?.into_single(rank, &path.as_ref().display().to_string())?);
        }
        Self::of_ranks(ranks)
    }

    /// The one rank of this document, renumbered; `origin` names the document in the error.
    pub fn into_single(self, rank: u32, origin: &str) -> Result<RankFacts, FactsError> {
        let found = self.ranks.len();
        match <[RankFacts; 1]>::try_from(self.ranks) {
            Ok([facts]) => Ok(RankFacts { rank, ..facts }),
            Err(_) => Err(FactsError::of_text(format!(
                "{origin}: one [[rank]] is expected in a host's facts file, {found} are there"
            ))),
        }
    }

    /// The facts of `rank`.
    pub fn rank_mut(&mut self, rank: u32) -> Option<&mut RankFacts> {
        self.ranks.iter_mut().find(|facts| facts.rank == rank)
    }
}

impl RankFacts {
    /// Sets a variable of this rank, or removes it.
    pub fn set_env(&mut self, name: &str, value: Option<&str>) {
        match value {
            Some(value) => drop(self.env.insert(name.to_owned(), value.to_owned())),
            None => drop(self.env.remove(name)),
        }
    }

    /// The host as messages name it: its name, else its rank.
    pub fn place(&self) -> String {
        match &self.host {
            Some(host) => format!("host {host}"),
            None => format!("rank {}", self.rank),
        }
    }

    /// These facts as bytes for another rank.
    pub fn to_bytes(&self) -> Vec<u8> {
        // Maps with string keys and plain values cannot fail to serialise; an empty answer is refused by the reader.
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// Facts that another rank sent. The length is checked before anything is read, and names are checked as in a file.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, FactsError> {
        if bytes.len() > MAX_BYTES {
            return Err(FactsError::of_text(format!(
                "facts of {} bytes from a rank are above the limit of {MAX_BYTES}",
                bytes.len()
            )));
        }
        let facts: Self = serde_json::from_slice(bytes)
            .map_err(|error| FactsError::of_text(format!("facts from a rank cannot be read: {error}")))?;
        facts.check()?;
        Ok(facts)
    }
}
