"""A lab of SSH servers for the measurements (no measurement itself)."""

import hashlib
import os
import pathlib
import re
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
        # The others copy by SFTP, which servers have turned on as a rule; the lab's have not, since nothing of ours needs it.
        for number in range(1, self.hosts + 1):
            etc = self.path / f"hosts/host-{number}/etc"
            etc.mkdir(parents=True)
            (etc / "more-sftp").write_text("Subsystem sftp internal-sftp\n")
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

    def timed(self, command):
        """Runs a command on the workstation; gives its seconds and how it ended."""
        began = time.monotonic()
        done = subprocess.run([SCRIPT, "run", self.path, *map(str, command)], cwd=self.path, capture_output=True, text=True,
                              env=dict(os.environ, ANSIBLE_HOST_KEY_CHECKING="False", ANSIBLE_PYTHON_INTERPRETER="/usr/bin/python3"))
        return time.monotonic() - began, done

    def run(self, command, wrong=lambda said: None):
        """Runs a command of ours, which must end well; gives its seconds."""
        seconds, done = self.timed(command)
        why = f"ended with {done.returncode}" if done.returncode else wrong(done.stdout)
        if why:
            sys.exit(f"bench: {' '.join(map(str, command))}: {why}: {done.stdout}{done.stderr}")
        return seconds

    def rival(self, command, wrong):
        """Runs another tool's command; gives its seconds and, in words, why they count for nothing. An exit code is not
        believed: `wrong` looks at what it said or did."""
        seconds, done = self.timed(command)
        why = f"ended with {done.returncode}" if done.returncode else wrong(done.stdout)
        if why:
            print(f"bench: {pathlib.Path(command[0]).name} {why}: {(done.stdout + done.stderr).strip()[-600:]}", file=sys.stderr)
        return seconds, why

    def copied(self, blob, hosts, pattern):
        """A look at every host's file, found below its cache: says which hosts have not the bytes of `blob`."""
        want, lacking = digest(blob), []
        for number in range(1, hosts + 1):
            found = list((self.path / f"hosts/host-{number}/home/.cache/tp-bringup").glob(pattern))
            if [digest(path) for path in found] != [want]:
                lacking.append(f"host-{number}")
        return f"left no whole copy on {', '.join(lacking)}" if lacking else None

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
        # -S: a host's failure is the command's, which otherwise ends with 0.
        return ["-S", "-l", "root", "-o", self.ssh_options(), "-w", ",".join(self.addresses(hosts))]

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


def digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def answered(hosts):
    """A look at what every host answered, one secret each: says how many are lacking."""
    def wrong(said):
        secrets = set(re.findall(r"\b[0-9a-f]{64}\b", said))
        return None if len(secrets) == hosts else f"brought {len(secrets)} answers of {hosts}"
    return wrong


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
