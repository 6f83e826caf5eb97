//! Bringing one file to one host: nothing is sent where its hash is there, what was sent before is not sent again, and
//! nothing carries its name before the host itself has hashed it.

use super::Artifact;
use crate::host::ssh::{Input, remote};
use crate::host::{CommandOutput, Fault, HostError, SshHost};
use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::time::{Duration, Instant};

/// How long the transfer of one file may take.
const SEND_LIMIT: Duration = Duration::from_secs(1800);
/// How long hashing a file may take.
const CHECK_LIMIT: Duration = Duration::from_secs(120);
/// How long another transfer of the same file to the same host is waited for.
const OTHER_LIMIT: Duration = Duration::from_secs(600);

/// What a host has of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum There {
    /// All of it, and its hash is right.
    Whole,
    /// A file of that name with another hash; it is taken away.
    Tampered,
    /// So many bytes of an earlier transfer.
    Part(u64),
}

/// What was done for a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sent {
    /// Bytes that went over the network to it.
    pub bytes: u64,
    /// Whether an earlier transfer was taken up.
    pub resumed: bool,
    /// A file with another content was found in its place and replaced.
    pub replaced: bool,
    /// It came from another host.
    pub relayed: bool,
    /// Why it did not come from another host, though it was to.
    pub missed: Option<String>,
    /// How long it took.
    pub took: Duration,
}

impl Sent {
    /// Nothing had to be done.
    pub(super) fn nothing() -> Self {
        Self {
            bytes: 0,
            resumed: false,
            replaced: false,
            relayed: false,
            missed: None,
            took: Duration::ZERO,
        }
    }
}

/// `$1` our directory, `$2` hash, `$3` name, `$4` size. A file that was hashed once is hashed again when its stamp (device,
/// inode, size, change time) is another one.
const LOOK: &str = r#"
d=$1/bin/$2; f=$d/$3
if [ -f "$f" ]; then
  s=$(stat -c '%d %i %s %z' "$f")
  if [ "$(cat "$d/.$3.ok" 2>/dev/null)" = "$s" ]; then echo there=whole; exit 0; fi
  h=$(sha256sum <"$f") || exit 1
  if [ "${h%% *}" = "$2" ]; then
    chmod 555 "$f"; stat -c '%d %i %s %z' "$f" >"$d/.$3.ok"
    echo there=whole; exit 0
  fi
  rm -f "$f" "$d/.$3.ok"
  echo tampered=1
fi
p=$d/$3.part
if [ -f "$p" ]; then echo "part=$(wc -c <"$p")"; else echo part=0; fi
a=$1; while [ ! -d "$a" ]; do a=${a%/*}; [ -n "$a" ] || a=/; done
df -Pk "$a" | { read -r head; read -r disk blocks used free rest; echo "free=$free"; }
if [ ! -w "$a" ]; then echo "cannot write to $a" >&2; exit 1; fi
"#;

/// `$1` our directory, `$2` hash, `$3` name, `$4` bytes that are there, `$5` size. Codes of its own: 75 another transfer is
/// under way, 76 what is there has changed meanwhile, 77 another hash came out, 78 the input ended early.
const TAKE: &str = concat!(
    r#"umask 022; d=$1/bin/$2; p=$d/$3.part; mkdir -p "$d" || exit 1; exec 9>>"$p.lock" || exit 1; "#,
    r#"if command -v flock >/dev/null 2>&1; then flock -n 9 || exit 75; fi; "#,
    r#"if [ -f "$d/$3" ]; then rm -f "$p.lock"; exit 76; fi; "#,
    r#"n=0; if [ -f "$p" ]; then n=$(wc -c <"$p"); fi; [ "$n" -eq "$4" ] || { rm -f "$p.lock"; exit 76; }; "#,
    r#"cat >>"$p" || { rm -f "$p" "$p.lock"; exit 1; }; "#,
    r#"[ "$(wc -c <"$p")" -ge "$5" ] || exit 78; sync "$p" 2>/dev/null || sync; "#,
    r#"h=$(sha256sum <"$p") || exit 1; "#,
    r#"if [ "${h%% *}" != "$2" ]; then rm -f "$p" "$p.lock"; echo "the hash is ${h%% *}" >&2; exit 77; fi; "#,
    r#"chmod 555 "$p" && mv -f "$p" "$d/$3" && stat -c '%d %i %s %z' "$d/$3" >"$d/.$3.ok" && rm -f "$p.lock""#
);

/// `$1` the file, which a relay of ours has just hashed.
const STAMP: &str = r#"d=${1%/*}; n=${1##*/}; stat -c '%d %i %s %z' "$1" >"$d/.$n.ok""#;

/// Notes that a file was hashed and is right.
pub(super) fn stamp(host: &SshHost, artifact: &Artifact) -> Result<(), HostError> {
    let path = artifact.path_on(&host.about().dir);
    let output = host.script(STAMP, std::slice::from_ref(&path), CHECK_LIMIT)?;
    match output.code {
        Some(0) => Ok(()),
        _ => Err(error(
            host,
            Fault::Other,
            format!("find {path}: {}", said(&output)),
        )),
    }
}

/// Asks a host what it has of the file.
///
/// # Errors
/// The host does not answer, cannot be written to, or has too little room.
pub fn look(host: &SshHost, artifact: &Artifact) -> Result<There, HostError> {
    let dir = &host.about().dir;
    let size = artifact.size.to_string();
    let arguments = [dir.clone(), artifact.sha256.clone(), artifact.name.clone(), size];
    let output = host.script(LOOK, &arguments, CHECK_LIMIT)?;
    if output.code != Some(0) {
        return Err(error(
            host,
            Fault::Other,
            format!("look for {} in {dir}: {}", artifact.name, said(&output)),
        ));
    }
    let number =
        |key: &str| remote::value(&output.stdout, key).and_then(|text| text.trim().parse::<u64>().ok());
    if remote::value(&output.stdout, "there") == Some("whole") {
        return Ok(There::Whole);
    }
    let part = number("part").unwrap_or(0);
    let missing = artifact.size.saturating_sub(part);
    if let Some(free) = number("free")
        .map(|kib| kib.saturating_mul(1024))
        .filter(|free| *free < missing)
    {
        let text = format!(
            "put {} into {dir}: there are {} MB free and it needs {} MB more; make room, or give another `dir`",
            artifact.name,
            free / 1_000_000,
            missing.div_ceil(1_000_000)
        );
        return Err(error(host, Fault::Other, text));
    }
    Ok(match remote::value(&output.stdout, "tampered") {
        Some(_) => There::Tampered,
        None => There::Part(part),
    })
}

/// Sends what is missing of the file, and has the host hash it before it gets its name.
///
/// # Errors
/// The transfer or the check failed; the host keeps what it has, for the next try.
pub fn put(host: &SshHost, artifact: &Artifact) -> Result<Sent, HostError> {
    let began = Instant::now();
    let mut sent = Sent::nothing();
    let mut afresh = false;
    loop {
        let from = match look(host, artifact)? {
            There::Whole => {
                sent.took = began.elapsed();
                return Ok(sent);
            }
            There::Tampered => {
                sent.replaced = true;
                0
            }
            There::Part(bytes) => bytes,
        };
        sent.resumed |= from > 0;
        let output = send(host, artifact, from)?;
        match output.code {
            Some(0) => sent.bytes += artifact.size - from.min(artifact.size),
            Some(75 | 76) if began.elapsed() < OTHER_LIMIT => std::thread::sleep(Duration::from_millis(300)),
            // What an earlier transfer left was not the beginning of this file: once more from the start.
            Some(77) if from > 0 && !afresh => afresh = true,
            Some(77) => {
                let text = format!(
                    "check {}: {}, not {}: it was changed on the way",
                    artifact.name,
                    said(&output),
                    artifact.sha256
                );
                return Err(error(host, Fault::Other, text));
            }
            Some(78) => {
                let text = format!(
                    "send {}: the file here became shorter while it was sent",
                    artifact.name
                );
                return Err(error(host, Fault::Other, text));
            }
            _ => {
                let text = format!(
                    "write {} into {}: {}",
                    artifact.name,
                    host.about().dir,
                    said(&output)
                );
                return Err(error(host, Fault::Other, text));
            }
        }
    }
}

fn send(host: &SshHost, artifact: &Artifact, from: u64) -> Result<CommandOutput, HostError> {
    let failed = |e: std::io::Error| {
        error(
            host,
            Fault::Other,
            format!("read {}: {e}", artifact.path.display()),
        )
    };
    let mut file = File::open(&artifact.path).map_err(failed)?;
    file.seek(SeekFrom::Start(from)).map_err(failed)?;
    let arguments = [
        "sh".to_owned(),
        "-c".to_owned(),
        TAKE.to_owned(),
        "sh".to_owned(),
        host.about().dir.clone(),
        artifact.sha256.clone(),
        artifact.name.clone(),
        from.to_string(),
        artifact.size.to_string(),
    ];
    host.run(remote::marked(&arguments), Input::File(file), SEND_LIMIT)
}

fn said(output: &CommandOutput) -> String {
    let line = output.stderr.lines().last().unwrap_or("nothing");
    format!("the host says: {line}")
}

fn error(host: &SshHost, fault: Fault, what: String) -> HostError {
    use crate::host::Host;
    HostError {
        host: host.name().to_owned(),
        what,
        fault,
    }
}
