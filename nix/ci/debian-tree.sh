#!/usr/bin/env bash
# debian-tree.sh SUITE DEST PACKAGE...: unpacks Debian packages, with all they depend on, into DEST. None of the host's own
# packages is changed: apt only downloads (against an empty package database of its own), dpkg-deb only unpacks, and no
# maintainer script runs.
set -euo pipefail
suite=$1 dest=$(realpath -m "$2")
shift 2
w=$(mktemp -d)
trap 'rm -rf "$w"' EXIT
mkdir -p "$dest" "$w"/{etc,lists/partial,cache/archives/partial}
: >"$w/status"
# The mirror that this machine uses already.
mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | grep -v security | head -n 1)
cat >"$w/etc/d.sources" <<S
Types: deb
URIs: $mirror
Suites: $suite
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
S
cat >"$w/apt.conf" <<S
Dir::Etc::sourcelist "/dev/null";
Dir::Etc::sourceparts "$w/etc";
Dir::State::lists "$w/lists";
Dir::State::status "$w/status";
Dir::Cache "$w/cache";
APT::Install-Recommends "false";
Acquire::Languages "none";
APT::Sandbox::User "root";
S
export APT_CONFIG=$w/apt.conf
apt-get update -qq
apt-get install -y -qq -d "$@" >/dev/null
for d in "$w"/cache/archives/*.deb; do dpkg-deb -x "$d" "$dest"; done
