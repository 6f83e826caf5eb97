"""An MPS daemon of one's own, so that kernels of several processes run on one GPU at once."""

import os
import subprocess
import tempfile
import time


class Mps:
    """Started on entry; `fresh` ends it and starts another, as after a client that was killed."""

    def __init__(self, wanted):
        self.wanted = wanted
        self.folder = None

    def start(self):
        if not self.wanted or self.folder:
            return
        self.folder = tempfile.TemporaryDirectory(prefix="tp-mps-")
        for name in ("pipe", "log"):
            os.mkdir(os.path.join(self.folder.name, name))
        os.environ["CUDA_MPS_PIPE_DIRECTORY"] = os.path.join(self.folder.name, "pipe")
        os.environ["CUDA_MPS_LOG_DIRECTORY"] = os.path.join(self.folder.name, "log")
        subprocess.run(["nvidia-cuda-mps-control", "-d"], check=True, timeout=20)

    def stop(self):
        if not self.folder:
            return
        try:
            subprocess.run(["nvidia-cuda-mps-control"], input=b"quit -t 1\n", timeout=15, check=False, capture_output=True)
        except subprocess.TimeoutExpired:
            pass
        # The daemon removes its pipes a moment after it has answered.
        control = os.path.join(self.folder.name, "pipe", "control")
        until = time.monotonic() + 5
        while os.path.exists(control) and time.monotonic() < until:
            time.sleep(0.05)
        for name in ("CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"):
            os.environ.pop(name, None)
        self.folder.cleanup()
        self.folder = None

    def fresh(self):
        self.stop()
        self.start()
