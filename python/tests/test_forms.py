"""Scripts of the usual forms, each beside plain PyTorch: the same script in one process, with the batch of all workers together.

A form is a file of forms/. What a script could not do in a job is refused in words, at the step where it begins.
"""

import os
import pathlib
import subprocess
from typing import Any, Callable, Dict

import pytest
from conftest import PATIENCE, python
from test_ddp import ranks
from test_examples import environment, run

torch = pytest.importorskip("torch", reason="PyTorch is not installed (Debian: python3-torch)")

FORMS = pathlib.Path(__file__).with_name("forms")
BATCH = {"gpt": 32, "lstm": 16, "bag": 64, "resnet": 32}

SLOW = ["--mode", "auto", "--slow", "1:3x"]
RING = ["--arch", "allreduce"]

Plain = Callable[..., Dict[str, Any]]


def variables(form: str, way: str, **env: str) -> Dict[str, str]:
    path = os.pathsep.join(p for p in (environment().get("PYTHONPATH"), str(FORMS)) if p)
    return dict(PYTHONPATH=path, BATCH=str(BATCH[form]), WAY=way, **env)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Plain:
    """What plain PyTorch makes of a form: loss, accuracy, state, and the words of its end."""
    made: Dict[Any, Dict[str, Any]] = {}

    def of(form: str, **env: str) -> Dict[str, Any]:
        key = (form, *env.items())
        if key not in made:
            file = str(tmp_path_factory.mktemp(form) / "plain.pt")
            more = variables(form, "plain", STAR_OFF="1", SAVE=file, **env)
            subprocess.run([python(), str(FORMS / (form + ".py"))], env={**environment(), **more}, timeout=PATIENCE, check=True)
            made[key] = torch.load(file)
        return made[key]

    return of


def same(got: Dict[str, Any], want: Dict[str, Any]) -> None:
    """Parameters within 1e-4 of the largest one of their tensor."""
    for k, w in want.items():
        error = float((got[k] - w).abs().max()) / max(float(w.abs().max()), 1e-3)
        assert error < 1e-4, "%s is off by %.2g of its largest element" % (k, error)


def ends(log: str) -> Any:
    """What the workers say behind their loops, by rank."""
    return sorted(line.split("END ")[1] for line in log.splitlines() if "END " in line)


# Where workers take samples in another order, or BatchNorm has statistics of half a batch: how far the loss may be from that of plain PyTorch.
@pytest.mark.parametrize(
    "form, flags, env, bound",
    [
        ("gpt", [*SLOW, "--epochs", "1000"], {}, 0.25),
        ("gpt", [*RING, "--epochs", "1000"], {}, 0.15),
        ("resnet", [*SLOW, "--epochs", "8"], {}, 0.1),
        ("resnet", [*RING, "--epochs", "8"], {}, 0.1),
        ("lstm", [*SLOW, "--epochs", "10"], {"LR": "1", "BETTER": "inf"}, 0.2),
    ],
    ids=lambda v: "".join(v[1:2]) if isinstance(v, list) else str(v) if isinstance(v, str) else "",
)
def test_loss(star: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, plain: Plain, form: str, flags: Any, env: Dict[str, str], bound: float) -> None:
    want = plain(form, **env)
    for k, v in variables(form, "servers", **env).items():
        monkeypatch.setenv(k, v)
    r = run(star, tmp_path, flags, str(FORMS / (form + ".py")))
    assert abs(r["test_loss"] - want["loss"]) < bound, (r, want["loss"])


# A step of the job has the samples of one of plain PyTorch, and every worker says the same of its end.
@pytest.mark.parametrize("form", ["lstm", "bag"])
@pytest.mark.parametrize("way", ["ring", "hook"])
def test_parameters(job: Any, plain: Plain, form: str, way: str) -> None:
    want = plain(form)
    ps = job.start(*RING, "--mode", "ssgd", "--epochs", "1000")
    more = variables(form, way, OWN="1" if way == "ring" else "0")
    ws = [job.worker(FORMS / (form + ".py"), flags=(*RING, "--out", str(job.out)), env={**(e if way == "hook" else {}), **more}, attach=way == "hook") for e in ranks(2)]
    job.finish(ps, *ws)
    same(job.parameters(), want["state"])
    for w in ws:
        assert ends(w.log)[0][2:] == " ".join(map(str, want["words"])), w.log


@pytest.mark.parametrize("form", ["lstm", "bag"])
def test_refused(job: Any, form: str) -> None:
    """A rate that follows the loss, where servers make the updates."""
    ps = job.start("--mode", "ssgd", "--epochs", "1000")
    ws = [job.worker(FORMS / (form + ".py"), env=variables(form, "servers")) for _ in range(2)]
    assert [p.wait() for p in (ps, *ws)] == [2, 2, 2], ws[0].log
    assert any("own=True" in w.log and "--arch allreduce" in w.log for w in ws), ws[0].log
