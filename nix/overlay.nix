# Everything of ours stands under `tp-bringup`, and sees the pinned CUDA as `cudaPackages`.
{ revision }:
final: _prev: {
  tp-bringup =
    let
      inherit (final.cudaPackages_13_2.pkgs) callPackage;
      version = (final.lib.importTOML ../Cargo.toml).workspace.package.version;
      kernels = callPackage ./kernels.nix { inherit version; };
      crate =
        args:
        callPackage ./crate.nix (
          {
            inherit version revision kernels;
          }
          // args
        );
    in
    rec {
      inherit kernels;
      tf-tp-test = crate {
        pname = "tf-tp-test";
        description = "The runner of tp-bringup: one process is one rank";
      };
      tp-orchestrate = crate {
        pname = "tp-orchestrate";
        description = "The orchestrator of tp-bringup: one process drives all hosts";
        # Its SSH; the runner, which is pushed to hosts, has none.
        links = [
          final.openssl
          final.zlib
        ];
      };
      all = callPackage ./all.nix { inherit version tf-tp-test tp-orchestrate; };
      portable = callPackage ./portable.nix { inherit version revision kernels; };
      bundle = callPackage ./bundle.nix { inherit version portable; };
      pins = callPackage ./checks/pins.nix { };
    };
}
