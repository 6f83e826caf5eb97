"""How long a file takes to many hosts over shaped links, beside Ansible and clush.

Real SSH servers in namespaces (scripts/ssh-lab), every link shaped by tbf, the workstation's too: what is sent to each host
from there shares one link. Every copy is hashed on every host, untimed; another tool's that is not there is said to have
failed and has no time. Needs root. Ends with 1 where a bound is broken.
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

        def measure(name, command, hosts, pattern=f"bin/*/{blob.name}", forget=True, rival=False):
            if forget:
                lab.forget(blob)
            def wrong(_):
                return lab.copied(blob, hosts, pattern)
            seconds, failed = lab.rival(command, wrong) if rival else (lab.run(command, wrong), None)
            rows.append(dict(what=f"{name}, {hosts} hosts" if hosts > 1 else f"{name}, 1 host", seconds=seconds, failed=failed))
            return seconds

        with_, every = ["--with", blob], args.hosts
        single = measure("push", [*push, *with_, one], 1)
        many = measure("push", [*push, *with_, all_], every)
        there = measure("push, there already", [*push, *with_, all_], every, forget=False)
        measure("push --no-relay", [*push, "--no-relay", *with_, all_], every)
        if args.beside:
            tools = sshlab.tools()
            dest = "/root/.cache/tp-bringup/blob"
            theirs = dict(hosts=every, pattern="blob", rival=True)
            ansible = [tools / "ansible", "all", "-i", lab.ansible_inventory(every), "-f", every, "-m", "copy", "-a", f"src={blob} dest={dest}"]
            measure("ansible copy", ansible, **theirs)
            measure("ansible copy, there already", ansible, forget=False, **theirs)
            measure("clush --copy", [tools / "clush", *lab.clush(every), "-f", every, "--copy", blob, "--dest", dest], **theirs)
    common.table(["what", "s"], [[row["what"], "FAILED" if row["failed"] else row["seconds"]] for row in rows])
    common.write(args, dict(machine=common.machine(), rows=rows))
    broken = []
    if many > args.ratio * single:
        broken.append(f"{args.hosts} hosts took {many / single:.2f} times one host's time, more than {args.ratio}")
    if there > args.there_s:
        broken.append(f"where it was there already it took {there:.2f} s, more than {args.there_s}")
    for line in broken:
        print(f"BROKEN: {line}")
    return 1 if broken else 0
