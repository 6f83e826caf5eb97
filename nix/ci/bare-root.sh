#!/usr/bin/env bash
# bare-root.sh ROOT BINARY: starts BINARY in a Debian 12 that has a C library, a shell and little else: its version, its
# doctor, and two ranks that gather over shared memory. ROOT is where that Debian is kept.
#
# No Nix, no Rust and no library of RDMA or CUDA is in there, so what starts here starts on a host that has only glibc.
set -euo pipefail
root=$(realpath -m "$1") binary=$(realpath "$2")
if [ ! -x "$root/bin/bash" ]; then
  rm -rf "$root.part"
  "$(dirname "$0")/debian-tree.sh" bookworm "$root.part" base-files bash coreutils libc6 libgcc-s1
  mv -T "$root.part" "$root"
fi
[ ! -e "$root/nix" ] || { echo "bare-root: $root has a /nix"; exit 1; }
# The mounts are in a namespace of their own and end with it.
unshare --mount --pid --fork --kill-child bash -eu -c '
  root=$1
  mkdir -p "$root"/{opt,proc,dev,tmp}
  mount -t tmpfs tmpfs "$root/opt"
  install -m755 "$2" "$root/opt/tf-tp-test"
  mount -t proc proc "$root/proc"
  mount -t tmpfs tmpfs "$root/dev"
  mkdir "$root/dev/shm"
  mount -t tmpfs tmpfs "$root/dev/shm"
  for d in null zero urandom random; do touch "$root/dev/$d"; mount --bind "/dev/$d" "$root/dev/$d"; done
  ip link set lo up 2>/dev/null || true
  cat > "$root/opt/ranks" <<S
set -eu
cd /opt
./tf-tp-test --version
./tf-tp-test doctor >/opt/doctor 2>&1 || { echo "bare-root: doctor ended with \$?"; cat /opt/doctor; exit 1; }
export TF_TP_SECRET=\$(./tf-tp-test secret) TF_TP_WORLD=2 TF_TP_MASTER=127.0.0.1 TF_TP_PORT=$3
TF_TP_RANK=1 ./tf-tp-test roce-host 2>/opt/rank-1 & follower=\$!
TF_TP_RANK=0 ./tf-tp-test roce-host 2>/opt/rank-0 || { echo "bare-root: rank 0 ended with \$?"; cat /opt/rank-0 /opt/rank-1; exit 1; }
wait \$follower
tail -n 1 /opt/rank-0
S
  exec chroot "$root" /bin/bash /opt/ranks
' bash "$root" "$binary" "$(python3 -c 'import socket; s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1])')"
echo "bare-root: started in Debian $(cat "$root/etc/debian_version") without Nix"
