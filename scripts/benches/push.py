"""How long a file takes to many hosts over shaped links, beside Ansible and clush.

Real SSH servers in namespaces (scripts/ssh-lab), every link shaped by tbf, the workstation's too: what is sent to each host
from there shares one link. Needs root. Ends with 1 where a bound is broken.
"""

import argparse
import os

import common
import sshlab


def main(arguments):
    parser = argparse.ArgumentParser(prog="scripts/bench push", description=__doc__)
    common.add_options(parser)
    parser.add_argument("--hosts", type=int, default=8, help="hosts (8)")
    parser.add_argument("--mb", type=int, default=200, help="size of the file in MB (200)")
    parser.add_argument("--rate", default="200mbit", help="rate of every link (200mbit)")
    parser.add_argument("--ratio", type=float, default=1.3, help="all hosts in at most so many times one host's time (1.3)")
    parser.add_argument("--there-s", type=float, default=2.0, help="seconds at most where it is there already (2)")
    parser.add_argument("--beside", action="store_true", help="also by Ansible and clush, from PyPI, in a folder of their own")
    args = parser.parse_args(arguments)
    with sshlab.Lab(args.hosts) as lab:
        runner, orchestrate = sshlab.programs(args, lab)
        blob = lab.path / "libnccl.so.2"
        blob.write_bytes(os.urandom(args.mb * 1_000_000))
        one, all_ = lab.inventory(1), lab.inventory(args.hosts)
        push = [orchestrate, "push", "--runner", runner]
        lab.run([*push, all_])
        lab.lab("shape", args.rate)
        rows = []

        def measure(name, command, forget=True):
            if forget:
                lab.forget(blob)
            rows.append([name, lab.run(command)])
            return rows[-1][1]

        with_ = ["--with", blob]
        single = measure("push, 1 host", [*push, *with_, one])
        many = measure(f"push, {args.hosts} hosts", [*push, *with_, all_])
        there = measure(f"push, {args.hosts} hosts, there already", [*push, *with_, all_], forget=False)
        measure(f"push --no-relay, {args.hosts} hosts", [*push, "--no-relay", *with_, all_])
        if args.beside:
            tools = sshlab.tools()
            hosts = lab.ansible_inventory(args.hosts)
            copy = [tools / "ansible", "all", "-i", hosts, "-f", args.hosts, "-m", "copy", "-a", f"src={blob} dest=/root/.cache/tp-bringup/blob"]
            measure(f"ansible copy, {args.hosts} hosts", copy)
            measure(f"ansible copy, {args.hosts} hosts, there already", copy, forget=False)
            clush = [tools / "clush", *lab.clush(args.hosts), "--copy", blob, "--dest", "/root/.cache/tp-bringup/blob"]
            measure(f"clush --copy, {args.hosts} hosts", clush)
    common.table(["what", "s"], rows)
    common.write(args, dict(machine=common.machine(), rows=[dict(what=what, seconds=seconds) for what, seconds in rows]))
    broken = []
    if many > args.ratio * single:
        broken.append(f"{args.hosts} hosts took {many / single:.2f} times one host's time, more than {args.ratio}")
    if there > args.there_s:
        broken.append(f"where it was there already it took {there:.2f} s, more than {args.there_s}")
    for line in broken:
        print(f"BROKEN: {line}")
    return 1 if broken else 0
