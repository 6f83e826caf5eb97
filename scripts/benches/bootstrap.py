"""How long ranks take to meet, prove the secret and agree, at 2 to 64 ranks on loopback.

`connect` and `agree` are what the runner measures itself on rank 0; `processes` is from the first start until the last
rank has left again, with the start of the processes in it.
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
        parts = {"identity": [], "connect": [], "agree": [], "backend": [], "processes": []}
        for _ in range(args.runs):
            # A suite without checks: it boots, and closes in good order.
            ranks, took = common.run_group(binary, world, ["suite", "host", "--only", "no such check"])
            for rank in ranks:
                assert rank.first("exit").get("code") == 0, f"rank {rank.rank}: {rank.events}"
            boot = next(e for e in ranks[0].events if e.get("code") == "boot")
            for part in ("identity", "connect", "agree", "backend"):
                parts[part].append(boot[f"{part}_ms"])
            parts["processes"].append(took * 1e3)
        medians = {part: common.quantile(times, 0.5) for part, times in parts.items()}
        worst = common.quantile(parts["connect"], 1.0)
        rows.append([str(world), args.runs, *(medians[p] for p in parts), worst])
        figures.append({"world": world, "runs": args.runs, "worst_connect_ms": worst,
                        **{f"{part}_ms": median for part, median in medians.items()}})
    common.table(["world", "runs", "identity ms", "connect ms", "agree ms", "backend ms", "processes ms", "worst connect ms"], rows)
    common.write(args, {"schema": 1, "bench": "bootstrap", "machine": common.machine(), "figures": figures})
    return 0
