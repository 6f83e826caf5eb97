"""How long from a rank's death until every other rank has left.

Victim and survivors are on one host and one clock: the victim writes CLOCK_MONOTONIC into its `inject` event right before
it fails, each supervisor writes it into the `exit` event when it reaps its rank. Ends with 1 where a bound is broken.
"""

import argparse

import common

SURVIVOR = 70
VICTIM = {"kill": 137, "fatal": 70, "stall": 137}


def one(binary, world, victim, kind, at, settings):
    """Milliseconds from the injection to each survivor's exit."""

    def end_the_stopped(ranks, rank, event):
        # A stopped victim cannot leave: it is ended when all others have.
        if kind == "stall" and event["event"] == "exit":
            if all(r.first("exit") for r in ranks if r.rank != victim):
                ranks[victim].say("end")

    command = ["failfast", str(victim), kind] + (["--at", at] if at else [])
    ranks, _ = common.run_group(binary, world, command, settings, on_event=end_the_stopped)
    inject = ranks[victim].first("inject")
    assert inject, f"the victim said no inject event: {ranks[victim].events}"
    times = []
    for rank in ranks:
        exit_ = rank.first("exit")
        code = exit_["code"] if "code" in exit_ else 128 + exit_["signal"]
        wanted = VICTIM[kind] if rank.rank == victim else SURVIVOR
        assert code == wanted, f"rank {rank.rank} ended with {code}, not {wanted}: {rank.events}"
        if rank.rank != victim:
            times.append((exit_["monotonic_ns"] - inject["monotonic_ns"]) / 1e6)
    return times


def main(arguments):
    parser = argparse.ArgumentParser(prog="scripts/bench failfast", description=__doc__)
    common.add_options(parser)
    parser.add_argument("--runs", type=int, default=200, help="runs of each kind and world (200)")
    parser.add_argument("--worlds", default="2,4", help="world sizes (2,4)")
    parser.add_argument("--kinds", default="kill,fatal", help="kill, fatal, stall (kill,fatal)")
    parser.add_argument("--at", help="phase in which the victim fails: met, agreed, open, close; in the collectives unless given")
    parser.add_argument("--wire", default="shm", help="shm or tcp (shm)")
    parser.add_argument("--median-ms", type=float, default=20.0, help="the median must be below this (20)")
    parser.add_argument("--worst-ms", type=float, default=250.0, help="the worst must be below this (250)")
    args = parser.parse_args(arguments)
    binary = common.runner(args)
    settings = {"TF_TP_ROCE_WIRE": args.wire}
    rows, figures, broken = [], [], []
    for kind in args.kinds.split(","):
        for world in map(int, args.worlds.split(",")):
            times = []
            for run in range(args.runs):
                times += one(binary, world, run % world, kind, args.at, settings)
            median, p99, worst = (common.quantile(times, q) for q in (0.5, 0.99, 1.0))
            rows.append([f"{kind} {args.at or 'run'}", world, args.runs, len(times), median, p99, worst])
            figures.append(dict(kind=kind, at=args.at or "run", world=world, wire=args.wire, runs=args.runs,
                                exits=len(times), median_ms=median, p99_ms=p99, worst_ms=worst))
            # A stopped rank is noticed by its silence, which takes the heartbeat limit (3 s unless set).
            silence = 3000.0 if kind == "stall" else 0.0
            if median >= args.median_ms + silence or worst >= args.worst_ms + silence:
                broken.append(f"{kind} at world {world}: median {median:.3f} ms, worst {worst:.3f} ms")
    common.table(["failure", "world", "runs", "exits", "median ms", "p99 ms", "worst ms"], rows)
    common.write(args, {"schema": 1, "bench": "failfast", "machine": common.machine(), "figures": figures, "broken": broken})
    for line in broken:
        print(f"over the bound: {line}")
    return 1 if broken else 0
