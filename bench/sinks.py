"""What a sink costs the job beside it: star export --follow --to … against servers that are up, dead, slow, or answer 500.

    python3 bench/sinks.py --star ~/go/bin/star --rounds 10

Each round runs the same job with each of them and without, in random order. The figure is the median time between two updates of a job, over that of the
job without a sink in the same round.
"""

import argparse
import http.server
import json
import os
import pathlib
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time

PATIENCE = 300


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, status, delay):
        super().__init__(("127.0.0.1", 0), Answer)
        self.status, self.delay = status, delay
        threading.Thread(target=self.serve_forever, daemon=True).start()


class Answer(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        time.sleep(self.server.delay)
        try:
            self.send_response(self.server.status)
            self.end_headers()
            self.wfile.write(b"{}")
        except OSError:
            pass  # the sink did not wait

    def log_message(self, *_):
        pass


def times(out):
    """Seconds between two updates, without the first ten."""
    at = [d["t"] for d in map(json.loads, (out / "run.jsonl").read_text().splitlines()) if d["type"] == "fire"]
    return [b - a for a, b in zip(at[10:], at[11:])]


def job(star, args, url, folder):
    """The median time of an update, and the process of the sink, which may go on for 20 s."""
    out = folder / "job"
    sink = None
    if url:
        sink = subprocess.Popen([star, "export", str(out), "--follow", "--to", "otlp=" + url], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        subprocess.run([star, "run", "--out", str(out), *args], check=True, capture_output=True, timeout=PATIENCE)
    except BaseException:
        if sink:
            sink.kill()
        raise
    return statistics.median(times(out)), sink


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--star", default="star")
    p.add_argument("--rounds", type=int, default=10)
    p.add_argument("--epochs", type=int, default=12)
    p.add_argument("--seed", type=int, default=1)
    a = p.parse_args()
    args = ["--workers", "2", "--mode", "ssgd", "--slow", "none", "--epochs", str(a.epochs), "--dataset", "digits", "--http", "off"]
    up, slow, broken = Server(200, 0), Server(200, 8), Server(500, 0)
    dead = Server(200, 0)
    dead_url = "http://127.0.0.1:%d" % dead.server_port
    dead.shutdown()
    dead.server_close()
    kinds = {"none": "", "up": up, "dead": dead_url, "slow": slow, "500": broken}
    url = {k: v if isinstance(v, str) else "http://127.0.0.1:%d" % v.server_port for k, v in kinds.items()}
    rng = random.Random(a.seed)
    ratios = {k: [] for k in kinds if k != "none"}
    steps, lost = [], {}
    scratch = tempfile.mkdtemp(prefix="sinks-")
    sinks = []
    for n in range(a.rounds):
        got = {}
        order = list(kinds)
        rng.shuffle(order)
        for k in order:
            got[k], sink = job(a.star, args, url[k], pathlib.Path(scratch, "%d-%s" % (n, k)))
            if sink:
                sinks.append((k, sink))
        steps.append(got["none"])
        for k in ratios:
            ratios[k].append(got[k] / got["none"] - 1)
        print("round %d  load %.0f  %s" % (n + 1, os.getloadavg()[0], "  ".join("%s %.2f ms" % (k, 1e3 * got[k]) for k in kinds)), file=sys.stderr)
    for k, sink in sinks:
        sent, gone = map(int, re.search(r"(\d+) rows sent.*?(\d+) lost", sink.communicate(timeout=PATIENCE)[0]).groups())
        lost.setdefault(k, []).append((sent, gone))
    shutil.rmtree(scratch)
    print("step without a sink: median %.2f ms" % (1e3 * statistics.median(steps)))
    for k, r in ratios.items():
        r = sorted(r)
        # The interval of the median from order statistics: of 10 pairs the 2nd and the 9th have 97.9 %.
        low, high = (r[1], r[-2]) if len(r) >= 9 else (r[0], r[-1])
        print("%-5s step %+.1f %% (%+.1f to %+.1f)  rows sent %d, lost %d" % (k, 100 * statistics.median(r), 100 * low, 100 * high, sum(s for s, _ in lost[k]), sum(g for _, g in lost[k])))


if __name__ == "__main__":
    main()
