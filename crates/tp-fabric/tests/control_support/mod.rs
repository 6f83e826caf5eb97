//! Real ranks as processes: the test binary runs itself again, and `rank_process` of the same file plays the rank.

#![allow(dead_code, reason = "each test file uses its part")]

mod scene;

#[allow(unused_imports, reason = "each test file uses its part")]
pub use scene::{Scene, free_port};

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The variable that makes `rank_process` play a rank; its value is the script.
pub const SCRIPT: &str = "TP_FABRIC_TEST_SCRIPT";
/// A secret for tests.
pub const SECRET: &str = "a secret for tests alone";

/// Says that a test did not run, past the harness, which keeps what passing tests print to itself.
pub fn skipped(why: &str) {
    let _ = writeln!(std::io::stderr(), "SKIPPED: {why}");
}

/// One rank's process.
pub struct Process {
    pub pid: i32,
    lines: Receiver<String>,
    seen: Vec<String>,
    ended: Receiver<(ExitStatus, Instant)>,
    stderr: Option<JoinHandle<String>>,
    outcome: Option<(ExitStatus, Instant)>,
}

/// How a rank ended.
pub struct Outcome {
    pub code: Option<i32>,
    pub signal: Option<i32>,
    pub at: Instant,
    pub stderr: String,
    pub stdout: Vec<String>,
}

impl Process {
    /// Starts a rank by a command to which its arguments are added.
    pub fn start_by(
        mut command: Command,
        rank: u32,
        world: u32,
        port: u16,
        extra: &[(&str, &str)],
        script: &str,
    ) -> Self {
        command.args(["rank_process", "--exact", "--nocapture", "--test-threads=1"]);
        for (name, _) in std::env::vars_os() {
            let name = name.to_string_lossy().into_owned();
            if ["TF_", "NCCL_", "SLURM_", "OMPI_", "PMI_"]
                .iter()
                .any(|prefix| name.starts_with(prefix))
            {
                command.env_remove(name);
            }
        }
        command.env("XDG_CACHE_HOME", env!("CARGO_TARGET_TMPDIR"));
        command
            .env(SCRIPT, script)
            .env("TF_TP_RANK", rank.to_string())
            .env("TF_TP_WORLD", world.to_string());
        command
            .env("TF_TP_PORT", port.to_string())
            .env("TF_TP_SECRET", SECRET)
            .env("TF_TP_BOOT_TIMEOUT", "20");
        for (name, value) in extra {
            if value.is_empty() {
                command.env_remove(name)
            } else {
                command.env(name, value)
            };
        }
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        Self::watch(command.spawn().unwrap())
    }

    fn watch(mut child: Child) -> Self {
        let pid = i32::try_from(child.id()).unwrap();
        let (out, mut err) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
        let (line, lines) = mpsc::channel();
        std::thread::spawn(move || {
            for text in BufReader::new(out).lines().map_while(Result::ok) {
                let _ = line.send(text);
            }
        });
        let stderr = std::thread::spawn(move || {
            let mut text = String::new();
            let _ = err.read_to_string(&mut text);
            text
        });
        let (end, ended) = mpsc::channel();
        std::thread::spawn(move || {
            let status = child.wait().unwrap();
            let _ = end.send((status, Instant::now()));
        });
        Self {
            pid,
            lines,
            seen: Vec::new(),
            ended,
            stderr: Some(stderr),
            outcome: None,
        }
    }

    /// Waits for a line that begins so; gives it.
    pub fn line(&mut self, prefix: &str, limit: Duration) -> String {
        let deadline = Instant::now() + limit;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(left) {
                Ok(line) => {
                    self.seen.push(line.clone());
                    // The test harness's own words come before ours on the first line.
                    if let Some(at) = line.find(prefix) {
                        return line[at..].to_owned();
                    }
                }
                Err(_) => {
                    self.signal(nix::sys::signal::Signal::SIGKILL);
                    let stderr = self
                        .stderr
                        .take()
                        .map(|thread| thread.join().unwrap())
                        .unwrap_or_default();
                    panic!("no line `{prefix}`; stdout: {:?}; stderr: {stderr}", self.seen);
                }
            }
        }
    }

    /// Sends a signal.
    pub fn signal(&self, signal: nix::sys::signal::Signal) {
        if self.outcome.is_none() {
            let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(self.pid), signal);
        }
    }

    /// Waits for the end.
    pub fn end(mut self, limit: Duration) -> Outcome {
        use std::os::unix::process::ExitStatusExt;
        let Ok((status, at)) = self.ended.recv_timeout(limit) else {
            let (pid, said) = (self.pid, self.rest());
            panic!("process {pid} has not ended within {limit:?}; stdout so far: {said:?}");
        };
        self.outcome = Some((status, at));
        let stderr = self.stderr.take().unwrap().join().unwrap();
        let stdout = self.rest();
        Outcome {
            code: status.code(),
            signal: status.signal(),
            at,
            stderr,
            stdout,
        }
    }

    fn rest(&mut self) -> Vec<String> {
        while let Ok(line) = self
            .lines
            .recv_timeout(Duration::from_millis(if self.outcome.is_some() {
                200
            } else {
                0
            }))
        {
            self.seen.push(line);
        }
        self.seen.clone()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.outcome.is_none() {
            self.signal(nix::sys::signal::Signal::SIGKILL);
            let _ = self.ended.recv_timeout(Duration::from_secs(5));
        }
    }
}

impl Outcome {
    /// Asserts the exit code.
    #[track_caller]
    pub fn code_is(&self, code: i32) -> &Self {
        let got = (self.code, self.signal);
        assert_eq!(
            got,
            (Some(code), None),
            "stdout: {:?}; stderr: {}",
            self.stdout,
            self.stderr
        );
        self
    }

    /// Asserts that the error output or the report has all of these.
    #[track_caller]
    pub fn says(&self, parts: &[&str]) -> &Self {
        let all = format!("{}\n{}", self.stdout.join("\n"), self.stderr);
        for part in parts {
            assert!(all.contains(part), "`{part}` is not said in: {all}");
        }
        self
    }
}

/// Plays a rank if this process was started as one; returns at once otherwise.
pub fn play_if_rank() {
    if let Ok(script) = std::env::var(SCRIPT) {
        let code = rank::play(&script);
        std::process::exit(code);
    }
}

mod rank {
    use std::io::Write;
    use std::net::TcpStream;
    use std::sync::Arc;
    use std::time::Duration;
    use tp_fabric::bootstrap::{BootConfig, Bootstrap, PROTOCOL};
    use tp_fabric::host::{self, HostConfig};
    use tp_fabric::local::LocalMeeting;
    use tp_fabric::plan::PlanError;
    use tp_fabric::session::{Group, Session, SessionHooks};
    use tp_fabric::settings::{Settings, Sources};
    use tp_fabric::types::World;

    #[derive(Default)]
    struct State {
        bootstrap: Option<Bootstrap>,
        group: Option<Group>,
        session: Option<Session>,
        /// Control and plan connections of a rank that keeps to no protocol.
        raw: [Vec<TcpStream>; 2],
    }

    /// Runs the script's words one by one; gives the exit code.
    pub fn play(script: &str) -> i32 {
        let settings = match Settings::load(&Sources::process()) {
            Ok(settings) => settings,
            Err(error) => {
                eprintln!("error: {error}");
                return 2;
            }
        };
        let mut state = State::default();
        for word in script.split_whitespace() {
            if let Err((text, code)) = step(&settings, &mut state, word) {
                eprintln!("error: {text}");
                return code;
            }
        }
        0
    }

    fn hooks() -> SessionHooks {
        let on_fate = |report: &tp_fabric::fate::FateReport| println!("fate {report}");
        // A binary of another build says so here, since the test's ranks all run the same file.
        let other = std::env::var("TP_FABRIC_TEST_IMAGE").unwrap_or_default();
        let agree = vec![("image".to_owned(), other)];
        SessionHooks {
            on_fate: Some(Arc::new(on_fate)),
            agree,
            ..SessionHooks::default()
        }
    }

    fn step(settings: &Settings, state: &mut State, word: &str) -> Result<(), (String, i32)> {
        let (word, argument) = word.split_once(':').unwrap_or((word, ""));
        let number = || argument.parse::<u64>().unwrap();
        match word {
            "connect" => {
                let met = Bootstrap::connect(BootConfig::from_settings(settings));
                state.bootstrap = Some(met.map_err(|e| (e.to_string(), e.exit_code()))?);
                println!("connected");
            }
            "agree" => {
                let boot = state.bootstrap.as_mut().unwrap();
                let agreed = boot.agree("agree", &[("field".to_owned(), argument.to_owned())]);
                agreed.map_err(|e| (e.to_string(), e.exit_code()))?;
                println!("agreed");
            }
            "group" => {
                let group = Group::open(settings, hooks()).map_err(|e| (e.to_string(), e.exit_code()))?;
                let seen = group.report.visitors.clone();
                let boot = group.report.connect + group.report.agree;
                println!(
                    "address={}",
                    group.report.address.map_or("none".to_owned(), |a| a.to_string())
                );
                println!(
                    "boot_us={} identity_us={}",
                    boot.as_micros(),
                    group.report.identity.as_micros()
                );
                state.group = Some(group);
                println!("up strangers={} refused={:?}", seen.strangers, seen.refused);
            }
            "session" => {
                let session = Session::open(settings, hooks()).map_err(|e| (e.to_string(), e.exit_code()))?;
                state.session = Some(session);
                println!("up");
            }
            // A session whose collectives are this rank's alone.
            "bare" => {
                let group = Group::open(settings, hooks()).map_err(|e| (e.to_string(), e.exit_code()))?;
                let mut alone = LocalMeeting::group(World(1), Duration::from_secs(5)).remove(0);
                let backend = host::open(&mut alone, &HostConfig::default()).unwrap();
                let session = Session::with_backend(group, settings, Box::new(backend));
                state.session = Some(session.map_err(|e| (e.to_string(), e.exit_code()))?);
                println!("up");
            }
            "raw" => {
                state.raw = raw(settings);
                println!("raw");
            }
            "control" => send_raw(&mut state.raw[0], &garbage("TPFT", argument)),
            "plan-raw" => send_raw(&mut state.raw[1], &garbage("TPPL", argument)),
            // A handler that does nothing, so that waits are interrupted and not restarted.
            "usr1" => {
                use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
                extern "C" fn nothing(_: i32) {}
                let action = SigAction::new(SigHandler::Handler(nothing), SaFlags::empty(), SigSet::empty());
                // SAFETY: the handler does nothing, which is safe at any moment.
                unsafe { sigaction(Signal::SIGUSR1, &action) }.unwrap();
                println!("handles");
            }
            "wall" => {
                let now = std::time::SystemTime::now();
                let now = now.duration_since(std::time::UNIX_EPOCH).unwrap();
                println!("wall={}", now.as_secs());
            }
            "barrier" => {
                let group = state.group.as_mut().unwrap();
                let result = group.meeting().barrier(argument);
                result
                    .map_err(|e| group.settle(e))
                    .map_err(|e| (e.to_string(), e.exit_code()))?;
                println!("passed {argument}");
            }
            "fatal" => fate(state).fatal("test", argument),
            "hook" => {
                let pause = Duration::from_millis(number());
                fate(state).register_hook("pause", Box::new(move || std::thread::sleep(pause)));
            }
            "phase" => fate(state).set_phase(argument),
            "announce" => fate(state).announce_stop(),
            "await-stop" => {
                while !fate(state).stop_announced() {
                    std::thread::sleep(Duration::from_millis(1));
                }
                println!("stop seen");
            }
            "kill" => nix::sys::signal::raise(nix::sys::signal::Signal::SIGKILL).unwrap(),
            "stop" => nix::sys::signal::raise(nix::sys::signal::Signal::SIGSTOP).unwrap(),
            // All ranks begin at one time of the clock on the wall, in milliseconds.
            "at" => {
                let now = std::time::SystemTime::now()
                    .duration_since(std::time::UNIX_EPOCH)
                    .unwrap();
                std::thread::sleep(Duration::from_millis(number()).saturating_sub(now));
            }
            "sleep" => std::thread::sleep(Duration::from_millis(number())),
            "hang" => loop {
                std::thread::park();
            },
            "exit" => std::process::exit(i32::try_from(number()).unwrap()),
            "plan" => {
                let words: Vec<i64> = (0..i64::try_from(number()).unwrap()).collect();
                println!("sending");
                let sent = state.session.as_mut().unwrap().plan.send(&words);
                sent.map_err(|e| lost(state, e))?;
            }
            "recv" => {
                let mut words = Vec::new();
                let more = state.session.as_mut().unwrap().plan.recv_grow(&mut words);
                let more = more.map_err(|e| lost(state, e))?;
                println!("plan {more} {} {}", words.len(), words.iter().sum::<i64>());
            }
            "end-plan" => state
                .session
                .as_mut()
                .unwrap()
                .plan
                .stop()
                .map_err(|e| (e.to_string(), 1))?,
            "close" => {
                if let Some(group) = state.group.take() {
                    group.close();
                }
                if let Some(session) = state.session.take() {
                    session.close().map_err(|e| (e.to_string(), e.exit_code()))?;
                }
                println!("closed");
            }
            other => panic!("no word {other}"),
        }
        Ok(())
    }

    /// What a rank does that has lost its plan link: it leaves as its fate channel says.
    fn lost(state: &State, error: PlanError) -> (String, i32) {
        match error {
            PlanError::PeerClosed { rank, reason } => fate(state).lost_peer(rank, "plan", &reason),
            other => (other.to_string(), 1),
        }
    }

    /// Meets and agrees as every rank does; gives the bare connections.
    fn raw(settings: &Settings) -> [Vec<TcpStream>; 2] {
        let mut boot = Bootstrap::connect(BootConfig::from_settings(settings)).unwrap();
        let mut fields = vec![
            ("protocol".to_owned(), PROTOCOL.to_string()),
            (
                "binary_sha256".to_owned(),
                tp_fabric::identity::binary_sha256().unwrap(),
            ),
            ("version".to_owned(), env!("CARGO_PKG_VERSION").to_owned()),
        ];
        fields.extend(settings.agreed_fields());
        fields.extend(hooks().agree);
        boot.agree("agree", &fields).unwrap();
        let control = boot.take_control();
        let both = [control, boot.into_plan()];
        for link in both.iter().flatten() {
            link.set_nonblocking(false).unwrap();
        }
        both
    }

    fn send_raw(links: &mut [TcpStream], bytes: &[u8]) {
        for link in links {
            link.write_all(bytes).unwrap();
        }
    }

    /// Bytes that begin like a frame of a channel and are none.
    fn garbage(magic: &str, kind: &str) -> Vec<u8> {
        let frame = |kind: u32, length: u32, body: &[u8]| {
            let head = [magic.as_bytes(), &kind.to_le_bytes(), &length.to_le_bytes()];
            [&head.concat(), body].concat()
        };
        let words = |words: &[i64]| {
            words
                .iter()
                .flat_map(|word| word.to_le_bytes())
                .collect::<Vec<u8>>()
        };
        match kind {
            "foreign" => b"GET / HTTP/1.1\r\n\r\n".to_vec(),
            "oversized" => frame(1, u32::MAX, &[]),
            "unknown" => frame(77, 0, &[]),
            "truncated" => frame(1, 3, b"r"),
            "batch" => frame(2, 3, &words(&[2, 1, 5])),
            "batch-beyond" => frame(2, 2, &words(&[1, i64::MAX])),
            other => panic!("no garbage {other}"),
        }
    }

    fn fate(state: &State) -> tp_fabric::fate::FateHandle {
        match (&state.group, &state.session) {
            (Some(group), _) => group.fate(),
            (_, Some(session)) => session.fate(),
            _ => panic!("no fate channel yet"),
        }
    }
}
