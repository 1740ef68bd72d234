#!/usr/bin/env python3
"""A worker of three is killed every 20 s and started again: samples lost, pauses and goodput of a job of STAR, beside torchft and hivemind where they are installed.

    bench/pytorch_kills.py --star bin/star [--seconds 90] [--every 20] [--kinds star,ring,torchft,hivemind] [--rounds 1]

All train the same perceptron with SGD on the same data set in batches of 32, with 40 ms of sleep in each, as one that waits for its accelerator. Workers write
down which samples they begin with, and which are in an update:

    lost      samples begun with that are in no update, but for the batches that the end cut off
    repeated  samples that are in more than one update, in one endless pass over the data set
    pause     the longest time without any update of any worker, after the first kill
    goodput   samples in updates for each second, repeated ones once

STAR's are counted from what a script hears: a gradient that the job took while its worker died counts as lost, unless another one computes it again.
In a ring that a member leaves in the middle of a round, the others' steps return without an update and their batches come again: these count as repeated.
hivemind makes an update of --accumulate batches of all, since finding partners takes it seconds; the others one of each worker's batch.
star_train is found as PYTHONPATH says; torchft and hivemind need their packages and PyTorch 2.
"""

import argparse
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

BATCH, FLOOR, N, SAMPLES, WIDTH = 32, 0.04, 3, 640_000, 16


class Journal:
    def __init__(self, path):
        self.fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(self, what, samples):
        os.write(self.fd, ("%s %.6f %s\n" % (what, time.time(), ",".join(map(str, samples)))).encode())


def parts():
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(1)
    x = torch.randn(SAMPLES, WIDTH)
    data = torch.utils.data.TensorDataset(torch.arange(SAMPLES), x, x[:, :4].argmax(1))
    model = torch.nn.Sequential(torch.nn.Linear(WIDTH, 256), torch.nn.ReLU(), torch.nn.Linear(256, 4))
    return data, model, torch.optim.SGD(model.parameters(), 0.01)


def train(model, opt, loader, journal, done):
    import torch

    for i, x, y in loader:
        i = i.tolist()
        journal.note("b", i)
        time.sleep(FLOOR)
        opt.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        opt.step()
        done(i)


def star_worker(rank, journal, args):
    import star_train.torch as star

    data, model, opt = parts()
    opt = star.attach(model, opt)
    loader = star.loader(data, BATCH)
    for _ in range(1000):
        train(model, opt, loader, journal, lambda i: journal.note("c", i))


def torchft_worker(rank, journal, args):
    from datetime import timedelta

    import torch
    import torchft

    data, model, opt = parts()
    store = torch.distributed.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT=str(store.port), RANK="0", WORLD_SIZE="1", TORCHFT_LIGHTHOUSE=args.meet)
    manager = torchft.Manager(
        pg=torchft.ProcessGroupGloo(timeout=timedelta(seconds=5)),
        min_replica_size=1,
        load_state_dict=lambda s: (model.load_state_dict(s["model"]), opt.load_state_dict(s["optim"])),
        state_dict=lambda: {"model": model.state_dict(), "optim": opt.state_dict()},
        replica_id="w%d_" % rank,
        timeout=timedelta(seconds=10),
    )
    ddp = torchft.DistributedDataParallel(manager, model)
    wrapped = torchft.Optimizer(manager, opt)
    sampler = torchft.DistributedSampler(data, replica_rank=rank, num_replica_groups=N, group_rank=0, num_replicas=1)
    steps = manager.current_step()

    def done(i):
        nonlocal steps
        if manager.current_step() != steps:  # it was committed
            journal.note("c", i)
        steps = manager.current_step()

    epoch = 0
    while True:
        sampler.set_epoch(epoch)
        train(ddp, wrapped, torch.utils.data.DataLoader(data, BATCH, sampler=sampler), journal, done)
        epoch += 1


def hivemind_worker(rank, journal, args):
    import hivemind
    import torch

    data, model, opt = parts()
    dht = hivemind.DHT(initial_peers=[args.meet] if args.meet else [], host_maddrs=["/ip4/127.0.0.1/tcp/0"], start=True)
    if not args.meet:
        with open(args.address, "w") as f:
            f.write(str(dht.get_visible_maddrs()[0]))
        while True:  # it only helps others to find each other, and is not killed
            time.sleep(60)
    opt = hivemind.Optimizer(
        dht=dht, run_id="kills", batch_size_per_step=BATCH, target_batch_size=BATCH * args.accumulate, optimizer=opt, matchmaking_time=2, averaging_timeout=10, allreduce_timeout=10,
        load_state_timeout=20, tracker_opts=dict(min_refresh_period=0.2, default_refresh_period=0.5),
    )
    pending, epoch = [], opt.local_epoch

    def done(i):
        nonlocal epoch
        pending.append(i)
        if opt.local_epoch != epoch:
            for p in pending:
                journal.note("c", p)
            pending.clear()
            epoch = opt.local_epoch

    opt.load_state_from_peers()
    while True:
        order = torch.utils.data.RandomSampler(data, generator=torch.Generator().manual_seed(int(time.time() * 1000) % 2**31))
        train(model, opt, torch.utils.data.DataLoader(data, BATCH, sampler=order), journal, done)


def free():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Jobs:
    """The processes of one job, each with a process group of its own."""

    def __init__(self, kind, args, folder):
        self.kind, self.args, self.folder, self.helpers, self.meet = kind, args, folder, [], ""
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("STAR_")}
        self.env.update(OMP_NUM_THREADS="1", PYTHONWARNINGS="ignore", STAR_TOKEN="kills", STAR_HTTP="off", STAR_JOIN_TIMEOUT="5m")
        self.log = open(os.path.join(folder, "log"), "w")
        if kind in ("star", "ring"):
            self.meet = "127.0.0.1:%d" % free()
            if kind == "ring":
                self.env["STAR_ARCH"] = "allreduce"
            self.help([args.star, "ps", "--listen", self.meet, "--workers", str(N), "--mode", "ssgd", "--epochs", "1000", "--out", os.path.join(folder, "out")])
        elif kind == "torchft":
            port = free()
            lighthouse = os.path.join(os.path.dirname(sys.executable), "torchft_lighthouse")
            self.help([lighthouse, "--min_replicas", "1", "--bind", "127.0.0.1:%d" % port, "--join_timeout_ms", "1000", "--heartbeat_timeout_ms", "2000"])
            self.meet = "http://127.0.0.1:%d" % port
        else:
            address = os.path.join(folder, "address")
            self.help(self.own(0, "--address", address))
            end = time.time() + 300
            while not (os.path.exists(address) and os.path.getsize(address)):
                if time.time() > end:
                    sys.exit("hivemind: no DHT within 5 min: see %s" % self.log.name)
                time.sleep(0.2)
            self.meet = open(address).read()
        self.workers = [self.worker(r) for r in range(N)]

    def own(self, rank, *more):
        journal = os.path.join(self.folder, "journal")
        return [sys.executable, os.path.abspath(__file__), "--work", self.kind, "--rank", str(rank), "--journal", journal, "--accumulate", str(self.args.accumulate), "--meet", self.meet, *more]

    def start(self, command):
        return subprocess.Popen(command, env=self.env, stdout=self.log, stderr=self.log, start_new_session=True)

    def help(self, command):
        self.helpers.append(self.start(command))

    def worker(self, rank):
        command = self.own(rank)
        if self.kind in ("star", "ring"):
            command = [self.args.star, "worker", "--coordinator", self.meet, "--", *command]
        return self.start(command)

    def kill(self, p):
        try:
            os.killpg(p.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        p.wait()

    def close(self):
        for p in self.workers + self.helpers:
            self.kill(p)


def read(path):
    events = []
    if os.path.exists(path):
        for line in open(path):
            what, t, samples = line.split(" ")
            events.append((what, float(t), [int(i) for i in samples.split(",")]))
    return events


def measure(kind, args, folder):
    jobs = Jobs(kind, args, folder)
    journal, kills = os.path.join(folder, "journal"), []
    try:
        end = time.time() + 600
        while sum(e[0] == "c" for e in read(journal)) < 4 * N:
            if time.time() > end or any(p.poll() is not None for p in jobs.helpers):
                return None, open(jobs.log.name).read()[-2000:]
            time.sleep(0.2)
        begun = time.time()
        while time.time() < begun + args.seconds:
            if time.time() >= begun + args.every * (len(kills) + 1) and len(kills) < int(args.seconds / args.every):
                w = len(kills) % N
                kills.append(time.time())
                jobs.kill(jobs.workers[w])
                jobs.workers[w] = jobs.worker(w)
            for w, p in enumerate(jobs.workers):
                if p.poll() is not None:  # a worker that ends by itself is started again, too
                    jobs.workers[w] = jobs.worker(w)
            time.sleep(0.05)
        until = time.time()
    finally:
        jobs.close()
    events = [e for e in read(journal) if e[1] <= until]
    commits = sorted(e[1] for e in events if e[0] == "c" and e[1] >= begun)
    moments = [t for t in commits if t >= kills[0]] + [until]
    pause = max(b - a for a, b in zip([kills[0], *moments], moments))
    counts = {}
    for what, _, samples in events:
        if what == "c":
            for i in samples:
                counts[i] = counts.get(i, 0) + 1
    last = until - (5 if kind != "hivemind" else 30)  # what was begun later may still be on its way
    lost = {i for what, t, samples in events if what == "b" and t < last for i in samples} - set(counts)
    fresh = {i for what, t, samples in events if what == "c" and t >= begun for i in samples}
    return (len(kills), len(lost), sum(c - 1 for c in counts.values()), pause, len(fresh) / (until - begun)), ""


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--star", default="bin/star")
    p.add_argument("--seconds", type=float, default=90)
    p.add_argument("--every", type=float, default=20)
    p.add_argument("--kinds", default="star,ring,torchft,hivemind")
    p.add_argument("--rounds", type=int, default=1)
    p.add_argument("--accumulate", type=int, default=30)
    for name in ("work", "rank", "journal", "meet", "address"):
        p.add_argument("--" + name, help=argparse.SUPPRESS)
    args = p.parse_args()
    if args.work:
        return {"star": star_worker, "ring": star_worker, "torchft": torchft_worker, "hivemind": hivemind_worker}[args.work](int(args.rank), Journal(args.journal), args)
    import torch

    print("PyTorch %s, %d workers, one killed every %g s for %g s\n" % (torch.__version__, N, args.every, args.seconds))
    print("| | kills | samples lost | repeated | longest pause | goodput |\n|---|---|---|---|---|---|", flush=True)
    for _ in range(args.rounds):
        for kind in args.kinds.split(","):
            module = {"star": "star_train", "ring": "star_train"}.get(kind, kind)
            if subprocess.run([sys.executable, "-c", "import " + module], capture_output=True).returncode:
                print("| %s | not installed: pip install %s | | | | |" % (kind, module), flush=True)
                continue
            folder = tempfile.mkdtemp()
            row, why = measure(kind, args, folder)
            if row is None:
                print("| %s | no update within 10 min | | | | |\n%s" % (kind, why), flush=True)
            else:
                print("| %s | %d | %d | %d | %.1f s | %.0f samples/s |" % (kind, *row), flush=True)
            if os.environ.get("KEEP"):
                print(folder)
            else:
                shutil.rmtree(folder)


if __name__ == "__main__":
    main()
