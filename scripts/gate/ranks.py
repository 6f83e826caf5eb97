"""Starts the ranks of one step, ends them at the limit, and reads what they said."""

import json
import os
import re
import secrets
import signal
import socket
import subprocess
import threading
import time


def now_ns():
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Rank:
    """One process: its output, and when it was seen to be gone."""

    def __init__(self, number, command, env):
        self.number = number
        self.events, self.lines = [], []
        self.gone_ns = None
        self.process = subprocess.Popen(
            command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
        )
        self.readers = [
            threading.Thread(target=self._events, daemon=True),
            threading.Thread(target=self._lines, daemon=True),
            threading.Thread(target=self._reap, daemon=True),
        ]
        for reader in self.readers:
            reader.start()

    def _events(self):
        for line in self.process.stdout:
            try:
                self.events.append(json.loads(line))
            except ValueError:
                self.lines.append(line.decode(errors="replace").rstrip())

    def _lines(self):
        for line in self.process.stderr:
            self.lines.append(line.decode(errors="replace").rstrip())

    def _reap(self):
        self.process.wait()
        self.gone_ns = now_ns()

    def kill(self):
        if self.process.poll() is None:
            try:
                os.killpg(self.process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass

    def finish(self):
        for reader in self.readers:
            reader.join(timeout=5)
        return self.process.returncode

    def of(self, kind):
        return [event for event in self.events if event.get("event") == kind]

    def summary(self):
        found = self.of("summary")
        return found[-1] if found else None

    def left_ns(self):
        """When it was about to leave by the fate channel, or None."""
        for line in self.lines:
            found = re.search(r"LEAVE (\d+) at (\d+) ns", line)
            if found:
                return int(found.group(2))
        return None


class Step:
    """All ranks of one step."""

    def __init__(self, binary, gpus, arguments, settings, wrapper=()):
        secret = secrets.token_hex(32)
        port = str(free_port())
        self.began = time.monotonic()
        self.ranks = []
        for rank, gpu in enumerate(gpus):
            env = dict(os.environ)
            env.update(
                TF_TP_RANK=str(rank),
                TF_TP_WORLD=str(len(gpus)),
                TF_TP_MASTER="127.0.0.1",
                TF_TP_PORT=port,
                TF_TP_SECRET=secret,
                TF_TP_DEVICE=str(gpu),
                TF_TP_BOOT_TIMEOUT="60",
                TF_TP_MAILBOX_TIMEOUT_S="30",
                NCCL_NVLS_ENABLE="0",
                NCCL_SOCKET_IFNAME=os.environ.get("NCCL_SOCKET_IFNAME", "lo"),
            )
            if len(set(gpus)) < len(gpus):
                env["NCCL_HOSTID"] = f"gate-rank-{rank}"
            env.update(settings)
            self.ranks.append(Rank(rank, [*wrapper, binary, "--events", *arguments], env))

    def wait(self, limit, only=None):
        """Waits for these ranks (all of them) and kills what is left at the limit. False: the limit came."""
        until = self.began + limit
        waited = [rank for rank in self.ranks if only is None or rank.number in only]
        while time.monotonic() < until and any(rank.gone_ns is None for rank in waited):
            time.sleep(0.002)
        in_time = all(rank.gone_ns is not None for rank in waited)
        return in_time

    def end(self):
        for rank in self.ranks:
            rank.kill()
        return [rank.finish() for rank in self.ranks]

    def seconds(self):
        return time.monotonic() - self.began

    def log(self):
        out = []
        for rank in self.ranks:
            out.append(f"--- rank {rank.number}: exit {rank.process.returncode}")
            out.extend(rank.lines)
        return "\n".join(out) + "\n"
