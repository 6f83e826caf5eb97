{
  description = "tp-bringup: brings up tensor-parallel CUDA clusters over RoCE, proves them, and leaves a receipt";

  inputs.nixpkgs.url = "github:NixOS/nixpkgs/nixpkgs-unstable";

  outputs =
    { self, nixpkgs }:
    let
      inherit (nixpkgs) lib;
      systems = [
        "x86_64-linux"
        "aarch64-linux"
      ];
      pkgsFor =
        system:
        import nixpkgs {
          inherit system;
          config = import ./nix/nixpkgs-config.nix;
          overlays = [ self.overlays.default ];
        };
      forAllSystems = f: lib.genAttrs systems (system: f (pkgsFor system));
      app = description: program: {
        type = "app";
        inherit program;
        meta = { inherit description; };
      };
    in
    {
      # The revision is the commit's, so the same commit gives the same bytes; a dirty tree says so.
      overlays.default = import ./nix/overlay.nix { revision = self.rev or self.dirtyRev or "unknown"; };

      packages = forAllSystems (pkgs: {
        default = pkgs.tp-bringup.all;
        inherit (pkgs.tp-bringup)
          tf-tp-test
          tp-orchestrate
          kernels
          portable
          bundle
          ;
      });

      apps = forAllSystems (pkgs: rec {
        tf-tp-test = app "Run one rank: checks, measurements, injected failures" (
          lib.getExe pkgs.tp-bringup.tf-tp-test
        );
        tp-orchestrate = app "Bring up a cluster from this workstation" (
          lib.getExe pkgs.tp-bringup.tp-orchestrate
        );
        default = tp-orchestrate;
      });

      devShells = forAllSystems (pkgs: {
        default = pkgs.cudaPackages_13_2.pkgs.callPackage ./nix/devshell.nix { inherit (pkgs) tp-bringup; };
      });

      checks = forAllSystems (pkgs: {
        inherit (pkgs.tp-bringup)
          tf-tp-test
          tp-orchestrate
          kernels
          portable
          bundle
          pins
          ;
        layout = pkgs.callPackage ./nix/checks/layout.nix { };
        portable-is-portable = pkgs.callPackage ./nix/checks/portable.nix { };
      });

      formatter = forAllSystems (pkgs: pkgs.nixfmt-tree);

      nixosModules.default = import ./nix/module.nix self;

      templates.default = {
        path = ./nix/template;
        description = "A repository for one cluster: its inventory, its hosts' NixOS module, this flake as input";
      };
    };
}
