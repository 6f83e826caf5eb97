//! `supervise -- COMMAND`: the parent that a rank runs under. It puts the rank in a process group of its own, hands it
//! the lease, ends it when the lease is lost or the orchestrator says so, and reports how it ended, which a killed rank
//! cannot do itself.

mod child;
mod pump;

use crate::exit_code::{self, Refusal};
use crate::lease;
use crate::sink::Sink;
use child::Child;
use std::ffi::OsString;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};
use tp_receipt::event::{Exit, Kind};

/// How long a rank has to leave after its input was closed, before its group is killed.
const TIME_TO_LEAVE: Duration = Duration::from_secs(1);
/// How long the output of a rank that has ended may take to drain. Only a process that left the group, or a reader of
/// ours that does not read, can make it take any time at all.
const TIME_TO_DRAIN: Duration = Duration::from_secs(2);

/// What the threads tell the main loop.
enum News {
    /// A line came on standard input: the orchestrator lives.
    Alive,
    /// The start line names the rank.
    Rank(u32),
    /// The rank is to be ended; the word for [`Exit::ended_by`].
    End(&'static str),
    /// The rank's process has ended.
    Ended(Exit),
    /// Its output is at the end.
    Drained,
}

/// Runs `command` to its end and returns the exit code for this process: the command's own, or 128 + signal.
///
/// Standard input goes to the command, line by line; its standard output and error come through unchanged. Fails with
/// exit 3 where the command cannot be started.
pub fn run(command: &[OsString], sink: &Sink) -> Result<u8, Refusal> {
    let (program, arguments) = command
        .split_first()
        .ok_or_else(|| Refusal::usage("supervise needs a command after `--`"))?;
    let (tell, news) = channel();
    watch_signals(tell.clone())?;
    let failed =
        |e: std::io::Error| Refusal::cannot(format!("failed to start `{}`: {e}", program.to_string_lossy()));
    // From this thread, which lives as long as the process: the parent-death signal is tied to the thread.
    let mut child = Child::start(program, arguments).map_err(failed)?;
    pump::input(child.input(), tell.clone(), sink.clone()).map_err(failed)?;
    pump::output(child.take_output(), tell.clone()).map_err(failed)?;
    child.watch(tell).map_err(failed)?;
    Ok(serve(&child, &news, sink))
}

/// Signals that ask this process to leave end the rank.
fn watch_signals(tell: Sender<News>) -> Result<(), Refusal> {
    let failed = |e: std::io::Error| Refusal::cannot(format!("failed to watch for signals: {e}"));
    let asked = [libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGQUIT];
    let mut signals = signal_hook::iterator::Signals::new(asked).map_err(failed)?;
    let thread = std::thread::Builder::new().name("signals".to_owned());
    thread
        .spawn(move || {
            for _ in signals.forever() {
                let _ = tell.send(News::End("stop"));
            }
        })
        .map(drop)
        .map_err(failed)
}

/// Follows the rank until it has ended, says its `exit` event and returns the exit code.
fn serve(child: &Child, news: &Receiver<News>, sink: &Sink) -> u8 {
    let mut lease_until = Instant::now() + lease::limit();
    let mut ending: Option<(&'static str, Instant)> = None;
    let mut drained = false;
    let exit = loop {
        let until = ending.map_or(lease_until, |(_, kill_at)| kill_at);
        match news.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(News::Alive) => lease_until = Instant::now() + lease::limit(),
            Ok(News::Rank(rank)) => sink.set_rank(rank),
            Ok(News::End(why)) if ending.is_none() => ending = Some((why, begin_to_end(child))),
            Ok(News::End(_)) => {}
            Ok(News::Drained) => drained = true,
            Ok(News::Ended(exit)) => break exit,
            Err(RecvTimeoutError::Timeout) => match ending {
                None => ending = Some(("lease", begin_to_end(child))),
                Some((why, _)) => {
                    child.kill_group();
                    // Nothing survives SIGKILL but an uninterruptible call; it ends when that does.
                    ending = Some((why, Instant::now() + TIME_TO_LEAVE));
                }
            },
            // Every sender lives as long as the rank: not reached, and no reason to wait for ever.
            Err(RecvTimeoutError::Disconnected) => break Exit::default(),
        }
    };
    let drain_until = Instant::now() + TIME_TO_DRAIN;
    while !drained {
        match news.recv_timeout(drain_until.saturating_duration_since(Instant::now())) {
            Ok(News::Drained) | Err(_) => drained = true,
            Ok(_) => {}
        }
    }
    report(
        Exit {
            ended_by: ending.map(|(why, _)| why.to_owned()),
            ..exit
        },
        sink,
    )
}

/// Closes the rank's input and says when its group is to be killed: at once where it is stopped and can never leave.
fn begin_to_end(child: &Child) -> Instant {
    child.input().close();
    let grace = if child.is_stopped() {
        Duration::ZERO
    } else {
        TIME_TO_LEAVE
    };
    Instant::now() + grace
}

fn report(exit: Exit, sink: &Sink) -> u8 {
    let (text, code) = match (exit.code, exit.signal) {
        (Some(code), _) => (
            format!("exit {code}"),
            u8::try_from(code & 0xff).unwrap_or(u8::MAX),
        ),
        (None, Some(signal)) => (format!("ended by signal {signal}"), exit_code::of_signal(signal)),
        (None, None) => (
            "ended in a way that could not be seen".to_owned(),
            exit_code::LOST,
        ),
    };
    match &exit.ended_by {
        Some(why) => sink.human(&format!("EXIT {text} ({why})")),
        None => sink.human(&format!("EXIT {text}")),
    }
    sink.event(Kind::Exit(exit));
    code
}
