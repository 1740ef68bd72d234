#!/usr/bin/env python3
"""A STAR worker in Python: the proof that the wire is struct, msgpack and zlib.

    worker.py COORDINATOR RANK PARAMS HASH STEPS DATA SAMPLES

joins a job as a worker with a model of PARAMS parameters, which it knows nothing
about: the gradient it pushes is 1 in every element. If the coordinator asks for
initial parameters, it sends 0, 1, 2, ... After STEPS gradients it leaves. Prints one
line of JSON for each version of the parameters that it received. See
docs/protocol.md. Needs python3-msgpack, and nothing of STAR.
"""
import json
import socket
import struct
import sys
import zlib

import msgpack

HELLO, WELCOME, REJECT, JOINED, ARRIVE = 1, 2, 3, 6, 7
RELEASE, PUSH, PARAMS, PULL, INIT, LEAVE, PONG = 12, 13, 14, 15, 16, 21, 25
PREFIX = struct.Struct("<4sBBBBIQI")  # magic, version, kind, flags, padding, header, payload, check


class Conn:
    def __init__(self, addr):
        host, port = addr.rsplit(":", 1)
        self.sock = socket.create_connection((host, int(port)), timeout=30)

    def send(self, kind, header, payload=b""):
        body = msgpack.packb(header)
        prefix = PREFIX.pack(b"STAR", 1, kind, 0, 0, len(body), len(payload), 0)[:20]
        check = zlib.crc32(body, zlib.crc32(prefix))
        frame = prefix + struct.pack("<I", check) + body + payload
        if payload:
            frame += struct.pack("<I", zlib.crc32(payload))
        self.sock.sendall(frame)

    def read(self, n):
        parts = []
        while n > 0:
            b = self.sock.recv(min(n, 1 << 20))
            if not b:
                sys.exit("worker.py: the other side hung up")
            parts.append(b)
            n -= len(b)
        return b"".join(parts)

    def recv(self, *want):
        prefix = self.read(PREFIX.size)
        magic, version, kind, flags, pad, hlen, plen, check = PREFIX.unpack(prefix)
        assert (magic, version, flags) == (b"STAR", 1, 0), prefix
        rest = self.read(hlen + pad)
        assert zlib.crc32(rest, zlib.crc32(prefix[:20])) == check, "checksum of the header"
        header = msgpack.unpackb(rest[:hlen])
        payload = b""
        if plen:
            payload = self.read(plen)
            assert struct.unpack("<I", self.read(4))[0] == zlib.crc32(payload), "checksum of the payload"
        if kind == REJECT:
            print(json.dumps({"rejected": header[1], "exit": header[0]}))
            sys.exit(header[0])
        assert kind in want, (kind, want)
        return kind, header, payload


def main():
    addr, rank, params, model, steps, data, samples = sys.argv[1:]
    rank, params, steps, samples = int(rank), int(params), int(steps), int(samples)

    def hello(service, shard, pass_=""):
        return [service, "worker", "star", "", "worker.py", "python", rank, shard, "", 0, "python", model, params, 0, pass_]

    coordinator = Conn(addr)
    enrolment = {"layout": [{"name": "w", "shape": [params], "offset": 0}], "data": data, "samples": samples, "tests": 0}
    coordinator.send(HELLO, hello("coord", 0), json.dumps(enrolment).encode())
    _, (rank, workers, generation, version, seed, shards, elapsed, step, term, pass_, *_), _ = coordinator.recv(WELCOME)

    links = []
    for shard, shard_addr, start, end, *_ in shards:
        link = Conn(shard_addr)
        link.send(HELLO, hello("shard", shard, pass_))
        link.recv(WELCOME)
        if seed:
            link.send(INIT, [shard, rank], struct.pack(f"<{end - start}f", *range(start, end)))
        links.append((link, shard, end - start))
    coordinator.send(JOINED, [rank])

    for step in range(steps + 1):
        _, (_, version, action, start, count, pull, *_), _ = coordinator.recv(RELEASE)
        vector = []
        for link, shard, n in links:
            if pull:
                link.send(PULL, [shard, rank])
            _, (_, got, *_), payload = link.recv(PARAMS)
            assert got >= version, (got, version)
            vector += struct.unpack(f"<{n}f", payload)
        print(json.dumps({"version": version, "start": start, "count": count, "head": vector[:3], "sum": sum(vector)}), flush=True)
        if step == steps or action != 0:
            break
        for link, shard, n in links:
            link.send(PUSH, [shard, rank, step, version, count, ""], struct.pack(f"<{n}f", *([1.0] * n)))
        coordinator.send(ARRIVE, [rank, step, version, 0, 1000, 0, 0, 0, 0, 0, count, 0.5, float(params), 0.0, 0.0, 0.0])
    coordinator.send(LEAVE, [rank, 0, "done"])


main()
