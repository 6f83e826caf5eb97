# One binary for hosts that have Nix. Its libraries (libibverbs, libnccl, libcuda) are opened at run time; the run path
# says where Nix keeps them, and where NixOS keeps the driver's.
{
  lib,
  callPackage,
  rustPlatform,
  patchelf,
  addDriverRunpath,
  rdma-core,
  cudaPackages,
  pname,
  description,
  version,
  revision,
  kernels,
  # What its build looks for with pkg-config.
  links ? [ ],
  pkg-config,
}:
rustPlatform.buildRustPackage {
  inherit pname version;
  __structuredAttrs = true;
  src = callPackage ./source.nix { };
  cargoLock.lockFile = ../Cargo.lock;
  cargoBuildFlags = [
    "--package"
    pname
  ];
  # The whole suite needs sockets, processes and time: scripts/test runs it. Here the binary's own crate shows that it
  # was built from what it should.
  doCheck = false;

  nativeBuildInputs = [ patchelf ] ++ lib.optional (links != [ ]) pkg-config;
  buildInputs = links;
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
    }:${addDriverRunpath.driverLink}/lib "$out/bin/${pname}"
  '';

  passthru = { inherit kernels; };
  meta = {
    inherit description;
    license = [
      lib.licenses.mit
      lib.licenses.asl20
    ];
    mainProgram = pname;
    platforms = [
      "x86_64-linux"
      "aarch64-linux"
    ];
  };
}
