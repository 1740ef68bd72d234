"""Replaces star_train._agent in tests of groups that span hosts: the leaders exchange through Gloo."""

import mmap
from datetime import timedelta
from typing import Any, List, Tuple

import torch
import torch.distributed as dist

_OPS = {"sum": dist.ReduceOp.SUM, "min": dist.ReduceOp.MIN, "max": dist.ReduceOp.MAX, "product": dist.ReduceOp.PRODUCT}


class Agent:
    @classmethod
    def ensure(cls, store: Any, rank: int, size: int, local_rank: int, timeout: float) -> "Agent":
        return cls()

    def watch(self) -> bool:
        return False

    def group(self, store: Any, name: str, host_index: int, hosts: int, fd: int, size: int, timeout: float, ranks: str = "") -> "Hosts":
        return Hosts(dist.PrefixStore("leaders/" + name, store), host_index, hosts, fd, size, timeout)


class Hosts:
    def __init__(self, store: Any, me: int, hosts: int, fd: int, size: int, timeout: float) -> None:
        self.me, self.hosts = me, hosts
        self.gloo = dist.ProcessGroupGloo(store, me, hosts, timeout=timedelta(seconds=timeout))
        self.bytes = torch.frombuffer(mmap.mmap(fd, size), dtype=torch.uint8)

    def at(self, offset: int, size: int) -> Any:
        assert 0 <= offset and offset + size <= self.bytes.numel()
        return self.bytes[offset : offset + size]

    def all_reduce(self, offset: int, count: int, dtype: str, op: str, timeout: float) -> None:
        kind = getattr(torch, dtype)
        o = dist.AllreduceOptions()
        o.reduceOp = _OPS[op]
        self.gloo.allreduce([self.at(offset, count * kind.itemsize).view(kind)], o).wait()

    def exchange(self, sends: List[Tuple[int, int]], receives: List[Tuple[int, int]], timeout: float) -> None:
        assert len(sends) == len(receives) == self.hosts and sends[self.me] == receives[self.me] == (0, 0)
        works = [self.gloo.send([self.at(*s)], h, 0) for h, s in enumerate(sends) if s[1]]
        works += [self.gloo.recv([self.at(*r)], h, 0) for h, r in enumerate(receives) if r[1]]
        for w in works:
            w.wait()

    def broadcast(self, root_host: int, offset: int, size: int, timeout: float) -> None:
        o = dist.BroadcastOptions()
        o.rootRank = root_host
        self.gloo.broadcast([self.at(offset, size)], o).wait()

    def barrier(self, timeout: float) -> None:
        self.gloo.barrier().wait()

    def abort(self, reason: str) -> None:
        pass

    def close(self) -> None:
        pass
