"""Latencies of the host backend over shm and tcp: the collectives, and roce-host's gathers."""

import argparse

import common


def main(arguments):
    parser = argparse.ArgumentParser(prog="scripts/bench host", description=__doc__)
    common.add_options(parser)
    parser.add_argument("--worlds", default="2", help="world sizes (2)")
    parser.add_argument("--wires", default="shm,tcp", help="wires (shm,tcp)")
    parser.add_argument("--sizes", default="4K,16K,64K,256K,1M,4M", help="bytes per rank (4K,16K,64K,256K,1M,4M)")
    args = parser.parse_args(arguments)
    binary = common.runner(args)
    commands = [["bench", "--backend", "host", "--sizes", args.sizes], ["roce-host"]]
    rows, figures = [], []
    for world in map(int, args.worlds.split(",")):
        for wire in args.wires.split(","):
            for command in commands:
                ranks, _ = common.run_group(binary, world, command, {"TF_TP_ROCE_WIRE": wire}, limit=300.0)
                for rank in ranks:
                    assert rank.first("exit").get("code") == 0, f"rank {rank.rank}: {rank.events}"
                for e in (e for e in ranks[0].events if e["event"] == "latency"):
                    rows.append([f"{e['backend']} {e['op']}", world, wire, e["bytes"], e["median_us"], e["p10_us"],
                                 e["p90_us"], e["samples"]])
                    keys = ("backend", "wire", "op", "bytes", "median_us", "p10_us", "p90_us", "samples")
                    figures.append({"world": world, **{k: e[k] for k in keys}})
    common.table(["operation", "world", "wire", "bytes", "median us", "p10 us", "p90 us", "calls"], rows)
    common.write(args, {"schema": 1, "bench": "host", "machine": common.machine(), "figures": figures})
    return 0
