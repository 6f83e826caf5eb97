//! Sending the file on while it grows.

use super::timed::Timed;
use super::{Job, STALL};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::net::{Shutdown, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

/// How long the next relay may take to answer and to prove itself.
const ANSWER: Duration = Duration::from_secs(5);
/// How long the next relay may take nothing of what is sent: its host is gone, or the way to it.
const BLOCKED: Duration = Duration::from_secs(15);
/// How often a file that does not grow is looked at.
const LOOK: Duration = Duration::from_millis(3);
const CHUNK: u64 = 256 * 1024;

/// Connects to the next relay, sends what it does not have, and waits until it has checked the hash.
pub(super) fn send(job: &Job, host: &str, port: u16) -> io::Result<()> {
    let stream = connect(host, port)?;
    stream.set_nodelay(true)?;
    job.common.send_side(&mut Timed::new(&stream, ANSWER))?;
    // It may be taking from somebody else, and gives that one up first.
    let have = job.common.wanted(&mut Timed::new(&stream, STALL))?;
    if have > job.size {
        let text = format!("it says that it has {have} of {} bytes", job.size);
        return Err(io::Error::new(io::ErrorKind::InvalidData, text));
    }
    stream.set_write_timeout(Some(BLOCKED))?;
    pass(job, &stream, have)?;
    stream.shutdown(Shutdown::Write)?;
    let mut answer = Vec::new();
    Timed::new(&stream, STALL).take(1).read_to_end(&mut answer)?;
    if answer == super::take::WHOLE_AND_RIGHT {
        return Ok(());
    }
    Err(io::Error::new(
        io::ErrorKind::UnexpectedEof,
        "it closed the connection before it had all of it with the right hash",
    ))
}

/// Sends the file from byte `at` on, as it grows.
fn pass(job: &Job, stream: &TcpStream, mut at: u64) -> io::Result<()> {
    let mut file = open(job)?;
    let mut grown = Instant::now();
    while at < job.size {
        let there = file.metadata()?.len().min(job.size);
        if there <= at {
            if grown.elapsed() > STALL {
                let text = format!("nothing more of it came here for {} s", STALL.as_secs());
                return Err(io::Error::new(io::ErrorKind::TimedOut, text));
            }
            std::thread::sleep(LOOK);
            continue;
        }
        let turn = (there - at).min(CHUNK);
        file.seek(SeekFrom::Start(at))?;
        let mut part = Read::take(&mut file, turn);
        let sent = io::copy(&mut part, &mut &*stream).map_err(blocked)?;
        if sent == 0 {
            std::thread::sleep(LOOK);
        }
        at += sent;
        grown = Instant::now();
    }
    (&mut &*stream).flush()
}

/// A write that timed out, as a sentence.
fn blocked(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => io::Error::new(
            io::ErrorKind::TimedOut,
            format!("it took nothing for {} s", BLOCKED.as_secs()),
        ),
        _ => error,
    }
}

fn connect(host: &str, port: u16) -> io::Result<TcpStream> {
    let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for address in (host, port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, ANSWER) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// The file here: still under way, or already under its own name.
fn open(job: &Job) -> io::Result<File> {
    let until = Instant::now() + STALL;
    loop {
        let found = File::open(job.part()).or_else(|_| File::open(&job.file));
        match found {
            Err(e) if e.kind() == io::ErrorKind::NotFound && Instant::now() < until => {
                std::thread::sleep(LOOK)
            }
            other => return other,
        }
    }
}
