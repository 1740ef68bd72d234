"""How scripts end: test_backend_ends.py checks that no rank is ended by a signal, and that none waits for long.

usage: backend_ends.py BACKEND ROUNDS [NAME...]    prints a line for each end: the exit codes of all rounds. Each rank is a fork that ends as a script does: Python is finalized.
"""

import json
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from typing import Any, Callable, Dict, List

import torch
import torch.distributed as dist

ENDS: Dict[str, Callable[[int], None]] = {}
_kept: List[Any] = []  # until the interpreter ends


def end(f: Callable[[int], None]) -> Callable[[int], None]:
    ENDS[f.__name__] = f
    return f


def x() -> torch.Tensor:
    return torch.ones(1 << 16)


@end
def after_destroy(rank: int) -> None:
    dist.all_reduce(x())
    dist.destroy_process_group()


@end
def without_destroy(rank: int) -> None:
    dist.all_reduce(x())


@end
def works_not_waited_for(rank: int) -> None:
    for _ in range(20):
        dist.all_reduce(x(), async_op=True)


@end
def works_kept(rank: int) -> None:
    _kept.extend(dist.all_reduce(x(), async_op=True) for _ in range(20))


@end
def works_destroyed(rank: int) -> None:
    _kept.extend(dist.all_reduce(x(), async_op=True) for _ in range(20))
    dist.destroy_process_group()


@end
def futures(rank: int) -> None:
    works = [dist.all_reduce(x(), async_op=True) for _ in range(20)]
    _kept.extend(w.get_future().then(lambda f: f.value()[0].sum()) for w in works)


@end
def another_thread(rank: int) -> None:
    begun = threading.Event()

    def calls() -> None:
        while True:
            dist.all_reduce(x())
            begun.set()

    threading.Thread(target=calls, daemon=True).start()
    begun.wait()


@end
def sends(rank: int) -> None:
    _kept.append(dist.isend(x(), 1 - rank))
    _kept.append(dist.irecv(x(), 1 - rank))


@end
def receives_what_does_not_come(rank: int) -> None:
    dist.barrier()
    _kept.append(dist.irecv(x(), 1 - rank))


@end
def groups(rank: int) -> None:
    _kept.extend(dist.new_group() for _ in range(3))
    for g in _kept[:]:
        _kept.append(dist.all_reduce(x(), group=g, async_op=True))


@end
def one_leaves(rank: int) -> None:
    dist.barrier()
    if rank == 0:
        _kept.append(dist.all_reduce(x(), async_op=True))
        time.sleep(0.05)


@end
def exception(rank: int) -> None:
    _kept.append(dist.all_reduce(x(), async_op=True))
    raise SystemExit(3)


@end
def ddp(rank: int) -> None:
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
    for _ in range(3):
        model(torch.ones(8, 64)).sum().backward()
    _kept.append(model)


@end
def fsdp2(rank: int) -> None:
    from torch.distributed.fsdp import fully_shard

    model: Any = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 64))
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    for _ in range(3):
        model(torch.ones(8, 64)).sum().backward()
    _kept.append(model)


@end
def fsdp2_forward_only(rank: int) -> None:
    """Parameters that were gathered ahead, and not used."""
    from torch.distributed.fsdp import fully_shard

    model: Any = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 64))
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    model.unshard(async_op=True)
    _kept.append(model)


def main() -> None:
    """Returns in each rank, too, which goes on to the end of the script."""
    torch.set_num_threads(1)
    backend, rounds, names = sys.argv[1], int(sys.argv[2]), sys.argv[3:] or list(ENDS)
    for module in ("_dynamo", "distributed.fsdp"):  # once, and not in each fork
        __import__("torch." + module)
    if backend == "star":
        __import__("star_train.backend")
    for name in names:
        codes: List[List[int]] = []
        for _ in range(rounds):
            folder, pids = tempfile.mkdtemp(), []
            for rank in range(2):
                pid = os.fork()
                if pid == 0:
                    signal.alarm(120)
                    dist.init_process_group(backend, init_method="file://%s/store" % folder, rank=rank, world_size=2)
                    ENDS[name](rank)
                    return
                pids.append(pid)
            codes.append([os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids])
            shutil.rmtree(folder)
        print(json.dumps({"name": name, "codes": codes}), flush=True)


if __name__ == "__main__":
    main()
