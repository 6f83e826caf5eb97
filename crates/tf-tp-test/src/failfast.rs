//! `failfast`: the victim fails in the middle of collectives; every other rank must be ended by the fate channel.

use crate::cli::FailKind;
use crate::os;
use crate::sink::Sink;
use crate::suite::memory::Room;
use std::sync::Arc;
use std::time::Duration;
use tp_fabric::collective::{Collectives, Stream};
use tp_fabric::fate::FateHandle;
use tp_fabric::fill::{self, Pattern};
use tp_fabric::gpu::{Device, Work};
use tp_fabric::types::{DType, ReduceOp, UnknownWord};
use tp_receipt::event::{Inject, Kind, Outcome};

/// Bytes of the all-reduces: 2,048 elements of bf16.
pub const BYTES: usize = 4096;
/// Before this all-reduce the victim fails.
pub const ITERATION: u64 = 50;
/// Name of the phase in the fate channel's reports.
pub const PHASE: &str = "failfast";
/// How much longer than the heartbeat limit and the grace together a survivor waits to be ended.
const PATIENCE: Duration = Duration::from_secs(10);

/// What is to be injected.
#[derive(Clone, Copy, Debug)]
pub struct Injection {
    /// Who fails.
    pub victim: u32,
    /// How.
    pub kind: FailKind,
}

/// When the victim fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum At {
    /// Before it connects: the others wait for it in vain, until the boot's deadline.
    Connect,
    /// When all have met, before they agree: there is no fate channel yet.
    Met,
    /// When the fate channel has begun, before the backend opens.
    Agreed,
    /// When the backend is open, before the first collective.
    Open,
    /// In the middle of collectives, at call [`ITERATION`].
    Run,
    /// When the others close in good order.
    Close,
}

impl At {
    const WORDS: [&'static str; 6] = ["connect", "met", "agreed", "open", "run", "close"];

    /// The word on the command line.
    pub fn name(self) -> &'static str {
        Self::WORDS[self as usize]
    }
}

impl std::str::FromStr for At {
    type Err = UnknownWord;

    fn from_str(word: &str) -> Result<Self, UnknownWord> {
        Ok(match word {
            "connect" => Self::Connect,
            "met" => Self::Met,
            "agreed" => Self::Agreed,
            "open" => Self::Open,
            "run" => Self::Run,
            "close" => Self::Close,
            other => {
                return Err(UnknownWord {
                    word: other.to_owned(),
                    known: &Self::WORDS,
                });
            }
        })
    }
}

/// Fails this rank in the given way: says the `inject` event, then kills or stops the process or reports a failure.
/// Returns only where a stopped process was continued.
pub fn inject(injection: Injection, phase: &str, fatal: impl FnOnce(&str, &str), sink: &Sink) {
    let what = injection.kind.name();
    let at = os::monotonic_ns();
    sink.event(Kind::Inject(Inject {
        what: what.to_owned(),
        victim: injection.victim,
        monotonic_ns: at,
    }));
    match injection.kind {
        FailKind::Kill => os::kill_self(),
        FailKind::Stall => os::stop_self(),
        FailKind::Fatal | FailKind::Transport => fatal(phase, &format!("injected: {what}")),
    }
}

/// Loops all-reduces until this rank is ended, or for [`At::Close`] until the call at which the others close. Where the
/// fate channel does not end a survivor in time, that is a failed check.
pub fn run(
    on: &dyn Collectives,
    device: Option<&Arc<Device>>,
    fate: &FateHandle,
    injection: Injection,
    at: At,
    patience: Duration,
    sink: &Sink,
) {
    let strike = match at {
        At::Connect | At::Met | At::Agreed | At::Open => 0,
        At::Run | At::Close => ITERATION,
    };
    let victim = injection.victim == on.rank().0;
    fate.set_phase(PHASE);
    let input = fill::bytes(
        BYTES,
        DType::Bf16,
        u64::from(injection.victim),
        on.rank(),
        Pattern::Uniform,
    );
    let mut iteration = 0;
    let mut calls = match Calls::new(on, device, &input) {
        Ok(calls) => calls,
        Err(why) => fate.fatal(PHASE, &why),
    };
    let seen = loop {
        if at == At::Close && iteration == strike {
            return;
        }
        if victim && iteration == strike {
            sink.human(&format!(
                "INJECT {} in rank {}",
                injection.kind.name(),
                injection.victim
            ));
            inject(injection, PHASE, |phase, why| fate.fatal(phase, why), sink);
        }
        if let Err(why) = calls.one() {
            break why;
        }
        iteration += 1;
    };
    sink.log(
        "info",
        None,
        &format!("the collective ended at call {iteration}: {seen}; waiting for the fate channel"),
    );
    // Only the fate channel may end a survivor: leaving here would hide that it did not.
    std::thread::sleep(patience + PATIENCE);
    let name = format!(
        "failfast {} {} {}",
        on.backend(),
        injection.kind.name(),
        injection.victim
    );
    let reason = format!(
        "the fate channel did not end this rank within {} s",
        (patience + PATIENCE).as_secs()
    );
    sink.check("failfast", &name, Outcome::Failed, Some(reason));
    sink.summary();
    os::exit_now(crate::exit_code::FAILED);
}

/// The all-reduces that are interrupted.
struct Calls<'a> {
    on: &'a dyn Collectives,
    stream: Stream,
    send: Box<dyn crate::suite::memory::Buffer>,
    recv: Box<dyn crate::suite::memory::Buffer>,
    _work: Option<Work>,
}

impl<'a> Calls<'a> {
    fn new(on: &'a dyn Collectives, device: Option<&Arc<Device>>, input: &[u8]) -> Result<Self, String> {
        let work = device.map(|device| Work::new(device)).transpose();
        let work = work.map_err(|error| error.to_string())?;
        let room = Room::of(device);
        let (mut send, recv) = (room.buffer(input.len())?, room.buffer(input.len())?);
        send.write(0, input)?;
        Ok(Self {
            on,
            stream: work.as_ref().map_or(Stream::HOST, Work::stream),
            send,
            recv,
            _work: work,
        })
    }

    /// One all-reduce, waited for.
    fn one(&mut self) -> Result<(), String> {
        let (send, recv) = (self.send.address().cast_const(), self.recv.address());
        let count = self.recv.len() / DType::Bf16.size();
        // SAFETY: both buffers have `count` elements, live until after the call and are nobody else's.
        let called = unsafe {
            self.on
                .all_reduce(send, recv, count, DType::Bf16, ReduceOp::Sum, self.stream)
        };
        called
            .and_then(|()| self.on.synchronize(self.stream))
            .map_err(|error| error.to_string())
    }
}
