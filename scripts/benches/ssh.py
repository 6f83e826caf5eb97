"""What a run over SSH costs beside the ranks' own time, for each step, beside Ansible and clush.

Real SSH servers in namespaces (scripts/ssh-lab). The overhead of a step is its wall time on the orchestrator less the time
that its longest rank speaks of itself, from its first to its last event. Another tool's command that brings no answer of
every host is said to have failed and has no time. Needs root. Ends with 1 where a bound is broken.
"""

import argparse
import json

import common
import sshlab


def overheads(lab, out):
    """Milliseconds of every step."""
    ends, lives = {}, {}
    for line in (lab.path / out / "events.jsonl").read_text().splitlines():
        record = json.loads(line)
        key = (record.get("arm"), record.get("step"), record.get("attempt"))
        if "took_ms" in record and "ended" in record:
            ends[key] = record["took_ms"]
        elif record.get("rank") is not None and "t" in record and record.get("event") not in ("launch", "setting"):
            # A record of several checks has the time of each.
            times = record["t"] if isinstance(record["t"], list) else [record["t"]]
            lives[key] = max([lives.get(key, 0.0), *(t * 1e3 for t in times)])
    return [took - lives.get(key, 0.0) for key, took in ends.items()]


def main(arguments):
    parser = argparse.ArgumentParser(prog="scripts/bench ssh", description=__doc__)
    common.add_options(parser)
    parser.add_argument("--hosts", default="4,32", help="numbers of hosts (4,32)")
    parser.add_argument("--steps", type=int, default=10, help="times the step is run (10)")
    parser.add_argument("--bounds-ms", default="250,1000", help="the median must be below these (250,1000)")
    parser.add_argument("--beside", action="store_true", help="also a command by Ansible and clush, from PyPI")
    args = parser.parse_args(arguments)
    rows, figures, broken = [], [], []
    for hosts, bound in zip(map(int, args.hosts.split(",")), map(float, args.bounds_ms.split(","))):
        with sshlab.Lab(hosts) as lab:
            runner, orchestrate = sshlab.programs(args, lab)
            inventory = lab.inventory(hosts)
            lab.run([orchestrate, "push", "--runner", runner, inventory])
            run = [orchestrate, "run", inventory, "--runner", runner, "--arms", "none", "--steps", "hca"]
            total = lab.run([*run, "--repeat", str(args.steps), "--out", lab.path / "out"])
            times = overheads(lab, "out")
            assert len(times) == args.steps, f"{len(times)} steps of {args.steps}"
            median, worst = common.quantile(times, 0.5), max(times)
            rows.append([f"overhead of a step, {hosts} hosts, ms", median, worst])
            rows.append([f"a run of {args.steps} steps, {hosts} hosts, ms", total * 1e3, total * 1e3])
            if median > bound:
                broken.append(f"a step's overhead at {hosts} hosts is {median:.0f} ms, more than {bound:.0f}")
            beside = []
            if args.beside:
                tools = sshlab.tools()
                remote = lab.runner_path()
                ansible = [tools / "ansible", "all", "-i", lab.ansible_inventory(hosts), "-f", hosts, "-m", "command", "-a", f"{remote} secret"]
                clush = [tools / "clush", *lab.clush(hosts), "-f", hosts, f"{remote} secret"]
                for name, command in (("ansible command", ansible), ("clush", clush)):
                    ran = [lab.rival(command, sshlab.answered(hosts)) for _ in range(3)]
                    seconds = [took for took, _ in ran]
                    failed = next((why for _, why in ran if why), None)
                    times = ["FAILED"] * 2 if failed else [common.quantile(seconds, 0.5) * 1e3, max(seconds) * 1e3]
                    rows.append([f"{name}, {hosts} hosts, ms", *times])
                    beside.append(dict(what=name, seconds=seconds, failed=failed))
            figures += [dict(hosts=hosts, median_ms=median, worst_ms=worst, steps=args.steps, beside=beside)]
    common.table(["what", "median", "worst"], rows)
    common.write(args, dict(machine=common.machine(), rows=figures))
    for line in broken:
        print(f"BROKEN: {line}")
    return 1 if broken else 0
