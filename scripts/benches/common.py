"""What the measurements share: the release binary, ranks under supervisors, quantiles, tables."""

import json
import math
import os
import pathlib
import platform
import queue
import secrets
import socket
import subprocess
import sys
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]


def add_options(parser):
    parser.add_argument("--binary", type=pathlib.Path, help="runner to measure; built in release mode unless given")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="also write the figures there; - for standard output")


def runner(args):
    """The runner's path: as given, else the release build of this tree."""
    if args.binary:
        if not os.access(args.binary, os.X_OK):
            sys.exit(f"bench: {args.binary} cannot be run")
        return str(args.binary.resolve())
    subprocess.run(["cargo", "build", "--release", "--quiet", "-p", "tf-tp-test"], cwd=ROOT, check=True)
    target = os.environ.get("CARGO_TARGET_DIR", ROOT / "target")
    return str(pathlib.Path(target) / "release" / "tf-tp-test")


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Rank:
    """One rank under its supervisor; its events as they come."""

    def __init__(self, binary, command, rank, settings, secret, news):
        self.rank = rank
        self.events = []
        self.news = news
        argv = [binary, "supervise", "--events", "--", binary, *command, "--events", "--lease", "stdin"]
        self.process = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment()
        )
        start = {"schema": 1, "session": "bench", "secret": secret, "settings": {**settings, "TF_TP_RANK": str(rank)}}
        self.say(json.dumps(start))
        threading.Thread(target=self._read, daemon=True).start()

    def say(self, line):
        try:
            self.process.stdin.write((line + "\n").encode())
            self.process.stdin.flush()
        except BrokenPipeError:
            pass

    def _read(self):
        for line in self.process.stdout:
            event = json.loads(line)
            self.events.append(event)
            self.news.put((self, event))
        self.news.put((self, None))

    def first(self, name):
        return next((e for e in self.events if e["event"] == name), None)


def environment():
    """The environment without what would set something."""
    keep = ("PATH", "HOME", "XDG_CACHE_HOME", "TMPDIR")
    return {name: os.environ[name] for name in keep if name in os.environ}


def run_group(binary, world, command, settings=None, limit=60.0, on_event=None):
    """Runs all ranks to their ends and returns them, in rank order, with the seconds it took."""
    news, secret = queue.Queue(), secrets.token_hex(32)
    all_settings = {"TF_TP_WORLD": str(world), "TF_TP_PORT": str(free_port()), **(settings or {})}
    began = time.monotonic()
    ranks = [Rank(binary, command, r, all_settings, secret, news) for r in range(world)]
    open_ranks, beat = world, began + 2
    while open_ranks:
        now = time.monotonic()
        if now > began + limit:
            for rank in ranks:
                rank.process.kill()
            sys.exit(f"bench: {' '.join(command)} at world {world} was not done within {limit:.0f} s")
        if now >= beat:
            beat = now + 2
            for rank in ranks:
                rank.say("beat")
        try:
            rank, event = news.get(timeout=max(0.0, min(beat, began + limit) - now))
        except queue.Empty:
            continue
        if event is None:
            open_ranks -= 1
        elif on_event:
            on_event(ranks, rank, event)
    took = time.monotonic() - began
    for rank in ranks:
        try:
            rank.process.stdin.close()
        except BrokenPipeError:
            pass
        rank.process.wait()
    return ranks, took


def quantile(values, q):
    """By the nearest-rank method: the smallest value that at least the share q does not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(q * len(ordered)) - 1)]


def table(header, rows):
    cells = [header] + [[f"{c:.3f}" if isinstance(c, float) else str(c) for c in row] for row in rows]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    for number, row in enumerate(cells):
        print("  ".join(c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths))).rstrip())
        if number == 0:
            print("  ".join("-" * w for w in widths))


def machine():
    return {
        "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "system": f"{platform.system()} {platform.release()}",
        "arch": platform.machine(),
        "load": os.getloadavg()[0],
    }


def write(args, document):
    if not args.json:
        return
    text = json.dumps(document, indent=1)
    if str(args.json) == "-":
        print(text)
    else:
        args.json.write_text(text + "\n")
