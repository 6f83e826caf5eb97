"""How long ranks take to meet, prove the secret and agree, at 2 to 64 ranks on loopback.

`meet` is the boot without the start of the processes: what the last rank to begin needs to connect, prove the secret and
agree, while all others are there or on their way. `connect` and `agree` are what rank 0 measures from its own start, so that
the start of all other processes is in it; `processes` is from the first start until the last rank has left again.
"""

import argparse

import common


def main(arguments):
    parser = argparse.ArgumentParser(prog="scripts/bench bootstrap", description=__doc__)
    common.add_options(parser)
    parser.add_argument("--runs", type=int, default=10, help="runs of each world (10)")
    parser.add_argument("--worlds", default="2,4,8,16,32,64", help="world sizes (2,4,8,16,32,64)")
    args = parser.parse_args(arguments)
    binary = common.runner(args)
    rows, figures = [], []
    for world in map(int, args.worlds.split(",")):
        parts = {"identity": [], "meet": [], "connect": [], "agree": [], "backend": [], "processes": []}
        for _ in range(args.runs):
            # A suite without checks: it boots, and closes in good order.
            ranks, took = common.run_group(binary, world, ["suite", "host", "--only", "no such check"])
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
    common.write(args, {"schema": 1, "bench": "bootstrap", "machine": common.machine(), "figures": figures})
    return 0
