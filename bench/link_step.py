#!/usr/bin/env python3
"""What the link to an agent and its telemetry take of a step of 10 ms.

    bench/link_step.py STAR [TURNS] [STEPS]

A script of PyTorch with 15,000 parameters waits for 10 ms in each step, as a script does while its accelerator computes. In turns it is the one worker of a ring, the
same without telemetry, and plain PyTorch. For each it prints, as medians of the turns, the time of a step in ms, and what agent and script take of a
processor in it, in µs, and how often the agent's threads are woken; then, as a share of 10 ms, what agent and script take more than the plain script does.

Processor time is the kernel's, to the nanosecond (/proc/PID/task/*/schedstat), so other work on the machine makes it larger by lost caches alone.
Needs PyTorch in the Python that runs this.
"""

import json
import os
import pathlib
import socket
import statistics
import subprocess
import sys
import tempfile

STEP = 0.010  # seconds

SCRIPT = """
import glob, json, os, sys, time
import torch
import star_train.torch as star
def used(pid):
    return sum(int(open(f).read().split()[0]) for f in glob.glob("/proc/%%d/task/*/schedstat" %% pid))
def wakes(pid):
    return sum(int(line.split()[1]) for f in glob.glob("/proc/%%d/task/*/status" %% pid) for line in open(f) if line.startswith("voluntary"))
steps, alone = int(sys.argv[1]), os.environ.get("STAR_OFF")
torch.set_num_threads(1)
model = torch.nn.Module()
model.p = torch.nn.Parameter(torch.zeros(15_000))
opt = star.attach(model, torch.optim.SGD(model.parameters(), 0.1))
loss = torch.zeros((), requires_grad=True)
step, agent = 0, os.getppid()
while step < steps + 100:
    for batch in star.loader(torch.utils.data.TensorDataset(torch.zeros(1 << 20)), batch_size=1) if step == 0 else ():
        opt.zero_grad()
        loss.backward()
        time.sleep(%r)
        opt.step()
        step += 1
        if step == 100:
            began, a, w, own = time.perf_counter(), 0 if alone else used(agent), wakes(agent), used(os.getpid())
        if step == steps + 100:
            took = time.perf_counter() - began
            theirs = [0, 0] if alone else [(used(agent) - a) / steps / 1e3, (wakes(agent) - w) / steps]
            print("RESULT", json.dumps([took / steps * 1e3, *theirs, (used(os.getpid()) - own) / steps / 1e3]), flush=True)
            break
os._exit(0)
"""


def turn(star: str, kind: str, steps: int, folder: pathlib.Path) -> list:
    """Milliseconds of a step, microseconds that the agent takes of a processor, wakes of its threads, and microseconds that the script takes."""
    script = folder / "train.py"
    script.write_text(SCRIPT % STEP)
    env = {k: v for k, v in os.environ.items() if not k.startswith("STAR_")}
    env.update(OMP_NUM_THREADS="1", PYTHONPATH=str(pathlib.Path(__file__).resolve().parents[1] / "python"))
    command = [sys.executable, str(script), str(steps)]
    if kind == "plain":
        out = subprocess.run(command, env={**env, "STAR_OFF": "1"}, capture_output=True, text=True, timeout=600).stdout
    else:
        with socket.socket() as s:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            s.bind(("127.0.0.1", 0))
            address = "127.0.0.1:%d" % s.getsockname()[1]
            job = ["--workers", "1", "--arch", "allreduce", "--mode", "ssgd", "--http", "off", "--log-level", "error", "--out", str(folder / "out")]
            ps = subprocess.Popen([star, "ps", "--listen", address, "--steps", "1000000", *job], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            try:
                telemetry = ["--telemetry", "off"] if kind == "without telemetry" else []
                done = subprocess.run([star, "worker", "--coordinator", address, *job, *telemetry, "--", *command], env=env, capture_output=True, text=True, timeout=600)
                out = done.stdout + done.stderr
            finally:
                ps.kill()
                ps.wait()
    for line in out.splitlines():
        if "RESULT " in line:
            return json.loads(line.split("RESULT ")[1])
    sys.exit("link_step.py: %s: no result:\n%s" % (kind, out[-3000:]))


def main() -> None:
    if not 2 <= len(sys.argv) <= 4:
        sys.exit(__doc__)
    star, turns, steps = sys.argv[1], int((sys.argv + ["3"])[2]) if len(sys.argv) > 2 else 3, int(sys.argv[3]) if len(sys.argv) > 3 else 1000
    kinds = ("ring", "without telemetry", "plain")
    seen: dict = {k: [] for k in kinds}
    for _ in range(turns):
        for k in kinds:
            with tempfile.TemporaryDirectory() as folder:
                seen[k].append(turn(star, k, steps, pathlib.Path(folder)))
    of = {k: [statistics.median(column) for column in zip(*seen[k])] for k in kinds}
    print("%-20s %8s %10s %7s %10s %9s" % ("", "step, ms", "agent, µs", "wakes", "script, µs", "of 10 ms"))
    for k in kinds:
        step, agent, wakes, script = of[k]
        print("%-20s %8.2f %10.0f %7.2f %10.0f %8.1f %%" % (k, step, agent, wakes, script, (agent + script - of["plain"][3]) / (STEP * 1e6) * 100))


if __name__ == "__main__":
    main()
