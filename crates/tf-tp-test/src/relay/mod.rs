//! `relay`: passes a file on from host to host while it arrives, so that a large one crosses the workstation's link once.
//!
//! A relay takes the file from the one before it (or, as the source, reads it here while it is being written), hashes it,
//! gives it its name when the hash is right, and sends it on to the next. It lives as long as its lease. Where the next one
//! cannot be reached it says so and waits to be told another; where the one before it goes silent it keeps what it has and
//! takes the rest from whoever comes next.

mod hello;
mod send;
mod take;
mod timed;

use crate::cli::RelayArgs;
use crate::exit_code::{self, Refusal};
use crate::lease::{self, Heard, Lines, RawStdin};
use crate::sink::Sink;
use hello::Common;
use std::path::PathBuf;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tp_receipt::control::{Order, START_LINE_MAX};
use tp_receipt::event::Kind;

/// How long nothing may arrive before a transfer is given up, and how long an order may be waited for.
const STALL: Duration = Duration::from_secs(60);
/// How long all of it may take.
const WHOLE: Duration = Duration::from_secs(1800);

/// What is passed on.
struct Job {
    /// The file under its own name; until its hash is checked it has `.part` behind it.
    file: PathBuf,
    size: u64,
    common: Common,
    fed: Fed,
}

/// Whether the file comes, or is here. Before that nobody is sent to: of a host that is cut off the one before it tells,
/// and not the host itself of the one behind it.
#[derive(Default)]
struct Fed {
    yes: Mutex<bool>,
    changed: Condvar,
}

impl Fed {
    fn set(&self) {
        *self.yes.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.changed.notify_all();
    }

    /// Whether it came to that in time.
    fn wait(&self, limit: Duration) -> bool {
        let yes = self.yes.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.changed.wait_timeout_while(yes, limit, |yes| !*yes);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

impl Job {
    fn part(&self) -> PathBuf {
        let mut name = self.file.clone().into_os_string();
        name.push(".part");
        name.into()
    }
}

/// What the threads tell.
enum News {
    /// The file is here, whole and with the right hash.
    Taken,
    /// It could not be taken.
    NotTaken(String),
    /// Somebody was named who is next.
    Next,
    /// Nobody is next.
    Last,
    /// The next one has all of it, with the right hash.
    Sent,
    /// It could not be sent on.
    NotSent(String),
}

/// Runs the relay to its end: exit 0 with the file here and, where somebody is next, there; 1 where one of the two
/// failed. What came here whole is kept in either case.
pub fn run(args: &RelayArgs, sink: &Sink) -> Result<u8, Refusal> {
    let mut lines = Lines::new(RawStdin::new(), START_LINE_MAX);
    let start = lease::read_start(&mut lines)?;
    let secret = start.secret.ok_or_else(|| {
        Refusal::usage("the start line carries no secret, and a relay serves nobody without")
    })?;
    let is_hash = args.sha256.len() == 64 && args.sha256.bytes().all(|b| b.is_ascii_hexdigit());
    if !is_hash {
        return Err(Refusal::usage("--sha256 wants 64 hexadecimal digits"));
    }
    let job = Arc::new(Job {
        file: args.file.clone(),
        size: args.size,
        common: Common {
            secret: secret.into_bytes(),
            sha256: args.sha256.to_lowercase(),
        },
        fed: Fed::default(),
    });
    let (tell, news) = channel();
    if args.source {
        job.fed.set();
    } else {
        let port = take::listen(Arc::clone(&job), tell.clone())
            .map_err(|e| Refusal::cannot(format!("failed to listen for the relay before this one: {e}")))?;
        say(sink, &[("port", port.into())]);
    }
    let orders = Arc::clone(&job);
    std::thread::spawn(move || follow(lines, &orders, &tell));
    let mut state = State {
        taken: args.source,
        ..State::default()
    };
    let began = Instant::now();
    while !state.over() {
        // Taking and sending have deadlines of their own, which end in news.
        let limit = if state.idle() {
            STALL
        } else {
            WHOLE.saturating_sub(began.elapsed())
        };
        match news.recv_timeout(limit) {
            Ok(News::NotTaken(why)) => return Err(failed(&job, &why)),
            Ok(heard) => state.hear(heard, sink, &job),
            Err(RecvTimeoutError::Timeout) if state.idle() => {
                let text = format!("nobody said for {} s who is next", STALL.as_secs());
                return Err(failed(&job, &text));
            }
            Err(RecvTimeoutError::Timeout) => {
                let text = format!("it was not done within {} s", WHOLE.as_secs());
                return Err(failed(&job, &text));
            }
            Err(RecvTimeoutError::Disconnected) => return Err(Refusal::lost("the relay's threads ended")),
        }
    }
    match state.unsent {
        None => Ok(exit_code::PASSED),
        Some(why) => Err(failed(&job, &why)),
    }
}

/// How far a relay has come.
#[derive(Default)]
struct State {
    taken: bool,
    sending: bool,
    /// It was sent on, or nobody is next.
    sent: bool,
    /// Why the last try to send it on failed.
    unsent: Option<String>,
}

impl State {
    fn over(&self) -> bool {
        self.taken && self.sent
    }

    /// Nothing is under way but the wait for an order.
    fn idle(&self) -> bool {
        self.taken && !self.sending
    }

    fn hear(&mut self, news: News, sink: &Sink, job: &Job) {
        match news {
            News::Taken => {
                self.taken = true;
                say(
                    sink,
                    &[
                        ("done", true.into()),
                        ("sha256", job.common.sha256.clone().into()),
                    ],
                );
            }
            News::Next => self.sending = true,
            News::Last => self.sent = true,
            News::Sent => (self.sent, self.unsent) = (true, None),
            News::NotSent(why) => {
                self.sending = false;
                say(sink, &[("unsent", why.clone().into())]);
                self.unsent = Some(why);
            }
            News::NotTaken(_) => {}
        }
    }
}

fn failed(job: &Job, why: &str) -> Refusal {
    Refusal {
        code: exit_code::FAILED,
        text: format!("failed to relay {}: {why}", job.file.display()),
    }
}

fn say(sink: &Sink, fields: &[(&str, serde_json::Value)]) {
    let mut map = serde_json::Map::new();
    map.insert("event".to_owned(), "relay".into());
    map.extend(
        fields
            .iter()
            .map(|(name, value)| ((*name).to_owned(), value.clone())),
    );
    sink.event_as(None, Kind::Unknown(map));
}

/// Follows the orders: `next HOST PORT`, again after each that failed, or `last`; beats; and the end of the lease, with
/// which the process ends.
fn follow(mut lines: Lines<RawStdin>, job: &Arc<Job>, tell: &Sender<News>) {
    loop {
        let line = match lines.next(Instant::now() + lease::limit()) {
            Heard::Line(line) => String::from_utf8_lossy(&line).into_owned(),
            Heard::End | Heard::Silence | Heard::TooLong => std::process::exit(i32::from(exit_code::LOST)),
        };
        if Order::parse(&line) == Some(Order::End) {
            std::process::exit(i32::from(exit_code::LOST));
        }
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["last"] => drop(tell.send(News::Last)),
            ["next", host, port] => {
                let (job, tell, host) = (Arc::clone(job), tell.clone(), host.to_owned());
                let Ok(port) = port.parse() else { continue };
                let _ = tell.send(News::Next);
                std::thread::spawn(move || {
                    if !job.fed.wait(WHOLE) {
                        return;
                    }
                    let news = match send::send(&job, &host, port) {
                        Ok(()) => News::Sent,
                        Err(error) => News::NotSent(format!("sending it to {host} port {port}: {error}")),
                    };
                    let _ = tell.send(news);
                });
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests;
