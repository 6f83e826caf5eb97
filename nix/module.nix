self:
{
  config,
  lib,
  pkgs,
  ...
}:
let
  cfg = config.programs.tp-bringup;
in
{
  options.programs.tp-bringup = {
    enable = lib.mkEnableOption "the tp-bringup runner, with the limits and packages that RDMA needs";
    package = lib.mkOption {
      type = lib.types.package;
      default = self.packages.${pkgs.stdenv.hostPlatform.system}.tf-tp-test;
      description = "The runner to install.";
    };
    port = lib.mkOption {
      type = lib.types.port;
      default = 29500;
      description = "The TCP port that rank 0 listens on (TF_TP_PORT).";
    };
    openFirewall = lib.mkOption {
      type = lib.types.bool;
      default = false;
      description = "Whether to open the port above and RoCE v2's UDP port 4791.";
    };
  };
  config = lib.mkIf cfg.enable {
    environment.systemPackages = [
      cfg.package
      pkgs.rdma-core
    ];
    networking.firewall = lib.mkIf cfg.openFirewall {
      allowedTCPPorts = [ cfg.port ];
      allowedUDPPorts = [ 4791 ];
    };
    # ibv_reg_mr pins what it registers; the usual 8 MiB is less than one region.
    security.pam.loginLimits =
      map
        (type: {
          domain = "*";
          inherit type;
          item = "memlock";
          value = "unlimited";
        })
        [
          "soft"
          "hard"
        ];
  };
}
