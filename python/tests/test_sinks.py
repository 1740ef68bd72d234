"""What star export --to sends is read with the packages of the tools themselves."""

import http.server
import json
import os
import pathlib
import struct
import subprocess
import sys
import threading

import pytest

START = {"type": "start", "format": 1, "program": "star 0.1.0", "time": "2026-01-02T03:04:05Z", "job": "trial", "config": {"arch": "ps", "mode": "auto", "lr": 0.1}}
TRAIN = {"type": "train", "t": 0, "workers": 2, "shards": 1, "model": "m", "model_hash": "h", "params": 1, "data": "d", "samples": 100, "limit": 1000, "version": 0, "plan": "ssgd"}
END = {
    "type": "summary",
    "arch": "ps",
    "mode": "ssgd",
    "workers": 2,
    "shards": 1,
    "model": "m",
    "dataset": "d",
    "seed": 1,
    "steps": 1,
    "updates": 3,
    "samples": 30,
    "wasted_samples": 0,
}
END.update(train_loss=0.5, test_loss=None, test_accuracy=0, evaluated=False, wall_s=1, samples_per_s=1, staleness={"mean": 0, "max": 0, "histogram": {}}, switches=0, bytes_sent=0)
END.update(run_log="", checkpoint="")


def lines(n):
    """Updates, one a second, and a slow worker."""
    for i in range(n):
        for w in range(2):
            yield {
                "type": "record",
                "t": i + 1,
                "worker": w,
                "step": i,
                "basis": i,
                "at": i + 1,
                "load": 0.125,
                "compute": 0.25 + w,
                "push": 0,
                "wait": 0,
                "pull": 0,
                "transit": 0,
            } | {
                "samples": 5,
                "loss": 1 / (i + 1),
                "norm2": 1,
                "cpu": 1,
                "net_in": 1,
                "net_out": 1,
            }
        yield {"type": "fire", "t": i + 1, "seq": i + 1, "version": i + 1, "workers": [0, 1], "staleness": [0, 0], "samples": 10 * (i + 1)}
    evidence = [{"what": "load", "value": 1, "other": 0.1, "text": "load 1 s, others 0.1 s"}]
    yield {"type": "verdict", "t": n, "worker": 1, "event": "slow", "step": n, "since": n, "slowdown": 2, "cause": "data", "evidence": evidence}


SAYS = "worker 1 is 2.0x slow since step 3: load 1 s, others 0.1 s"


@pytest.fixture
def run(tmp_path):
    path = tmp_path / "run.jsonl"
    path.write_text("".join(json.dumps(x) + "\n" for x in [START, TRAIN, *lines(3), END]))
    return path


def send(star, run, to, **env):
    # python3 in PATH is the one that has the packages.
    path = os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"]
    return subprocess.run([star, "export", str(run), "--to", to], env={**os.environ, "PATH": path, **env}, cwd=run.parent, capture_output=True, text=True, timeout=240)


ROWS = 3 * 14 - 1 + 4  # scalars; begin, slow, recovered, end


def test_otlp(star, run):
    metrics = pytest.importorskip("opentelemetry.proto.collector.metrics.v1.metrics_service_pb2", reason="opentelemetry-proto is not installed")
    from google.protobuf import json_format
    from opentelemetry.proto.collector.logs.v1 import logs_service_pb2 as logs

    got = []

    class Collector(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            kind = {"/v1/metrics": metrics.ExportMetricsServiceRequest, "/v1/logs": logs.ExportLogsServiceRequest}[self.path]
            got.append(json_format.Parse(self.rfile.read(int(self.headers["Content-Length"])), kind(), ignore_unknown_fields=False))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *_):
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Collector)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        out = send(star, run, "otlp=http://127.0.0.1:%d" % server.server_port)
    finally:
        server.shutdown()
    assert out.returncode == 0 and "otlp: %d rows sent, 0 lost" % ROWS in out.stdout, out.stderr
    points = {}
    bodies = []
    for request in got:
        for resource in getattr(request, "resource_metrics", []):
            assert {a.key: a.value.string_value for a in resource.resource.attributes}["star.job"] == "trial"
            for m in resource.scope_metrics[0].metrics:
                points.setdefault(m.name, []).extend(m.gauge.data_points)
        for resource in getattr(request, "resource_logs", []):
            bodies += [(r.severity_number, r.body.string_value) for r in resource.scope_logs[0].log_records]
    assert [p.as_double for p in points["star.train.loss"]] == [1, 0.5, 1 / 3]
    assert points["star.train.loss"][0].time_unix_nano == 1767323046 * 10**9
    assert [(p.attributes[0].value.int_value, p.as_double) for p in points["star.worker.compute"]][:2] == [(0, 0.25), (1, 1.25)]
    assert (13, SAYS) in bodies


def records(data):
    """Those of a .wandb file: a header of 7 bytes, then a log of LevelDB, in blocks of 32 KiB."""
    at, whole = 7, b""
    while at + 7 <= len(data):
        left = 32768 - at % 32768
        if left < 7:
            at += left
            continue
        length, kind = struct.unpack_from("<HB", data, at + 4)
        whole += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):
            yield whole
            whole = b""


def test_wandb_offline(star, run):
    pytest.importorskip("wandb", reason="wandb is not installed")
    from wandb.proto import wandb_internal_pb2 as pb

    out = send(star, run, "wandb=demo", WANDB_MODE="offline", WANDB_SILENT="true")
    assert out.returncode == 0 and "wandb: %d rows sent, 0 lost" % ROWS in out.stdout, out.stderr
    (file,) = pathlib.Path(run.parent, "wandb").glob("offline-run-*/*.wandb")
    history, printed, config = [], "", {}
    for data in records(file.read_bytes()):
        record = pb.Record()
        record.ParseFromString(data)
        if record.HasField("history"):
            history.append({i.key or "/".join(i.nested_key): json.loads(i.value_json) for i in record.history.item})
        for field in ("output", "output_raw"):
            if record.HasField(field):
                printed += getattr(record, field).line
        if record.HasField("run") and not config:
            config = {i.key: json.loads(i.value_json) for i in record.run.config.update}
            assert record.run.project == "demo"
    assert [(h["version"], h["train/loss"]) for h in history if "train/loss" in h] == [(1, 1), (2, 0.5), (3, 1 / 3)]
    assert [h["worker 1/compute (s)"] for h in history if "worker 1/compute (s)" in h] == [1.25] * 3
    assert config["lr"] == 0.1 and SAYS in printed


@pytest.mark.parametrize("place", ["sqlite", "file"])
def test_mlflow(star, run, place):
    pytest.importorskip("mlflow", reason="mlflow is not installed")
    uri = "sqlite:///%s" % (run.parent / "ml.db") if place == "sqlite" else str(run.parent / "runs")
    env = {"MLFLOW_TRACKING_URI": uri, "MLFLOW_ALLOW_FILE_STORE": "true"}
    out = send(star, run, "mlflow=demo", **env)
    assert out.returncode == 0 and "mlflow: %d rows sent, 0 lost" % ROWS in out.stdout, out.stderr
    read = """
import json
from mlflow.tracking import MlflowClient
c = MlflowClient()
(run,) = c.search_runs([c.get_experiment_by_name("demo").experiment_id])
loss = [(m.step, m.value) for m in c.get_metric_history(run.info.run_id, "train/loss")]
events = [a.path for a in c.list_artifacts(run.info.run_id, "events")]
slow = [e for e in events if "slow" in e]
text = open(run.info.artifact_uri.replace("file://", "") + "/" + slow[0]).read()
print(json.dumps([run.info.status, run.data.params["lr"], loss, len(events), text, run.data.metrics["worker 1/compute s"]]))
"""
    said = subprocess.run([sys.executable, "-c", read], env={**os.environ, **env}, cwd=run.parent, capture_output=True, text=True, timeout=240)
    assert said.returncode == 0, said.stderr
    assert json.loads(said.stdout.splitlines()[-1]) == ["FINISHED", "0.1", [[1, 1], [2, 0.5], [3, 1 / 3]], 4, "warn %s\n" % SAYS, 1.25]


@pytest.mark.parametrize("tool", ["wandb", "mlflow"])
def test_without_the_package(star, run, tool, tmp_path):
    bare = tmp_path / "bare"
    bare.mkdir()
    (bare / "python3").write_text('#!/bin/sh\nexec %s -S -I "$@"\n' % sys.executable)
    (bare / "python3").chmod(0o755)
    out = subprocess.run([star, "export", str(run), "--to", tool], env={"PATH": str(bare)}, cwd=run.parent, capture_output=True, text=True, timeout=240)
    assert out.returncode == 2 and "pip install %s" % tool in out.stderr, out.stderr
