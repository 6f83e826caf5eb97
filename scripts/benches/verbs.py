"""The verbs wire in the Soft-RoCE guest beside ib_write_lat and a bare ping-pong of the same requests, alternating."""

import argparse
import os
import pathlib
import re
import shutil
import subprocess
import tempfile

import common

SMALL = (8, 64, 256)
LARGE = (1024, 4096, 65536)
# One boot; each round measures everything once, so that what slows the machine down slows all of them.
INSIDE = r"""
set -e
bin=$1 rounds=$2 iterations=$3
write_lat() {
    ib_write_lat -d $A_DEV0 -x 1 -s $1 -n $iterations -F -p $2 > /tmp/server 2>&1 & server=$!
    sleep 1
    ib_write_lat -d $B_DEV0 -x 1 -s $1 -n $iterations -F -p $2 $A_IP0 | awk -v s=$1 '$1 == s && NF >= 6 {print "ib_write_lat " s " B: p50 " $5 " us"}'
    wait $server || true
}
port=18600
for round in $(seq $rounds); do
    for size in 8 64 256; do
        port=$((port + 1)); write_lat $size $port
        $bin/verbs_wire ping wire $size $iterations
    done
    for size in 1024 4096 65536; do
        $bin/verbs_wire ping bare $size $iterations
        $bin/verbs_wire ping wire $size $iterations
    done
done
"""


def main(arguments):
    parser = argparse.ArgumentParser(prog="scripts/bench verbs", description=__doc__)
    parser.add_argument("--binary", type=pathlib.Path, help="verbs_wire to measure; built in release mode unless given")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="also write the figures there; - for standard output")
    parser.add_argument("--rounds", type=int, default=11, help="how often each is measured (11)")
    parser.add_argument("--iterations", type=int, default=1000, help="round trips of each measurement (1000)")
    args = parser.parse_args(arguments)
    binary = args.binary
    if not binary:
        build = ["cargo", "build", "--release", "--quiet", "-p", "tp-fabric", "--example", "verbs_wire"]
        subprocess.run(build, cwd=common.ROOT, check=True)
        target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", common.ROOT / "target"))
        binary = target / "release" / "examples" / "verbs_wire"
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache")) / "tp-bringup"
    cache.mkdir(parents=True, exist_ok=True)
    # The guest sees neither /tmp nor /run.
    with tempfile.TemporaryDirectory(dir=cache, prefix="bench-verbs.") as folder:
        shutil.copy(binary, pathlib.Path(folder) / "verbs_wire")
        guest = [str(common.ROOT / "scripts" / "softroce-guest"), "-T", "1200", "--", "bash", "-c", INSIDE, "inside", folder]
        shown = subprocess.run([*guest, str(args.rounds), str(args.iterations)], capture_output=True, text=True)
    if shown.returncode:
        print(shown.stdout, shown.stderr)
        return 1
    measured = {}
    for what, size, p50 in re.findall(r"^(\w+) (\d+) B: p50 ([\d.]+) us", shown.stdout, re.M):
        measured.setdefault((what, int(size)), []).append(float(p50))
    rows, figures = [], []
    for sizes, beside in ((SMALL, "ib_write_lat"), (LARGE, "bare")):
        for size in sizes:
            wire, other = measured.get(("wire", size), []), measured.get((beside, size), [])
            if not wire or not other:
                print(shown.stdout, shown.stderr)
                return 1
            mine, theirs = common.quantile(wire, 0.5), common.quantile(other, 0.5)
            ratio = mine / theirs
            rows.append([size, 1 if size <= 256 else 2, f"{mine:.2f}", beside, f"{theirs:.2f}", f"{ratio:.2f}", len(wire)])
            figures.append({"bytes": size, "wire_p50_us": wire, beside + "_p50_us": other, "ratio_of_medians": ratio})
    common.table(["bytes", "requests", "wire p50 us", "beside", "its p50 us", "ratio", "rounds"], rows)
    common.write(args, {"schema": 1, "bench": "verbs", "machine": common.machine(), "figures": figures})
    return 0
