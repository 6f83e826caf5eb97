//! What a host says of itself in one answer, and the small scripts that ask.

use super::remote;
use std::path::PathBuf;

/// What a host said of itself at the login.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct About {
    /// `/etc/machine-id`, where there is one.
    pub machine_id: Option<String>,
    /// What tells machines and containers of one image apart: the kernel's boot id and the network namespace.
    pub boot_id: String,
    /// Machine and system as Nix calls them, e.g. `aarch64-linux`.
    pub system: String,
    /// The directory that belongs to us, absolute.
    pub dir: String,
    /// The user's numeric id there.
    pub uid: u32,
    /// Wall clock when it answered, seconds since 1970.
    pub clock_s: f64,
    /// Variables of the session that would change what a rank does.
    pub variables: Vec<String>,
}

/// `$1`: the inventory's directory, or nothing.
pub(super) const ABOUT_SCRIPT: &str = r#"
for f in /etc/machine-id /var/lib/dbus/machine-id; do
  if [ -s "$f" ]; then echo "machine_id=$(cat "$f")"; break; fi
done
echo "boot_id=$(cat /proc/sys/kernel/random/boot_id 2>/dev/null) $(readlink /proc/self/ns/net 2>/dev/null)"
echo "machine=$(uname -m)"
echo "kernel=$(uname -s)"
echo "uid=$(id -u)"
case "$1" in
  "") d=${XDG_CACHE_HOME:-$HOME/.cache}/tp-bringup ;;
  "~/"*) d=$HOME/${1#"~/"} ;;
  *) d=$1 ;;
esac
echo "dir=$d"
echo "clock=$(date +%s.%N)"
env | sed -n 's/^\(\(TF_TP_\|TF_COMM_\|TF_NCCL_\|NCCL_\)[A-Za-z0-9_]*\)=.*/variable=\1/p'
"#;

/// Prints the numbers of the TCP ports in use, in hexadecimal.
pub(super) const PORTS_SCRIPT: &str = r#"
for f in /proc/net/tcp /proc/net/tcp6; do
  if [ -r "$f" ]; then while read -r n a rest; do echo "${a##*:}"; done <"$f"; fi
done
"#;

/// `$1`: a file, or a program on PATH.
pub(super) const HASH_SCRIPT: &str = r#"
f=$1
case "$f" in */*) ;; *) f=$(command -v "$f") || { echo "there is no $1 on PATH" >&2; exit 1; } ;; esac
h=$(sha256sum <"$f") || exit 1
echo "sha256=${h%% *}"
"#;

/// Standard input becomes the file `$2` in the directory `$1`.
pub(super) const PROVIDE_SCRIPT: &str =
    r#"umask 077; mkdir -p "$1" && cat >"$1/$2.part" && mv "$1/$2.part" "$1/$2""#;

impl About {
    /// Reads the answer of [`ABOUT_SCRIPT`].
    pub(super) fn read(answer: &str) -> Result<Self, String> {
        let get = |key: &str| remote::value(answer, key).unwrap_or_default();
        let dir = get("dir").to_owned();
        if !PathBuf::from(&dir).is_absolute() {
            return Err(format!(
                "learn about the host: it answers without a directory of ours (`dir` is `{dir}`); is its login shell one?"
            ));
        }
        let machine = match get("machine") {
            "arm64" => "aarch64",
            machine => machine,
        };
        Ok(Self {
            machine_id: Some(get("machine_id").to_owned()).filter(|id| !id.is_empty()),
            boot_id: get("boot_id").trim().to_owned(),
            system: format!("{machine}-{}", get("kernel").to_lowercase()),
            dir,
            uid: get("uid").parse().unwrap_or(u32::MAX),
            clock_s: get("clock").trim_end_matches(".N").parse().unwrap_or_default(),
            variables: answer
                .lines()
                .filter_map(|line| line.strip_prefix("variable="))
                .map(|name| name.trim().to_owned())
                .collect(),
        })
    }
}

/// Where rank 0's port is looked for, as on this machine: below the range of outgoing connections.
const PORTS: std::ops::Range<u32> = 20_000..32_768;

/// A port that is not in the list.
pub(super) fn free_port(taken: &str) -> Result<u16, String> {
    let taken: std::collections::BTreeSet<u32> = taken
        .lines()
        .filter_map(|line| u32::from_str_radix(line.trim(), 16).ok())
        .collect();
    let width = PORTS.end - PORTS.start;
    let start = getrandom::u32().map_err(|e| format!("find a free TCP port: {e}"))? % width;
    (0..width)
        .map(|step| PORTS.start + (start + step) % width)
        .find(|port| !taken.contains(port))
        .and_then(|port| u16::try_from(port).ok())
        .ok_or_else(|| {
            format!(
                "find a free TCP port: all from {} to {} are taken",
                PORTS.start,
                PORTS.end - 1
            )
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn this_machine_answers_like_a_host() {
        let output = Command::new("sh")
            .args(["-c", ABOUT_SCRIPT, "sh", "~/x y"])
            .env("HOME", "/home/alice")
            .env("NCCL_DEBUG", "a=b")
            .output()
            .unwrap();
        let about = About::read(&String::from_utf8(output.stdout).unwrap()).unwrap();
        assert_eq!(about.dir, "/home/alice/x y");
        assert!(about.variables.contains(&"NCCL_DEBUG".to_owned()), "{about:?}");
        assert!(about.system.contains('-') && about.clock_s > 1e9, "{about:?}");
        assert!(About::read("").unwrap_err().contains("login shell"));
    }

    #[test]
    fn a_taken_port_is_not_given() {
        let all: String = (PORTS.start..PORTS.end)
            .filter(|p| *p != 25_000)
            .map(|p| format!("{p:04X}\n"))
            .collect();
        assert_eq!(free_port(&all), Ok(25_000));
        assert!(free_port(&(all + "61A8\n")).is_err());
        assert!(PORTS.contains(&u32::from(free_port("local_address\n").unwrap())));
    }
}
