# Shared by the scripts here: where tools are kept, how they are got, how steps are told and timed.
# Sourced by bash scripts that have set `set -euo pipefail`; defines functions only, and ROOT and CACHE.

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
CACHE=${XDG_CACHE_HOME:-$HOME/.cache}/tp-bringup

say() { printf '\033[1m==>\033[0m %s\n' "$*" >&2; }
die() { printf 'error: %s\n' "$*" >&2; exit 1; }

# Says how to get Rust and ends, or goes on inside the flake's shell where Nix is there.
need_cargo() {
  if command -v cargo >/dev/null 2>&1; then
    # A distribution's own cargo may be older than the workspace; rustup's reads rust-toolchain.toml.
    local have
    have=$(cd "$ROOT" && cargo --version 2>/dev/null | cut -d' ' -f2) || true
    [ -n "$have" ] || die "cargo is there but does not start in $ROOT: run 'cargo --version' there to see why"
    case "$(printf '1.95.0\n%s\n' "${have%%-*}" | sort -V | head -n 1)" in
      1.95.0) return 0 ;;
    esac
    die "cargo $have is older than 1.95.0, which this workspace needs: install rustup (it reads rust-toolchain.toml)"
  fi
  if command -v nix >/dev/null 2>&1 && [ -e "$ROOT/flake.nix" ] && [ -z "${IN_NIX_SHELL:-}" ]; then
    say "no cargo here, but Nix: going on inside 'nix develop'"
    exec nix --extra-experimental-features 'nix-command flakes' develop "$ROOT" --command "$0" "$@"
  fi
  local how="install rustup from your distribution or from its own site"
  if command -v apt-get >/dev/null 2>&1; then how="apt-get install rustup && rustup toolchain install 1.95.0 (Debian 13, Ubuntu 24.04 and later)"
  elif command -v dnf >/dev/null 2>&1; then how="dnf install rustup && rustup-init"
  elif command -v pacman >/dev/null 2>&1; then how="pacman -S rustup && rustup toolchain install 1.95.0"
  elif command -v zypper >/dev/null 2>&1; then how="zypper install rustup && rustup toolchain install 1.95.0"
  fi
  die "Rust is not here (no cargo on PATH). Get it: $how; or install Nix and run this again"
}

# install_debs WHAT PACKAGE...: installs Debian packages, which WHAT needs. Returns 1, saying so, where that cannot be done,
# so that the caller can skip by name. The caller has seen that they are lacking.
install_debs() {
  local what=$1
  shift
  if ! command -v apt-get >/dev/null 2>&1; then
    say "no $what, and no apt-get to install $* with"
    return 1
  fi
  local sudo=()
  if [ "$(id -u)" != 0 ]; then
    sudo=(sudo -n)
    "${sudo[@]}" true 2>/dev/null || { say "no $what, and neither root nor sudo to install $* with"; return 1; }
  fi
  say "installing $* (for $what)"
  if [ -z "${APT_UPDATED:-}" ]; then
    "${sudo[@]}" apt-get -qq update >/dev/null || true
    APT_UPDATED=1
  fi
  DEBIAN_FRONTEND=noninteractive "${sudo[@]}" apt-get -qq -y install --no-install-recommends "$@" >/dev/null
}

# need_deb COMMAND PACKAGE...: installs Debian packages when COMMAND is not there. Returns 1, saying so, where it is not
# there afterwards.
need_deb() {
  command -v "$1" >/dev/null 2>&1 && return 0
  install_debs "$@" || return 1
  command -v "$1" >/dev/null 2>&1
}

# need_build_tools: a C linker, and OpenSSL's headers, which the orchestrator's SSH is built with. Where those cannot be
# installed OpenSSL is built from source: SSL_FEATURES is then what cargo is to be called with.
SSL_FEATURES=""
need_build_tools() {
  command -v cc >/dev/null 2>&1 || need_deb cc gcc libc6-dev || die "a C linker is needed: install gcc"
  # The flake's shell has them where pkg-config says.
  if command -v pkg-config >/dev/null 2>&1 && pkg-config --exists openssl; then return 0; fi
  install_debs "OpenSSL's headers" pkg-config libssl-dev || true
  if command -v pkg-config >/dev/null 2>&1 && pkg-config --exists openssl; then return 0; fi
  if command -v perl >/dev/null 2>&1 && command -v make >/dev/null 2>&1; then
    say "no headers of OpenSSL (libssl-dev, openssl-devel): building it from source"
    SSL_FEATURES="--features tp-orchestrate/vendored-openssl"
    return 0
  fi
  die "OpenSSL's headers are needed: install libssl-dev and pkg-config (openssl-devel and pkgconf on Fedora), or perl and make"
}

# need_pip: Python's installer of wheels. Returns 1, saying so, where it cannot be had.
need_pip() {
  python3 -c 'import pip, venv, ensurepip' 2>/dev/null && return 0
  install_debs pip python3-pip python3-venv || true
  python3 -c 'import pip, venv, ensurepip' 2>/dev/null || { say "no pip and no venv (Debian: python3-pip, python3-venv)"; return 1; }
}

# cargo_tool NAME VERSION: a pinned cargo tool in the cache, built once; prints the folder that holds it.
cargo_tool() {
  local name=$1 version=$2 dir=$CACHE/tools/$1-$2
  if [ ! -x "$dir/bin/$name" ]; then
    say "building $name $version once, into $dir"
    (
      flock 9
      [ -x "$dir/bin/$name" ] ||
        (cd / && cargo install --quiet --locked --version "$version" --root "$dir" "$name" >&2)
    ) 9>"$CACHE/tools/$name.lock"
  fi
  printf '%s\n' "$dir/bin"
}

# portable_key: the hash of what the portable runner is built of. Tests and fuzz targets are in none of it.
portable_key() {
  (cd "$ROOT" && git ls-files -z Cargo.toml Cargo.lock kernels crates nix flake.nix flake.lock \
    ':!crates/*/tests/*' ':!crates/*/fuzz/*' | xargs -0 sha256sum | sha256sum | cut -c1-32)
}

# portable_runner: prints the portable runner that scripts/nix-check left. Returns 1 where there is none of these sources.
portable_runner() {
  local dir=$CACHE/portable key
  key=$(portable_key 2>/dev/null) || return 1
  [ -x "$dir/tf-tp-test" ] && [ "$(cat "$dir/sources" 2>/dev/null)" = "$key" ] && printf '%s\n' "$dir/tf-tp-test"
}

# The wheels of nvcc and of what it needs, all pinned: the metapackage leaves some of them open, and two releases do not
# work together.
NVCC=13.0.88
NVCC_WHEELS="nvidia-cuda-nvcc==$NVCC nvidia-nvvm==$NVCC nvidia-cuda-crt==$NVCC nvidia-cuda-runtime==13.0.96
  nvidia-cuda-cccl==13.0.85"

# cuda_nvcc: prints the pinned nvcc in the cache, installed once from its wheels. Returns 1, saying so, where that cannot
# be done.
cuda_nvcc() {
  local dir=$CACHE/tools/cuda-$NVCC found
  if [ ! -e "$dir/complete" ]; then
    need_pip || return 1
    say "installing nvcc $NVCC once, into $dir"
    (
      flock 9
      [ -e "$dir/complete" ] && exit 0
      rm -rf "$dir"
      # shellcheck disable=SC2086 # one word a wheel
      python3 -m venv "$dir" && "$dir/bin/pip" install --quiet --disable-pip-version-check --no-deps $NVCC_WHEELS >&2 &&
        touch "$dir/complete"
    ) 9>"$CACHE/tools/cuda.lock" || { say "nvcc $NVCC cannot be installed from here"; return 1; }
  fi
  found=$(echo "$dir"/lib/python3*/site-packages/nvidia/cu13/bin/nvcc)
  [ -x "$found" ] && printf '%s\n' "$found"
}

mkdir -p "$CACHE/tools"
