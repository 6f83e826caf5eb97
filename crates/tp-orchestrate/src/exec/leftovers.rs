//! What earlier runs left on the hosts: found by session, told apart by run, ended only where it is one's own.

use crate::deploy::{self, Member};
use crate::host::ssh::remote;
use crate::host::{Fault, Host, HostError, SshHost};
use std::time::Duration;

/// How long looking for them may take.
const LIMIT: Duration = Duration::from_secs(20);

/// A supervisor that runs on a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leftover {
    /// The inventory's name of the host.
    pub host: String,
    /// Process id there.
    pub pid: u32,
    /// The session that its command line names.
    pub session: String,
    /// Seconds since it began.
    pub age_s: u64,
}

impl Leftover {
    /// The run that the session belongs to: what stands in front of the arm.
    pub fn run_id(&self) -> &str {
        self.session.split('-').next().unwrap_or(&self.session)
    }
}

/// Lists supervisors of this user by their own command line: `pid session age`. The processes that they supervise have the
/// session in theirs too, and end with them.
const LIST: &str = r#"
me=$(id -u)
up=$(cut -d. -f1 /proc/uptime)
hz=$(getconf CLK_TCK 2>/dev/null || echo 100)
for p in /proc/[0-9]*; do
  [ "$(stat -c %u "$p" 2>/dev/null)" = "$me" ] || continue
  c=$(tr '\0' ' ' <"$p/cmdline" 2>/dev/null) || continue
  case "$c" in *"tf-tp-test supervise --events -- "*" --session "*) ;; *) continue ;; esac
  s=${c#* --session }; s=${s%% *}
  t=$(sed 's/.*) //' "$p/stat" 2>/dev/null | cut -d' ' -f20)
  echo "leftover=${p#/proc/} $s $((up - ${t:-0} / hz))"
done
exit 0
"#;

/// `$1` signal, further ones process ids with their session: a number that is used again belongs to a stranger.
const END: &str = r#"
sig=$1; shift
while [ $# -ge 2 ]; do
  c=$(tr '\0' ' ' <"/proc/$1/cmdline" 2>/dev/null)
  case "$c" in *"tf-tp-test supervise --events -- "*" --session $2 "*) kill "-$sig" "$1" 2>/dev/null ;; esac
  shift 2
done
exit 0
"#;

/// What runs on a host.
pub fn list(host: &SshHost) -> Result<Vec<Leftover>, HostError> {
    let output = host.script(LIST, &[], LIMIT)?;
    if output.code != Some(0) {
        return Err(HostError {
            host: host.name().to_owned(),
            what: format!("list what runs there: {}", output.stderr.trim()),
            fault: Fault::Other,
        });
    }
    let read = |line: &str| {
        let mut fields = remote::value(line, "leftover")?.split(' ');
        Some(Leftover {
            host: host.name().to_owned(),
            pid: fields.next()?.parse().ok()?,
            session: fields.next()?.to_owned(),
            age_s: fields.next()?.parse().unwrap_or(0),
        })
    };
    Ok(output.stdout.lines().filter_map(read).collect())
}

/// Ends supervisors on a host: by SIGTERM, on which each ends its rank, and where that does not help by SIGKILL. Gives those
/// that are still there.
pub fn end(host: &SshHost, found: &[Leftover]) -> Result<Vec<Leftover>, HostError> {
    for (signal, wait) in [
        ("TERM", Duration::from_millis(1500)),
        ("KILL", Duration::from_millis(500)),
    ] {
        let still = alive(host, found)?;
        if still.is_empty() {
            return Ok(still);
        }
        let mut arguments = vec![signal.to_owned()];
        arguments.extend(
            still
                .iter()
                .flat_map(|one| [one.pid.to_string(), one.session.clone()]),
        );
        host.script(END, &arguments, LIMIT)?;
        let until = std::time::Instant::now() + wait;
        while std::time::Instant::now() < until && !alive(host, found)?.is_empty() {
            std::thread::sleep(Duration::from_millis(100));
        }
    }
    alive(host, found)
}

fn alive(host: &SshHost, found: &[Leftover]) -> Result<Vec<Leftover>, HostError> {
    let now = list(host)?;
    let same = |one: &&Leftover| {
        now.iter()
            .any(|other| other.pid == one.pid && other.session == one.session)
    };
    Ok(found.iter().filter(same).cloned().collect())
}

/// One line for every run that has something on the hosts.
pub(super) fn notes(members: &[Member<'_>]) -> Vec<String> {
    let found: Vec<Leftover> = deploy::each(members, |member| list(&member.ssh))
        .into_iter()
        .flat_map(Result::unwrap_or_default)
        .collect();
    let mut runs: Vec<&str> = found.iter().map(Leftover::run_id).collect();
    runs.sort_unstable();
    runs.dedup();
    let line = |run: &str| {
        let of_run: Vec<&Leftover> = found.iter().filter(|one| one.run_id() == run).collect();
        let places: Vec<String> = of_run
            .iter()
            .map(|one| format!("{} pid {} for {} s", one.host, one.pid, one.age_s))
            .collect();
        format!(
            "another run's ranks are on these hosts, session {}: {}; they are left alone (tp-orchestrate stop lists and ends \
             one's own)",
            of_run.first().map_or(run, |one| &one.session),
            places.join(", ")
        )
    };
    runs.into_iter().map(line).collect()
}
