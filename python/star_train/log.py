"""Run logs (``run.jsonl``, docs/files.md) for notebooks.

>>> from star_train import log
>>> tables = log.load("star-out")          # needs pandas
>>> tables["record"].groupby("worker").compute.mean()
"""

import gzip
import json
import math
import os
from typing import IO, TYPE_CHECKING, Any, Dict, List

if TYPE_CHECKING:
    import pandas

__all__ = ["load", "rows"]


def _open(run: str) -> "IO[bytes]":
    path = os.path.join(run, "run.jsonl") if os.path.isdir(run) else run
    f = open(path, "rb")
    magic = f.read(2)
    f.seek(0)
    return gzip.GzipFile(fileobj=f) if magic == b"\x1f\x8b" else f  # type: ignore[return-value]


def rows(run: str) -> Dict[str, List[Dict[str, Any]]]:
    """The lines of a run log, or of the job in a folder, by their type. ``null`` is what was not finite: NaN. Telemetry has columns of its
    own, ``telemetry.steal``. A last line that was cut is passed over; any other line that is none is a ValueError with its number."""
    out: Dict[str, List[Dict[str, Any]]] = {}
    with _open(run) as f:
        bad = ""
        for number, line in enumerate(f, 1):
            if bad:
                raise ValueError(bad)
            try:
                row = json.loads(line)
                kind = row.pop("type")
            except (ValueError, KeyError, AttributeError):
                bad = f"{run}, line {number}: not a line of a run log: {line[:60]!r}"
                continue
            for name, value in (row.pop("telemetry", None) or {}).items():
                row["telemetry." + name] = value
            out.setdefault(kind, []).append({k: math.nan if v is None else v for k, v in row.items()})
        if bad and not out:
            raise ValueError(bad)
    return out


def load(run: str) -> "Dict[str, pandas.DataFrame]":
    """The same as a DataFrame for each type of line: record, fire, verdict, plan, eval, …"""
    try:
        import pandas
    except ImportError as e:
        raise ImportError("star_train.log.load needs pandas (pip install pandas); star_train.log.rows does without") from e
    return {kind: pandas.DataFrame(of) for kind, of in rows(run).items()}
