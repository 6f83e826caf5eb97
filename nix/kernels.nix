# The device code as one image, compiled here and embedded by the Rust builds, so that they need no CUDA compiler.
{
  lib,
  cudaPackages,
  version,
}:
let
  inherit (cudaPackages) backendStdenv flags;
in
backendStdenv.mkDerivation {
  pname = "tp-bringup-kernels";
  inherit version;
  __structuredAttrs = true;
  strictDeps = true;

  src = lib.fileset.toSource {
    root = ../kernels;
    fileset = lib.fileset.unions [ ../kernels ];
  };

  nativeBuildInputs = [ cudaPackages.cuda_nvcc ];
  buildInputs = [
    cudaPackages.cuda_cudart
    (cudaPackages.cccl or cudaPackages.cuda_cccl)
  ];

  buildPhase = ''
    runHook preBuild
    bash ./build.sh kernels.fatbin nvcc ${lib.concatStringsSep " " flags.gencode}
    runHook postBuild
  '';
  installPhase = ''
    runHook preInstall
    install -Dm644 -t "$out/lib/tp-bringup" kernels.fatbin
    runHook postInstall
  '';
  # No compiler may stay in the closure of what a host receives.
  outputChecks.out.disallowedRequisites = [ cudaPackages.cuda_nvcc ];

  passthru = { inherit (flags) cudaCapabilities; };
  meta = {
    description = "CUDA kernels of tp-bringup as one fat binary";
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
