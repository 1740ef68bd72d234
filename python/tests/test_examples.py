"""The scripts of examples/pytorch, small, as whole jobs of star run."""

import difflib
import json
import os
import pathlib
import subprocess
from typing import Any, Dict, List, Tuple

import pytest
from conftest import PATIENCE, ROOT, python

torch = pytest.importorskip("torch", reason="PyTorch is not installed (Debian: python3-torch)")

EXAMPLES = ROOT / "examples" / "pytorch"


def environment() -> Dict[str, str]:
    env = {k: v for k, v in os.environ.items() if not k.startswith("STAR_")}
    env.update(OMP_NUM_THREADS="1")
    if not os.environ.get("STAR_TEST_INSTALLED"):
        env["PYTHONPATH"] = str(ROOT / "python")
    return env


def run(star: str, folder: pathlib.Path, flags: List[str], script: str, *args: str) -> Any:
    """The result of star run."""
    p = subprocess.run(
        [star, "run", "--http", "off", "--listen", "127.0.0.1:0", "--json", "--join-timeout", "4m", "--workers", "2", *flags, "--", python(), str(EXAMPLES / script), *args],
        cwd=folder, env=environment(), capture_output=True, text=True, timeout=PATIENCE,
    )  # fmt: skip
    assert p.returncode == 0, p.stdout + p.stderr
    return json.loads(p.stdout)


JUDGED = """
import importlib, sys
import torch, torch.utils.data as tud
import star_train.torch as star

kept = []
star.evaluate = lambda judge, data, *args, **kwargs: kept.extend([judge, data])
sys.path.insert(0, sys.argv[1])
module = importlib.import_module(sys.argv[2])
del sys.argv[1:3]
module.main()
judge, data = kept
for cell in judge.__closure__ or ():
    if isinstance(cell.cell_contents, torch.nn.Module):
        cell.cell_contents.eval()
with torch.no_grad():
    loss, right, count = map(sum, zip(*(judge(batch) for batch in tud.DataLoader(data, 50))))
print("JUDGED", loss / count, right / count)
"""


def plain(script: str, *args: str) -> Tuple[float, float]:
    """Loss and accuracy that plain PyTorch makes of an example, in one process."""
    env = {**environment(), "STAR_OFF": "1"}
    p = subprocess.run([python(), "-c", JUDGED, str(EXAMPLES), script, *args], env=env, capture_output=True, text=True, timeout=PATIENCE)
    assert p.returncode == 0, p.stdout + p.stderr
    loss, accuracy = p.stdout.split("JUDGED")[1].split()
    return float(loss), float(accuracy)


def test_mnist_beside_plain() -> None:
    """What turns the classic script into one of STAR: an import, and a line each for the optimizer, the schedule, the evaluation and the data."""
    plain, star = ((EXAMPLES / n).read_text().splitlines() for n in ("mnist_plain.py", "mnist.py"))
    diff = [d for d in difflib.unified_diff(plain, star, n=0, lineterm="") if d[:1] in "+-" and d[:3] not in ("+++", "---")]
    code = [d for d in diff if d[1:].strip() and "mnist_plain" not in d and '"""' not in d]
    assert [d[0] for d in code].count("-") == 3 and [d[0] for d in code].count("+") == 5, "\n".join(diff)


def test_mnist_plain() -> None:
    p = subprocess.run([python(), str(EXAMPLES / "mnist_plain.py"), "--count", "600", "--epochs", "2"], capture_output=True, text=True, timeout=PATIENCE)
    assert p.returncode == 0, p.stderr
    assert float(p.stdout.split("accuracy ")[1]) > 0.8


def test_mnist(star: str, tmp_path: pathlib.Path) -> None:
    """star eval says of the checkpoint what the job said, and refuses another model."""
    args = ("--count", "600", "--epochs", "2", "--batch-size", "32")
    r = run(star, tmp_path, ["--arch", "allreduce"], "mnist.py", *args)
    assert r["samples"] == 1200 and r["test_accuracy"] > 0.8, r

    def judge(script: str, *args: str) -> Any:
        command = [star, "eval", "--json", "--", python(), str(EXAMPLES / script), *args]
        return subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=PATIENCE)

    p = judge("mnist.py", *args)
    assert p.returncode == 0, p.stdout + p.stderr
    e = json.loads(p.stdout)
    assert e["accuracy"] == r["test_accuracy"] and abs(e["loss"] - r["test_loss"]) < 1e-5 and e["predictions"] > 0 and e["samples"] == 1200, (e, r)
    more = run(star, tmp_path, ["--arch", "allreduce", "--resume", "star-out"], "mnist.py", *args, "--epochs", "3")  # which has no batches in two epochs
    assert more["samples"] == 600 and more["test_accuracy"] > 0.8, more
    p = judge("chars.py")
    assert p.returncode == 78 and "has other tensors than this model" in p.stderr, p.stdout + p.stderr


def test_chars(star: str, tmp_path: pathlib.Path) -> None:
    r = run(star, tmp_path, ["--mode", "ssgd"], "chars.py", "--epochs", "10", "--width", "32", "--layers", "1", "--length", "32", "--batch-size", "4")
    assert r["test_loss"] < 3.6, r  # of 4.2 for letters by chance, 5.1 after an epoch


def test_resnet(star: str, tmp_path: pathlib.Path) -> None:
    args = ("--count", "200", "--epochs", "3", "--blocks", "1", "--width", "8", "--batch-size", "5", "--accumulate", "2", "--num-workers", "1", "--bf16")
    r = run(star, tmp_path, ["--mode", "ssgd"], "resnet.py", *args)
    assert r["samples"] == 600 and r["test_accuracy"] > 0.2, r


def test_vae(star: str, tmp_path: pathlib.Path) -> None:
    """A summed loss, of whole batches and of parts of them, by the same updates, and those of plain PyTorch with the batch of both workers."""
    losses = [plain("vae", "--count", "1000", "--epochs", "4", "--batch-size", "64")[0]]
    for k, flags in enumerate((["--mode", "ssgd"], ["--mode", "ssgd queue=8"])):
        (tmp_path / str(k)).mkdir()
        r = run(star, tmp_path / str(k), flags, "vae.py", "--count", "1000", "--epochs", "4", *(["--divisible"] if k else []))
        losses.append(r["test_loss"])
    # 100 by chance. Which worker gets which part of a queue depends on time, so its loss varies.
    assert max(losses) < 65 and max(losses) - min(losses) < 8, losses


def test_gan(star: str, tmp_path: pathlib.Path) -> None:
    """Points of the generator near the circle: none at the beginning."""
    r = run(star, tmp_path, ["--arch", "allreduce"], "gan.py", "--count", "3000", "--epochs", "8", "--batch-size", "32")
    assert r["samples"] == 24_000 and r["test_accuracy"] > 0.3, r


def test_reinforce(star: str, tmp_path: pathlib.Path) -> None:
    r = run(star, tmp_path, ["--mode", "ssgd"], "reinforce.py", "--episodes", "600")
    _, accuracy = plain("reinforce", "--episodes", "600", "--batch-size", "16")
    assert r["samples"] == 1200 and min(r["test_accuracy"], accuracy) > 0.8, (r, accuracy)
