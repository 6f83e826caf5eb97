{
  system ? builtins.currentSystem,
  config ? { },
  overlays ? [ ],
}:
let
  lib = import ./lib.nix;
  fix =
    f:
    let
      x = f x;
    in
    x;
  callPackageWith =
    scope: fn: args:
    let
      f = if lib.isFunction fn then fn else import fn;
      need = builtins.functionArgs f;
      auto = builtins.intersectAttrs need scope;
      missing = lib.filter (n: !need.${n} && !(scope ? ${n}) && !(args ? ${n})) (lib.attrNames need);
    in
    if missing != [ ] then
      throw "callPackage: the stand-in for nixpkgs has no ${lib.concatStringsSep ", " missing}"
    else
      f (auto // args);

  base =
    final:
    let
      callPackage = callPackageWith final;
      mkDerivation = import ./mk-derivation.nix {
        inherit lib config system;
      };
      # A tool of the host under the name and the outputs that nixpkgs gives it.
      hostTool =
        {
          pname,
          version ? "host",
          links,
          outputs ? [ "out" ],
          meta ? { },
          script ? "",
        }:
        mkDerivation {
          inherit pname version outputs;
          dontUnpack = true;
          buildPhase = "true";
          installPhase = ''
            ${lib.concatMapStringsSep "\n" (l: ''
              mkdir -p "''$(dirname "${l.to}")"
              test -e "${l.from}" || { echo "the host has no ${l.from}"; exit 1; }
              ln -s "${l.from}" "${l.to}"
            '') links}
            ${script}
          '';
          dontFixup = true;
          meta = {
            license = lib.licenses.mit;
          }
          // meta;
        };
    in
    {
      inherit lib callPackage config;
      pkgs = final;
      stdenv = {
        inherit mkDerivation;
        hostPlatform = {
          inherit system;
          isx86_64 = system == "x86_64-linux";
          isAarch64 = system == "aarch64-linux";
          isLinux = true;
        };
      };
      stdenvNoCC = final.stdenv;
      runCommand =
        name: env: cmd:
        mkDerivation (
          {
            inherit name;
            dontUnpack = true;
            buildPhase = "true";
            installPhase = cmd;
            dontFixup = true;
            meta.license = lib.licenses.mit;
          }
          // env
        );
      mkShell =
        {
          packages ? [ ],
          inputsFrom ? [ ],
          ...
        }@a:
        mkDerivation (
          (builtins.removeAttrs a [
            "packages"
            "inputsFrom"
          ])
          // {
            name = "nix-shell";
            nativeBuildInputs = packages ++ builtins.concatMap (d: d.nativeBuildInputs or [ ]) inputsFrom;
            buildInputs = builtins.concatMap (d: d.buildInputs or [ ]) inputsFrom;
            dontUnpack = true;
            buildPhase = "true";
            installPhase = "export > $out";
            dontFixup = true;
            meta.license = lib.licenses.mit;
          }
        );
      # One command of the host, under the attribute and the package name that nixpkgs gives it.
      command =
        pname: paths:
        hostTool {
          inherit pname;
          links = map (from: {
            inherit from;
            to = "$out/bin/${baseNameOf from}";
          }) paths;
          meta.mainProgram = baseNameOf (builtins.head paths);
        };
      cargo = final.command "cargo" [ "/host-rust/bin/cargo" ];
      rustc =
        final.command "rustc" [
          "/host-rust/bin/rustc"
          "/host-rust/bin/rustdoc"
        ]
        // {
          version = lib.fileContents ./rust-version;
        };
      clippy = final.command "clippy" [ "/host-rust/bin/cargo-clippy" ];
      rustfmt = final.command "rustfmt" [ "/host-rust/bin/rustfmt" ];
      cargo-deny = final.command "cargo-deny" [ "/usr/bin/true" ];
      nixfmt-tree = final.command "nixfmt-tree" [ "/usr/bin/true" ];
      patchelf = final.command "patchelf" [ "/host-patchelf/patchelf" ];
      pkg-config = final.command "pkg-config" [ "/usr/bin/pkg-config" ];
      # The host's, which its pkg-config knows.
      openssl = final.command "openssl" [ "/usr/bin/openssl" ];
      zlib = hostTool {
        pname = "zlib";
        links = [ ];
        script = "mkdir -p $out/lib";
      };
      openssh = final.command "openssh" [ "/usr/bin/ssh" ];
      gcc = final.command "gcc" [ "/usr/bin/gcc" ];
      git = final.command "git" [ "/usr/bin/git" ];
      iproute2 = final.command "iproute2" [ "/usr/sbin/ip" ];
      python3 = final.command "python3" [ "/usr/bin/python3" ];
      binutils = final.command "binutils" [
        "/usr/bin/objdump"
        "/usr/bin/readelf"
      ];
      cargo-zigbuild = final.command "cargo-zigbuild" [ "/host-zig/bin/cargo-zigbuild" ];
      zig = hostTool {
        pname = "zig";
        links = [ ];
        script = ''
          mkdir -p $out/bin
          printf '#!/bin/sh\nexec /host-zig/ziglang/zig "$@"\n' > $out/bin/zig
          chmod +x $out/bin/zig
        '';
      };
      rdma-core = hostTool {
        pname = "rdma-core";
        version = "63.0";
        outputs = [
          "out"
          "dev"
        ];
        links = [ ];
        script = "mkdir -p $out/lib $dev/include";
        meta.license = lib.licenses.gpl2Only;
      };
      addDriverRunpath.driverLink = "/run/opengl-driver";
      rustPlatform = import ./rust-platform.nix { inherit lib final; };
      cudaPackages_13_2 = import ./cuda.nix {
        inherit
          lib
          config
          final
          hostTool
          callPackageWith
          ;
        version = "13.2";
      };
    };
in
fix (self: builtins.foldl' (prev: overlay: prev // overlay self prev) (base self) overlays)
