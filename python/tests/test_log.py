"""Run logs as tables."""

import gzip
import math

import pytest

from star_train import log

LINES = b"""{"type":"start","format":1,"job":"star"}
{"type":"record","t":0.1,"worker":0,"step":0,"compute":0.01,"loss":null,"telemetry":{"steal":0.5}}
{"type":"record","t":0.2,"worker":1,"step":0,"compute":0.03,"loss":2.5}
{"type":"fire","t":0.2,"seq":1,"version":1,"workers":[0,1]}
"""


@pytest.mark.parametrize("packed", [False, True])
def test_rows(tmp_path, packed):
    path = tmp_path / "run.jsonl"
    path.write_bytes(gzip.compress(LINES) if packed else LINES)
    for run in (str(path), str(tmp_path)):
        got = log.rows(run)
        assert sorted(got) == ["fire", "record", "start"]
        assert [r["worker"] for r in got["record"]] == [0, 1]
        assert math.isnan(got["record"][0]["loss"]) and got["record"][0]["telemetry.steal"] == 0.5
        assert got["fire"][0]["workers"] == [0, 1]


def test_parts(tmp_path):
    """A log with a bound is read with its parts; a file that is being replaced counts once."""

    def line(n):
        return b'{"type":"record","t":%d,"step":%d}\n' % (n, n)

    def write(name, *lines):
        text = b"".join(lines)
        (tmp_path / name).write_bytes(gzip.compress(text) if name.endswith(".gz") else text)

    start, gap = b'{"type":"start","format":1}\n', b'{"type":"gap","t":1,"until":2,"records":2}\n'
    write("run.jsonl.000001.gz", start, line(1))  # thinned since
    write("run.jsonl.000001-000001.gz", start, gap)  # thinned twice since
    write("run.jsonl.000001-000002.gz", start, gap)
    write("run.jsonl.000003.gz", line(3))
    write("run.jsonl.000004", line(4))  # compressed since
    write("run.jsonl.000004.gz", line(4))
    write("run.jsonl.000005", line(5))
    write("run.jsonl", line(6))
    for other in ("run.jsonl.7", "run.jsonl.bak", "run.1.jsonl.000001", ".star-1"):
        write(other, b"no log")
    got = log.rows(str(tmp_path))
    assert [r["step"] for r in got["record"]] == [3, 4, 5, 6]
    assert len(got["start"]) == 1 and [g["records"] for g in got["gap"]] == [2]


def test_cut_and_bad(tmp_path):
    path = tmp_path / "run.jsonl"
    path.write_bytes(LINES + b'{"type":"rec')
    assert len(log.rows(str(path))["record"]) == 2
    path.write_bytes(LINES + b"<script>\n" + LINES)
    with pytest.raises(ValueError, match="line 5"):
        log.rows(str(path))
    path.write_bytes(b"no log")
    with pytest.raises(ValueError, match="line 1"):
        log.rows(str(path))


def test_load(tmp_path):
    (tmp_path / "run.jsonl").write_bytes(LINES)
    try:
        import pandas  # noqa: F401
    except ImportError:
        with pytest.raises(ImportError, match="pandas"):
            log.load(str(tmp_path))
        return
    record = log.load(str(tmp_path))["record"]
    assert list(record.groupby("worker").compute.mean()) == [0.01, 0.03]
