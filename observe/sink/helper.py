"""Passes what star export --to reads in a run log to the package of Weights & Biases or MLflow.

Started as: python3 -c PROGRAM NAME VALUE. A line of JSON with a batch comes on standard input, and is answered with one.
"""

import json
import os
import re
import sys
import time

USAGE, REFUSED = 2, 77


class Fatal(Exception):
    def __init__(self, text, code=USAGE):
        super().__init__(text)
        self.code = code


def package(name):
    try:
        return __import__(name)
    except ImportError as e:
        raise Fatal("%s cannot be imported by %s (%s): pip install %s" % (name, sys.executable, e, name)) from None


class WandB:
    """A run of Weights & Biases. Its own variables apply: WANDB_API_KEY, WANDB_MODE=offline, WANDB_DIR, …"""

    def __init__(self, project):
        self.project = project
        self.run = None

    def begin(self, batch):
        wandb = self.wandb = package("wandb")
        try:
            self.run = wandb.init(
                project=self.project or os.environ.get("WANDB_PROJECT") or "star",
                id=batch["run"],
                name=os.environ.get("WANDB_NAME") or "%s %s" % (batch["job"], batch["run"]),
                resume="allow",
                config=batch["config"],
                settings=wandb.Settings(console="wrap", x_disable_stats=True, disable_git=True, disable_code=True),
            )
        except wandb.errors.CommError:
            raise
        except (wandb.errors.AuthenticationError, wandb.errors.UsageError) as e:
            raise Fatal("wandb: %s" % e, REFUSED) from None
        self.run.define_metric("version", hidden=True)
        self.known = set()

    def send(self, batch):
        if self.run is None:
            self.begin(batch)
        together = {}
        for r in batch["rows"]:
            if r.get("tag"):
                together.setdefault((r["worker"], r["step"]), {})[r["tag"]] = r["value"]
                continue
            # What is printed is in the log of the run.
            print("%s %-5s %s" % (time.strftime("%H:%M:%S", time.localtime(r["time"])), r["level"], r["says"]))
            if r["level"] != "info":
                level = self.wandb.AlertLevel.ERROR if r["level"] == "error" else self.wandb.AlertLevel.WARN
                self.run.alert(title="%s: %s" % (batch["job"], r["kind"]), text=r["says"], level=level)
        for (worker, step), values in together.items():
            axis = "version" if worker < 0 else "worker %d/step" % worker
            for tag in values:
                if tag not in self.known:
                    self.known.add(tag)
                    self.run.define_metric(tag, step_metric=axis)
            self.run.log({**values, axis: step})
        if batch["lost"]:
            self.run.summary["sink/rows lost"] = batch["lost"]
        if batch["over"]:
            self.run.finish(exit_code=1 if batch["failed"] else 0)
            self.run = None

    def close(self):
        if self.run is not None:
            self.run.finish()


class MLflow:
    """A run of MLflow, where MLFLOW_TRACKING_URI says."""

    def __init__(self, experiment):
        # This program tries again itself.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
        self.experiment = experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME") or "star"
        self.run = ""
        self.events = []

    def begin(self, batch):
        package("mlflow")
        from mlflow.entities import Metric, Param
        from mlflow.tracking import MlflowClient

        self.metric = Metric
        self.client = MlflowClient()
        found = self.client.get_experiment_by_name(self.experiment)
        experiment = found.experiment_id if found else self.client.create_experiment(self.experiment)
        runs = self.client.search_runs([experiment], "tags.`star.run` = '%s'" % batch["run"], max_results=1)
        if runs:
            self.run = runs[0].info.run_id
            self.client.update_run(self.run, status="RUNNING")
            return
        tags = {"star.run": batch["run"], "star.program": batch["program"]}
        run = self.client.create_run(experiment, tags=tags, run_name="%s %s" % (batch["job"], batch["run"])).info.run_id
        params = [Param(k, str(v)[:500]) for k, v in (batch["config"] or {}).items() if v not in ("", None, [], {})]
        for i in range(0, len(params), 100):
            self.client.log_batch(run, params=params[i : i + 100])
        self.run = run

    def send(self, batch):
        if not self.run:
            self.begin(batch)
        metrics = [self.metric(name(r["tag"]), r["value"], int(1000 * r["time"]), r["step"]) for r in batch["rows"] if r.get("tag")]
        if batch["lost"]:
            metrics.append(self.metric("sink/rows lost", batch["lost"], int(1000 * time.time()), 0))
        for i in range(0, len(metrics), 1000):
            self.client.log_batch(self.run, metrics=metrics[i : i + 1000])
        events = [r for r in batch["rows"] if not r.get("tag")]
        for r in events:
            when = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(r["time"]))
            # An artifact for each event: nothing that another process wrote is replaced.
            self.client.log_text(self.run, "%s %s\n" % (r["level"], r["says"]), "events/%s %s.txt" % (when.replace(":", ""), r["kind"]))
        if batch["over"]:
            self.client.set_terminated(self.run, "FAILED" if batch["failed"] else "FINISHED")

    def close(self):
        pass


def name(tag):
    """MLflow allows letters, digits and some signs."""
    return re.sub(r"[^\w./ -]+", "", tag)


def main():
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what packages print
    tool = {"wandb": WandB, "mlflow": MLflow}[sys.argv[1]](sys.argv[2])
    for line in sys.stdin:
        answer = {}
        try:
            tool.send(json.loads(line))
        except Fatal as e:
            answer = {"fatal": str(e), "exit": e.code}
        except Exception as e:
            answer = {"error": "%s: %s" % (type(e).__name__, " ".join(str(e).split())[:300])}
            if getattr(e, "error_code", "") in ("INVALID_PARAMETER_VALUE", "BAD_REQUEST"):
                answer = {"rejected": len(json.loads(line)["rows"]), "why": answer["error"]}
            if getattr(e, "error_code", "") in ("PERMISSION_DENIED", "UNAUTHENTICATED"):
                answer = {"fatal": answer["error"], "exit": REFUSED}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
    tool.close()


main()
