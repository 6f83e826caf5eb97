# What a host receives is there, starts, knows its revision and has its kernels.
{
  runCommand,
  tp-bringup,
}:
runCommand "tp-bringup-layout" { } ''
  ${tp-bringup.all}/bin/tf-tp-test --version | tee version
  grep -q 'sm_90' version && grep -q 'sm_121' version
  ${tp-bringup.all}/bin/tp-orchestrate --version
  test -s ${tp-bringup.kernels}/lib/tp-bringup/kernels.fatbin
  grep -q 'bin/tf-tp-test' ${tp-bringup.bundle}/MANIFEST
  (cd ${tp-bringup.bundle} && sed 1,2d MANIFEST | sha256sum -c)
  touch $out
''
