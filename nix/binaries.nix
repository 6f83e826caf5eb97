# Both binaries for hosts that have Nix, from one build, since they share most of their crates; nix/binary.nix takes one of
# them out. Their libraries (libibverbs, libnccl, libcuda) are opened at run time; the run path says where Nix keeps them,
# and where NixOS keeps the driver's.
{
  lib,
  callPackage,
  rustPlatform,
  patchelf,
  addDriverRunpath,
  rdma-core,
  cudaPackages,
  pkg-config,
  openssl,
  zlib,
  version,
  revision,
  kernels,
}:
rustPlatform.buildRustPackage {
  pname = "tp-bringup-binaries";
  inherit version;
  __structuredAttrs = true;
  src = callPackage ./source.nix { };
  cargoLock.lockFile = ../Cargo.lock;
  cargoBuildFlags = [
    "--package"
    "tf-tp-test"
    "--package"
    "tp-orchestrate"
  ];
  # The suite needs sockets, processes and time: scripts/test runs it.
  doCheck = false;

  nativeBuildInputs = [
    patchelf
    pkg-config
  ];
  # The orchestrator's SSH; the runner, which hosts get, links none of it.
  buildInputs = [
    openssl
    zlib
  ];
  env = {
    TP_REVISION = revision;
    TP_KERNELS = "require";
    TP_KERNEL_IMAGE = "${kernels}/lib/tp-bringup/kernels.fatbin";
  };

  # Opened with dlopen by soname, so they are in no DT_NEEDED and the linker wrapper adds no run path for them.
  postFixup = ''
    patchelf --add-rpath ${
      lib.makeLibraryPath [
        rdma-core
        cudaPackages.nccl
      ]
    }:${addDriverRunpath.driverLink}/lib $out/bin/*
  '';

  passthru = { inherit kernels; };
  meta = {
    description = "The runner and the orchestrator of tp-bringup, from one build";
    license = [
      lib.licenses.mit
      lib.licenses.asl20
    ];
    platforms = [
      "x86_64-linux"
      "aarch64-linux"
    ];
  };
}
