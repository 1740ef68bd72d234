"""Scripts of DistributedDataParallel whose gradients go around the job's ring."""

import atexit
import socket
import subprocess
import sys
from typing import Any, Dict, List

import pytest
from conftest import PATIENCE, ROOT

torch = pytest.importorskip("torch", reason="PyTorch is not installed (Debian: python3-torch)")

if not torch.distributed.is_available():
    pytest.skip("this PyTorch has no Gloo", allow_module_level=True)

SCRIPT = ROOT / "examples" / "pytorch" / "ddp.py"


def ranks(n: int) -> List[Dict[str, str]]:
    """What a launcher says to each rank. The port stays taken until the end of the tests: who listens says SO_REUSEADDR, too, and nobody else is given it."""
    s = socket.socket()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    s.bind(("127.0.0.1", 0))
    atexit.register(s.close)
    port = s.getsockname()[1]
    return [dict(RANK=str(r), WORLD_SIZE=str(n), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo") for r in range(n)]


def test_like_gloo(job: Any) -> None:
    """The same parameters as DistributedDataParallel alone makes."""
    args = ("--count", "400", "--epochs", "3")
    plain = [subprocess.Popen([sys.executable, str(SCRIPT), "--plain", *args, "--save", str(job.folder / "plain.pt")], env={**job.env, **e}) for e in ranks(2)]
    assert [p.wait(PATIENCE) for p in plain] == [0, 0]
    ps = job.start("--arch", "allreduce", "--mode", "ssgd", "--epochs", "3")
    ws = [job.worker(SCRIPT, *args, "--save", str(job.folder / ("own%s.pt" % e["RANK"])), flags=("--arch", "allreduce", "--out", str(job.out)), env=e) for e in ranks(2)]
    job.finish(ps, *ws)
    want, a, b = (torch.load(job.folder / n) for n in ("plain.pt", "own0.pt", "own1.pt"))
    for k, v in want.items():
        assert torch.allclose(v, a[k], rtol=1e-4, atol=1e-6) and torch.equal(a[k], b[k]), k
    assert job.lines("summary")[-1]["samples"] == 1200


def test_goes_on_without_the_dead(job: Any) -> None:
    """A rank that is killed is left out, where Gloo would end the others."""
    args = ("--count", "1200", "--epochs", "1000")
    ps = job.start("--arch", "allreduce", "--mode", "ssgd", "--steps", "60", workers=3)
    flags = ("--arch", "allreduce", "--out", str(job.out))
    ws = [job.worker(SCRIPT, *args, *(("--die", "10") if i == 2 else ()), flags=flags, env=e) for i, e in enumerate(ranks(3))]
    assert ws[2].wait() != 0
    for w in ws[:2]:
        assert w.wait() == 2 and "epoch 1," in w.log and "the job is over, and the script goes on" in w.log, w.log
    assert ps.wait() == 0
    assert job.lines("summary")[-1]["updates"] > 60  # of 3600 samples, most of them by two
