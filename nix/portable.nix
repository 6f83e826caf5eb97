# The runner as the orchestrator pushes it to hosts without Nix: the usual loader, an old glibc's symbols, nothing of
# the store in it. zig brings glibc's stubs of every version, so it is the linker.
{
  lib,
  callPackage,
  rustPlatform,
  stdenv,
  cargo-zigbuild,
  zig,
  version,
  revision,
  kernels,
}:
let
  glibc = "2.28";
  target =
    if stdenv.hostPlatform.isx86_64 then "x86_64-unknown-linux-gnu" else "aarch64-unknown-linux-gnu";
in
rustPlatform.buildRustPackage {
  pname = "tf-tp-test-portable";
  inherit version;
  __structuredAttrs = true;
  src = callPackage ./source.nix { };
  cargoLock.lockFile = ../Cargo.lock;
  doCheck = false;

  nativeBuildInputs = [
    cargo-zigbuild
    zig
  ];
  env = {
    TP_REVISION = revision;
    TP_KERNELS = "require";
    TP_KERNEL_IMAGE = "${kernels}/lib/tp-bringup/kernels.fatbin";
  };

  buildPhase = ''
    runHook preBuild
    export HOME=$NIX_BUILD_TOP XDG_CACHE_HOME=$NIX_BUILD_TOP/cache
    # Paths of the build and of the store would differ from machine to machine.
    export RUSTFLAGS="--remap-path-prefix=$NIX_BUILD_TOP=/build -C strip=symbols"
    cargo zigbuild --release --frozen --offline -j "$NIX_BUILD_CORES" --package tf-tp-test --target ${target}.${glibc}
    runHook postBuild
  '';
  installPhase = ''
    runHook preInstall
    install -Dm755 target/${target}/release/tf-tp-test "$out/bin/tf-tp-test"
    runHook postInstall
  '';
  # The loader and the run path are to stay as zig wrote them.
  dontPatchELF = true;
  dontFixup = true;

  passthru = { inherit glibc target; };
  meta = {
    description = "The runner of tp-bringup for hosts without Nix, glibc ${glibc} or later";
    license = [
      lib.licenses.mit
      lib.licenses.asl20
    ];
    mainProgram = "tf-tp-test";
    platforms = [
      "x86_64-linux"
      "aarch64-linux"
    ];
  };
}
