//! A large file to many hosts: it goes over this machine's link once, to the first host, and from there from host to host
//! while it arrives. Whoever the chain does not reach gets the rest directly.

use super::put::{Sent, There, look, put, stamp};
use super::{Artifact, Member, each};
use crate::host::ssh::{Said, Session};
use crate::host::{Host, HostError};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::{Duration, Instant};
use tp_receipt::control::{SCHEMA, Start};

/// From so many hosts on that lack the file.
const HOSTS_MIN: usize = 8;
/// A smaller file is sent to each directly, bytes.
const SIZE_MIN: u64 = 16 << 20;
/// How long a relay may take to listen.
const LISTEN_LIMIT: Duration = Duration::from_secs(15);
/// How long the chain may take in all.
const CHAIN_LIMIT: Duration = Duration::from_secs(1800);

/// Brings a file to every host; `relayed` is false where each is to get it directly.
pub fn spread(members: &[Member<'_>], artifact: &Artifact, relayed: bool) -> Vec<Result<Sent, HostError>> {
    let began = Instant::now();
    let states = each(members, |member| look(&member.ssh, artifact));
    let lacking: Vec<&Member<'_>> = members
        .iter()
        .zip(&states)
        .filter(|(_, state)| matches!(state, Ok(state) if *state != There::Whole))
        .map(|(member, _)| member)
        .collect();
    let mut chained = Vec::new();
    let mut first = None;
    if relayed && lacking.len() >= HOSTS_MIN && artifact.size >= SIZE_MIN {
        let whole = members
            .iter()
            .zip(&states)
            .find(|(_, state)| **state == Ok(There::Whole));
        (chained, first) = chain(whole.map(|(member, _)| member), &lacking, artifact);
    }
    // What the chain left is sent from here.
    let name_of = |member: &Member<'_>| member.ssh.name().to_owned();
    each(members, |member| {
        let index = members
            .iter()
            .position(|other| Arc::ptr_eq(&other.ssh, &member.ssh));
        match index.map(|index| &states[index]) {
            Some(Ok(There::Whole)) => return Ok(Sent::nothing()),
            Some(Err(error)) => return Err(error.clone()),
            _ => {}
        }
        let name = name_of(member);
        if chained.contains(&name) {
            return Ok(Sent {
                bytes: artifact.size,
                relayed: true,
                took: began.elapsed(),
                ..Sent::nothing()
            });
        }
        match &first {
            Some((source, own)) if *source == name => Ok(*own),
            _ => put(&member.ssh, artifact),
        }
    })
}

/// Passes the file along the hosts and gives the names of those that have it now from another host.
fn chain(whole: Option<&Member<'_>>, lacking: &[&Member<'_>], artifact: &Artifact) -> Reached {
    let (source, rest) = match (whole, lacking.split_first()) {
        (Some(source), _) => (source, lacking),
        (None, Some((first, rest))) => (*first, rest),
        (None, None) => return Reached::default(),
    };
    let Ok(secret) = crate::exec::new_run_id().and_then(|a| Ok(a + &crate::exec::new_run_id()?)) else {
        return Reached::default();
    };
    let start = Start {
        schema: SCHEMA,
        session: "push".to_owned(),
        secret: Some(secret),
        ..Start::default()
    };
    let (tell, told) = mpsc::channel();
    let stops: Vec<&Member<'_>> = std::iter::once(source).chain(rest.iter().copied()).collect();
    let mut links = Links::start(&stops, artifact, &start, &tell);
    links.join(&stops, &told);
    // The source's own transfer, which the chain follows while it goes on.
    let own = match whole {
        Some(_) => None,
        None => put(&source.ssh, artifact).ok(),
    };
    if whole.is_some() || own.is_some() {
        links.wait(&told);
    }
    let mut reached = Vec::new();
    for (index, member) in stops.iter().enumerate().skip(1) {
        if links.done[index] && stamp(&member.ssh, artifact).is_ok() {
            reached.push(member.ssh.name().to_owned());
        }
    }
    (reached, own.map(|own| (source.ssh.name().to_owned(), own)))
}

/// Who has the file from another host, and who has it from here, with what was sent.
type Reached = (Vec<String>, Option<(String, Sent)>);

/// The relays of a chain, by their place in it; one that could not be started has none.
struct Links {
    sessions: Vec<Option<Session>>,
    ports: Vec<Option<u16>>,
    done: Vec<bool>,
    over: Vec<bool>,
}

impl Links {
    fn start(
        stops: &[&Member<'_>],
        artifact: &Artifact,
        start: &Start,
        tell: &Sender<(usize, Said)>,
    ) -> Self {
        let session = |(index, member): (usize, &&Member<'_>)| {
            let host = &member.ssh;
            let mut argv = vec![
                host.runner().display().to_string(),
                "relay".to_owned(),
                "--events".to_owned(),
                "--file".to_owned(),
                artifact.path_on(&host.about().dir),
                "--sha256".to_owned(),
                artifact.sha256.clone(),
                "--size".to_owned(),
                artifact.size.to_string(),
            ];
            if index == 0 {
                argv.push("--source".to_owned());
            }
            host.session(&argv, start, index, tell.clone()).ok()
        };
        let sessions: Vec<Option<Session>> = stops.iter().enumerate().map(session).collect();
        Self {
            over: sessions.iter().map(Option::is_none).collect(),
            ports: vec![None; sessions.len()],
            done: vec![false; sessions.len()],
            sessions,
        }
    }

    fn hear(&mut self, index: usize, said: Said) {
        match said {
            Said::Line(line) => {
                let event: serde_json::Value = serde_json::from_str(&line).unwrap_or_default();
                if event["event"] == "relay" {
                    if let Some(port) = event["port"].as_u64().and_then(|port| u16::try_from(port).ok()) {
                        self.ports[index] = Some(port);
                    }
                    self.done[index] |= event["done"] == true;
                }
            }
            Said::Error(_) => {}
            Said::Ended(_) => self.over[index] = true,
        }
    }

    /// Waits until everybody listens, then tells each who is next; one that does not listen is left out.
    fn join(&mut self, stops: &[&Member<'_>], told: &Receiver<(usize, Said)>) {
        let until = Instant::now() + LISTEN_LIMIT;
        let waiting = |links: &Self| (1..stops.len()).any(|i| links.ports[i].is_none() && !links.over[i]);
        while waiting(self) {
            let Ok((index, said)) = told.recv_timeout(until.saturating_duration_since(Instant::now())) else {
                break;
            };
            self.hear(index, said);
        }
        let mut before = 0;
        for (index, stop) in stops.iter().enumerate().skip(1) {
            let address = stop
                .entry
                .fabric
                .clone()
                .or_else(|| stop.ssh.control_address().map(|a| a.to_string()));
            let (Some(port), Some(address), false) = (self.ports[index], address, self.over[index]) else {
                self.sessions[index] = None;
                self.over[index] = true;
                continue;
            };
            let address = address.trim_matches(['[', ']']);
            if let Some(session) = &self.sessions[before] {
                session.write_line(&format!("next {address} {port}"));
            }
            before = index;
        }
        if let Some(session) = &self.sessions[before] {
            session.write_line("last");
        }
    }

    fn wait(&mut self, told: &Receiver<(usize, Said)>) {
        let until = Instant::now() + CHAIN_LIMIT;
        while self.over.iter().any(|over| !over) {
            let Ok((index, said)) = told.recv_timeout(until.saturating_duration_since(Instant::now())) else {
                return;
            };
            self.hear(index, said);
            // One that failed ends those behind it, which keep what they have.
        }
    }
}
