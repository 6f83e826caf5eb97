//! Taking away what earlier pushes and runs left in our directory on a host.

use crate::host::ssh::remote;
use crate::host::{Fault, Host, HostError, SshHost};
use std::time::Duration;

/// How long it may take.
const LIMIT: Duration = Duration::from_secs(60);

/// `$1` our directory, further ones the hashes to keep. A program that runs is kept, and so is a transfer under way. Of a
/// runner in the Nix store our link goes; the store is collected by its owner.
const PRUNE: &str = r#"
root=$1; shift
keep=" $* "
running=$(for p in /proc/[0-9]*/exe; do readlink "$p" 2>/dev/null; done)
for d in "$root"/bin/*/; do
  [ -d "$d" ] || continue
  h=${d%/}; h=${h##*/}
  case "$keep" in *" $h "*) continue ;; esac
  case "$running" in *"/bin/$h/"*) echo "kept=$h"; continue ;; esac
  busy=0
  if command -v flock >/dev/null 2>&1; then
    for l in "$d"*.lock; do [ ! -e "$l" ] || flock -n "$l" true || busy=1; done
  fi
  [ $busy = 0 ] || { echo "kept=$h"; continue; }
  rm -rf "$d" && echo "gone=$h"
done
for l in "$root"/nix/*; do
  [ -L "$l" ] || continue
  h=$(sha256sum <"$l/bin/tf-tp-test" 2>/dev/null); h=${h%% *}
  case "$keep" in *" ${h:-none} "*) continue ;; esac
  case "$running" in *"$(readlink -f "$l")/"*) echo "kept=$h"; continue ;; esac
  rm -f "$l" && echo "gone=$h"
done
for d in "$root"/run/*/; do
  [ -d "$d" ] || continue
  r=${d%/}; r=${r##*/}
  live=0
  for p in /proc/[0-9]*/cmdline; do if tr '\0' ' ' <"$p" 2>/dev/null | grep -q -- "--session $r-"; then live=1; fi; done
  [ $live = 0 ] && rm -rf "$d"
done
exit 0
"#;

/// What was taken away and what was kept because it runs, as hashes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pruned {
    /// Taken away.
    pub gone: Vec<String>,
    /// Kept: a process runs it, or a transfer is under way.
    pub kept: Vec<String>,
}

/// Takes away every runner but those with the given hashes.
pub fn prune(host: &SshHost, keep: &[String]) -> Result<Pruned, HostError> {
    let mut arguments = vec![host.about().dir.clone()];
    arguments.extend_from_slice(keep);
    let output = host.script(PRUNE, &arguments, LIMIT)?;
    if output.code != Some(0) {
        return Err(HostError {
            host: host.name().to_owned(),
            what: format!("prune {}: {}", host.about().dir, output.stderr.trim()),
            fault: Fault::Other,
        });
    }
    let lines = |key: &str| -> Vec<String> {
        output
            .stdout
            .lines()
            .filter_map(|line| remote::value(line, key))
            .map(str::to_owned)
            .collect()
    };
    Ok(Pruned {
        gone: lines("gone"),
        kept: lines("kept"),
    })
}
