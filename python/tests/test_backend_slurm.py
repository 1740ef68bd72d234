"""The commands for Slurm and the script in docs/backend.md, with a Slurm of this test on two hosts, which are network namespaces."""

import ctypes
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from typing import Any, Dict, Iterator, List

import pytest
from backend_hosts import Hosts
from conftest import PATIENCE, ROOT, as_installed

torch = pytest.importorskip("torch", reason="PyTorch is not installed (Debian: python3-torch)")

if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 5):
    pytest.skip("the backend needs PyTorch 2.5 or later, this is %s" % torch.__version__, allow_module_level=True)

PAGE = (ROOT / "docs" / "backend.md").read_text()
COMMANDS = re.findall(r"^srun .*", PAGE, re.MULTILINE)
PATH = os.environ["PATH"] + ":/usr/sbin"
CONFIG = """ClusterName=test
SlurmctldHost={name}({a})
SlurmctldPort=6817
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock
CredType=cred/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SlurmdParameters=config_overrides
MessageTimeout=100
NodeName={a} NodeAddr={a} NodeHostname=localhost Port=6818 CPUs=8
NodeName={b} NodeAddr={b} NodeHostname=localhost Port=6818 CPUs=8
PartitionName=all Nodes=ALL Default=YES State=UP
"""


class Slurm:
    """A cluster with a node on each host."""

    def __init__(self, hosts: Hosts) -> None:
        self.hosts, self.folder = hosts, pathlib.Path(tempfile.mkdtemp(prefix="slurm"))  # a path that is short enough for a socket
        self.env: Dict[str, str] = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "STAR_"))}
        self.env.update(PATH=PATH, SLURM_CONF=str(self.folder / "slurm.conf"))
        self.daemons: List[Any] = []
        for name in ("state", "spool"):
            (self.folder / name).mkdir()
        (self.folder / "munge.key").touch(0o600)
        (self.folder / "munge.key").write_bytes(os.urandom(1024))
        (self.folder / "slurm.conf").write_text(CONFIG.format(name=socket.gethostname(), folder=self.folder, **hosts.address))
        munge = [
            "--%s=%s/%s" % (k, self.folder, v)
            for k, v in (("key-file", "munge.key"), ("socket", "munge.sock"), ("pid-file", "munge.pid"), ("log-file", "munge.log"), ("seed-file", "munge.seed"))
        ]
        self.daemon("a", "munged", "--foreground", "--force", *munge)
        self.until("munged listens", (self.folder / "munge.sock").exists)
        self.daemon("a", "slurmctld", "-D")
        for host in "ab":
            self.daemon(host, "slurmd", "-D", "-N", hosts.address[host])
        self.until("both nodes are idle", lambda: self.run("sinfo", "-h", "-t", "idle", "-o", "%D").stdout.strip() == "2")

    def daemon(self, host: str, name: str, *args: str) -> None:
        def enter() -> None:
            self.hosts.enter(host)
            ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # it ends with this process (PR_SET_PDEATHSIG)

        with open(self.folder / ("%s%s.out" % (name, host)), "w") as out:
            self.daemons.append(subprocess.Popen([name, *args], env=self.env, stdout=out, stderr=out, preexec_fn=enter))

    def run(self, *command: str, **env: str) -> Any:
        """Runs a command on host a."""
        return subprocess.run(command, env=dict(self.env, **env), cwd=self.folder, capture_output=True, text=True, timeout=PATIENCE, preexec_fn=lambda: self.hosts.enter("a"))

    def until(self, what: str, done: Any) -> None:
        end = time.monotonic() + PATIENCE
        while not done():
            logs = "".join("%s:\n%s\n" % (p.name, p.read_text()[-2000:]) for p in self.folder.glob("*.out"))
            assert time.monotonic() < end, "not done: %s\n%s" % (what, logs)
            time.sleep(0.05)

    def close(self) -> None:
        for d in reversed(self.daemons):
            d.kill()
            d.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


@pytest.fixture(scope="module")
def slurm() -> Iterator[Slurm]:
    for name in ("munged", "slurmctld", "slurmd", "srun"):
        if not shutil.which(name, path=PATH):
            pytest.skip("needs Slurm (Debian: slurmctld slurmd slurm-client munge): no " + name)
    try:
        hosts = Hosts()
    except OSError as e:
        pytest.skip("no network namespaces here: %s" % e)
    try:
        made = Slurm(hosts)
        yield made
        made.close()
    finally:
        hosts.close()


def test_commands_are_found() -> None:
    assert len(COMMANDS) == 2, PAGE


@pytest.mark.parametrize("command", COMMANDS)
def test_srun(command: str, slurm: Slurm, star: str, tmp_path: pathlib.Path) -> None:
    (slurm.folder / "train.py").write_text(PAGE.split("```python\n", 1)[1].split("```", 1)[0])
    programs = {"PATH": "%s:%s" % (os.path.dirname(sys.executable), PATH), "STAR_AGENT": star, "PYTHONPATH": as_installed(tmp_path)}
    command = re.sub(r"per([-_])node 2", r"per\1node 1", command)  # fewer processes that import PyTorch
    done = slurm.run("bash", "-c", command, BACKEND="star", OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="cable", **programs)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    assert "2 ranks of train.py" in said and "DDP over star" in said, said
    (loss,) = re.findall(r"^step 200 loss (\S+)$", done.stdout, re.MULTILINE)
    assert float(loss) < 0.2, said
