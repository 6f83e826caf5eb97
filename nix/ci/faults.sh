#!/usr/bin/env bash
# Puts faults into copies of this repository, one each, and sees that Nix, our checks or our builds catch every one, with
# the message that names it. Run by scripts/nix-check, which sets Nix up and says where (WORK) and which options (WITH).
#
# A fault that passes is a check that cannot fail.
set -euo pipefail
ROOT=$(cd "$(dirname "$0")/../.." && pwd)
WORK=${WORK:?} STUB=${STUB:?}
cd "$ROOT"

faults=$WORK/faults
rm -rf "$faults"
mkdir -p "$faults/base"
git ls-files -z | tar --null -T - -cf - | tar -xf - -C "$faults/base"
system=$(nix eval --impure --raw --expr builtins.currentSystem)

# change FILE SED-PROGRAM: a change that changes nothing is a fault of this script.
change() {
  cp "$1" "$1.before"
  sed -i -e "$2" "$1"
  ! cmp -s "$1" "$1.before" || { echo "faults: '$2' changes nothing in $1"; exit 3; }
  rm "$1.before"
}
flake() { nix "$@" --override-input nixpkgs "path:$STUB_HERE" --no-write-lock-file --offline; }
evaluate() { flake eval --raw ".#$1.drvPath"; }
build() { flake build -L --no-link ".#$1"; }

# A fault is a function: changes the copy it stands in, then does what has to fail. Its expected message follows it.
misspelt_attribute() {
  change nix/kernels.nix 's/cudaPackages.cuda_nvcc \]/cudaPackages.cuda_nvccc ]/'
  evaluate "packages.$system.kernels"
}
misspelt_attribute_says="cuda_nvccc"

default_cuda_leaks_in() {
  change nix/overlay.nix 's/(final.cudaPackages_13_2.pkgs)/(final)/'
  evaluate "packages.$system.kernels"
}
default_cuda_leaks_in_says="cudaPackages"

unknown_capability() {
  change nix/nixpkgs-config.nix 's/"12.1"/"12.9"/'
  evaluate "packages.$system.kernels"
}
unknown_capability_says="unrecognized CUDA capabilities"

unfree_not_allowed() {
  change nix/nixpkgs-config.nix 's/allowUnfree = true/allowUnfree = false/'
  evaluate "packages.$system.kernels"
}
unfree_not_allowed_says="unfree licence"

wrong_pin() {
  change "$STUB_HERE/default.nix" 's/version = "13.2"/version = "13.3"/'
  evaluate "checks.$system.pins"
}
wrong_pin_says="CUDA is 13.3, wanted at least 13.2 and below 13.3"

wrong_nccl() {
  change "$STUB_HERE/cuda.nix" 's/2\.30\.7-1/2.31.2-1/'
  evaluate "checks.$system.pins"
}
wrong_nccl_says="NCCL is 2.31.2-1, wanted"

unlisted_system() { evaluate "packages.riscv64-linux.default"; }
unlisted_system_says="riscv64-linux"

file_outside_the_fileset() {
  change nix/kernels.nix 's|fileset = .*|fileset = lib.fileset.unions [ ../kernels/build.sh ../kernels/image.cu ];|'
  build "packages.$system.kernels"
}
file_outside_the_fileset_says="No such file or directory"

stale_lock() {
  change Cargo.toml 's/^hex = .*/hex = "=0.4.1"/'
  build "packages.$system.tf-tp-test"
}
stale_lock_says="hex"

# The address is a server of this script's: a build that reaches it has the network.
network_in_a_build() {
  change nix/kernels.nix "s|runHook preBuild|runHook preBuild; exec 3<>/dev/tcp/127.0.0.1/$PORT; echo REACHED; exit 0|"
  build "packages.$system.kernels"
}
network_in_a_build_says="Connection refused\|Network is unreachable"

compiler_in_the_closure() {
  change nix/kernels.nix 's|runHook preBuild|runHook preBuild; echo "${cudaPackages.cuda_nvcc}" > kernels.fatbin|; s|^    bash ./build.sh.*||'
  build "packages.$system.kernels"
}
compiler_in_the_closure_says="not allowed to refer"

missing_image() {
  change nix/binaries.nix 's|kernels.fatbin"|no-such.fatbin"|; s|^    "tf-tp-test"$|    "tp-kernels"|; s|^    "tp-orchestrate"$|    "tp-kernels"|'
  build "packages.$system.tf-tp-test"
}
missing_image_says="no-such.fatbin"

# The check of the portable binary, on a binary that is none.
unportable() {
  cat > nix/portable.nix <<N
{ runCommand, version, revision, kernels, gcc }:
runCommand "fake" {
  nativeBuildInputs = [ gcc ];
  passthru = { glibc = "2.28"; target = "x"; };
} ''
  mkdir -p \$out/bin
  echo '#include <stdio.h>
    int main() { puts("$1"); }' > fake.c
  gcc -o \$out/bin/tf-tp-test fake.c $2
''
N
  build "checks.$system.portable-is-portable"
}
store_path_in_portable() { unportable /nix/store/0123456789abcdfghijklmnpqrsvwxyz-x/lib ""; }
store_path_in_portable_says="a path of the store is in the binary"
run_path_in_portable() { unportable clean "-Wl,-rpath,/opt/lib"; }
run_path_in_portable_says="a run path"
ssl_in_portable() { unportable clean "-Wl,--no-as-needed -l:libcrypto.so.3"; }
ssl_in_portable_says="a library that hosts need not have"
newer_glibc_in_portable() { unportable clean ""; }
newer_glibc_in_portable_says="is newer than glibc 2.28"

try() {
  local name=$1 says=${1}_says log=$faults/$1.log status=0
  cp -r "$faults/base" "$faults/$name"
  cp -r "$STUB" "$faults/$name.nixpkgs"
  (cd "$faults/$name" && STUB_HERE=$faults/$name.nixpkgs && "$name") >"$log" 2>&1 || status=$?
  if [ $status = 0 ]; then
    echo "NOT CAUGHT $name: it went through"
  elif [ $status = 3 ] || ! grep -q "${!says}" "$log"; then
    echo "NOT CAUGHT $name: it failed, but not with '${!says}':"
    tail -n 8 "$log"
  else
    echo "caught $name"
  fi
  rm -rf "${faults:?}/$name" "$faults/$name.nixpkgs"
}

coproc SERVER { exec python3 -c '
import socket, sys
s = socket.create_server(("127.0.0.1", 0))
print(s.getsockname()[1], flush=True)
sys.stdin.read()'; }
read -r PORT <&"${SERVER[0]}"

names="misspelt_attribute default_cuda_leaks_in unknown_capability unfree_not_allowed wrong_pin wrong_nccl unlisted_system
  file_outside_the_fileset stale_lock network_in_a_build compiler_in_the_closure missing_image
  store_path_in_portable run_path_in_portable ssl_in_portable newer_glibc_in_portable"
names=${*:-$names}
for name in $names; do
  while [ "$(jobs -rp | wc -l)" -gt 2 ]; do wait -n || true; done   # the server is one of them
  try "$name" >"$faults/$name.result" &
done
eval "exec ${SERVER[1]}>&-"
wait
cat "$faults"/*.result
if grep -q '^NOT CAUGHT' "$faults"/*.result; then exit 1; fi
printf 'faults: %d of %d caught\n' "$(cat "$faults"/*.result | grep -c '^caught')" "$(echo $names | wc -w)"
