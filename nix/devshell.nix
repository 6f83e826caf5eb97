# Everything that scripts/test asks for.
{
  mkShell,
  cargo,
  clippy,
  cargo-deny,
  gcc,
  git,
  iproute2,
  openssh,
  openssl,
  pkg-config,
  python3,
  rdma-core,
  rustc,
  rustfmt,
  cudaPackages,
  tp-bringup,
}:
mkShell {
  inputsFrom = [ tp-bringup.binaries ];
  packages = [
    cargo
    clippy
    cargo-deny
    gcc
    git
    iproute2
    openssh
    openssl
    pkg-config
    python3
    rustc
    rustfmt
    rdma-core
    cudaPackages.cuda_nvcc
    cudaPackages.cuda_cudart
  ];
}
