"""examples/read_a_run.ipynb, cell by cell, on a recorded run."""

import ast
import json
import pathlib

import pytest

pandas = pytest.importorskip("pandas")

ROOT = pathlib.Path(__file__).parents[2]
RUN = ROOT / "cmd" / "star" / "testdata" / "explain.jsonl.gz"


def run_cells(monkeypatch, run):
    """The value of the last line of each code cell, as a notebook shows it."""
    monkeypatch.setenv("STAR_RUN", str(run))
    book = json.loads((ROOT / "examples" / "read_a_run.ipynb").read_text(encoding="utf-8"))
    names, shown = {}, []
    for cell in book["cells"]:
        if cell["cell_type"] != "code":
            continue
        assert not cell["outputs"], "the notebook is kept without outputs"
        *before, last = ast.parse("".join(cell["source"])).body
        exec(compile(ast.Module(before, []), "cell", "exec"), names)
        assert isinstance(last, ast.Expr)
        shown.append(eval(compile(ast.Expression(last.value), "cell", "eval"), names))
    return shown


def test_notebook(monkeypatch):
    kinds, workers, rate, verdicts, plans, evals = run_cells(monkeypatch, RUN)
    assert kinds["record"] == 400 and kinds["fire"] == 120
    assert list(workers.index) == [0, 1, 2, 3] and workers["slowdown"].idxmax() == 2 and workers["slowdown"][2] > 3
    assert workers["iterations"].sum() == 400
    assert rate["max"] > 1000
    assert len(verdicts) == 0 and list(plans["plan"]) == ["x=3"]
    assert evals["accuracy"].iloc[-1] == 0.97


def test_names_are_text(monkeypatch, tmp_path):
    evil = "<script>alert(1)</script>"
    lines = [
        {"type": "record", "t": 0.1, "worker": 0, "load": 0, "compute": 1, "push": 0, "transit": 0, "pull": 0, "wait": 0},
        {"type": "fire", "t": 0.1, "samples": 32},
        {"type": "verdict", "t": 0.2, "worker": 0, "event": "slow", "slowdown": 2, "cause": evil},
        {"type": "plan", "t": 0.2, "from": evil, "plan": evil, "why": evil},
    ]
    (tmp_path / "run.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    _, _, _, verdicts, plans, _ = run_cells(monkeypatch, tmp_path)
    for table in (verdicts, plans):
        html = table._repr_html_()
        assert "&lt;script&gt;" in html and "<script" not in html
