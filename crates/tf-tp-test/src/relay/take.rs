//! Taking the file from the relay before this one, and the rest of it from another where that one goes silent.

use super::timed::Timed;
use super::{Job, News, STALL};
use nix::fcntl::{Flock, FlockArg};
use sha2::{Digest, Sha256};
use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

/// What the sending side is told when all of it is here with the right hash.
pub(super) const WHOLE_AND_RIGHT: &[u8] = b"+";
/// How long somebody who connects may take to prove that it is a relay of this push.
const PROOF: Duration = Duration::from_secs(3);
/// How many may be proving it at once; further ones are turned away.
const PROVING_MAX: usize = 16;
/// How long the one before this may be silent before another is listened to.
const QUIET: Duration = Duration::from_secs(1);
const CHUNK: usize = 256 * 1024;

/// Listens on a free port, takes the file there on a thread of its own, and gives the port.
pub(super) fn listen(job: Arc<Job>, tell: Sender<News>) -> io::Result<u16> {
    let listener = TcpListener::bind((Ipv6Addr::UNSPECIFIED, 0))
        .or_else(|_| TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)))?;
    let port = listener.local_addr()?.port();
    // Taken before the port is told: whoever sends finds a file that belongs to this transfer.
    let there = There::open(&job)?;
    let (proved, relays) = mpsc::channel();
    let common = Arc::clone(&job);
    // Both threads end with the process.
    std::thread::spawn(move || welcome(&common, &listener, &proved));
    std::thread::spawn(move || {
        let news = match there.take(&job, &relays, STALL) {
            Ok(()) => News::Taken,
            Err(error) => News::NotTaken(format!("taking it from the relay before this one: {error}")),
        };
        let _ = tell.send(news);
    });
    Ok(port)
}

/// Lets everybody prove itself at once, so that a silent stranger delays nobody, and hands on those who do.
pub(super) fn welcome(job: &Arc<Job>, listener: &TcpListener, proved: &Sender<TcpStream>) {
    let proving = Arc::new(AtomicUsize::new(0));
    loop {
        let Ok((stream, _)) = listener.accept() else {
            // Out of descriptors, or a connection that was gone before it was taken.
            std::thread::sleep(Duration::from_millis(20));
            continue;
        };
        if proving.fetch_add(1, Ordering::AcqRel) >= PROVING_MAX {
            proving.fetch_sub(1, Ordering::AcqRel);
            continue;
        }
        let (job, proved, proving) = (Arc::clone(job), proved.clone(), Arc::clone(&proving));
        std::thread::spawn(move || {
            if job.common.take_side(&mut Timed::new(&stream, PROOF)).is_ok() {
                // The taker may be done with the file.
                let _ = proved.send(stream);
            }
            proving.fetch_sub(1, Ordering::AcqRel);
        });
    }
}

/// What is here of the file, locked against another transfer.
pub(super) struct There {
    file: File,
    lock: Flock<File>,
    hash: Sha256,
    have: u64,
}

impl There {
    pub(super) fn open(job: &Job) -> io::Result<Self> {
        if let Some(dir) = job.file.parent() {
            std::fs::create_dir_all(dir)?;
        }
        let mut name = job.part().into_os_string();
        name.push(".lock");
        let lock = OpenOptions::new().append(true).create(true).open(name)?;
        let busy = |_| io::Error::new(io::ErrorKind::ResourceBusy, "another transfer of it is under way");
        let lock = Flock::lock(lock, FlockArg::LockExclusiveNonblock).map_err(busy)?;
        let mut file = OpenOptions::new()
            .read(true)
            .append(true)
            .create(true)
            .open(job.part())?;
        if file.metadata()?.len() > job.size {
            file.set_len(0)?;
        }
        let mut hash = Sha256::new();
        let mut have = 0;
        let mut chunk = vec![0; CHUNK];
        loop {
            match file.read(&mut chunk)? {
                0 => break,
                n => {
                    hash.update(&chunk[..n]);
                    have += n as u64;
                }
            }
        }
        Ok(Self {
            file,
            lock,
            hash,
            have,
        })
    }

    /// Takes all of it; nothing may come for `stall` at most, from whomever.
    pub(super) fn take(mut self, job: &Job, relays: &Receiver<TcpStream>, stall: Duration) -> io::Result<()> {
        let mut came = Instant::now();
        let mut current: Option<TcpStream> = None;
        // What became of the last one, for the sentence at the end.
        let mut last = "nobody who knows the secret of this push connected".to_owned();
        let mut chunk = vec![0; CHUNK];
        while self.have < job.size {
            let left = stall.saturating_sub(came.elapsed());
            if left.is_zero() {
                let (have, size, s) = (self.have, job.size, stall.as_secs_f64());
                let text = format!("nothing came for {s} s with {have} of {size} bytes here; {last}");
                return Err(io::Error::new(io::ErrorKind::TimedOut, text));
            }
            let Some(stream) = &current else {
                current = match relays.recv_timeout(left.min(QUIET)) {
                    Ok(stream) => self.adopt(job, stream),
                    Err(RecvTimeoutError::Timeout) => None,
                    Err(RecvTimeoutError::Disconnected) => {
                        return Err(io::Error::other("nobody listens any more"));
                    }
                };
                continue;
            };
            let wanted = usize::try_from(job.size - self.have).unwrap_or(CHUNK).min(CHUNK);
            match receive(stream, &mut chunk[..wanted]) {
                Ok(0) => {
                    // Silent: whoever has come meanwhile takes its place.
                    "the relay before this one went silent".clone_into(&mut last);
                    if let Ok(other) = relays.try_recv() {
                        current = self.adopt(job, other);
                    }
                }
                Ok(n) => {
                    self.file.write_all(&chunk[..n])?;
                    self.hash.update(&chunk[..n]);
                    self.have += n as u64;
                    came = Instant::now();
                }
                Err(error) => {
                    last = format!("the relay before this one broke off: {error}");
                    current = None;
                }
            }
        }
        job.fed.set();
        self.finish(job, current.as_ref())
    }

    /// Asks a relay that has proved itself for what is missing; none where it is gone already.
    fn adopt(&self, job: &Job, stream: TcpStream) -> Option<TcpStream> {
        let asked = stream
            .set_read_timeout(Some(QUIET))
            .and_then(|()| job.common.want(&mut Timed::new(&stream, PROOF), self.have));
        asked.ok()?;
        job.fed.set();
        Some(stream)
    }

    fn finish(self, job: &Job, from: Option<&TcpStream>) -> io::Result<()> {
        let found = self
            .hash
            .finalize()
            .iter()
            .map(|b| format!("{b:02x}"))
            .collect::<String>();
        if found != job.common.sha256 {
            std::fs::remove_file(job.part())?;
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!("its hash is {found}: it was changed on the way"),
            ));
        }
        self.file.sync_all()?;
        self.file.set_permissions(Permissions::from_mode(0o555))?;
        std::fs::rename(job.part(), &job.file)?;
        let mut name = job.part().into_os_string();
        name.push(".lock");
        // Whoever waits for the lock finds the file whole.
        let _ = std::fs::remove_file(name);
        drop(self.lock);
        // Whoever sent it may be gone; the file is here all the same.
        if let Some(mut stream) = from {
            let _ = stream.write_all(WHOLE_AND_RIGHT);
        }
        Ok(())
    }
}

/// What has come: 0 where nothing did for [`QUIET`], an error where nothing more will.
fn receive(mut stream: &TcpStream, chunk: &mut [u8]) -> io::Result<usize> {
    loop {
        return match stream.read(chunk) {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(n) => Ok(n),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => Ok(0),
            Err(e) => Err(e),
        };
    }
}
