//! One thread owns one SSH session: libssh2 takes no two callers at once. It waits by `poll` for the socket, for requests
//! and for the time, and moves every command on the session on; nothing on it ever blocks but the login.

use super::channel::{Command, End, Input, Moved, Sink};
use super::dial::{self, Dialed, HostKeys, Transport};
use super::forward::Forward;
use super::target::Target;
use super::{Fault, Trouble};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{MsgFlags, recv};
use ssh2::{BlockDirections, Session};
use std::io::{Read, Write};
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How often the other side is asked for a sign of life.
const KEEPALIVE_EVERY: Duration = Duration::from_secs(4);
/// How long it may be silent: longer than a rank waits for a beat, so that on a busy host nothing is given up that lives,
/// and what is given up has ended.
const SILENCE_MAX: Duration = Duration::from_secs(20);

/// How often the time is looked at while only the socket matters.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Rounds over all commands before requests and the time are looked at again.
const PASSES_MAX: u32 = 16;

/// How far a round came.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Progress {
    /// There is more to do at once.
    On,
    /// Everything waits.
    Waits,
    /// A packet is half sent.
    Stuck,
}

/// What a connection's thread is asked to do.
enum Request {
    Start {
        id: usize,
        line: String,
        input: Input,
        sink: Box<dyn Sink>,
    },
    Write(usize, Vec<u8>),
    CloseInput(usize),
    Abandon(usize),
    Forward {
        host: String,
        port: u16,
        stream: UnixStream,
    },
}

/// A session that is logged in.
pub struct Connection {
    requests: Sender<Request>,
    wake: UnixStream,
    state: Arc<Mutex<Option<String>>>,
    busy: Arc<AtomicUsize>,
    next: AtomicUsize,
    peer: Option<IpAddr>,
}

impl Connection {
    /// Logs in, through `jump` where there is one; waits for the outcome.
    pub(super) fn open(
        target: &Target,
        keys: HostKeys,
        deadline: Instant,
        jump: Option<Arc<Self>>,
    ) -> Result<Self, Trouble> {
        let failed =
            |e: std::io::Error| Trouble::new(Fault::Other, format!("start a connection's thread: {e}"));
        let (wake, woken) = UnixStream::pair().map_err(failed)?;
        wake.set_nonblocking(true).map_err(failed)?;
        woken.set_nonblocking(true).map_err(failed)?;
        let (requests, asked) = mpsc::channel();
        let (opened, outcome) = mpsc::channel();
        let (state, busy) = (Arc::new(Mutex::new(None)), Arc::new(AtomicUsize::new(0)));
        let (target, thread_state, thread_busy) = (target.clone(), state.clone(), busy.clone());
        std::thread::Builder::new()
            .name("ssh".into())
            .spawn(move || {
                let transport = || match &jump {
                    None => dial::tcp(&target, deadline).map(Transport::Tcp),
                    Some(jump) => jump.forward(&target.host, target.port).map(Transport::Jump),
                };
                match dial::dial(&target, keys, deadline, transport) {
                    Err(trouble) => drop(opened.send(Err(trouble))),
                    Ok(dialed) => {
                        let _ = opened.send(Ok(dialed.peer.map(|peer| peer.ip().to_canonical())));
                        let mut serving = Serving::new(dialed, woken, thread_busy);
                        let why = serving.serve(&asked);
                        *thread_state.lock().unwrap_or_else(PoisonError::into_inner) = Some(why.clone());
                        serving.lose(&why, &asked);
                    }
                }
                // A jump host's connection lives as long as what goes through it.
                drop(jump);
            })
            .map_err(failed)?;
        let gone = |_| Trouble::new(Fault::Other, "log in: the connection's thread ended");
        let peer = outcome.recv().map_err(gone)??;
        Ok(Self {
            requests,
            wake,
            state,
            busy,
            next: AtomicUsize::new(0),
            peer,
        })
    }

    /// The address at the other end, where the connection is direct.
    pub fn peer(&self) -> Option<IpAddr> {
        self.peer
    }

    /// Why the connection is gone, where it is.
    pub fn lost(&self) -> Option<String> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// How many commands run on it.
    pub fn busy(&self) -> usize {
        self.busy.load(Ordering::Acquire)
    }

    /// Starts a command; `sink` hears of it until its end, also where it cannot be started.
    pub(super) fn start(self: &Arc<Self>, line: String, input: Input, sink: Box<dyn Sink>) -> Running {
        let id = self.next.fetch_add(1, Ordering::AcqRel);
        self.busy.fetch_add(1, Ordering::AcqRel);
        self.ask(Request::Start {
            id,
            line,
            input,
            sink,
        });
        Running {
            connection: Arc::clone(self),
            id,
        }
    }

    /// A stream to a place that the other side reaches.
    fn forward(&self, host: &str, port: u16) -> Result<UnixStream, Trouble> {
        let failed = |e: std::io::Error| Trouble::new(Fault::Other, format!("go through the jump host: {e}"));
        let (ours, theirs) = UnixStream::pair().map_err(failed)?;
        theirs.set_nonblocking(true).map_err(failed)?;
        self.ask(Request::Forward {
            host: host.to_owned(),
            port,
            stream: theirs,
        });
        Ok(ours)
    }

    fn ask(&self, request: Request) {
        if let Err(mpsc::SendError(Request::Start { mut sink, .. })) = self.requests.send(request) {
            let why = self.lost().unwrap_or_else(|| "the connection is gone".to_owned());
            sink.ended(End::Unknown(why));
        }
        // A full pipe has woken the thread already.
        let _ = (&self.wake).write(&[0]);
    }
}

/// A command on a connection. Dropping it closes the command's input.
pub(super) struct Running {
    connection: Arc<Connection>,
    id: usize,
}

impl Running {
    /// Queues bytes for its input.
    pub fn write(&self, bytes: Vec<u8>) {
        self.connection.ask(Request::Write(self.id, bytes));
    }

    /// Closes its input.
    pub fn close_input(&self) {
        self.connection.ask(Request::CloseInput(self.id));
    }

    /// Ends it here without waiting for the other side.
    pub fn abandon(&self) {
        self.connection.ask(Request::Abandon(self.id));
    }

    /// The connection that it runs on.
    pub fn connection(&self) -> &Arc<Connection> {
        &self.connection
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.close_input();
    }
}

/// Who must be served before anybody else, because a packet of theirs is half sent.
pub(super) struct Stuck;

impl Stuck {
    /// Whether the session waits to send.
    pub fn of(session: &Session) -> Option<Self> {
        match session.block_directions() {
            BlockDirections::Outbound | BlockDirections::Both => Some(Self),
            BlockDirections::Inbound | BlockDirections::None => None,
        }
    }
}

/// A connection's thread at work.
struct Serving {
    session: Session,
    socket: OwnedFd,
    /// Somebody may still ask for something.
    wanted: bool,
    woken: UnixStream,
    busy: Arc<AtomicUsize>,
    commands: Vec<(usize, Command)>,
    forwards: Vec<Forward>,
    heard: Instant,
    keepalive: Instant,
}

impl Serving {
    fn new(dialed: Dialed, woken: UnixStream, busy: Arc<AtomicUsize>) -> Self {
        dialed.session.set_timeout(0);
        dialed.session.set_blocking(false);
        dialed.session.set_keepalive(true, 1);
        Self {
            session: dialed.session,
            socket: dialed.socket,
            wanted: true,
            woken,
            busy,
            commands: Vec::new(),
            forwards: Vec::new(),
            heard: Instant::now(),
            keepalive: Instant::now() + KEEPALIVE_EVERY,
        }
    }

    /// Serves until nobody wants the connection any more or it breaks, and says why.
    fn serve(&mut self, asked: &Receiver<Request>) -> String {
        loop {
            self.wanted = self.take(asked);
            if !self.wanted && self.commands.is_empty() && self.forwards.is_empty() {
                self.session.set_blocking(true);
                self.session.set_timeout(200);
                // A server that does not answer any more is left alone.
                let _ = self.session.disconnect(None, "done", None);
                return "closed".to_owned();
            }
            if self.idle() && self.hung_up() {
                return "the server closed the connection".to_owned();
            }
            let progress = match self.move_on() {
                Ok(progress) => progress,
                Err(why) => return why,
            };
            if progress == Progress::On {
                self.heard = Instant::now();
            }
            if let Err(why) = self.keep_alive(progress == Progress::Stuck) {
                return why;
            }
            self.wait(progress);
        }
    }

    /// Takes what is asked for; false when nobody can ask any more.
    fn take(&mut self, asked: &Receiver<Request>) -> bool {
        loop {
            let request = match asked.try_recv() {
                Ok(request) => request,
                Err(mpsc::TryRecvError::Empty) => return true,
                Err(mpsc::TryRecvError::Disconnected) => return false,
            };
            match request {
                Request::Start {
                    id,
                    line,
                    input,
                    sink,
                } => {
                    self.commands.push((id, Command::new(line, input, sink)));
                }
                Request::Write(id, bytes) => self.with(id, |command| command.write(&bytes)),
                Request::CloseInput(id) => self.with(id, Command::close_input),
                Request::Abandon(id) => {
                    self.with(id, Command::abandon);
                    self.forget(id);
                }
                Request::Forward { host, port, stream } => {
                    self.forwards.push(Forward::new(host, port, stream))
                }
            }
        }
    }

    fn with(&mut self, id: usize, act: impl FnOnce(&mut Command)) {
        if let Some((_, command)) = self.commands.iter_mut().find(|(other, _)| *other == id) {
            act(command);
        }
    }

    fn forget(&mut self, id: usize) {
        let before = self.commands.len();
        self.commands.retain(|(other, _)| *other != id);
        self.busy
            .fetch_sub(before - self.commands.len(), Ordering::AcqRel);
    }

    /// Moves everything on until all wait, or a while has passed.
    fn move_on(&mut self) -> Result<Progress, String> {
        for _ in 0..PASSES_MAX {
            let mut moved = false;
            let mut over = Vec::new();
            // One channel is opened at a time, over all that wait for one.
            let mut opening = false;
            let mut stuck = false;
            for (id, command) in &mut self.commands {
                if command.opening() && std::mem::replace(&mut opening, true) {
                    continue;
                }
                match command.step(&self.session) {
                    Moved::On => moved = true,
                    Moved::Waits => {}
                    Moved::Over => over.push(*id),
                    Moved::Broken(why) => return Err(why),
                    Moved::Stuck => {
                        stuck = true;
                        break;
                    }
                }
                opening |= command.opening();
            }
            for id in over {
                moved = true;
                self.forget(id);
            }
            if !stuck {
                for forward in &mut self.forwards {
                    if forward.opening() && std::mem::replace(&mut opening, true) {
                        continue;
                    }
                    match forward.step(&self.session) {
                        Moved::On => moved = true,
                        Moved::Waits | Moved::Over => {}
                        Moved::Broken(why) => return Err(why),
                        Moved::Stuck => {
                            stuck = true;
                            break;
                        }
                    }
                }
                self.forwards.retain(|forward| !forward.over());
            }
            if stuck {
                self.put_stuck_first();
                return Ok(Progress::Stuck);
            }
            if !moved {
                return Ok(Progress::Waits);
            }
        }
        Ok(Progress::On)
    }

    /// Whoever was stuck is asked first next time: the order within the lists is kept, and the one that stopped the loop
    /// comes to the front.
    fn put_stuck_first(&mut self) {
        if let Some(at) = self.commands.iter().position(|(_, command)| command.is_stuck()) {
            self.commands[..=at].rotate_right(1);
        } else if let Some(at) = self.forwards.iter().position(Forward::is_stuck) {
            self.forwards[..=at].rotate_right(1);
        }
    }

    /// Nothing runs on it. Then nothing is read either: libssh2 reads for a channel only, and what a server sends on its
    /// own waits in the socket for the next command.
    fn idle(&self) -> bool {
        self.commands.is_empty() && self.forwards.is_empty()
    }

    /// Whether the server has closed a connection that nothing runs on.
    fn hung_up(&self) -> bool {
        let flags = MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT;
        match recv(self.socket.as_raw_fd(), &mut [0], flags) {
            Ok(n) => n == 0,
            Err(error) => !matches!(error, Errno::EAGAIN | Errno::EINTR),
        }
    }

    fn keep_alive(&mut self, stuck: bool) -> Result<(), String> {
        let now = Instant::now();
        if self.idle() {
            self.heard = now;
            return Ok(());
        }
        if now.saturating_duration_since(self.heard) > SILENCE_MAX {
            return Err(format!("nothing was heard for {} s", SILENCE_MAX.as_secs()));
        }
        if !stuck && now >= self.keepalive {
            // Sent at once: libssh2 counts whole seconds since its last one.
            match self.session.keepalive_send() {
                Ok(_) => self.keepalive = now + KEEPALIVE_EVERY,
                Err(error) if Stuck::of(&self.session).is_some() => drop(error),
                Err(error) => return Err(error.message().to_owned()),
            }
        }
        Ok(())
    }

    fn wait(&mut self, progress: Progress) {
        let due = self
            .commands
            .iter()
            .filter_map(|(_, command)| command.next_beat());
        let until = due.chain([self.keepalive]).min().unwrap_or(self.keepalive);
        let began = Instant::now();
        let timeout = match progress {
            Progress::On => Duration::ZERO,
            Progress::Stuck => LOOK_EVERY,
            Progress::Waits if self.idle() => LOOK_EVERY,
            Progress::Waits => until
                .saturating_duration_since(began)
                .max(Duration::from_millis(1)),
        };
        let mut events = PollFlags::POLLIN;
        if progress == Progress::Stuck {
            events |= PollFlags::POLLOUT;
        }
        if self.idle() {
            events = PollFlags::empty();
        }
        let mut polled = vec![PollFd::new(self.socket.as_fd(), events)];
        if self.wanted {
            polled.push(PollFd::new(self.woken.as_fd(), PollFlags::POLLIN));
        }
        polled.extend(self.forwards.iter().filter_map(Forward::poll_fd));
        // An interrupted wait is a short one.
        let _ = poll(
            &mut polled,
            PollTimeout::try_from(timeout).unwrap_or(PollTimeout::MAX),
        );
        let readable = |index: usize| polled[index].revents().is_some_and(|e| !e.is_empty());
        // Who was asleep itself cannot say that the other side was silent.
        if readable(0) || began.elapsed() > timeout + SILENCE_MAX / 3 {
            self.heard = Instant::now();
        }
        if self.wanted && readable(1) {
            let mut bytes = [0; 64];
            while matches!((&self.woken).read(&mut bytes), Ok(n) if n == bytes.len()) {}
        }
    }

    /// Tells everybody that the connection is gone.
    fn lose(&mut self, why: &str, asked: &Receiver<Request>) {
        self.take(asked);
        for (_, command) in self.commands.drain(..) {
            self.busy.fetch_sub(1, Ordering::AcqRel);
            command.lost(why);
        }
        self.forwards.clear();
    }
}
