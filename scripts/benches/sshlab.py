"""A lab of SSH servers for the measurements (no measurement itself)."""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

import common

SCRIPT = common.ROOT / "scripts/ssh-lab"
PINS = ["ansible-core==2.17.7", "ClusterShell==1.9.3"]


class Lab:
    """Hosts on a file system in memory, so that eight files at once are not this machine's disk."""

    def __init__(self, hosts):
        self.hosts = hosts

    def __enter__(self):
        self.mount = pathlib.Path(tempfile.mkdtemp(prefix="tp-bench-"))
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=80%", "tmpfs", self.mount], check=True)
        self.path = self.mount / "lab"
        try:
            self.lab("up", "--hosts", str(self.hosts))
        except subprocess.CalledProcessError as error:
            self.__exit__()
            sys.exit(f"bench: {error.stdout.decode().strip()}")
        return self

    def __exit__(self, *_):
        if (self.path / "lab.json").exists():
            self.lab("down")
        subprocess.run(["umount", "-l", self.mount], check=True)
        self.mount.rmdir()

    def lab(self, verb, *words):
        subprocess.run([SCRIPT, verb, self.path, *words], check=True, stdout=subprocess.PIPE)

    def run(self, command):
        """Runs a command on the workstation; gives its seconds."""
        began = time.monotonic()
        done = subprocess.run([SCRIPT, "run", self.path, *map(str, command)], cwd=self.path, capture_output=True, text=True,
                              env=dict(os.environ, ANSIBLE_HOST_KEY_CHECKING="False", ANSIBLE_PYTHON_INTERPRETER="/usr/bin/python3"))
        if done.returncode:
            sys.exit(f"bench: {' '.join(map(str, command))} ended with {done.returncode}: {done.stdout}{done.stderr}")
        return time.monotonic() - began

    def inventory(self, hosts):
        parts = (self.path / "inventory.toml").read_text().split("[[host]]")
        path = self.path / f"{hosts}.toml"
        path.write_text("[[host]]".join(parts[: hosts + 1]))
        return path

    def addresses(self, hosts):
        return [f"192.0.2.{number}" for number in range(1, hosts + 1)]

    def ssh_options(self):
        ssh = self.path / "home/.ssh"
        return f"-F none -i {ssh}/id_ed25519 -o UserKnownHostsFile={ssh}/known_hosts"

    def ansible_inventory(self, hosts):
        path = self.path / "hosts.ini"
        lines = [f"{address} ansible_user=root ansible_ssh_common_args='{self.ssh_options()}'" for address in self.addresses(hosts)]
        path.write_text("\n".join(lines) + "\n")
        return path

    def clush(self, hosts):
        return ["-l", "root", "-o", self.ssh_options(), "-w", ",".join(self.addresses(hosts))]

    def forget(self, blob):
        """Takes the file away from every host."""
        for home in (self.path / "hosts").glob("*/home"):
            cache = home / ".cache/tp-bringup"
            (cache / "blob").unlink(missing_ok=True)
            for found in cache.glob(f"bin/*/{blob.name}"):
                shutil.rmtree(found.parent)

    def runner_path(self):
        found = next((self.path / "hosts/host-1/home").glob(".cache/tp-bringup/bin/*/tf-tp-test"))
        return "/root/" + str(found.relative_to(self.path / "hosts/host-1/home"))


def programs(args, lab):
    """The stripped runner and the orchestrator, in the lab's folder."""
    runner = pathlib.Path(common.runner(args))
    target = runner.parent
    if not args.binary:
        subprocess.run(["cargo", "build", "--release", "--quiet", "-p", "tp-orchestrate"], cwd=common.ROOT, check=True)
    orchestrate = target / "tp-orchestrate"
    if not orchestrate.exists():
        sys.exit(f"bench: there is no tp-orchestrate beside {runner}")
    stripped = lab.path / "tf-tp-test"
    if subprocess.run(["strip", "-o", stripped, runner]).returncode:
        shutil.copy(runner, stripped)
    return stripped, orchestrate


def tools():
    """Ansible and clush in a virtual environment of the cache."""
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache")) / "tp-bringup/tools"
    venv = cache / ("beside-" + "-".join(pin.split("==")[1] for pin in PINS))
    if not (venv / "bin/clush").exists():
        subprocess.run([sys.executable, "-m", "venv", venv], check=True)
        subprocess.run([venv / "bin/pip", "install", "--quiet", *PINS], check=True)
    return venv / "bin"
