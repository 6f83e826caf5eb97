//! Signatures by SSH key, made and checked by `ssh-keygen -Y` over `SHA256SUMS`.

use super::{Options, Report};
use crate::store::files;
use crate::store::sums::{NAME, SIGNATURE};
use std::io::ErrorKind;
use std::path::Path;
use std::process::{Command, Stdio};

/// The namespace of our signatures, so that one made for something else is not taken for ours.
pub const NAMESPACE: &str = "tp-receipt";

/// Signs a sealed receipt: `SHA256SUMS.sig` beside `SHA256SUMS`. The key may be one that an agent holds (its public
/// half is named then).
///
/// # Errors
/// What `ssh-keygen` said, or that it could not be started.
pub fn sign(dir: &Path, key: &Path) -> Result<(), String> {
    let sums = dir.join(NAME);
    files::open(&sums).map_err(|e| format!("cannot read {}: {e}", sums.display()))?;
    let _ = std::fs::remove_file(dir.join(SIGNATURE));
    let mut command = Command::new("ssh-keygen");
    command
        .args(["-q", "-Y", "sign", "-n", NAMESPACE, "-f"])
        .arg(key)
        .arg(sums);
    run(command, None)
}

pub(super) fn check(dir: &Path, options: &Options, report: &mut Report) {
    let signature = dir.join(SIGNATURE);
    let bytes = match files::read(&signature) {
        Ok(bytes) => bytes,
        Err(e) if e.kind() != ErrorKind::NotFound => return report.unreadable(SIGNATURE, &e),
        Err(_) => {
            if options.allowed_signers.is_some() {
                report.broken(SIGNATURE, "it is missing, and a signature was asked for");
            } else {
                report
                    .notes
                    .push("not signed: the receipt proves that it is whole, not where it is from".into());
            }
            return;
        }
    };
    if let Err(why) = canonical(&bytes) {
        report.broken(SIGNATURE, why);
        return;
    }
    let result = match &options.allowed_signers {
        Some(allowed) => by_allowed(dir, &signature, allowed, options.signer.as_deref()),
        None => {
            let mut command = Command::new("ssh-keygen");
            command
                .args(["-Y", "check-novalidate", "-n", NAMESPACE, "-s"])
                .arg(&signature);
            run(command, Some(&dir.join(NAME)))
        }
    };
    match (result, &options.allowed_signers) {
        (Err(why), _) => report.broken(SIGNATURE, why),
        (Ok(()), Some(_)) => report.notes.push("signed by an allowed signer".into()),
        (Ok(()), None) => {
            report
                .notes
                .push("signed; whose key it is was not asked (--allowed-signers FILE)".into());
        }
    }
}

fn by_allowed(dir: &Path, signature: &Path, allowed: &Path, signer: Option<&str>) -> Result<(), String> {
    let signer = match signer {
        Some(signer) => signer.to_owned(),
        None => {
            let mut command = Command::new("ssh-keygen");
            command
                .args(["-Y", "find-principals", "-f"])
                .arg(allowed)
                .arg("-s")
                .arg(signature);
            let out = command
                .stdin(Stdio::null())
                .output()
                .map_err(|e| not_started(&e))?;
            let text = String::from_utf8_lossy(&out.stdout);
            let first = text.lines().next().unwrap_or_default().to_owned();
            if !out.status.success() || first.is_empty() {
                return Err("it is by nobody in the allowed signers".into());
            }
            first
        }
    };
    let mut command = Command::new("ssh-keygen");
    command
        .args(["-Y", "verify", "-n", NAMESPACE, "-I", &signer, "-f"])
        .arg(allowed)
        .arg("-s")
        .arg(signature);
    run(command, Some(&dir.join(NAME)))
}

fn not_started(e: &std::io::Error) -> String {
    format!("cannot be checked: ssh-keygen could not be started ({e}); install the OpenSSH client")
}

fn run(mut command: Command, input: Option<&Path>) -> Result<(), String> {
    let stdin = match input {
        Some(path) => files::open(path)
            .map_err(|e| format!("cannot read {}: {e}", path.display()))?
            .into(),
        None => Stdio::null(),
    };
    let out = command.stdin(stdin).output().map_err(|e| not_started(&e))?;
    if out.status.success() {
        return Ok(());
    }
    let said = [out.stderr, out.stdout].concat();
    let said = String::from_utf8_lossy(&said);
    Err(format!(
        "it does not hold: {}",
        said.lines().next().unwrap_or("ssh-keygen gave no reason")
    ))
}

/// `ssh-keygen` ignores how the text is wrapped; we do not, so that no changed byte goes unseen.
fn canonical(bytes: &[u8]) -> Result<(), String> {
    let bad = || "it is not in the form that ssh-keygen writes".to_owned();
    let text = std::str::from_utf8(bytes).map_err(|_| bad())?;
    let body = text
        .strip_prefix("-----BEGIN SSH SIGNATURE-----\n")
        .and_then(|t| t.strip_suffix("-----END SSH SIGNATURE-----\n"))
        .ok_or_else(bad)?;
    let lines: Vec<&str> = body.split_terminator('\n').collect();
    let (last, full) = lines.split_last().ok_or_else(bad)?;
    let wide = full.first().map_or(last.len(), |l| l.len());
    let shaped = full.iter().all(|l| l.len() == wide) && !last.is_empty() && last.len() <= wide;
    if !shaped || !body.ends_with('\n') || !base64(&lines.concat()) {
        return Err(bad());
    }
    Ok(())
}

/// Whether it is base64 in its one form: the bits that no byte uses are zero.
fn base64(text: &str) -> bool {
    const ALPHABET: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let bare = text.trim_end_matches('=');
    let value = |b: u8| ALPHABET.iter().position(|a| *a == b);
    let padding = text.len() - bare.len();
    let all = bare.bytes().all(|b| value(b).is_some());
    let last = bare.bytes().next_back().and_then(value).unwrap_or(0);
    let unused_are_zero = match padding {
        0 => true,
        1 => last & 0b11 == 0,
        2 => last & 0b1111 == 0,
        _ => false,
    };
    text.len().is_multiple_of(4) && all && unused_are_zero
}
