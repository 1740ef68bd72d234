#!/usr/bin/env python3
"""Does star doctor --sweep name the sick one of four hosts, and none when all are well?

Four hosts are network namespaces behind a bridge on this machine, each with control groups (version 1) of its own for processors
and disk. In each round one of them, in turn, is made sick in one way:

  quota   its control group may use 60 % of the machine's processors (cpu.cfs_quota_us)
  link    it sends with 20 Mbit/s (tc tbf); the others as fast as veth pairs go
  disk    it reads and writes --dir with 20 MB/s (blkio.throttle)
  clean   none

Ways take turns, so that a load of the machine hits all alike. A run is right if the sick host, and no other, has a failure; by
measurement, if that does not rest on reading the quota from the control group. Each run begins with the state of the last
clean run of its host, as on real hosts, unless --no-state.

  bench/sweep.py [--rounds 20] [--ways clean,quota,link,disk] [--star PATH] [--out FILE.jsonl]

Other programs of the machine get what processor time the hosts leave (cpu.shares), since on a busy machine a quota of 60 % would
take nothing away.

Needs root, ip, tc, nsenter and control groups of version 1. About 15 s for each run. The hosts share processors, disk and kernel: they are
measured in turns, and a real cluster is easier.
"""
import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile

HOSTS = ["a", "b", "c", "d"]
CPU, BLKIO = "/sys/fs/cgroup/cpu", "/sys/fs/cgroup/blkio"


def run(line, **more):
    return subprocess.run(line.split(), check=True, capture_output=True, text=True, **more)


def write(path, text):
    with open(path, "w") as f:
        f.write(text)


class Hosts:
    def __init__(self, tag, disk):
        self.tag, self.disk = tag, disk
        run(f"ip netns add {tag}s")
        run(f"ip -n {tag}s link add br0 type bridge")
        run(f"ip -n {tag}s link set br0 up")
        for i, h in enumerate(HOSTS):
            ns = tag + h
            run(f"ip netns add {ns}")
            run(f"ip link add eth0 netns {ns} type veth peer name p{i} netns {tag}s")
            run(f"ip -n {ns} addr add 10.83.0.{i + 1}/24 dev eth0")
            run(f"ip -n {ns} link set lo up")
            run(f"ip -n {ns} link set eth0 up")
            run(f"ip -n {tag}s link set p{i} master br0 up")
            for group in CPU, BLKIO:
                os.makedirs(f"{group}/{ns}", exist_ok=True)
            write(f"{CPU}/{ns}/cpu.shares", "262144")  # hosts of their own have no other programs beside them

    def file(self, path, star):
        with open(path, "w") as f:
            f.write("hosts:\n")
            for i, h in enumerate(HOSTS):
                ns = self.tag + h
                enter = f"echo $$ > {CPU}/{ns}/cgroup.procs; echo $$ > {BLKIO}/{ns}/cgroup.procs; exec nsenter --net=/run/netns/{ns} -- \"$@\""
                launch = ["sh", "-c", enter, "sh"]
                f.write(f"  - name: {h}\n    cpu: {os.cpu_count()}\n    address: 10.83.0.{i + 1}\n    launch: {json.dumps(launch)}\n    program: {star}\n")

    def sicken(self, way, host):
        ns = self.tag + host
        if way == "quota":
            write(f"{CPU}/{ns}/cpu.cfs_quota_us", str(int(0.6 * os.cpu_count() * 100000)))
        elif way == "link":
            run(f"ip netns exec {ns} tc qdisc add dev eth0 root tbf rate 20mbit burst 64kb latency 100ms")
        elif way == "disk":
            for what in "read", "write":
                write(f"{BLKIO}/{ns}/blkio.throttle.{what}_bps_device", f"{self.disk} 20000000")

    def heal(self, way, host):
        ns = self.tag + host
        if way == "quota":
            write(f"{CPU}/{ns}/cpu.cfs_quota_us", "-1")
        elif way == "link":
            run(f"ip netns exec {ns} tc qdisc del dev eth0 root")
        elif way == "disk":
            for what in "read", "write":
                write(f"{BLKIO}/{ns}/blkio.throttle.{what}_bps_device", f"{self.disk} 0")

    def close(self):
        for h in HOSTS + ["s"]:
            subprocess.run(["ip", "netns", "del", self.tag + h], capture_output=True)
            for group in CPU, BLKIO:
                try:
                    os.rmdir(f"{group}/{self.tag}{h}")
                except OSError:
                    pass


def whole_disk(folder):
    """The major and minor number of the disk of a folder: limits are set for whole disks."""
    dev = os.stat(folder).st_dev
    path = os.path.realpath(f"/sys/dev/block/{os.major(dev)}:{os.minor(dev)}")
    if os.path.exists(path + "/partition"):
        path = os.path.dirname(path)
    with open(path + "/dev") as f:
        return f.read().strip()


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--rounds", type=int, default=20)
    p.add_argument("--ways", default="clean,quota,link,disk")
    p.add_argument("--star")
    p.add_argument("--run", default="", help="what each sweep is started with, such as a command that waits for a turn")
    p.add_argument("--out", default="sweep.jsonl")
    p.add_argument("--no-state", action="store_true")
    a = p.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # hosts are removed
    if os.getuid() != 0 or not os.path.exists(CPU + "/cpu.cfs_quota_us") or not os.path.exists(BLKIO + "/blkio.throttle.read_bps_device"):
        sys.exit("bench/sweep.py: needs root and control groups of version 1 with cpu and blkio")
    with tempfile.TemporaryDirectory(prefix="sweep") as work:
        star = a.star
        if not star:
            star = work + "/star"
            subprocess.run(["go", "build", "-C", os.path.dirname(os.path.abspath(__file__)) + "/..", "-o", star, "./cmd/star"], check=True)
        hosts = Hosts(f"sw{os.getpid() % 10000}", whole_disk(work))
        try:
            hosts.file(work + "/hosts.yaml", os.path.abspath(star))
            rows = measure(a, hosts, star, work)
        finally:
            hosts.close()
    table(rows)


def measure(a, hosts, star, work):
    rows = []
    ways = a.ways.split(",")
    with open(a.out, "a") as out:
        for n in range(a.rounds):
            for way in ways:
                sick = HOSTS[(n + ways.index(way)) % 4] if way != "clean" else ""
                hosts.sicken(way, sick)
                try:
                    done = subprocess.run([*a.run.split(), star, "doctor", "--sweep", "--hosts", work + "/hosts.yaml", "--dir", work, "--json",
                                           "--state", "off" if a.no_state else work + "/state"], capture_output=True, text=True, timeout=1800)
                finally:
                    hosts.heal(way, sick)
                try:
                    report = json.loads(done.stdout)
                except ValueError:
                    sys.exit(f"no report: exit {done.returncode}\n{done.stdout}\n{done.stderr}")
                row = {"way": way, "sick": sick, "exit": done.returncode, "seconds": report["seconds"], "load": os.getloadavg()[0],
                       "failures": [f for f in report["findings"] if f["status"] == "fail"], "hosts": report["hosts"]}
                out.write(json.dumps(row) + "\n")
                out.flush()
                rows.append(row)
                said = "; ".join(f"{f['host']} {f['check']}: {f['detail']}" for f in row["failures"])
                print(f"{n:3} {way:6} {sick:2} exit {done.returncode} {row['seconds']:5.1f} s load {row['load']:4.1f}  {said}", flush=True)
    return rows


EXPECT = {"quota": {"compute"}, "link": {"link out"}, "disk": {"disk write", "disk read", "small reads"}}


def table(rows):
    print("| way | runs | named | by measurement | another host named | seconds, median (most) | number of the sick host / of the others, median |")
    print("|---|---|---|---|---|---|---|")
    for way in sorted({r["way"] for r in rows}, key=["clean", "quota", "link", "disk"].index):
        rs = [r for r in rows if r["way"] == way]
        named = sum(r["exit"] == 1 and r["sick"] in {f["host"] for f in r["failures"]} for r in rs)
        by = sum(any(f["host"] == r["sick"] and f["check"] in EXPECT.get(way, ()) for f in r["failures"]) for r in rs)
        others = sum(bool({f["host"] for f in r["failures"]} - {r["sick"]}) for r in rs)
        seconds = sorted(r["seconds"] for r in rs)
        key = {"quota": "compute_flops", "link": "out_Bps", "disk": "read_Bps"}.get(way)
        shares = sorted(v[r["sick"]] / sorted(x for h, x in v.items() if h != r["sick"])[1]
                        for r in rs for v in [{h["name"]: h["values"].get(key, 0) for h in r["hosts"]}] if key)
        share = f"{shares[len(shares) // 2]:.3f}" if shares else "–"
        print(f"| {way} | {len(rs)} | {named if way != 'clean' else '–'} | {by if way != 'clean' else '–'} | {others} | "
              f"{seconds[len(seconds) // 2]:.1f} ({seconds[-1]:.1f}) | {share} |")


if __name__ == "__main__":
    main()
