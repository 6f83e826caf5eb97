# The pushed binary runs where there is no Nix: the usual loader, no path of the store, no symbol newer than it says.
{
  runCommand,
  binutils,
  patchelf,
  stdenv,
  tp-bringup,
}:
let
  inherit (tp-bringup) portable;
  loader =
    if stdenv.hostPlatform.isx86_64 then
      "/lib64/ld-linux-x86-64.so.2"
    else
      "/lib/ld-linux-aarch64.so.1";
in
runCommand "tp-bringup-portable-check"
  {
    nativeBuildInputs = [
      binutils
      patchelf
    ];
  }
  ''
    f=${portable}/bin/tf-tp-test
    if grep -c /nix/store $f; then
      echo "portable: a path of the store is in the binary" >&2
      exit 1
    fi
    test "$(patchelf --print-interpreter $f)" = ${loader}
    rpath=$(patchelf --print-rpath $f)
    if [ -n "$rpath" ]; then
      echo "portable: a run path is in the binary: $rpath" >&2
      exit 1
    fi
    needed=$(patchelf --print-needed $f | sort | tr '\n' ' ')
    echo "needs: $needed"
    case "$needed" in
      *ssl* | *crypto* | *cuda* | *nccl* | *ibverbs*)
        echo "portable: a library that hosts need not have is linked" >&2
        exit 1
        ;;
    esac
    newest=$(objdump -T $f | grep -o 'GLIBC_[0-9.]*' | sort -Vu | tail -n 1)
    echo "newest symbol version: $newest"
    if test "$(printf '%s\n' "$newest" GLIBC_${portable.glibc} | sort -V | tail -n 1)" != GLIBC_${portable.glibc}; then
      echo "portable: $newest is newer than glibc ${portable.glibc}" >&2
      exit 1
    fi
    touch $out
  ''
