{
  description = "Our cluster";

  inputs.tp-bringup.url = "github:tp-bringup/tp-bringup";

  outputs =
    { tp-bringup, ... }:
    {
      # `nix run .# -- run cluster.toml` brings the cluster up and leaves a receipt.
      inherit (tp-bringup) apps;
      # In each host's configuration: imports = [ cluster.nixosModules.host ];
      nixosModules.host = {
        imports = [ tp-bringup.nixosModules.default ];
        programs.tp-bringup = {
          enable = true;
          openFirewall = true;
        };
      };
    };
}
