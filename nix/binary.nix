# One of the two binaries alone, so that a host receives only what that one refers to.
{
  lib,
  runCommand,
  pname,
  description,
  version,
  binaries,
}:
runCommand "${pname}-${version}"
  {
    passthru = { inherit (binaries) kernels; };
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
  ''
    install -Dm755 ${binaries}/bin/${pname} $out/bin/${pname}
  ''
