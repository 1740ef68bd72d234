"""Workers in JAX."""

import json
import pathlib
from typing import Any

import pytest
from conftest import ROOT

jax = pytest.importorskip("jax", reason="JAX is not installed (make jax installs it)")
np = pytest.importorskip("numpy")

TRAIN = """
import json
import jax, numpy as np
import star_train.jax as star

class Data:
    def __init__(self):
        draw = np.random.default_rng(3)
        self.x = draw.normal(size=(320, 6)).astype(np.float32)
        self.y = (self.x @ draw.normal(size=6)).astype(np.float32)
    def __len__(self):
        return 320
    def __getitem__(self, i):
        print("sample", i, flush=True)
        return self.x[i], self.y[i]

def loss(params, batch):
    return ((batch[0] @ params["w"] + params["b"][0] - batch[1]) ** 2).mean()

params = star.train(jax.value_and_grad(loss), {"w": np.zeros(6, np.float32), "b": [np.zeros((), np.float32)]}, Data(), optimizer={"name": "sgd", "lr": 0.05}, batch_size=16)
print("DEVICE", jax.devices()[0].platform, flush=True)
print("PARAMS", json.dumps([params["w"].tolist(), float(params["b"][0])]), flush=True)
"""


def test_like_one_process(job: Any) -> None:
    job.env["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"  # where there is a GPU both workers use it
    script = job.script(TRAIN)
    ps = job.start("--mode", "ssgd", "--steps", "100")
    ws = [job.worker(script) for _ in range(2)]
    job.finish(ps, *ws)
    draw = np.random.default_rng(3)
    x = draw.normal(size=(320, 6)).astype(np.float32)
    y = (x @ draw.normal(size=6)).astype(np.float32)
    streams = [[int(line.split()[1]) for line in w.log.splitlines() if line.startswith("sample ")] for w in ws]
    assert [len(s) for s in streams] == [1600, 1600]
    w, b = np.zeros(6), 0.0
    for k in range(100):
        i = streams[0][16 * k : 16 * k + 16] + streams[1][16 * k : 16 * k + 16]
        off = x[i].astype(np.float64) @ w + b - y[i]
        w, b = w - 0.05 * 2 * (off @ x[i]) / 32, b - 0.05 * 2 * off.mean()
    for worker in ws:
        assert "DEVICE %s\n" % jax.default_backend() in worker.log
        got = json.loads(worker.log.split("PARAMS ")[1].splitlines()[0])
        assert np.allclose(got[0], w, rtol=1e-4, atol=1e-5) and abs(got[1] - b) < 1e-5
    assert '"b.0"' in (job.checkpoint() / "manifest.json").read_text()


def test_example(star: str, tmp_path: pathlib.Path) -> None:
    import os
    import subprocess
    import sys

    from conftest import PATIENCE

    env = {k: v for k, v in os.environ.items() if not k.startswith("STAR_")}
    if not os.environ.get("STAR_TEST_INSTALLED"):
        env["PYTHONPATH"] = str(ROOT / "python")
    p = subprocess.run(
        [star, "run", "--http", "off", "--listen", "127.0.0.1:0", "--json", "--join-timeout", "4m", "--workers", "2", "--", sys.executable, str(ROOT / "examples" / "jax" / "digits.py"), "--count", "3000"],
        cwd=tmp_path, env=env, capture_output=True, text=True, timeout=PATIENCE,
    )  # fmt: skip
    assert p.returncode == 0, p.stdout + p.stderr
    assert json.loads(p.stdout)["test_accuracy"] > 0.8
