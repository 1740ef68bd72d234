"""Exchanges gradients of another process through PyTorch's Gloo, for star bench step --arch allreduce --against gloo.

Arguments: RANK SIZE PORT FILE ELEMENTS BUCKETS. FILE is shared memory of ELEMENTS float32, the gradient. Standard input
has messages of two little-endian uint64, FROM and TO: sum elements [FROM, TO) over all ranks, in place. Each is answered by one byte
on standard output when it is done, in order. FROM = TO is answered at once: that is the price of asking. FROM = 1, TO = 0 is answered by
the processor time of this process, a little-endian double. The end of the input is the end.

As in DistributedDataParallel, all-reduces are issued as they come and may run at the same time. With BUCKETS = 1 there is nothing
to overlap, and one thread does it all. The first answer, b"r", says that all ranks have met.
"""
import mmap
import os
import queue
import resource
import struct
import sys
import threading

import torch
import torch.distributed as dist

torch.set_num_threads(1)
rank, size, port = map(int, sys.argv[1:4])
path, elements, buckets = sys.argv[4], int(sys.argv[5]), int(sys.argv[6])
with open(path, "r+b") as f:
    memory = mmap.mmap(f.fileno(), 4 * elements)
gradient = torch.frombuffer(memory, dtype=torch.float32)
dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=size)


def read():
    b = b""
    while len(b) < 16:
        more = os.read(0, 16 - len(b))
        if not more:
            return None
        b += more
    return struct.unpack("<QQ", b)


def used():
    u = resource.getrusage(resource.RUSAGE_SELF)
    return struct.pack("<d", u.ru_utime + u.ru_stime)


def issue(at, end):
    """What to wait for, and then to answer."""
    if at < end:
        return dist.all_reduce(gradient[at:end], async_op=True), b"."
    return None, b"." if at == end else used()


def answer(work, text):
    if work is not None:
        work.wait()
    os.write(1, text)


dist.barrier()
os.write(1, b"r")
if buckets == 1:
    while (message := read()) is not None:
        answer(*issue(*message))
else:
    todo: queue.SimpleQueue = queue.SimpleQueue()

    def issuer():
        while (message := read()) is not None:
            todo.put(issue(*message))
        todo.put(None)

    threading.Thread(target=issuer, daemon=True).start()
    while (item := todo.get()) is not None:
        answer(*item)
