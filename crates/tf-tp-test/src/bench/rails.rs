//! `bench --rails`: what each rail between two ranks carries, what all carry together, and what TCP carries on the same ports.
//! Rails that together give no more than one of them, and no more than TCP, are held back by something else than RDMA.

use super::row::Row;
use super::stats::Figures;
use crate::exit_code::{self, Refusal};
use crate::sink::Sink;
use crate::transport::lane::{Lane, Use};
use serde_json::{Map, json};
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};
use tp_fabric::meeting::Meeting;
use tp_fabric::rails::Agreed;
use tp_fabric::session::Group;
use tp_fabric::settings::Settings;
use tp_fabric::types::Rank;
use tp_fabric::wire::Wire;

/// Timed round trips, and messages of a stream, unless given.
pub const CALLS: u32 = 500;
/// Bytes of a message whose latency is taken.
const SMALL: usize = 8;
/// Messages before the timed ones.
const WARM_UP: u32 = 20;
/// How long a clean end waits for the other rank.
const CLOSE: Duration = Duration::from_secs(5);
/// Longest wait for anything of the other rank.
const PATIENCE: Duration = Duration::from_secs(60);
/// Figures within this share of each other count as equal.
const EQUAL: f64 = 0.15;

/// What one way between the ranks gives.
#[derive(Clone, Debug)]
struct Measured {
    /// `rail 0`, `all rails`, `tcp on rail 0`.
    what: String,
    wire: &'static str,
    /// Half of a round trip of [`SMALL`] bytes.
    latency: Figures,
    /// Bytes of a streamed message, and the time of one.
    message: usize,
    stream: Figures,
}

impl Measured {
    fn gbit_s(&self) -> f64 {
        self.message as f64 * 8.0 / self.stream.median / 1e3
    }
}

/// Measures and reports, in a group that has agreed on its rails; rank 0 has the figures.
pub fn run(
    calls: u32,
    (mut group, agreed): (Group, Agreed),
    settings: &Settings,
    sink: &Sink,
) -> Result<u8, Refusal> {
    let fate = group.fate();
    let measured = match measure(group.meeting(), &agreed, settings, calls, sink) {
        Ok(measured) => measured,
        Err(why) => fate.fatal("bench", &why),
    };
    group.close();
    for one in &measured {
        say(one, sink);
    }
    if let Some(text) = throttled(&measured) {
        sink.log("warn", Some("throttled"), &text);
    }
    sink.summary();
    Ok(exit_code::PASSED)
}

fn measure(
    meeting: &mut dyn Meeting,
    agreed: &Agreed,
    settings: &Settings,
    calls: u32,
    sink: &Sink,
) -> Result<Vec<Measured>, String> {
    let count = Lane::ends(agreed, settings.rank, settings.world)?.len();
    let mut uses: Vec<(String, Use)> = (0..count)
        .map(|rail| (format!("rail {rail}"), Use::Only(rail)))
        .collect();
    if count > 1 {
        uses.push(("all rails".to_owned(), Use::All));
    }
    let mut measured = Vec::new();
    for (what, which) in uses {
        sink.human(&format!("measuring {what}"));
        let mut lane = Lane::open(meeting, agreed, settings, which, PATIENCE)?;
        let one = over_lane(&mut lane, settings, what, calls)?;
        lane.wire.close(CLOSE);
        measured.push(one);
    }
    for rail in 0..count {
        let what = format!("tcp on rail {rail}");
        sink.human(&format!("measuring {what}"));
        let stream = connect(meeting, agreed, settings, rail);
        let outcome = stream.as_ref().map(drop).map_err(String::clone);
        meeting
            .verdict("connect over the rail's addresses", outcome)
            .map_err(|e| e.to_string())?;
        let one = over_tcp(&mut stream?, settings, what, calls)?;
        measured.push(one);
    }
    Ok(measured)
}

fn figures(times: Vec<Duration>) -> Result<Figures, String> {
    Figures::of(times).ok_or_else(|| "nothing was timed".to_owned())
}

fn over_lane(lane: &mut Lane, settings: &Settings, what: String, calls: u32) -> Result<Measured, String> {
    let (me, peer) = (settings.rank, Rank(1 - settings.rank.0));
    let mut halves = Vec::new();
    let small = [1u8; SMALL];
    for call in 0..WARM_UP + calls {
        let began = Instant::now();
        if me == Rank(0) {
            lane.send(peer, &small)?;
        }
        lane.take(peer, false, |_| ())?;
        if me == Rank(1) {
            lane.send(peer, &small)?;
        }
        if call >= WARM_UP {
            halves.push(began.elapsed() / 2);
        }
    }
    let message = settings.slot_bytes;
    let large = vec![2u8; message];
    let mut times = Vec::new();
    for call in 0..WARM_UP + calls {
        let began = Instant::now();
        // One way: rank 0 sends, rank 1 answers each message when it has it.
        if me == Rank(0) {
            lane.send(peer, &large)?;
        } else {
            lane.take(peer, true, |_| ())?;
        }
        if call >= WARM_UP {
            times.push(began.elapsed());
        }
    }
    // The last of the stream has arrived when the other rank says so.
    if me == Rank(0) {
        lane.take(peer, true, |_| ())?;
    } else {
        lane.send(peer, &small)?;
    }
    Ok(Measured {
        what,
        wire: "verbs",
        latency: figures(halves)?,
        message,
        stream: figures(times)?,
    })
}

/// A connection between the two ends of a rail: rank 0 listens at its own.
fn connect(
    meeting: &mut dyn Meeting,
    agreed: &Agreed,
    settings: &Settings,
    rail: usize,
) -> Result<TcpStream, String> {
    let picks = agreed.document.rank(settings.rank.0).map(|pick| &pick.rails);
    let own = picks
        .and_then(|rails| rails.get(rail))
        .ok_or("there is no such rail")?;
    let own: IpAddr = own
        .address
        .parse()
        .map_err(|_| "the rail's address cannot be read")?;
    let listener = (settings.rank == Rank(0))
        .then(|| TcpListener::bind(SocketAddr::new(own, 0)))
        .transpose();
    let at = match &listener {
        Ok(Some(listener)) => listener
            .local_addr()
            .map_or_else(|e| e.to_string(), |at| at.to_string()),
        Ok(None) => String::new(),
        Err(error) => error.to_string(),
    };
    let at = meeting
        .broadcast("name the rail's port", at.as_bytes())
        .map_err(|e| e.to_string())?;
    let at = String::from_utf8_lossy(&at).into_owned();
    let stream = match listener.map_err(|e| format!("listen at {own}: {e}"))? {
        Some(listener) => accept(&listener)?,
        None => {
            let to: SocketAddr = at
                .parse()
                .map_err(|_| format!("rank 0 cannot listen on the rail: {at}"))?;
            TcpStream::connect_timeout(&to, PATIENCE).map_err(|e| format!("connect to {to}: {e}"))?
        }
    };
    let set = |stream: &TcpStream| {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))
    };
    set(&stream).map_err(|e| e.to_string())?;
    Ok(stream)
}

fn accept(listener: &TcpListener) -> Result<TcpStream, String> {
    listener.set_nonblocking(true).map_err(|e| e.to_string())?;
    let until = Instant::now() + PATIENCE;
    loop {
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(false).map_err(|e| e.to_string())?;
                return Ok(stream);
            }
            Err(_) if Instant::now() < until => std::thread::sleep(Duration::from_millis(2)),
            Err(error) => return Err(format!("nobody connected over the rail: {error}")),
        }
    }
}

fn over_tcp(
    stream: &mut TcpStream,
    settings: &Settings,
    what: String,
    calls: u32,
) -> Result<Measured, String> {
    let first = settings.rank == Rank(0);
    let failed = |e: std::io::Error| format!("{what}: {e}");
    let mut halves = Vec::new();
    let mut small = [3u8; SMALL];
    for call in 0..WARM_UP + calls {
        let began = Instant::now();
        if first {
            stream.write_all(&small).map_err(failed)?;
        }
        stream.read_exact(&mut small).map_err(failed)?;
        if !first {
            stream.write_all(&small).map_err(failed)?;
        }
        if call >= WARM_UP {
            halves.push(began.elapsed() / 2);
        }
    }
    let message = settings.slot_bytes;
    let mut large = vec![4u8; message];
    let mut times = Vec::new();
    for call in 0..WARM_UP + calls {
        let began = Instant::now();
        if first {
            stream.write_all(&large).map_err(failed)?;
        } else {
            stream.read_exact(&mut large).map_err(failed)?;
        }
        if call >= WARM_UP {
            times.push(began.elapsed());
        }
    }
    if first {
        stream.read_exact(&mut small).map_err(failed)?;
    } else {
        stream.write_all(&small).map_err(failed)?;
    }
    Ok(Measured {
        what,
        wire: "tcp",
        latency: figures(halves)?,
        message,
        stream: figures(times)?,
    })
}

fn say(one: &Measured, sink: &Sink) {
    if sink.rank() != Some(0) {
        return;
    }
    sink.human(&format!(
        "RAIL {}: {SMALL} B half round trip median {:.1} us, p10 {:.1}, p90 {:.1}; {} KiB messages {:.3} Gb/s",
        one.what,
        one.latency.median,
        one.latency.p10,
        one.latency.p90,
        one.message >> 10,
        one.gbit_s()
    ));
    let event = |op: &str, bytes: usize, times: Figures, extra: Map<String, serde_json::Value>| {
        let row = Row {
            backend: "rails",
            wire: Some(one.wire),
            op: &format!("{} {op}", one.what),
            bytes: bytes as u64,
            measured: super::Measured {
                mode: super::Mode::Eager,
                times,
                ops_per_graph: 1,
            },
        };
        row.event(extra, sink);
    };
    event("half round trip", SMALL, one.latency, Map::new());
    let mut extra = Map::new();
    extra.insert("gbit_s".to_owned(), json!(one.gbit_s()));
    event("stream", one.message, one.stream, extra);
}

/// Whether something else than RDMA holds the rails back: all together carry what the best one does, and so does TCP.
fn throttled(measured: &[Measured]) -> Option<String> {
    let best = |wire: &str, all: bool| {
        let fit = measured
            .iter()
            .filter(|one| one.wire == wire && (one.what == "all rails") == all);
        fit.map(Measured::gbit_s).max_by(f64::total_cmp)
    };
    let (one, all, tcp) = (best("verbs", false)?, best("verbs", true)?, best("tcp", false)?);
    let equal = |a: f64, b: f64| (a / b - 1.0).abs() <= EQUAL;
    (equal(all, one) && equal(one, tcp)).then(|| {
        format!(
            "all rails together carry {all:.2} Gb/s, one of them {one:.2}, TCP {tcp:.2}: equal figures are no property of RDMA; \
             look for a throttle of the card (power, firmware, PCIe width) and for rails that share one cable"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(what: &str, wire: &'static str, us: f64) -> Measured {
        let figures = Figures {
            median: us,
            p10: us,
            p90: us,
            samples: 5,
        };
        Measured {
            what: what.to_owned(),
            wire,
            latency: figures,
            message: 1 << 18,
            stream: figures,
        }
    }

    #[test]
    fn equal_rails_and_tcp_are_a_throttle_case_28() {
        let with = |all: f64, tcp: f64| {
            [
                measured("rail 0", "verbs", 160.0),
                measured("rail 1", "verbs", 161.0),
                measured("all rails", "verbs", all),
                measured("tcp on rail 0", "tcp", tcp),
            ]
        };
        let text = throttled(&with(159.0, 158.0)).unwrap();
        assert!(text.contains("power") && text.contains("13.1"), "{text}");
        assert_eq!(
            throttled(&with(81.0, 158.0)),
            None,
            "two rails carry twice as much"
        );
        assert_eq!(throttled(&with(159.0, 320.0)), None, "TCP is slower");
        assert_eq!(throttled(&with(159.0, 158.0)[..2]), None);
    }
}
