//! What this process was told before it does anything: its environment, the orchestrator's start line, its options.

use crate::cli::{Global, LeaseFrom};
use crate::exit_code::Refusal;
use crate::lease::{self, Lines, RawStdin};
use crate::os;
use crate::sink::Sink;
use std::ffi::OsString;
use tp_fabric::settings::Sources;
use tp_receipt::control::{START_LINE_MAX, Start};

/// The variable that carries the session secret; its value is never shown.
pub const SECRET: &str = "TF_TP_SECRET";
/// The variable that carries the session's name.
pub const SESSION: &str = "TF_TP_SESSION";

/// Everything that sets something, and the lease if there is one.
pub struct Inputs {
    /// Who sets what.
    pub sources: Sources,
    lease: Option<Lines<RawStdin>>,
}

impl Inputs {
    /// Reads the start line where the options ask for a lease; waits for it at most as long as for a beat.
    pub fn gather(global: &Global) -> Result<Self, Refusal> {
        let mut sources = Sources::process();
        let mut lease = None;
        if global.lease == Some(LeaseFrom::Stdin) {
            let mut lines = Lines::new(RawStdin::new(), START_LINE_MAX);
            let start = lease::read_start(&mut lines)?;
            apply(&mut sources, start);
            lease = Some(lines);
        }
        for (variable, value) in global.settings() {
            if let Some(value) = value {
                sources.options.insert(variable.to_owned(), value.into());
            }
        }
        Ok(Self { sources, lease })
    }

    /// Puts what the orchestrator set and unset into this process's environment, for libraries that read it themselves
    /// (NCCL), except the secret, which children and `/proc` must not show.
    ///
    /// # Safety
    /// No other thread may exist: the C library's environment has no lock.
    pub unsafe fn export(&self) {
        for name in self.sources.unset.iter().filter(|name| is_a_name(name)) {
            // SAFETY: the caller vouches that this is the only thread; the name has neither `=` nor NUL.
            unsafe { std::env::remove_var(name) };
        }
        for (name, value) in self.sources.orchestrator.iter().flatten() {
            if name != SECRET && is_a_name(name) && !value.contains('\0') {
                // SAFETY: as above, and the value has no NUL.
                unsafe { std::env::set_var(name, value) };
            }
        }
    }

    /// Starts the thread that ends this process with exit 70 when the lease is lost. Without a lease it does nothing.
    pub fn keep_lease(&mut self, sink: &Sink) -> Result<(), Refusal> {
        let Some(mut lines) = self.lease.take() else {
            return Ok(());
        };
        let sink = sink.clone();
        let thread = std::thread::Builder::new().name("lease".to_owned());
        let started = thread.spawn(move || {
            let why = lease::follow(&mut lines);
            sink.log(
                "error",
                None,
                &format!("leaving with exit {}: {why}", crate::exit_code::LOST),
            );
            os::exit_now(crate::exit_code::LOST)
        });
        started
            .map(drop)
            .map_err(|e| Refusal::cannot(format!("failed to start the lease thread: {e}")))
    }
}

fn apply(sources: &mut Sources, start: Start) {
    let mut settings = start.settings;
    if let Some(secret) = start.secret {
        settings.insert(SECRET.to_owned(), secret);
    }
    if !start.session.is_empty() {
        settings.entry(SESSION.to_owned()).or_insert(start.session);
    }
    sources.orchestrator = Some(settings);
    sources.unset = start.unset.into_iter().collect();
}

/// Whether `name` can be the name of an environment variable.
pub fn is_a_name(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|b| b != 0 && b != b'=')
}

/// An option's text as a settings source takes it.
pub fn option(sources: &mut Sources, variable: &str, value: &str) {
    sources.options.insert(variable.to_owned(), OsString::from(value));
}

#[cfg(test)]
mod tests {
    use super::*;
    use tp_fabric::settings::Source;

    #[test]
    fn the_start_line_sets_session_and_secret_and_unsets_what_the_environment_has() {
        let mut sources = Sources::of([("NCCL_IB_HCA", "x"), ("TF_TP_RANK", "0")]);
        let start = Start {
            session: "s1".to_owned(),
            settings: [("TF_TP_RANK".to_owned(), "1".to_owned())].into(),
            unset: vec!["NCCL_IB_HCA".to_owned()],
            secret: Some("aa".to_owned()),
            ..Start::default()
        };
        apply(&mut sources, start);
        assert_eq!(
            sources.text("TF_TP_RANK"),
            Some(("1".into(), Source::Orchestrator))
        );
        assert_eq!(sources.text("NCCL_IB_HCA"), None);
        assert_eq!(sources.text(SECRET), Some(("aa".into(), Source::Orchestrator)));
        assert_eq!(sources.text(SESSION), Some(("s1".into(), Source::Orchestrator)));
        option(&mut sources, "TF_TP_RANK", "2");
        assert_eq!(sources.text("TF_TP_RANK"), Some(("2".into(), Source::Option)));
    }
}
