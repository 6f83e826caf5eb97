# Everything of ours stands under `tp-bringup`, and sees the pinned CUDA as `cudaPackages`.
{ revision }:
final: _prev: {
  tp-bringup =
    let
      inherit (final.cudaPackages_13_2.pkgs) callPackage;
      version = (final.lib.importTOML ../Cargo.toml).workspace.package.version;
      kernels = callPackage ./kernels.nix { inherit version; };
      binaries = callPackage ./binaries.nix { inherit version revision kernels; };
      binary = args: callPackage ./binary.nix ({ inherit version binaries; } // args);
    in
    rec {
      inherit kernels binaries;
      tf-tp-test = binary {
        pname = "tf-tp-test";
        description = "The runner of tp-bringup: one process is one rank";
      };
      tp-orchestrate = binary {
        pname = "tp-orchestrate";
        description = "The orchestrator of tp-bringup: one process drives all hosts";
      };
      all = callPackage ./all.nix { inherit version tf-tp-test tp-orchestrate; };
      portable = callPackage ./portable.nix { inherit version revision kernels; };
      bundle = callPackage ./bundle.nix { inherit version portable; };
      pins = callPackage ./checks/pins.nix { };
    };
}
