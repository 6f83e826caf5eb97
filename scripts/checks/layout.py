#!/usr/bin/env python3
"""Keeps the structure: dependency arrows between crates, what a newcomer meets first, what must not stand in the tree.

Usage: layout.py            (from anywhere inside the repository)
Exit 0 when all holds, 1 with one line per fault.
"""

import json
import os
import re
import subprocess
import sys

# Which workspace crates a crate may depend on. Runner and orchestrator meet only in tp-receipt.
ARROWS = {
    "tp-hca": set(),
    "tp-verbs": set(),
    "tp-nccl": set(),
    "tp-kernels": set(),
    "tp-receipt": set(),
    "tp-fabric": {"tp-hca", "tp-verbs", "tp-nccl", "tp-kernels"},
    "tf-tp-test": {"tp-fabric", "tp-hca", "tp-receipt"},
    "tp-orchestrate": {"tp-hca", "tp-receipt"},
}
# Calls and paths that only Linux has stand in a crate's `os` module, where each has a portable twin; a workstation is often a
# Mac. Text for people and the generated bindings may name them.
LINUX_ONLY = re.compile(
    r"\bpipe2\b|\baccept4\b|TCP_KEEP(?:IDLE|ALIVE|INTVL|CNT)|TcpKeepalive|POLLRDHUP|sched_[gs]etaffinity|\bCpuSet\b|pdeathsig"
    r"|PR_SET_|\bprctl\(|\bO_TMPFILE\b|\bO_PATH\b|posix_fallocate|\bfallocate\b|[TS]IOC\w*OUTQ|memfd_create|\beventfd\b|\bepoll\w*\(|\btimerfd|"
    r"\bsignalfd|\bsetns\b|\bunshare\(|\bstatx\b|SO_PEERCRED|\bsyncfs\b|\binotify|MADV_(?:DONTFORK|NOHUGEPAGE|POPULATE)|\"/proc/(?!sys/kernel)"
)
LINUX_PLACES = re.compile(r"/os/|/os\.rs$")
# The one has rtnetlink in a module with a portable twin of its own, the other a script that runs on the ranks' hosts.
LINUX_ALLOWED = {"crates/tp-hca/src/route.rs", "crates/tp-orchestrate/src/exec/leftovers.rs"}
REQUIRED = """
.ci/run Cargo.lock Cargo.toml CHANGELOG.md LICENSE-APACHE LICENSE-MIT README.md SECURITY.md THIRD_PARTY_NOTICES.md
deny.toml docs hosts/local.toml rust-toolchain.toml scripts/demo scripts/test
""".split()
EXECUTABLE = [".ci/run", "scripts/demo", "scripts/test", "scripts/bench"]
README_LINES_MAX = 200
# A file that outgrows this is to be split; generated bindings are named here with their script.
SOURCE_LINES_MAX = 600
GENERATED = {"crates/tp-verbs/src/sys.rs", "crates/tp-nccl/src/sys.rs"}
# Paths of somebody's machine, and addresses of package registries, do not belong in the tree.
FORBIDDEN = re.compile(
    r"(?<![\w.])/(?:work|farm)/|/home/(?!(?:alice|somebody)/)[a-z]\w+/|/Users/[A-Za-z]\w+/"
    r"|https?://(?:deb|security|files|registry|static|index|pypi)\.[a-z]"
)


def git_files(root):
    out = subprocess.run(["git", "-C", root, "ls-files", "-z"], check=True, capture_output=True).stdout
    return [f for f in out.decode().split("\0") if f and os.path.exists(os.path.join(root, f))]


def arrows(root):
    meta = json.loads(subprocess.run(
        ["cargo", "metadata", "--no-deps", "--format-version", "1", "--locked"],
        cwd=root, check=True, capture_output=True).stdout)
    names = {p["name"] for p in meta["packages"]}
    for missing in sorted(set(ARROWS) - names):
        yield f"crate {missing} is gone from the workspace"
    for package in meta["packages"]:
        name = package["name"]
        if name not in ARROWS:
            yield f"crate {name} has no place in scripts/checks/layout.py: say whom it may depend on"
            continue
        for dep in package["dependencies"]:
            # Tests may use what the code may not: a test of the orchestrator starts the real runner.
            if dep["name"] in names and dep["kind"] != "dev" and dep["name"] not in ARROWS[name]:
                yield f"{name} depends on {dep['name']}, against the arrows of docs/architecture.md"


def text_faults(root, files):
    for path in files:
        full = os.path.join(root, path)
        try:
            text = open(full, encoding="utf-8").read()
        except UnicodeDecodeError:
            continue
        lines = text.count("\n")
        if path.endswith(".rs") and path not in GENERATED and lines > SOURCE_LINES_MAX:
            yield f"{path}: {lines} lines, more than {SOURCE_LINES_MAX}: split it by concern"
        if path not in ("Cargo.lock", "scripts/checks/layout.py"):
            for number, line in enumerate(text.splitlines(), 1):
                hit = FORBIDDEN.search(line)
                if hit:
                    yield f"{path}:{number}: `{hit.group(0)}` names a machine's path or a registry host"


def linux_names(root, files):
    for path in files:
        if not re.match(r"crates/[^/]+/src/.*\.rs$", path) or path in GENERATED | LINUX_ALLOWED or LINUX_PLACES.search(path):
            continue
        text = open(os.path.join(root, path), encoding="utf-8").read()
        # Tests run where they can and say so.
        code = re.split(r"\n#\[cfg\((?:all\()?test\b", text)[0]
        for number, line in enumerate(code.splitlines(), 1):
            hit = LINUX_ONLY.search(line.split("//")[0])
            if hit:
                yield f"{path}:{number}: `{hit.group(0)}` is Linux's alone: it belongs in the crate's os module, beside a portable twin"


LINK = re.compile(r"\]\((?!https?:|mailto:|#)([^)\s#]+)(?:#[^)]*)?\)")


def doc_links(root, files):
    for path in (f for f in files if f.endswith(".md")):
        for target in LINK.findall(open(os.path.join(root, path), encoding="utf-8").read()):
            if not os.path.exists(os.path.join(root, os.path.dirname(path), target)):
                yield f"{path}: link to {target}, which is not there"


def main():
    root = subprocess.run(["git", "rev-parse", "--show-toplevel"], check=True, capture_output=True,
                          cwd=os.path.dirname(os.path.abspath(__file__))).stdout.decode().strip()
    files = git_files(root)
    faults = list(arrows(root)) + list(text_faults(root, files)) + list(doc_links(root, files)) + list(linux_names(root, files))
    faults += [f"{p} is not there" for p in REQUIRED if not os.path.exists(os.path.join(root, p))]
    faults += [f"{p} is not executable" for p in EXECUTABLE
               if os.path.exists(os.path.join(root, p)) and not os.access(os.path.join(root, p), os.X_OK)]
    readme = os.path.join(root, "README.md")
    if os.path.exists(readme) and len(open(readme).readlines()) >= README_LINES_MAX:
        faults.append(f"README.md has {README_LINES_MAX} lines or more")
    for fault in faults:
        print(f"layout: {fault}")
    print(f"layout: {len(files)} files, {len(ARROWS)} crates, {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
