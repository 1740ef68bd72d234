#!/usr/bin/env python3
"""What do many jobs cost the service of star sched serve?

A service on this machine with two places: the jobs in them never take part, so that all others wait. It is given --jobs jobs, by --clients callers at once,
ended (kill -9), and started again; then all jobs are cancelled, and leave the queue. Printed, each with the service's own processor time, since the
machine may be busy: submissions a second and the longest wait, the bytes of an answer, the start with all jobs in the queue until it answers, and
the start with all jobs in the archive.

  python3 bench/schedscale.py --star ./star --jobs 5000 --policy fifo --out /tmp/schedscale
"""

import argparse
import concurrent.futures
import http.client
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

LIMIT = 600  # s that anything may take
TICK = os.sysconf("SC_CLK_TCK")


class Service:
    def __init__(self, star, dir, *flags):
        self.dir, self.began = dir, time.time()
        self.log = open(dir / "log", "ab")
        self.process = subprocess.Popen(
            [star, "sched", "serve", "--dir", dir / "q", "--places", "2", *flags], stdout=self.log, stderr=self.log
        )
        address = dir / "q" / "service.json"
        while time.time() < self.began + LIMIT:
            try:
                at = json.loads(address.read_text())
                if at["pid"] == self.process.pid and self.ask("/status", at=at):
                    self.at, self.first = at, (time.time() - self.began, self.cpu())
                    return
            except (OSError, ValueError):
                pass
            if self.process.poll() is not None:
                sys.exit(f"the service ended: {(dir / 'log').read_text()[-2000:]}")
            time.sleep(0.02)
        sys.exit(f"the service does not answer within {LIMIT} s")

    def ask(self, path, body=b"", at=None):
        at = at or self.at
        c = http.client.HTTPConnection(at["addr"], timeout=LIMIT)
        c.request("POST", path, body, {"Authorization": "Bearer " + at["token"]})
        text = c.getresponse().read()
        c.close()
        return text

    def cpu(self):
        """Processor time of the service so far, s."""
        f = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(f[11]) + int(f[12])) / TICK

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.log.close()


def many(service, path, bodies, clients):
    """Asks for all, and returns how long that took, the processor time of the service, the longest wait and the answers."""

    def ask(body):
        t = time.time()
        return service.ask(path, body), time.time() - t

    t, cpu = time.time(), service.cpu()
    with concurrent.futures.ThreadPoolExecutor(clients) as pool:
        done = list(pool.map(ask, bodies))
    bad = [a for a, _ in done if b'"error"' in a]
    if bad:
        sys.exit(f"{len(bad)} of {len(bodies)} were refused: {bad[0][:300]}")
    return time.time() - t, service.cpu() - cpu, max(w for _, w in done), [a for a, _ in done]


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--star", default="star")
    p.add_argument("--jobs", type=int, default=5000)
    p.add_argument("--clients", type=int, default=4)
    p.add_argument("--policy", default="fifo")
    p.add_argument("--slot", default="240s")
    p.add_argument("--deadline", type=float, default=0, help="of each job, s from its submission on; 0: none")
    p.add_argument("--old", action="store_true", help="of a release without an archive")
    p.add_argument("--out", type=pathlib.Path, required=True)
    a = p.parse_args()
    star = os.path.abspath(a.star)
    shutil.rmtree(a.out, ignore_errors=True)
    a.out.mkdir(parents=True)
    flags = ["--policy", a.policy, "--slot", a.slot] + ([] if a.old else ["--keep", "1s"])
    s = Service(star, a.out, *flags)
    job = {"samples": 10**9, "workers": 1, "rates": {"1": 100}, "command": ["/bin/sleep", "3600"]}
    job["settings"] = {"model": "softmax", "dataset": "digits", "lr": "0.02"}
    if a.deadline:  # which two places can meet, of one second each
        job["deadline_s"], job["samples"] = a.deadline, 100
    names = [f"job-{i}" for i in range(a.jobs)]
    wall, cpu, longest, answers = many(s, "/submit", [json.dumps(job | {"name": n}).encode() for n in names], a.clients)
    print(f"{a.policy}, {a.jobs} jobs submitted by {a.clients} callers: {a.jobs / wall:.0f}/s, {1e3 * cpu / a.jobs:.2f} ms of processor each;", end=" ")
    print(f"the longest wait {longest:.2f} s; the last answer has {len(answers[-1])} bytes")
    t, cpu = time.time(), s.cpu()
    size = len(s.ask("/status"))
    print(f"status of all: {size / 1024:.0f} KiB, {s.cpu() - cpu:.2f} s of processor, {time.time() - t:.2f} s")
    cpu, t = s.cpu(), time.time()
    time.sleep(5)
    print(f"idle with {a.jobs} jobs: {100 * (s.cpu() - cpu) / (time.time() - t):.1f} % of a processor")
    s.kill()
    s = Service(star, a.out, *flags)
    print(f"a start with {a.jobs} jobs that wait: {s.first[1]:.2f} s of processor, {s.first[0]:.2f} s until it answers")
    wall, cpu, longest, _ = many(s, "/cancel", [n.encode() for n in names], a.clients)
    print(f"cancelled: {a.jobs / wall:.0f}/s, {1e3 * cpu / a.jobs:.2f} ms of processor each; the longest wait {longest:.2f} s")
    if not a.old:
        end = time.time() + LIMIT
        while (left := len(json.loads(s.ask("/status"))["status"]["jobs"])) > 0 and time.time() < end:
            time.sleep(0.2)
        all = subprocess.run([star, "sched", "status", "--all", "--json", "--dir", a.out / "q"], capture_output=True, check=True)
        print(f"in the queue then: {left}, in the archive: {len(json.loads(all.stdout)['jobs'])}")
    s.kill()
    s = Service(star, a.out, *flags)
    print(f"a start after that: {s.first[1]:.2f} s of processor, {s.first[0]:.2f} s until it answers")
    s.kill()


if __name__ == "__main__":
    main()
