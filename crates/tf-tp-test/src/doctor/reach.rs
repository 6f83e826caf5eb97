//! Whether an address of another host can be reached, and if not, whether it is closed or filtered.

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};
use tp_receipt::doctor::Reach;

/// How long an answer may take. A packet that is dropped has none at all; a second try of the system's is within it.
const PATIENCE: Duration = Duration::from_millis(2500);

/// Tries every address at once; gives them in the order in which they were asked for.
pub(super) fn try_all(targets: &[String]) -> Vec<Reach> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = targets
            .iter()
            .map(|target| (target, scope.spawn(|| try_one(target))))
            .collect();
        let join = |(target, thread): (&String, std::thread::ScopedJoinHandle<'_, Reach>)| {
            thread.join().unwrap_or_else(|_| {
                reach(
                    target,
                    "failed",
                    "the attempt broke off".to_owned(),
                    Instant::now(),
                )
            })
        };
        threads.into_iter().map(join).collect()
    })
}

fn reach(to: &str, outcome: &'static str, text: String, since: Instant) -> Reach {
    Reach {
        to: to.to_owned(),
        outcome: outcome.to_owned(),
        text,
        ms: u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX),
    }
}

fn try_one(target: &str) -> Reach {
    let since = Instant::now();
    let addresses: Vec<SocketAddr> = match target.to_socket_addrs() {
        Ok(addresses) => addresses.collect(),
        Err(e) => {
            return reach(
                target,
                "unknown-name",
                format!("its name or form is not known here: {e}"),
                since,
            );
        }
    };
    let mut last = None;
    for address in addresses {
        match TcpStream::connect_timeout(&address, PATIENCE) {
            Ok(_) => return reach(target, "open", "something listens there".to_owned(), since),
            // Nobody is meant to listen there: the host itself has answered.
            Err(e) if e.kind() == ErrorKind::ConnectionRefused => {
                return reach(
                    target,
                    "refused",
                    "closed (refused): the host answers".to_owned(),
                    since,
                );
            }
            Err(e) => last = Some(e),
        }
    }
    match last {
        None => reach(
            target,
            "unknown-name",
            "the name has no address".to_owned(),
            since,
        ),
        Some(e) => match e.kind() {
            ErrorKind::TimedOut | ErrorKind::WouldBlock => {
                let text = format!("filtered: no answer within {} s", PATIENCE.as_secs_f64());
                reach(target, "filtered", text, since)
            }
            ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable => {
                reach(target, "no-route", format!("no route: {e}"), since)
            }
            _ => reach(target, "failed", e.to_string(), since),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_refused_and_unknown_are_told_apart() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let open = listener.local_addr().unwrap().to_string();
        let closed = {
            let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            listener.local_addr().unwrap().to_string()
        };
        let found = try_all(&[open, closed, "nobody.invalid:1".to_owned(), "no port".to_owned()]);
        let outcomes: Vec<_> = found.iter().map(|r| r.outcome.as_str()).collect();
        assert_eq!(outcomes, ["open", "refused", "unknown-name", "unknown-name"]);
    }
}
