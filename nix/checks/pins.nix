# Fails at evaluation when the locked nixpkgs does not carry what we pin.
{
  lib,
  runCommand,
  rustc,
  rdma-core,
  cudaPackages,
}:
let
  within =
    name: version: low: below:
    lib.throwIfNot (lib.versionAtLeast version low && lib.versionOlder version below)
      "${name} is ${version}, wanted at least ${low} and below ${below}: check flake.lock"
      "${name} ${version}";
in
runCommand "tp-bringup-pins" { } ''
  echo "${within "CUDA" cudaPackages.cudaMajorMinorVersion "13.2" "13.3"}" > $out
  echo "${within "NCCL" cudaPackages.nccl.version "2.30" "2.31"}" >> $out
  echo "${within "rdma-core" rdma-core.version "62" "70"}" >> $out
  echo "${within "Rust" rustc.version "1.95" "2"}" >> $out
''
