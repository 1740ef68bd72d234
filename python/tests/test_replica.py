"""A worker that is several processes: with DistributedDataParallel, fully_shard, or neither."""

import json
import re
from typing import Any, Counter, Dict, List

import pytest
from test_parity import MODEL

torch = pytest.importorskip("torch", reason="PyTorch is not installed (Debian: python3-torch)")

if not torch.distributed.is_available():
    pytest.skip("PyTorch without torch.distributed", allow_module_level=True)

NEW = tuple(int(n) for n in torch.__version__.split(".")[:2]) >= (2, 6)
sharded = pytest.mark.skipif(not NEW, reason="fully_shard is public since PyTorch 2.6")

TRAIN = (
    MODEL
    + """
import json, os, signal, sys, time
import torch.distributed as dist
import star_train.torch as star

kind, name, accumulate, what = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
dist.init_process_group("gloo")
me = dist.get_rank()
group = dist.group.WORLD
torch.manual_seed(5 if me == 0 or kind in ("fsdp", "hsdp") else 6)  # else all have what process 0 has
model = Net(25)
if kind in ("fsdp", "hsdp"):
    from torch.distributed.fsdp import fully_shard
    if kind == "hsdp":
        group = dist.init_device_mesh("cpu", (2, 2), mesh_dim_names=("copies", "shards"))
    mesh = {"mesh": group} if kind == "hsdp" else {}
    fully_shard(model.hidden, **mesh)
    fully_shard(model, **mesh)
elif kind == "ddp":
    model = torch.nn.parallel.DistributedDataParallel(model, find_unused_parameters=True)
inner = model.module if kind == "ddp" else model
opt = star.attach(model, OPTIMIZERS[name](inner), own=name.startswith("own"), group=group)
loader = star.loader(Numbered(), batch_size=8 // accumulate, accumulate=accumulate, epochs=10)
def evaluated(batch):
    _, x, y = batch
    out = model(x)
    return float(F.cross_entropy(out, y, reduction="sum")), int((out.argmax(1) == y).sum()), len(y)
if what in ("state", "evaluates"):
    star.evaluate(evaluated, Numbered())
step, taken = 0, []
for epoch in range(100):
    for i, x, y in loader:
        if what == "dies" and step == 20 and me == 1 and star.rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        if what == "slow" and me == 1 and star.rank() == 1:
            time.sleep(0.05)
        if what == "evaluates" and not step:
            open("joined", "w").close()
        if what == "state" and step >= 50 and not os.path.exists("joined"):
            time.sleep(0.5)
        if not taken:
            opt.zero_grad()
        (F.cross_entropy(model(x), y) / accumulate).backward()
        taken.append(i.tolist())
        if len(taken) == accumulate:
            step += 1
            opt.step()
            print("batch", json.dumps(sum(taken, [])), flush=True)
            taken = []
            if what == "state" and step == 50:
                print("state", json.dumps([float(v.to_local().sum() if hasattr(v, "to_local") else v.sum()) for s in opt.state_dict()["state"].values() for k, v in s.items() if k == "exp_avg"]))
print("end", me, flush=True)
dist.destroy_process_group()
"""
)


def batches(worker: Any) -> List[List[List[int]]]:
    """Of each process, step by step."""
    out: Dict[str, List[List[int]]] = {}
    for line in worker.log.splitlines():
        m = re.match(r"(\[\d+\] )?batch (.*)", line)
        if m:
            out.setdefault(m.group(1) or "", []).append(json.loads(m.group(2)))
    return [list(parts) for parts in zip(*(out[k] for k in sorted(out)))]


PS, RING = ("--shards", "2"), ("--arch", "allreduce")


@pytest.mark.parametrize(
    "kind, processes, name, accumulate, arch",
    [("ddp", 2, "momentum", 1, PS), ("plain", 2, "own rmsprop", 2, RING)]
    + [
        pytest.param(*p, marks=sharded)
        for p in (
            ("fsdp", 2, "sgd", 1, PS),
            ("fsdp", 2, "adamw groups", 2, PS),
            ("fsdp", 2, "own rmsprop", 1, RING),
            ("hsdp", 4, "adam", 1, RING),
            ("ddp", 3, "own adagrad", 1, RING),
        )
    ],
    ids=lambda v: "-".join(v) if isinstance(v, tuple) else str(v),
)
def test_like_one_process(job: Any, kind: str, processes: int, name: str, accumulate: int, arch: Any) -> None:
    script = job.script(TRAIN)
    # The last round has fewer samples than processes.
    size = 2 * 8 * processes
    job.start("--mode", "ssgd", "--samples", str(100 * size + 3), *arch)
    flags = (*arch, "--out", str(job.out)) if arch != PS else ()
    ws = [job.worker(script, kind, name, str(accumulate), "", flags=flags, processes=processes) for _ in range(2)]
    job.finish()
    own = {}  # type: Any
    exec(MODEL, own)
    x, y = own["data"]()
    torch.manual_seed(5)
    model = own["Net"](25)
    opt = own["OPTIMIZERS"][name](model)
    rounds = [batches(w) for w in ws]
    seen: List[int] = []
    for k in range(101):
        parts = [p for r in rounds for p in (r[k] if k < len(r) else [])]
        taken = sum(parts, [])
        if k < 100:
            assert all(len(p) == 8 for p in parts)
            seen += taken
        else:  # the last three samples; a process without one computes another one's for nothing
            taken = sorted(set(taken))
            assert len(taken) == 3
        opt.zero_grad()
        own["F"].cross_entropy(model(x[taken]), y[taken], reduction="sum").div(size).backward()
        for p in model.parameters():
            if p.requires_grad and p.grad is None:
                p.grad = torch.zeros_like(p)
        opt.step()
    # An epoch may end within a round, and which worker has its first samples depends on which joined first.
    times = Counter(seen)
    assert sorted(times) == list(range(640)) and set(times.values()) <= {len(seen) // 640, -(-len(seen) // 640)}
    assert_equal(job.parameters(), model.state_dict())


def assert_equal(got: Any, want: Any) -> None:
    assert set(got) == set(want), (sorted(got), sorted(want))
    for k, v in want.items():
        error = float((got[k] - v).abs().max()) / max(float(v.abs().max()), 1e-3)
        assert error < 1e-5, "%s is off by %.2g of its largest element" % (k, error)


def test_a_process_dies(job: Any) -> None:
    """Its worker leaves the job, and the other one goes on with its samples."""
    script = job.script(TRAIN)
    job.start("--mode", "ssgd", "--epochs", "5")
    ws = [job.worker(script, "ddp", "sgd", "1", "dies", processes=2) for _ in range(2)]
    codes = sorted(w.wait() for w in ws)
    assert job.all[0].wait() == 0, job.all[0].log
    assert codes == [0, 137], [w.log for w in ws]
    lost = next(w for w in ws if w.wait())
    assert "process 1 of the 2 of this worker (pid" in lost.log and "has ended without saying why" in lost.log
    (gone,) = job.lines("leave")
    assert "process 1 of the 2 of this worker" in gone["why"]
    assert job.lines("fire")[-1]["samples"] == 5 * 640  # with those of the worker that is gone


@pytest.mark.parametrize("kind", ["ddp", pytest.param("fsdp", marks=sharded)])
def test_the_slow_process_is_named(job: Any, kind: str) -> None:
    script = job.script(TRAIN)
    job.start("--mode", "ssgd", "--steps", "60")
    ws = [job.worker(script, kind, "sgd", "1", "slow", processes=2) for _ in range(2)]
    job.finish()
    times = [r["telemetry"] for r in job.lines("record") if r["worker"] == 1]
    assert all(t["processes"] == 2 for t in times)
    named = sum(t["slow_process"] == 1 and t["slow_process_time"] > t["other_processes"] for t in times)
    assert named > 0.9 * len(times), times
    assert ws


@pytest.mark.parametrize("kind", ["ddp", pytest.param("fsdp", marks=sharded)])
def test_state_and_joins(job: Any, kind: str) -> None:
    """All processes may ask for the optimizer's state. Evaluations are spread over them. A joining worker has the job's parameters."""
    script = job.script(TRAIN)
    job.start("--mode", "ssgd", "--epochs", "10", "--eval-every", "2", "--max-workers", "2", workers=1)
    w = job.worker(script, kind, "adam", "1", "state", processes=2)
    w.until("state ")
    joins = job.worker(script, kind, "adam", "1", "evaluates", processes=2)
    job.finish()
    assert len(batches(joins)) > 1
    states = [json.loads(line.split("state ")[1]) for line in w.log.splitlines() if "state [" in line]
    assert len(states) == 2
    if kind == "ddp":
        assert states[0] == states[1]
    assert any(x != 0 for x in states[0])
    got = job.parameters()
    own = {}  # type: Any
    exec(MODEL, own)
    model = own["Net"](25)
    model.load_state_dict(got)
    x, y = own["data"]()
    last = job.lines("eval")[-1]
    assert last["count"] == 640
    assert abs(last["accuracy"] - float((model(x).argmax(1) == y).float().mean())) < 1e-6


def test_wrong_groups() -> None:
    """What star.attach refuses before it looks for the other processes."""
    import torch.distributed as dist

    from star_train import _job, _replica
    from star_train._link import StarError

    model = torch.nn.Linear(2, 2)
    before = _job.Session()
    with pytest.raises(StarError, match="comes after torch.distributed.init_process_group"):
        _replica.begin(model, None, before)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        with pytest.raises(StarError, match="wants a group of torch.distributed or a DeviceMesh, not a str"):
            _replica.begin(model, "shard", before)
        with pytest.raises(StarError, match=r"this process \(rank 0\) is not in the group"):
            _replica.begin(model, dist.GroupMember.NON_GROUP_MEMBER, before)
        old = type("FullyShardedDataParallel", (torch.nn.Sequential,), {})(model)
        with pytest.raises(StarError, match="use torch.distributed.fsdp.fully_shard"):
            _replica.begin(old, dist.group.WORLD, before)
        model = torch.nn.parallel.DistributedDataParallel(model)
        s = _replica.begin(model, dist.group.WORLD, before)
        assert (s.kind, s.index, s.processes) == (_replica.DDP, 0, 1)
        with pytest.raises(StarError, match=r"w is sharded over the ranks \[0, 1\], and the group of star.attach has \[0, 2\]"):
            mesh = type("Mesh", (), {"mesh": torch.tensor([0, 1])})
            _replica._check("w", type("T", (), {"device_mesh": mesh})(), [0, 2])
    finally:
        _job.session = None
        dist.destroy_process_group()
