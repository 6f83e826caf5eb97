//! Facts and variables of all ranks, sifted and checked, before any rail is looked for.

use crate::code::ErrorCode;
use crate::document::PickError;
use crate::facts::Document;
use crate::pick::host::Host;
use crate::pick::select::{self, Selection};
use crate::pick::{Options, reasons};

/// The ranks' hosts, ascending.
pub(crate) fn hosts(document: &Document) -> Result<Vec<Host<'_>>, PickError> {
    let mut hosts = Vec::with_capacity(document.ranks.len());
    for facts in &document.ranks {
        hosts.push(Host::new(facts, select::soft_allowed(&facts.env, facts.rank)?));
    }
    hosts.sort_by_key(Host::rank);
    match hosts.windows(2).find(|pair| pair[0].rank() == pair[1].rank()) {
        None => Ok(hosts),
        Some(pair) => {
            let text = format!("rank {} is given twice", pair[0].rank());
            Err(PickError::new(ErrorCode::BadFile, pair[0].rank(), text))
        }
    }
}

/// Every rank's variables, or the first thing wrong with one.
pub(crate) fn selections(hosts: &[Host<'_>], options: &Options) -> Result<Vec<Selection>, PickError> {
    let mut selections = Vec::with_capacity(hosts.len());
    for host in hosts {
        let expected = options
            .expected_addresses
            .get(&host.rank())
            .map_or(&[][..], Vec::as_slice);
        if let Some(error) = expected
            .iter()
            .find_map(|&ip| reasons::address_mismatch(host, ip))
        {
            return Err(error);
        }
        selections.push(select::select(host)?);
    }
    Ok(selections)
}
