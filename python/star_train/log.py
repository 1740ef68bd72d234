"""Run logs (``run.jsonl``, docs/files.md) for notebooks.

>>> from star_train import log
>>> tables = log.load("star-out")          # needs pandas
>>> tables["record"].groupby("worker").compute.mean()
"""

import gzip
import json
import math
import os
import re
from typing import TYPE_CHECKING, Any, Dict, Iterator, List

if TYPE_CHECKING:
    import pandas

__all__ = ["load", "rows"]


def _parts(path: str) -> List[str]:
    """The files of a log with a bound (``--log-max``) that are before the one at path, in their order. Where a part was
    being replaced, the file that replaces it counts: the thinned one that goes furthest, and compressed ones."""
    found = []
    folder, base = os.path.split(path)
    for name in os.listdir(folder or "."):
        m = re.fullmatch(re.escape(base) + r"\.(\d{6,})(?:(-\d{6,})?(\.gz))?", name)
        if m:
            last = int(m[2][1:]) if m[2] else int(m[1])
            found.append((-last if m[2] else 0, int(m[1]), not m[3], last, name))
    names: List[str] = []
    reached = 0
    for thinned, _, _, last, name in sorted(found):
        if last > reached and not (thinned and names):
            names.append(os.path.join(folder, name))
            reached = last
    return names


def _lines(run: str) -> Iterator[bytes]:
    path = os.path.join(run, "run.jsonl") if os.path.isdir(run) else run
    for name in [*_parts(path), path]:
        with open(name, "rb") as f:
            magic = f.read(2)
            f.seek(0)
            yield from gzip.GzipFile(fileobj=f) if magic == b"\x1f\x8b" else f


def rows(run: str) -> Dict[str, List[Dict[str, Any]]]:
    """The lines of a run log, or of the job in a folder, by their type. ``null`` is what was not finite: NaN. Telemetry has columns of its
    own, ``telemetry.steal``. A truncated last line is skipped; any other invalid line is a ValueError with its number.
    Of a log with a bound (``--log-max``) all parts are read; rows of type ``gap`` say which lines it lacks."""
    out: Dict[str, List[Dict[str, Any]]] = {}
    bad = ""
    for number, line in enumerate(_lines(run), 1):
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
