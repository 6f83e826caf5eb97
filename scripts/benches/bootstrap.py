"""How long ranks take to meet, prove the secret and agree, at 2 to 512 ranks on loopback, beside Open MPI.

`meet` is the boot without the start of the processes: what the last rank to begin needs to connect, prove the secret and
agree, while all others are there or on their way. `connect` and `agree` are what rank 0 measures from its own start, so that
the start of all other processes is in it; `processes` is from the first start until the last rank has left again.

Then all ranks begin at the same instant, as threads of one process and as processes that wait for the word (the example `boot`).
And last Open MPI with as many ranks (Debian packages openmpi-bin and libopenmpi-dev; left out by name where they are not there):
`init` is the slowest rank's time from main to the end of a barrier after MPI_Init, `mpirun` the whole command.
"""

import argparse
import json
import os
import pathlib
import shutil
import subprocess
import tempfile
import time

import common


def at_once(args):
    """Rows of the example `boot`: kind, world, runs, median and worst milliseconds."""
    build = ["cargo", "build", "--release", "--quiet", "-p", "tp-fabric", "--example", "boot"]
    subprocess.run(build, cwd=common.ROOT, check=True)
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", common.ROOT / "target"))
    argv = [target / "release" / "examples" / "boot", "--runs", str(args.runs)]
    argv += ["--threads", args.threads, "--processes", args.worlds]
    lines = subprocess.run(argv, check=True, capture_output=True, text=True).stdout.splitlines()
    return [json.loads(line) for line in lines]


def open_mpi(args, worlds):
    """The same of Open MPI: init and mpirun, milliseconds; None where it is not here."""
    if not (shutil.which("mpirun") and shutil.which("mpicc")):
        print("skipped: Open MPI beside it: no mpirun or mpicc (apt-get install openmpi-bin libopenmpi-dev)")
        return None
    figures = []
    with tempfile.TemporaryDirectory(prefix="tp-bringup-mpi.") as folder:
        program = pathlib.Path(folder) / "mpi_init"
        source = pathlib.Path(__file__).resolve().parent / "mpi_init.c"
        subprocess.run(["mpicc", "-O2", "-o", program, source], check=True)
        for world in worlds:
            inits, wholes = [], []
            for _ in range(args.runs):
                argv = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", str(world), program]
                began = time.monotonic()
                done = subprocess.run(argv, check=True, capture_output=True, text=True, timeout=300)
                wholes.append((time.monotonic() - began) * 1e3)
                inits.append(float(done.stdout.split()[-1]))
            figures.append({"world": world, "runs": args.runs, "init_ms": common.quantile(inits, 0.5),
                            "worst_init_ms": max(inits), "mpirun_ms": common.quantile(wholes, 0.5)})
    return figures


def main(arguments):
    parser = argparse.ArgumentParser(prog="scripts/bench bootstrap", description=__doc__)
    common.add_options(parser)
    parser.add_argument("--runs", type=int, default=10, help="runs of each world (10)")
    parser.add_argument("--worlds", default="2,4,8,16,32,64", help="world sizes (2,4,8,16,32,64)")
    parser.add_argument("--threads", default="2,8,64,128,256,512", help="world sizes within one process (2,8,64,128,256,512)")
    args = parser.parse_args(arguments)
    binary = common.runner(args)
    rows, figures = [], []
    for world in map(int, args.worlds.split(",")):
        parts = {"identity": [], "meet": [], "connect": [], "agree": [], "backend": [], "processes": []}
        for _ in range(args.runs):
            # A suite of its two smallest checks: it boots, and closes in good order.
            ranks, took = common.run_group(binary, world, ["suite", "host", "--only", "sum f32 4 B"])
            for rank in ranks:
                assert rank.first("exit").get("code") == 0, f"rank {rank.rank}: {rank.events}"
            boots = [next(e for e in rank.events if e.get("code") == "boot") for rank in ranks]
            # Only the last rank to begin waits for nobody.
            parts["meet"].append(min(boot["connect_ms"] + boot["agree_ms"] for boot in boots))
            boot = boots[0]
            for part in ("identity", "connect", "agree", "backend"):
                parts[part].append(boot[f"{part}_ms"])
            parts["processes"].append(took * 1e3)
        medians = {part: common.quantile(times, 0.5) for part, times in parts.items()}
        worst = common.quantile(parts["meet"], 1.0)
        rows.append([str(world), args.runs, *(medians[p] for p in parts), worst])
        figures.append({"world": world, "runs": args.runs, "worst_meet_ms": worst,
                        **{f"{part}_ms": median for part, median in medians.items()}})
    common.table(["world", "runs", "identity ms", "meet ms", "connect ms", "agree ms", "backend ms", "processes ms", "worst meet ms"], rows)
    together = at_once(args)
    print("\nall ranks at the same instant")
    common.table(["ranks as", "world", "runs", "median ms", "worst ms", "median us a rank"],
                 [[f["kind"], f["world"], f["runs"], f["median_ms"], f["worst_ms"], f["median_ms"] * 1e3 / f["world"]]
                  for f in together])
    print("\nOpen MPI")
    mpi = open_mpi(args, [int(w) for w in args.worlds.split(",")])
    if mpi:
        common.table(["world", "runs", "init ms", "worst init ms", "mpirun ms"],
                     [[f["world"], f["runs"], f["init_ms"], f["worst_init_ms"], f["mpirun_ms"]] for f in mpi])
    common.write(args, {"schema": 1, "bench": "bootstrap", "machine": common.machine(), "figures": figures,
                        "at_once": together, "open_mpi": mpi})
    return 0
