//! Sending the file on while it grows.

use super::{Job, STALL};
use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

/// How long the next relay may take to answer.
const ANSWER: Duration = Duration::from_secs(10);
/// How often a file that does not grow is looked at.
const LOOK: Duration = Duration::from_millis(3);
const CHUNK: u64 = 256 * 1024;

/// Connects to the next relay and sends what it does not have.
pub(super) fn send(job: &Job, host: &str, port: u16) -> io::Result<()> {
    let mut stream = connect(host, port)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(ANSWER))?;
    stream.set_write_timeout(Some(STALL))?;
    let mut at = job.common.send_side(&mut stream)?;
    let mut file = open(job)?;
    let mut grown = Instant::now();
    while at < job.size {
        let there = file.metadata()?.len().min(job.size);
        if there <= at {
            if grown.elapsed() > STALL {
                return Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    "nothing more of it came here",
                ));
            }
            std::thread::sleep(LOOK);
            continue;
        }
        let turn = (there - at).min(CHUNK);
        file.seek(SeekFrom::Start(at))?;
        let mut part = io::Read::take(&mut file, turn);
        let sent = io::copy(&mut part, &mut stream)?;
        if sent == 0 {
            std::thread::sleep(LOOK);
        }
        at += sent;
        grown = Instant::now();
    }
    stream.flush()?;
    stream.shutdown(std::net::Shutdown::Write)
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
