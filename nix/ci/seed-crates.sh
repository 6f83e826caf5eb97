#!/usr/bin/env bash
# Puts every crate that Cargo.lock names into the Nix store, from cargo's own download cache, as the fixed output that
# importCargoLock asks for: such an output's path depends on its name and hash only.
set -euo pipefail
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
cargo fetch --locked --quiet
python3 - "$tmp" "${CARGO_HOME:-$HOME/.cargo}" <<'P'
import glob, os, shutil, sys, tomllib
tmp, home = sys.argv[1:]
for package in tomllib.load(open("Cargo.lock", "rb"))["package"]:
    if "checksum" not in package:
        continue
    name = f"{package['name']}-{package['version']}"
    found = glob.glob(os.path.join(home, "registry/cache/*", name + ".crate"))
    if not found:
        sys.exit(f"{name}.crate is not in cargo's download cache")
    shutil.copy(found[0], os.path.join(tmp, f"crate-{name}.tar.gz"))
P
nix-store --add-fixed sha256 "$tmp"/*.tar.gz
