# The few functions of nixpkgs' lib that the flake uses, written anew.
let
  lib = rec {
    inherit (builtins)
      any
      all
      attrNames
      attrValues
      concatStringsSep
      elem
      filter
      genList
      head
      isAttrs
      isFunction
      isList
      isString
      listToAttrs
      mapAttrs
      replaceStrings
      ;
    genAttrs =
      names: f:
      listToAttrs (
        map (name: {
          inherit name;
          value = f name;
        }) names
      );
    optional = c: x: if c then [ x ] else [ ];
    optionals = c: xs: if c then xs else [ ];
    optionalString = c: s: if c then s else "";
    optionalAttrs = c: a: if c then a else { };
    toList = x: if isList x then x else [ x ];
    hasPrefix = p: s: builtins.substring 0 (builtins.stringLength p) s == p;
    hasSuffix =
      p: s:
      let
        n = builtins.stringLength p;
        m = builtins.stringLength s;
      in
      m >= n && builtins.substring (m - n) n s == p;
    concatMapStringsSep =
      sep: f: xs:
      concatStringsSep sep (map f xs);
    throwIfNot = c: msg: if c then x: x else throw msg;
    importTOML = p: builtins.fromTOML (builtins.readFile p);
    versionAtLeast = a: b: builtins.compareVersions a b >= 0;
    versionOlder = a: b: builtins.compareVersions a b < 0;
    fileContents = f: builtins.head (builtins.split "\n" (builtins.readFile f));
    getOutput = o: p: p.${o} or p.out or p;
    getBin = getOutput "bin";
    getLib = getOutput "lib";
    getDev = getOutput "dev";
    getInclude = p: p.include or p.dev or p.out or p;
    makeLibraryPath = ps: concatStringsSep ":" (map (p: "${getLib p}/lib") ps);
    makeBinPath = ps: concatStringsSep ":" (map (p: "${getBin p}/bin") ps);
    getExe = p: "${getBin p}/bin/${p.meta.mainProgram or (throw "getExe: no meta.mainProgram")}";
    getExe' = p: n: "${getBin p}/bin/${n}";
    licenses = mapAttrs (_: l: { free = true; } // l) {
      asl20 = {
        shortName = "asl20";
        spdxId = "Apache-2.0";
      };
      mit = {
        shortName = "mit";
        spdxId = "MIT";
      };
      gpl2Only = {
        shortName = "gpl2Only";
        spdxId = "GPL-2.0-only";
      };
      bsd3 = {
        shortName = "bsd3";
        spdxId = "BSD-3-Clause";
      };
      nvidiaCuda = {
        shortName = "CUDA EULA";
        free = false;
      };
    };
    fileset = {
      unions = builtins.concatMap toList;
      toSource =
        { root, fileset }:
        let
          wanted = map toString (toList fileset);
          ok =
            path: type:
            any (
              w: path == w || hasPrefix (w + "/") path || (type == "directory" && hasPrefix (path + "/") w)
            ) wanted;
        in
        assert all (w: builtins.pathExists w || throw "lib.fileset: ${toString w} does not exist") (
          toList fileset
        );
        rec {
          outPath = builtins.path {
            path = root;
            name = "source";
            filter = ok;
          };
          origSrc = root;
        };
    };
  };
in
lib
