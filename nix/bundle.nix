# For clusters whose hosts carry different NCCLs: the portable runner, the pinned libnccl, and a manifest with every hash.
{
  lib,
  runCommand,
  cudaPackages,
  version,
  portable,
}:
runCommand "tp-bringup-bundle-${version}"
  {
    meta = {
      description = "The portable runner with the NCCL that it was proved with";
      license = [
        lib.licenses.mit
        lib.licenses.asl20
        lib.licenses.bsd3
      ];
    };
  }
  ''
    mkdir -p $out/bin $out/lib
    cp ${portable}/bin/tf-tp-test $out/bin/
    cp -L ${lib.getLib cudaPackages.nccl}/lib/libnccl.so.2 $out/lib/
    cd $out
    {
      echo "version ${version}"
      echo "nccl ${cudaPackages.nccl.version}"
      sha256sum bin/tf-tp-test lib/libnccl.so.2
    } > MANIFEST
  ''
