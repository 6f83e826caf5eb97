# Both binaries side by side: the orchestrator looks for the runner beside itself.
{
  lib,
  runCommand,
  version,
  tf-tp-test,
  tp-orchestrate,
}:
runCommand "tp-bringup-${version}"
  {
    meta = {
      description = "The runner and the orchestrator of tp-bringup";
      license = [
        lib.licenses.mit
        lib.licenses.asl20
      ];
      mainProgram = "tp-orchestrate";
    };
  }
  ''
    mkdir -p $out/bin
    ln -s ${lib.getExe tf-tp-test} ${lib.getExe tp-orchestrate} $out/bin/
  ''
