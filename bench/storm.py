#!/usr/bin/env python3
"""A fault every 29 s in a job of 16 workers: its throughput beside that without faults, and what each fault cost.

    sudo bench/storm.py --star bin/star [--worker torch,builtin] [--arch ps,allreduce] [--minutes 30] [--seed 1]

Needs root and `ip`. Each worker has a host of its own, a network namespace. Two workers share a switch, and all
switches are connected to one, as is the host of the servers. The job is
`star run --hosts FILE --worker-restarts 1000` with default settings; --more adds some. `star run` starts a worker again
that has ended, as Kubernetes or systemd would. A worker waits --step for its "device" in each batch of 32, so that 16
of them fit on a small machine: PyTorch scripts sleep, built-in workers have `--slow R:+TIME`, which is for each batch,
so they have `--whole-batches`, as scripts do.

Every --every seconds there is one fault, of each kind in turn; --seed draws the order, the worker and how long it lasts
(1 s to --longest):

    kill       SIGKILL to all processes of a worker's host; the worker is started again at once
    stop       SIGSTOP to all processes of a worker's host, later SIGCONT
    cut        the link of a worker's host goes down and up again
    partition  the link of a switch with two workers' hosts goes down and up again; these two still reach each other

The same job has no faults for --calm seconds before and after. Throughput is samples in updates per second, by the run
log; the ratio is to the better one of the two calm times. "ideal" has the affected workers away for the fault, or for
the median time from a worker's death to its return, and all others undisturbed. By kind of fault:

    pause      longest time between two updates from the fault to the next one
    recovery   from the fault until the samples of 5 s are again 95 % of the calm ones
    cost       what is missing of the calm samples until the next fault, in seconds of the whole job; below 0: nothing

Samples are accounted exactly if the updates of the run log hold each position of the stream of samples once, from 0 to
the last. Exit code 1: they are not, or the job has failed.
--favour gives the job's processes the highest priority (nice, and that of their sessions), for a machine that does
other work.
"""

import argparse
import bisect
import datetime
import json
import os
import random
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time

WORKERS, PAIR, BATCH, KINDS = 16, 2, 32, ("kill", "stop", "cut", "partition")
SAMPLES, WIDTH = 640_000, 16


def work(step):
    """One worker, as a user's script: a small perceptron, and a sleep in place of the time of an accelerator."""
    import torch
    import torch.nn as nn

    import star_train.torch as star

    torch.set_num_threads(1)
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(WIDTH, 256), nn.ReLU(), nn.Linear(256, 4))
    opt = star.attach(model, torch.optim.SGD(model.parameters(), 0.01))
    x = torch.randn(SAMPLES, WIDTH)
    loader = star.loader(torch.utils.data.TensorDataset(x, x[:, :4].argmax(1)), BATCH)
    for _ in range(1000):
        for xs, ys in loader:
            time.sleep(step * len(xs) / BATCH)
            opt.zero_grad()
            nn.functional.cross_entropy(model(xs), ys).backward()
            opt.step()


def ip(line, check=True):
    done = subprocess.run(["ip", *line.split()], capture_output=True, text=True)
    if check and done.returncode:
        sys.exit("ip %s: %s" % (line, done.stderr.strip()))
    return done.stdout


class Hosts:
    """Network namespaces: TAG-0 for servers, TAG-1 to TAG-16 for workers 0 to 15, and TAG-s with the switches."""

    def __init__(self, tag):
        self.switch = tag + "-s"
        self.names = ["%s-%d" % (tag, i) for i in range(WORKERS + 1)]
        for n in [self.switch, *self.names]:
            ip("netns add " + n)
        self.bridge("core")
        for rack in range(WORKERS // PAIR):
            self.bridge("rack%d" % rack)
            ip("-n %s link add up%d type veth peer name down%d" % (self.switch, rack, rack))
            for link, to in (("up%d" % rack, "rack%d" % rack), ("down%d" % rack, "core")):
                ip("-n %s link set %s master %s up" % (self.switch, link, to))
        for i, n in enumerate(self.names):
            ip("link add h%d netns %s type veth peer name eth0 netns %s" % (i, self.switch, n))
            to = "rack%d" % ((i - 1) // PAIR) if i else "core"
            ip("-n %s link set h%d master %s up" % (self.switch, i, to))
            ip("-n %s link set lo up" % n)
            ip("-n %s addr add %s/24 dev eth0" % (n, self.address(i)))
            ip("-n %s link set eth0 up" % n)

    def bridge(self, name):
        ip("-n %s link add %s type bridge" % (self.switch, name))
        ip("-n %s link set %s up" % (self.switch, name))

    def address(self, i):
        return "10.78.0.%d" % (i + 1)

    def on(self, i):
        return ["ip", "netns", "exec", self.names[i]]

    def pids(self, i):
        return [int(p) for p in ip("netns pids " + self.names[i], False).split()]

    def signal(self, i, number):
        for p in self.pids(i):
            try:
                os.kill(p, number)
            except ProcessLookupError:
                pass

    def link(self, name, state):
        ip("-n %s link set %s %s" % (self.switch, name, state))

    def close(self):
        for i in range(len(self.names)):
            self.signal(i, signal.SIGKILL)
        for n in [*self.names, self.switch]:
            ip("netns del " + n, False)


def favour(hosts):
    """Linux schedules sessions first (autogroup), then the processes of each by their nice values."""
    os.setpriority(os.PRIO_PROCESS, 0, -15)
    done = set()
    while True:
        for pid in [os.getpid(), *(p for i in range(len(hosts.names)) for p in hosts.pids(i))]:
            try:
                session = os.getsid(pid)
                if session not in done:
                    with open("/proc/%d/autogroup" % pid, "w") as f:
                        f.write("-20")
                    done.add(session)
            except (FileNotFoundError, ProcessLookupError):
                pass
            except OSError:  # not so often, says the kernel
                break
        time.sleep(1)


def lead(arch):
    """The host of the coordinator. Of a ring, `star run` has it beside worker 0, so that host has no faults."""
    return 1 if arch == "allreduce" else 0


class Fault:
    def __init__(self, kind, workers, seconds):
        self.kind, self.workers, self.seconds, self.at = kind, workers, seconds, 0.0

    def inflict(self, hosts):
        self.at, w = time.time(), self.workers[0]
        if self.kind == "kill":
            hosts.signal(w + 1, signal.SIGKILL)
        elif self.kind == "stop":
            hosts.signal(w + 1, signal.SIGSTOP)
            time.sleep(self.seconds)
            hosts.signal(w + 1, signal.SIGCONT)
        else:
            link = "h%d" % (w + 1) if self.kind == "cut" else "up%d" % (w // PAIR)
            hosts.link(link, "down")
            time.sleep(self.seconds)
            hosts.link(link, "up")


def schedule(args, arch):
    rnd, faults, first = random.Random(args.seed), [], lead(arch)
    kinds = args.kinds.split(",")
    for i in range(int(args.minutes * 60 / args.every)):
        if i % len(kinds) == 0:
            turn = rnd.sample(kinds, len(kinds))
        kind = turn[i % len(kinds)]
        w = rnd.randrange(first * (PAIR if kind == "partition" else 1), WORKERS)
        workers = [w // PAIR * PAIR + j for j in range(PAIR)] if kind == "partition" else [w]
        faults.append(Fault(kind, workers, 0 if kind == "kill" else rnd.uniform(1, args.longest)))
    return faults


class Processes(threading.Thread):
    """Looks every 10 s at what the processes of a job hold: the coordinator's host, and the most of a worker's host."""

    def __init__(self, hosts, first, out, http):
        super().__init__(daemon=True)
        self.hosts, self.first, self.out, self.http = hosts, first, out, http
        self.rows, self.over = [], threading.Event()

    def held(self, pid):
        with open("/proc/%d/status" % pid) as f:
            s = f.read()
        return [int(re.search(k + r":\s*(\d+)", s)[1]) for k in ("VmRSS", "Threads")] + [
            len(os.listdir("/proc/%d/fd" % pid))
        ]

    def look(self, i):
        total = [0, 0, 0]
        for p in self.hosts.pids(i):
            try:
                total = [a + b for a, b in zip(total, self.held(p))]
            except (FileNotFoundError, ProcessLookupError, TypeError):
                pass  # it has just ended
        return total

    def goroutines(self):
        with socket.socket(socket.AF_UNIX) as s:
            s.settimeout(5)
            s.connect(self.http)
            s.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
            answer = b""
            while part := s.recv(65536):
                answer += part
        return int(float(re.search(rb"^go_goroutines (\S+)", answer, re.M)[1]))

    def run(self):
        log = os.path.join(self.out, "run.jsonl")
        while not self.over.wait(10):
            servers = self.look(self.first)
            workers = [max(v) for v in zip(*(self.look(i + 1) for i in range(self.first, WORKERS)))]
            shm = sum("star" in e.name for e in os.scandir("/dev/shm"))
            self.rows.append((time.time(), servers, workers, self.goroutines(), shm, os.path.getsize(log)))


class Log:
    """What the run log of a job tells."""

    def __init__(self, path):
        self.times, self.samples, self.plans, self.gone, self.back = [], [], [], [], []
        begun, pieces, held = 0.0, [], {}
        with open(path) as f:
            lines = [json.loads(line) for line in f if line.endswith("\n")]
        for e in lines:
            kind, more = e["type"], e.get("more") or []
            if kind == "start":
                t = re.sub(r"(\.\d{1,6})\d*", r"\1", e["time"]).replace("Z", "+00:00")
                begun = datetime.datetime.fromisoformat(t).timestamp()
            elif kind in ("train", "plan"):
                self.plans.append((begun + e["t"], e["plan"]))
            elif kind == "record" and "start" in e:
                rest = list(zip(more[0::2], more[1::2]))
                held[e["worker"]] = [(e["start"], e["samples"] - sum(n for _, n in rest)), *rest]
            elif kind == "leave":
                self.gone.append((begun + e["t"], e["worker"]))
            elif kind == "join":
                self.back.append((begun + e["t"], e["worker"]))
            elif kind == "fire":
                for w in e.get("dropped") or []:
                    held.pop(w)
                if not e["workers"]:
                    continue
                if "pieces" in e:
                    pieces += [(start, n) for start, n in pairs(e["pieces"])]
                    pieces += list(zip(more[1::3], more[2::3]))
                else:
                    for w in e["workers"]:
                        pieces += held.pop(w)
                self.times.append(begun + e["t"])
                self.samples.append(e["samples"])
        self.last = lines[-1] if lines else {}
        self.wrong, at = 0, 0
        for start, n in sorted(pieces):
            self.wrong += abs(start - at)
            at = start + n
        self.total = at

    def until(self, t):
        i = bisect.bisect_right(self.times, t)
        return self.samples[i - 1] if i else 0

    def rate(self, a, b):
        """Samples per second between the first updates at or after a and b."""
        i, j = bisect.bisect_left(self.times, a), min(bisect.bisect_left(self.times, b), len(self.times) - 1)
        return (self.samples[j] - self.samples[i]) / (self.times[j] - self.times[i]) if j > i else 0.0

    def pause(self, a, b):
        i, j = bisect.bisect_right(self.times, a), bisect.bisect_left(self.times, b)
        moments = [self.times[i - 1] if i else a, *self.times[i : j + 1]]
        return max(y - x for x, y in zip(moments, [*moments[1:], moments[-1]]))

    def recovery(self, at, until, rate):
        t = at
        while t < until and self.until(t + 5) - self.until(t) < 0.95 * 5 * rate:
            t += 0.1
        return min(t, until) - at


def pairs(pieces):
    return pieces if pieces and isinstance(pieces[0], list) else zip(pieces[0::2], pieces[1::2])


def command(args, kind, arch, hosts, folder):
    n = [{"name": "servers", "address": hosts.address(0), "cpu": 64, "net": "10Gbit/s"}]
    for w in range(WORKERS):
        at = {"address": hosts.address(w + 1), "launch": hosts.on(w + 1)}
        n.append({"name": "host%d" % w, "cpu": 1, "net": "10Gbit/s", **at})
    path, demands = os.path.join(folder, "hosts.yaml"), os.path.join(folder, "demands.yaml")
    with open(path, "w") as f:
        json.dump({"hosts": n}, f)  # which is YAML, too
    servers = {"count": 0 if arch == "allreduce" else 1, "cpu": "1%", "on": ["servers"]}
    workers = {"count": WORKERS, "cpu": 1, "on": ["host%d" % w for w in range(WORKERS)]}
    with open(demands, "w") as f:
        json.dump({"jobs": [{"name": "star", "servers": servers, "workers": workers}]}, f)
    c = [*hosts.on(0), os.path.abspath(args.star), "run", "--hosts", path, "--demands", demands]
    c += ["--workers", str(WORKERS), "--arch", arch, "--batch", str(BATCH), "--epochs", "1000"]
    c += ["--worker-restarts", "1000", "--progress", "plain", "--http", "unix:" + os.path.join(folder, "http")]
    c += ["--out", os.path.join(folder, "out"), *args.more.split()]
    if arch == "ps":
        c += ["--shards", "1"]
    if kind == "torch":
        return [*c, "--", sys.executable, os.path.abspath(__file__), "--work", "--step", str(args.step)]
    slow = ",".join("%d:+%dms" % (w, 1000 * args.step) for w in range(WORKERS))
    return [*c, "--whole-batches", "--model", "softmax", "--dataset", "digits:n=64000,test=500", "--slow", slow]


def storm(args, kind, arch, hosts, folder):
    env = {k: v for k, v in os.environ.items() if not k.startswith("STAR_")}
    env.update(OMP_NUM_THREADS="1", PYTHONWARNINGS="ignore", STAR_TOKEN="storm")
    out = os.path.join(folder, "out")
    with open(os.path.join(folder, "log"), "w") as log:
        c = command(args, kind, arch, hosts, folder)
        job = subprocess.Popen(c, env=env, stdout=log, stderr=log, stdin=subprocess.DEVNULL)

    def alive(seconds):
        try:
            sys.exit("%s: the job ended with %d" % (folder, job.wait(max(seconds, 0.01))))
        except subprocess.TimeoutExpired:
            pass

    end, log = time.time() + 300, os.path.join(out, "run.jsonl")
    while not os.path.exists(log) or len(Log(log).times) < 20:
        if time.time() > end:
            sys.exit("%s: no 20 updates within 5 min" % folder)
        alive(0.5)
    held = Processes(hosts, lead(arch), out, os.path.join(folder, "http"))
    held.start()
    begun = time.time()
    alive(args.calm)
    faults, start = schedule(args, arch), time.time()
    for i, f in enumerate(faults):
        alive(start + i * args.every - time.time())
        threading.Thread(target=f.inflict, args=(hosts,), daemon=True).start()
    stop = start + len(faults) * args.every
    alive(stop - time.time())
    again = stop + args.settle
    alive(again + args.calm - time.time())
    ended = time.time()
    held.over.set()
    load = os.getloadavg()[2]
    c = [*hosts.on(0), os.path.abspath(args.star), "ctl", "stop", "--coordinator", hosts.address(lead(arch)) + ":7070"]
    asked = subprocess.run(c, env=env, capture_output=True, text=True)
    if asked.returncode:
        sys.exit("star ctl stop: %s" % asked.stderr)
    code = job.wait(120)
    return Log(log), faults, (begun, start, stop, again, ended), held.rows, code, load


def table(*rows):
    print("\n" + "\n".join("| %s |" % " | ".join(r) for r in (rows[0], ["---"] * len(rows[0]), *rows[1:])))


def report(args, kind, arch, result):
    log, faults, (begun, start, stop, again, ended), rows, code, load = result
    before, after, rate = log.rate(begun, start), log.rate(again, ended), log.rate(start, stop)
    calm = max(before, after)
    name = "%s, %s" % ({"torch": "PyTorch", "builtin": "built-in"}[kind], {"ps": "servers", "allreduce": "ring"}[arch])
    plans = "; ".join("%.0f s %s" % (t - start, p) for t, p in log.plans)
    print("\n**%s**: %d faults in %.0f min, seed %d; load average %.0f; exit code %d; plans: %s" % (
        name, len(faults), (stop - start) / 60, args.seed, load, code, plans))
    after_of = [*(f.at for f in faults[1:]), stop]
    returns = []
    for f, b in zip(faults, after_of):
        if f.kind == "kill":
            returns += [t - f.at for t, w in log.back if w == f.workers[0] and f.at < t < b][:1]
    away = statistics.median(returns) if returns else 0
    ideal = 1 - sum(len(f.workers) * (f.seconds or away) for f in faults) / WORKERS / (stop - start)
    table(
        ["samples/s before", "after", "in the storm", "ratio", "ideal", "a killed worker is back after",
         "longest pause", "not once in the stream", "workers that left"],
        ["%.0f" % before, "%.0f" % after, "%.0f" % rate, "%.1f %%" % (100 * rate / calm), "%.1f %%" % (100 * ideal),
         "%.1f s" % away, "%.1f s" % log.pause(start, stop), "%d of %d" % (log.wrong, log.total), str(len(log.gone))])
    by_kind = []
    for k in args.kinds.split(","):
        mine = [(f.at, b) for f, b in zip(faults, after_of) if f.kind == k]
        if mine:
            pauses = [log.pause(a, b) for a, b in mine]
            recoveries = [log.recovery(a, b, calm) for a, b in mine]
            costs = [(b - a) - (log.until(b) - log.until(a)) / calm for a, b in mine]
            by_kind.append([k, str(len(mine)), "%.1f, %.1f s" % (statistics.median(pauses), max(pauses)),
                            "%.1f, %.1f s" % (statistics.median(recoveries), max(recoveries)),
                            "%.2f, %.2f s" % (statistics.mean(costs), max(costs))])
    table(["fault", "number", "pause, median and most", "recovery, median and most", "cost, mean and most"], *by_kind)
    tenth = max(1, len(rows) // 10)
    held = []
    for part, some in (("first tenth", rows[:tenth]), ("middle", rows[len(rows) // 2 :][:tenth]),
                       ("last tenth", rows[-tenth:])):
        m = [statistics.median(v) for v in zip(*([*r[1], *r[2], *r[3:]] for r in some))]
        held.append([part, "%.0f MB" % (m[0] / 1e3), "%.0f MB" % (m[3] / 1e3), "%d, %d" % (m[1], m[4]),
                     "%d, %d" % (m[2], m[5]), "%d" % m[6], "%d" % m[7], "%.1f MB" % (m[8] / 1e6)])
    table(["", "memory, coordinator's host", "worker's", "threads", "descriptors", "goroutines of the coordinator",
           "files in /dev/shm", "run log"], *held)
    wanted = ("type", "samples", "wasted_samples", "put_aside_samples", "updates")
    print("\nlast line of the run log: %s" % json.dumps({k: log.last.get(k) for k in wanted}), flush=True)
    return code == 0 and log.wrong == 0


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--star", default="bin/star")
    p.add_argument("--worker", default="torch,builtin")
    p.add_argument("--arch", default="ps,allreduce")
    p.add_argument("--minutes", type=float, default=30)
    p.add_argument("--every", type=float, default=29)
    p.add_argument("--calm", type=float, default=180)
    p.add_argument("--settle", type=float, default=30, help="seconds after the storm that count for nothing")
    p.add_argument("--longest", type=float, default=9)
    p.add_argument("--step", type=float, default=0.5)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--kinds", default=",".join(KINDS))
    p.add_argument("--more", default="", help="more settings of star run")
    p.add_argument("--favour", action="store_true")
    p.add_argument("--keep", help="folder for logs, which are kept")
    p.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    args = p.parse_args()
    if args.work:
        return work(args.step)
    good = True
    for kind in args.worker.split(","):
        for arch in args.arch.split(","):
            name = "%s-%s" % (kind, arch)
            folder = os.path.join(args.keep, name) if args.keep else tempfile.mkdtemp(prefix="storm-")
            os.makedirs(folder, exist_ok=True)
            hosts = Hosts("storm%d" % os.getpid())
            try:
                if args.favour:
                    threading.Thread(target=favour, args=(hosts,), daemon=True).start()
                good &= report(args, kind, arch, storm(args, kind, arch, hosts, folder))
            finally:
                hosts.close()
                if not args.keep:
                    shutil.rmtree(folder)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
