//! Taking the file from the relay before this one.

use super::{Job, News, STALL};
use nix::fcntl::{Flock, FlockArg};
use sha2::{Digest, Sha256};
use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;

/// How long somebody who connects may take to prove that it is a relay of this push.
const PROOF: Duration = Duration::from_secs(3);
const CHUNK: usize = 256 * 1024;

/// Listens on a free port, takes the file there on a thread of its own, and gives the port.
pub(super) fn listen(job: Arc<Job>, tell: Sender<News>) -> io::Result<u16> {
    let listener = TcpListener::bind((Ipv6Addr::UNSPECIFIED, 0))
        .or_else(|_| TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)))?;
    let port = listener.local_addr()?.port();
    // Taken before the port is told: whoever sends finds a file that belongs to this transfer.
    let there = There::open(&job)?;
    std::thread::spawn(move || {
        let news = match there.take(&job, &listener) {
            Ok(()) => News::Taken,
            Err(error) => News::NotTaken(format!("taking it from the relay before this one: {error}")),
        };
        let _ = tell.send(news);
    });
    Ok(port)
}

/// What is here of the file, locked against another transfer.
struct There {
    file: File,
    lock: Flock<File>,
    hash: Sha256,
    have: u64,
}

impl There {
    fn open(job: &Job) -> io::Result<Self> {
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

    fn take(mut self, job: &Job, listener: &TcpListener) -> io::Result<()> {
        let mut stream = self.accept(job, listener)?;
        stream.set_read_timeout(Some(STALL))?;
        let mut chunk = vec![0; CHUNK];
        while self.have < job.size {
            let wanted = usize::try_from(job.size - self.have).unwrap_or(CHUNK).min(CHUNK);
            let n = match stream.read(&mut chunk[..wanted]) {
                Ok(0) => {
                    return Err(io::Error::new(
                        io::ErrorKind::UnexpectedEof,
                        format!("it ended after {} of {} bytes", self.have, job.size),
                    ));
                }
                Ok(n) => n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => return Err(e),
            };
            self.file.write_all(&chunk[..n])?;
            self.hash.update(&chunk[..n]);
            self.have += n as u64;
        }
        self.finish(job)
    }

    /// The first who proves to be the relay before this one; strangers cost a moment each.
    fn accept(&self, job: &Job, listener: &TcpListener) -> io::Result<TcpStream> {
        loop {
            let (mut stream, _) = match listener.accept() {
                Ok(accepted) => accepted,
                Err(e)
                    if matches!(
                        e.kind(),
                        io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted
                    ) =>
                {
                    continue;
                }
                Err(e) => return Err(e),
            };
            stream.set_read_timeout(Some(PROOF))?;
            stream.set_write_timeout(Some(PROOF))?;
            if job.common.take_side(&mut stream, self.have).is_ok() {
                return Ok(stream);
            }
        }
    }

    fn finish(self, job: &Job) -> io::Result<()> {
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
        Ok(())
    }
}
