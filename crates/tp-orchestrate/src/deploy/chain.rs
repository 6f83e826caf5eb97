//! The relays of one transfer, from host to host: who is next, what is done where a link of it breaks, and when it is over.
//!
//! The relays have deadlines of their own, notice a silent or a lost neighbour and say so; which one takes its place is
//! decided here. Whoever the chain does not reach is named with the reason.

use super::put::{Sent, put, stamp};
use super::{Artifact, Member};
use crate::exec::new_run_id;
use crate::host::ssh::{End, Said, Session};
use crate::host::{Host, HostError};
use std::sync::OnceLock;
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::{Duration, Instant};
use tp_receipt::control::{SCHEMA, Start};

/// How long a relay may take to listen.
const LISTEN_LIMIT: Duration = Duration::from_secs(15);
/// How long the chain may take in all.
const CHAIN_LIMIT: Duration = Duration::from_secs(1800);
/// How often the source's own transfer is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// So many different hosts that one host cannot reach: then it is the one that is cut off.
const FAILURES_MAX: u32 = 3;

/// Passes the file along the hosts. The first has it (`whole`), or gets it from here while the others already follow. For
/// each stop, in their order: what was sent, or the reason why the chain did not bring it.
pub(super) fn chain(stops: &[&Member<'_>], whole: bool, artifact: &Artifact) -> Vec<Result<Sent, String>> {
    let began = Instant::now();
    let secret = match new_run_id().and_then(|a| Ok(a + &new_run_id()?)) {
        Ok(secret) => secret,
        Err(error) => return stops.iter().map(|_| Err(error.to_string())).collect(),
    };
    let start = Start {
        schema: SCHEMA,
        session: "push".to_owned(),
        secret: Some(secret),
        ..Start::default()
    };
    let (tell, told) = mpsc::channel();
    let mut chain = Chain::start(stops, artifact, &start, &tell);
    chain.join(&told);
    // The source's own transfer, which the chain follows while it goes on.
    let own = OnceLock::new();
    std::thread::scope(|scope| {
        if whole {
            let _ = own.set(Ok(Sent::nothing()));
        } else {
            scope.spawn(|| own.set(put(&stops[0].ssh, artifact)));
        }
        chain.follow(&told, &own);
    });
    let own = own.into_inner();
    let mut out = vec![match own {
        Some(own) => own.map_err(|error| error.what),
        None => Err("send it: a thread of this program ended".to_owned()),
    }];
    for (link, member) in chain.links.iter().zip(stops).skip(1) {
        out.push(link.outcome(member, artifact, began));
    }
    out
}

/// The relay on one host.
#[derive(Default)]
struct Link {
    host: String,
    /// Where the one before it finds it.
    address: Option<String>,
    port: Option<u16>,
    session: Option<Session>,
    /// Who is next, while it is to pass the file on.
    next: Option<usize>,
    /// It has the file, whole and right.
    done: bool,
    /// Nothing more is expected of it.
    over: bool,
    /// To how many others it could not pass the file on.
    failures: u32,
    /// Why the file did not get there.
    why: Option<String>,
    /// Its last words.
    said: Option<String>,
}

impl Link {
    fn order(&self, line: &str) {
        if let Some(session) = &self.session {
            session.write_line(line);
        }
    }

    fn outcome(&self, member: &Member<'_>, artifact: &Artifact, began: Instant) -> Result<Sent, String> {
        if !self.done {
            return Err(self
                .why
                .clone()
                .unwrap_or_else(|| "the chain did not reach it in time".to_owned()));
        }
        stamp(&member.ssh, artifact).map_err(|error| error.to_string())?;
        Ok(Sent {
            bytes: artifact.size,
            relayed: true,
            took: began.elapsed(),
            ..Sent::nothing()
        })
    }
}

/// The relays by their place in the chain; the first one is the source.
struct Chain {
    links: Vec<Link>,
}

impl Chain {
    fn start(
        stops: &[&Member<'_>],
        artifact: &Artifact,
        start: &Start,
        tell: &Sender<(usize, Said)>,
    ) -> Self {
        let link = |(index, member): (usize, &&Member<'_>)| {
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
            let control = || host.control_address().map(|address| address.to_string());
            let address = member.entry.fabric.clone().or_else(control);
            let session = host.session(&argv, start, index, tell.clone());
            Link {
                host: host.name().to_owned(),
                address: address.map(|address| address.trim_matches(['[', ']']).to_owned()),
                over: session.is_err(),
                why: session.as_ref().err().map(ToString::to_string),
                session: session.ok(),
                ..Link::default()
            }
        };
        Self {
            links: stops.iter().enumerate().map(link).collect(),
        }
    }

    /// Waits until everybody listens, then tells each who is next; one that does not listen is left out.
    fn join(&mut self, told: &Receiver<(usize, Said)>) {
        let until = Instant::now() + LISTEN_LIMIT;
        while self
            .links
            .iter()
            .skip(1)
            .any(|link| link.port.is_none() && !link.over)
        {
            let Ok((index, said)) = told.recv_timeout(until.saturating_duration_since(Instant::now())) else {
                break;
            };
            self.hear(index, said);
        }
        for index in 1..self.links.len() {
            let link = &self.links[index];
            if link.over {
                continue;
            }
            if link.port.is_none() {
                self.leave_out(
                    index,
                    format!("it did not listen within {} s", LISTEN_LIMIT.as_secs()),
                );
            } else if link.address.is_none() {
                self.leave_out(
                    index,
                    "it has no address at which another host reaches it".to_owned(),
                );
            }
        }
        if self.links[0].over {
            let why = self.links[0].why.clone().unwrap_or_default();
            return self.cut_before(1, &why);
        }
        let mut index = Some(0);
        while let Some(here) = index {
            index = self.behind(here);
            self.point(here, index);
        }
    }

    /// The next one behind a place of which something is still expected.
    fn behind(&self, index: usize) -> Option<usize> {
        (index + 1..self.links.len()).find(|other| !self.links[*other].over && !self.links[*other].done)
    }

    /// Tells one who is next, or that nobody is.
    fn point(&mut self, index: usize, next: Option<usize>) {
        let target = next.and_then(|next| {
            let link = &self.links[next];
            Some((next, link.address.clone()?, link.port?))
        });
        self.links[index].next = target.as_ref().map(|(next, ..)| *next);
        match target {
            Some((_, address, port)) => self.links[index].order(&format!("next {address} {port}")),
            None => self.links[index].order("last"),
        }
    }

    /// Gives one up: its lease ends, and what it has of the file stays for the transfer from here.
    fn leave_out(&mut self, index: usize, why: String) {
        let link = &mut self.links[index];
        link.session = None;
        link.over = true;
        link.why.get_or_insert(why);
    }

    /// Gives up everybody from a place on who has not got it.
    fn cut_before(&mut self, index: usize, why: &str) {
        for other in index..self.links.len() {
            if !self.links[other].done && !self.links[other].over {
                self.leave_out(other, why.to_owned());
            }
        }
        for link in &mut self.links {
            if link.next.is_some_and(|next| next >= index) && !link.over {
                link.next = None;
                link.order("last");
            }
        }
    }

    /// Follows the transfer until nothing more is expected of anybody; `own` is the source's, once it is over.
    fn follow(&mut self, told: &Receiver<(usize, Said)>, own: &OnceLock<Result<Sent, HostError>>) {
        let until = Instant::now() + CHAIN_LIMIT;
        while self.links.iter().any(|link| !link.over) {
            if let Some(Err(error)) = own.get() {
                let why = format!("the first host did not get it: {error}");
                return self.cut_before(0, &why);
            }
            match told.recv_timeout(LOOK_EVERY) {
                Ok((index, said)) => self.hear(index, said),
                Err(_) if Instant::now() > until => {
                    let why = format!("it took longer than {} s", CHAIN_LIMIT.as_secs());
                    return self.cut_before(0, &why);
                }
                Err(_) => {}
            }
        }
    }

    fn hear(&mut self, index: usize, said: Said) {
        match said {
            Said::Line(line) => {
                let event: serde_json::Value = serde_json::from_str(&line).unwrap_or_default();
                if event["event"] != "relay" {
                    return;
                }
                let port = event["port"].as_u64().and_then(|port| u16::try_from(port).ok());
                self.links[index].port = self.links[index].port.or(port);
                self.links[index].done |= event["done"] == true;
                if let Some(why) = event["unsent"].as_str() {
                    self.broken(index, why);
                }
            }
            Said::Error(line) => self.links[index].said = Some(line),
            Said::Ended(end) => self.ended(index, end),
        }
    }

    /// One could not pass it on: the next one is left out, and whoever comes behind takes its place.
    fn broken(&mut self, index: usize, why: &str) {
        let Some(next) = self.links[index].next.take() else {
            return;
        };
        if self.links[next].done {
            return self.point(index, None);
        }
        let why = format!("{} failed to pass it on: {why}", self.links[index].host);
        self.leave_out(next, why.clone());
        self.links[index].failures += 1;
        let after = self.behind(next);
        if let (Some(after), true) = (after, self.links[index].failures >= FAILURES_MAX) {
            self.point(index, None);
            return self.cut_before(after, &why);
        }
        self.point(index, after);
    }

    /// One is gone. Where it had not got the file, the one before it notices and says so; where nobody feeds those behind
    /// it any more, they are given up.
    fn ended(&mut self, index: usize, end: End) {
        let link = &mut self.links[index];
        link.session = None;
        let was_over = std::mem::replace(&mut link.over, true);
        if was_over || end == End::Exit(0) {
            return;
        }
        let said = link.said.clone().unwrap_or_else(|| match &end {
            End::Unknown(why) => why.clone(),
            End::Exit(code) => format!("its relay ended with {code}"),
            End::Signal(name) => format!("its relay was ended by SIG{name}"),
        });
        let why = format!("{}: {said}", link.host);
        let next = link.next.take();
        if !link.done && index > 0 {
            link.why.get_or_insert(said);
        }
        let is_fed = self
            .links
            .iter()
            .any(|other| other.next == Some(index) && !other.over);
        if index == 0 || self.links[index].done || !is_fed {
            let cut = next.or_else(|| self.behind(index));
            if let Some(cut) = cut {
                self.cut_before(cut, &why);
            }
        }
    }
}
