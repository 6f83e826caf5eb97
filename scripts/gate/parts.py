"""What is proved and measured, step by step, and the table of it."""

import datetime
import json
import os
import shutil
import statistics
import subprocess
import tarfile
import time

import extras
from mps import Mps
from ranks import Step

# Backend under test: what the step is called, the runner's word, and the settings.
VARIANTS = {
    "nccl": [("nccl", "nccl", {})],
    "mailbox": [
        ("mailbox-device", "mailbox", {"TF_TP_MAILBOX_INBOX": "device"}),
        ("mailbox-pinned", "mailbox", {"TF_TP_MAILBOX_INBOX": "pinned"}),
    ],
    "roce": [
        ("roce-shm", "roce", {"TF_TP_ROCE_WIRE": "shm"}),
        ("roce-tcp", "roce", {"TF_TP_ROCE_WIRE": "tcp"}),
    ],
}
# Both ways in one backend, with the threshold in the middle of the suite's sizes.
HYBRID = {"TF_TP_LARGE": "nccl", "TF_TP_ROUTE_MAX_KB": "64"}
SURVIVOR = 70


class Gate:
    """One run of the gate: where things are, the clock, and the table."""

    def __init__(self, options):
        self.folder = os.path.abspath(options.dir)
        self.binary = os.path.join(self.folder, "tf-tp-test")
        self.out = os.path.abspath(options.out)
        self.logs = os.path.join(self.out, "logs")
        os.makedirs(self.logs, exist_ok=True)
        self.gpus = [int(gpu) for gpu in options.gpus.split(",")]
        self.shared = len(set(self.gpus)) < len(self.gpus)
        self.ends = time.monotonic() + options.seconds
        self.options = options
        self.rows, self.latencies, self.exits = [], {}, {}
        # Medians in µs by (operation, mode) and (variant, bytes), and the link's rates.
        self.medians, self.links = {}, {}
        self.mps = Mps(self.shared)
        self.find_nccl()
        self.head = self.describe()
        self.write()

    def find_nccl(self):
        """Python's NCCL, where nothing else is named."""
        if "TF_NCCL_LIB" in os.environ:
            return
        code = "import nvidia.nccl, os; print(os.path.join(list(nvidia.nccl.__path__)[0], 'lib', 'libnccl.so.2'))"
        found = subprocess.run(["python3", "-c", code], capture_output=True, text=True, check=False).stdout.strip()
        if found and os.path.exists(found):
            os.environ["TF_NCCL_LIB"] = found

    def describe(self):
        lines = [f"date: {datetime.datetime.now(datetime.timezone.utc):%Y-%m-%d %H:%M} UTC", f"GPUs of the ranks: {self.gpus}"]
        query = ["nvidia-smi", "--query-gpu=index,name,driver_version", "--format=csv,noheader"]
        for command in (query, [self.binary, "--version"], ["uname", "-r"]):
            try:
                text = subprocess.run(command, capture_output=True, text=True, check=False, timeout=20).stdout
            except (OSError, subprocess.TimeoutExpired) as error:
                text = f"{command[0]}: {error}"
            lines.extend(text.strip().splitlines())
        lines.append(f"NCCL: {os.environ.get('TF_NCCL_LIB', 'as the runner finds it')}")
        return lines

    @staticmethod
    def now():
        return time.monotonic()

    def variants(self):
        chosen = self.options.backends.split(",")
        return [variant for backend in chosen for variant in VARIANTS[backend]]

    def row(self, name, verdict, detail, seconds=0.0):
        self.rows.append((name, verdict, detail, seconds))
        print(f"{verdict:8} {name:32} {seconds:6.1f} s  {detail}", flush=True)
        self.write()

    def room(self, name, seconds):
        """Whether a step that may take so long still fits."""
        if time.monotonic() + seconds <= self.ends:
            return True
        self.row(name, "NOT RUN", "no time left")
        return False

    def step(self, name, gpus, arguments, settings, limit, wrapper=()):
        """Runs a step to its end; returns it with the ranks' exit codes."""
        step = Step(self.binary, gpus, arguments, settings, wrapper)
        in_time = step.wait(limit)
        codes = step.end()
        self.keep(name, step)
        return step, codes, in_time

    def keep(self, name, step):
        with open(os.path.join(self.logs, f"{name}.log"), "w") as log:
            log.write(step.log())
        with open(os.path.join(self.logs, f"{name}.jsonl"), "w") as log:
            for rank in step.ranks:
                log.writelines(json.dumps(event) + "\n" for event in rank.events)

    def checks(self, name, gpus, arguments, settings, limit, wrapper=()):
        """A step whose checks are counted."""
        step, codes, in_time = self.step(name, gpus, arguments, settings, limit, wrapper)
        details, good = [], in_time and all(code == 0 for code in codes)
        for rank, code in zip(step.ranks, codes):
            totals = rank.summary() or {}
            core = [c for c in rank.of("check") if c.get("group") in ("core", "graph") and c.get("outcome") == "passed"]
            words = [f"{totals.get(word, '?')} {word}" for word in ("passed", "failed", "skipped")]
            details.append(f"rank {rank.number}: {', '.join(words)}, {len(core)} of the core" + ("" if code == 0 else f", exit {code}"))
            good = good and bool(totals.get("passed"))
        if not in_time:
            details.append(f"ended at the limit of {limit:.0f} s")
        # Ranks that agree say it once.
        texts = {detail.split(": ", 1)[1] for detail in details if detail.startswith("rank ")}
        if len(texts) == 1 and in_time:
            details = [f"each of {len(gpus)} ranks: {texts.pop()}"]
        self.row(name, "PASSED" if good else "FAILED", "; ".join(details), step.seconds())
        if not good:
            tail = [line for rank in step.ranks for line in rank.lines if "FAIL" in line or "ERROR" in line or "error" in line][:12]
            print("\n".join(f"         {line}" for line in tail), flush=True)
        return step, good

    def write(self):
        with open(os.path.join(self.out, "table.md"), "w") as table:
            table.writelines(line + "\n" for line in self.head)
            table.write("\n| step | verdict | seconds | detail |\n|---|---|---|---|\n")
            table.writelines(f"| {name} | {verdict} | {seconds:.1f} | {detail} |\n" for name, verdict, detail, seconds in self.rows)
            self.write_exits(table)
            self.write_latencies(table)
            extras.write_rule(self, table)

    def write_exits(self, table):
        if not self.exits:
            return
        table.write("\n| failure | exits | leave ms, median | worst | reaped ms, median | worst |\n|---|---|---|---|---|---|\n")
        for name, pairs in self.exits.items():
            left, gone = [p[0] for p in pairs if p[0] is not None], [p[1] for p in pairs]
            cells = [f"{f(v):.1f}" if v else "?" for v in (left, gone) for f in (statistics.median, max)]
            table.write(f"| {name} | {len(pairs)} | {' | '.join(cells)} |\n")

    def write_latencies(self, table):
        for (op, mode), cells in sorted(self.latencies.items()):
            names = list(dict.fromkeys(name for name, _ in cells))
            table.write(f"\n| {op}, {mode}, bf16, µs (p10 to p90) | {' | '.join(names)} |\n|---|{'---|' * len(names)}\n")
            for size in sorted({size for _, size in cells}):
                table.write(f"| {size} B | " + " | ".join(cells.get((name, size), "-") for name in names) + " |\n")

    def end(self):
        self.mps.stop()
        self.write()
        with tarfile.open(os.path.join(self.out, "logs.tgz"), "w:gz") as tar:
            tar.add(self.logs, arcname="logs")
        shutil.rmtree(self.logs)
        with open(os.path.join(self.out, "table.md")) as table:
            print(table.read())

    def verdict(self):
        verdicts = {verdict for _, verdict, _, _ in self.rows}
        return 1 if "FAILED" in verdicts else 3 if "NOT RUN" in verdicts or not self.rows else 0


def suite(gate):
    gate.mps.start()
    variants = gate.variants()
    variants += [(f"{name}-hybrid", backend, {**settings, **HYBRID}) for name, backend, settings in variants[1::2] if backend != "nccl"]
    for name, backend, settings in variants:
        if gate.room(f"suite-{name}", 30):
            gate.checks(f"suite-{name}", gate.gpus, ["suite", backend], settings, 120)
    if gate.room("suite-unset", 20):
        gate.checks("suite-unset", gate.gpus, ["suite", "--only", " 4096 B"], {}, 60)


def worlds(gate):
    if not gate.shared:
        return
    gate.mps.start()
    for world in (3, 4):
        for name, backend, settings in gate.variants():
            step = f"suite-{name}-world-{world}"
            if gate.room(step, 40):
                gate.checks(step, [gate.gpus[0]] * world, ["suite", backend], settings, 120)
    for name, backend, settings in gate.variants():
        if backend == "mailbox" and gate.room(f"bench-{name}-world-4", 20):
            measure(gate, f"{name}-world-4", [gate.gpus[0]] * 4, backend, settings)


def failfast(gate):
    gate.mps.start()
    for round_ in range(gate.options.repeat):
        for name, backend, settings in gate.variants():
            for kind in ("fatal", "kill", "stall"):
                for victim in (0, len(gate.gpus) - 1):
                    if kind == "stall" and round_ > 0:
                        continue
                    step = f"failfast-{name}-{kind}-{victim}"
                    if gate.room(step, 12):
                        one_failure(gate, step, backend, kind, victim, settings, round_)


def one_failure(gate, name, backend, kind, victim, settings, round_):
    arguments = ["--backend", backend, "failfast", str(victim), kind]
    # A rank that never comes (field case 121): the wait on the GPU ends by itself before the heartbeats end the rank.
    bound = {"TF_TP_MAILBOX_TIMEOUT_S": "1"} if kind == "stall" else {}
    step = Step(gate.binary, gate.gpus, arguments, {**settings, **bound})
    survivors = [rank for rank in step.ranks if rank.number != victim]
    in_time = step.wait(40, [rank.number for rank in survivors])
    if kind != "stall":
        in_time = step.wait(45) and in_time
    codes = step.end()
    gate.keep(f"{name}-{round_}", step)
    injected = [event.get("monotonic_ns") for event in step.ranks[victim].of("inject")]
    wanted = {"fatal": SURVIVOR, "kill": -9, "stall": -9}[kind]
    good = in_time and bool(injected) and codes[victim] == wanted
    spans = []
    for rank in survivors:
        good = good and codes[rank.number] == SURVIVOR
        if kind == "stall":
            sign = "not done after 1 s" if backend == "nccl" else f"nothing from rank {victim}"
            good = good and any(sign in line for line in rank.lines)
        if injected and rank.gone_ns:
            left = rank.left_ns()
            spans.append(((left - injected[0]) / 1e6 if left else None, (rank.gone_ns - injected[0]) / 1e6))
    limit = 1000.0 if kind != "stall" else 6000.0
    good = good and all(left is not None and left < limit for left, _ in spans)
    gate.exits.setdefault(f"{name.removeprefix('failfast-').rsplit('-', 1)[0]}", []).extend(spans)
    told = ", ".join(f"left {left if left is None else round(left, 1)} ms, reaped {gone:.0f} ms" for left, gone in spans)
    gate.row(f"{name} #{round_}", "PASSED" if good else "FAILED", f"exits {codes}; {told}", step.seconds())
    # A client that left with a kernel running may leave the daemon's server unfit for the next one.
    if gate.shared:
        gate.mps.fresh()


def bench(gate):
    gate.mps.start()
    variants = gate.variants()
    if any(backend == "nccl" for _, backend, _ in variants):
        variants.append(("nccl-own-order", "nccl", {"TF_TP_FAST_ORDER": "1"}))
    for name, backend, settings in variants:
        if not gate.room(f"bench-{name}", 30):
            continue
        measure(gate, name, gate.gpus, backend, settings)


def measure(gate, name, gpus, backend, settings):
    arguments = ["--backend", backend, "bench", "--sizes", gate.options.sizes, "--ops", "all_reduce,all_gather"]
    # The small path alone: what it costs at every size is what the crossovers are set from.
    own = settings if backend == "nccl" else {**settings, "TF_TP_LARGE": "own"}
    step, codes, in_time = gate.step(f"bench-{name}", gpus, arguments, own, 150)
    found = step.ranks[0].of("latency")
    for event in found:
        key = (event["op"], event["mode"])
        cell = f"{event['median_us']:.2f} ({event['p10_us']:.2f} to {event['p90_us']:.2f})"
        gate.latencies.setdefault(key, {})[(name, event["bytes"])] = cell
        gate.medians.setdefault(key, {})[(name, event["bytes"])] = event["median_us"]
    good = in_time and all(code == 0 for code in codes) and bool(found)
    gate.row(f"bench-{name}", "PASSED" if good else "FAILED", f"{len(found)} figures, exits {codes}", step.seconds())


def sanitize(gate):
    if not shutil.which("compute-sanitizer"):
        gate.row("sanitize", "NOT RUN", "no compute-sanitizer on PATH")
        return
    # The tool replaces the driver's launches, which an MPS daemon does not allow: the ranks take turns.
    gate.mps.stop()
    for tool in ("memcheck", "initcheck", "synccheck"):
        for name, backend, settings in gate.variants():
            step = f"{tool}-{name}"
            # NCCL's own kernels are not ours to check for what they initialize and how they synchronize.
            if backend == "nccl" and tool != "memcheck" or not gate.room(step, 20):
                continue
            wrapper = ["compute-sanitizer", "--tool", tool, "--error-exitcode", "9"]
            if backend == "nccl":
                # NCCL asks the driver for kernels that this GPU may not have, and takes the error for an answer.
                wrapper += ["--report-api-errors", "no"]
            limit = 150 if backend == "nccl" else 60
            gate.checks(step, gate.gpus, ["suite", backend, "--only", " 1000 B"], settings, limit, wrapper)
        extras.sanitize_two_shots(gate, tool)


PARTS = {
    "suite": suite,
    "kernels": extras.kernels,
    "fail": extras.fail,
    "failfast": failfast,
    "link": extras.link,
    "bench": bench,
    "worlds": worlds,
    "receipt": extras.receipt,
    "sanitize": sanitize,
}
