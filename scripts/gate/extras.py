"""What needs more than the runner: the kernels' own checks and the link's bandwidth by `gpu_exchange`, a receipt by
`tp-orchestrate`, where the folder has them."""

import json
import os
import subprocess

# Bytes that all ranks of one GPU move over its link or memory in an all-reduce of `bytes` in a world, each way, as few as each
# way of doing it needs: (written, read). Through pinned memory one copy of a rank's bytes serves all readers.
SHOTS = {
    "one": lambda world, bytes_: (world * bytes_, world * (world - 1) * bytes_),
    "two": lambda world, bytes_: ((world - 1) * bytes_ + bytes_, 2 * (world - 1) * bytes_),
}
# How many times those bytes an exchange of four ranks may take.
BOUND = 1.3
SMALLEST = 4096


def present(gate, name, step):
    path = os.path.join(gate.folder, name)
    if os.path.exists(path):
        return path
    gate.row(step, "NOT RUN", f"no {name} in the folder")
    return None


def tool(gate, step, command, limit, env=None):
    """Runs a program of the folder to its end; its output, or None where it failed."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit, check=False, env={**os.environ, **(env or {})})
        said, code = done.stdout + done.stderr, done.returncode
    except subprocess.TimeoutExpired as error:
        said, code = (error.stdout or b"").decode(errors="replace"), f"none within {limit} s"
    with open(os.path.join(gate.logs, f"{step}.log"), "w") as log:
        log.write(said)
    return said, code


def exchange_checks(gate, step, ranks, arguments, wrapper=()):
    """One run of `gpu_exchange` whose ranks all count their checks; what it said, or None where it was not run."""
    exchange = present(gate, "gpu_exchange", step)
    if not exchange or not gate.room(step, 60):
        return None
    command = [*wrapper, exchange, "--ranks", str(ranks), "--bench", "none", *arguments, *([] if gate.shared else ["--spread"])]
    began = gate.now()
    said, code = tool(gate, step, command, 120)
    totals = [line for line in said.splitlines() if "checks passed" in line]
    good = code == 0 and len(totals) == ranks and all(", 0 failed" in line for line in totals)
    gate.row(step, "PASSED" if good else "FAILED", totals[0] if totals else f"exit {code}", gate.now() - began)
    return said


def kernels(gate):
    """Every operation, type, protocol and alignment, and flags that come round."""
    gate.mps.start()
    for ranks in (2, 4) if gate.shared else (len(gate.gpus),):
        exchange_checks(gate, f"kernels-world-{ranks}", ranks, ["--check", "quick"])


def fail(gate):
    """A rank that never comes: the wait ends, the record names it, by lines, chunks and, above two ranks, two shots."""
    gate.mps.start()
    for ranks in (2, 4) if gate.shared else (len(gate.gpus),):
        exchange_checks(gate, f"kernels-fail-world-{ranks}", ranks, ["--check", "none", "--fail"])


def sanitize_two_shots(gate, kind):
    """The suite's small sizes never go in two shots; here all do, among three ranks."""
    step = f"{kind}-two-shots"
    if not gate.shared:
        return
    wrapper = ["compute-sanitizer", "--tool", kind, "--error-exitcode", "9", "--target-processes", "all"]
    arguments = ["--protocol", "two shots", "--check", "quick"]
    if kind == "initcheck":
        # It knows nothing of what other processes write, and in device memory combined packs are read where a peer wrote them.
        arguments += ["--inbox", "pinned"]
    said = exchange_checks(gate, step, 3, arguments, wrapper)
    summaries = [line for line in (said or "").splitlines() if "ERROR SUMMARY:" in line]
    if said is not None and not (summaries and all("ERROR SUMMARY: 0 errors" in line for line in summaries)):
        gate.row(step, "FAILED", f"the tool's summaries do not all say 0 errors: {summaries}")


def link(gate):
    """The link's bandwidth, and four ranks' exchanges held against it."""
    gate.mps.start()
    step = "link"
    exchange = present(gate, "gpu_exchange", step)
    if not exchange or not gate.room(step, 30):
        return
    began = gate.now()
    said, code = tool(gate, step, [exchange, "--link", "--check", "none", "--bench", "none"], 60)
    found = [json.loads(line) for line in said.splitlines() if line.startswith('{"link"')]
    gate.links = {entry["link"]: entry["gb_s_each_way"] for entry in found}
    words = ", ".join(f"{name} {rate} GB/s" for name, rate in gate.links.items())
    gate.row(step, "PASSED" if code == 0 and len(found) == 4 else "FAILED", words or f"exit {code}", gate.now() - began)


def bound_us(gate, world, inbox, bytes_, smallest_us):
    """The lesser of both ways: bytes over the link, and a smallest exchange a shot for the flags."""
    ways = []
    for shots, moved in ((1, SHOTS["one"]), (2, SHOTS["two"])):
        written, read = moved(world, bytes_)
        if inbox == "pinned":
            rate = gate.links["link_both"]
            moving = max(written, read) / rate / 1e3
        else:
            # A copy a reader, written and read once in device memory.
            copies = read + read
            moving = copies / gate.links["device_memory"] / 1e3
        ways.append(moving + shots * smallest_us)
    return min(ways)


def write_rule(gate, table, world=4):
    """The rule for four ranks, from this run's figures."""
    if not gate.links:
        return
    rows = []
    for inbox in ("device", "pinned"):
        name = f"mailbox-{inbox}-world-{world}"
        cells = gate.medians.get(("all_reduce", "graph"), {})
        smallest = cells.get((name, SMALLEST))
        for (variant, bytes_), median in sorted(cells.items()):
            if variant == name and smallest and bytes_ > SMALLEST:
                bound = bound_us(gate, world, inbox, bytes_, smallest)
                ratio = median / bound
                rows.append(f"| {inbox} | {bytes_} B | {median:.2f} | {bound:.2f} | {ratio:.2f} | {'yes' if ratio <= BOUND else 'no'} |\n")
    if rows:
        table.write(f"\n| world {world}, inbox | bytes | µs | bytes over the link and flags, µs | ratio | at most {BOUND} |\n")
        table.write("|---|---|---|---|---|---|\n")
        table.writelines(rows)


def receipt(gate):
    """A run of the orchestrator on these GPUs, and what NCCL says of its network in it."""
    gate.mps.start()
    step = "receipt"
    program = present(gate, "tp-orchestrate", step)
    if not program or not gate.room(step, 120):
        return
    folder = os.path.join(gate.out, "receipt")
    inventory = os.path.join(gate.logs, "gate.toml")
    gpus = ", ".join(str(gpu) for gpu in gate.gpus)
    with open(inventory, "w") as file:
        file.write(
            'schema = 1\n[cluster]\nname = "gate"\nlauncher = "local"\n'
            '[defaults]\nenv = { NCCL_DEBUG = "INFO", NCCL_SOCKET_IFNAME = "lo", NCCL_NVLS_ENABLE = "0" }\n'
            f'[[host]]\nname = "here"\ngpus = [{gpus}]\n'
        )
    command = [program, "run", inventory, "--out", folder, "--arms", "none", "--backends", "nccl,mailbox"]
    command += ["--steps", "suite-*", "--runner", gate.binary] + (["--share-gpu"] if gate.shared else [])
    began = gate.now()
    said, code = tool(gate, step, command, 200)
    checked, verified = tool(gate, "receipt-verify", [program, "receipt", "verify", folder, "--binary", gate.binary], 60)
    words = set()
    try:
        with open(os.path.join(folder, "events.jsonl")) as events:
            for line in events:
                event = json.loads(line)
                if event.get("code") == "nccl-net":
                    words.add(event["text"])
    except OSError as error:
        words.add(str(error))
    # NCCL speaks of its network once a process; a suite of it that says nothing was not heard.
    good = code == 0 and verified == 0 and any("Using" in text for text in words)
    detail = f"run {code}, verify {verified}; NCCL: {'; '.join(sorted(words)) or 'nothing heard'}"
    gate.row(step, "PASSED" if good else "FAILED", detail, gate.now() - began)
    if not good:
        print("\n".join(f"         {line}" for line in (said + checked).splitlines()[-12:]), flush=True)
