"""The calls in which a process waits for other ranks, in a file that the collector of star watch reads, and where a
process is while it makes no progress. Imported by star_watch.

The file is calls-PID beside the collector's socket: a header, the calls that are open now, and the last call that was
entered in each group. Writing an entry is two copies into mapped memory, without a system call. The reader accepts an
entry that is unchanged between two looks, so a write needs no lock.

A thread of this module looks four times a second where the training thread is. While nothing changes for some seconds
it sends the stack of that thread every two seconds. It answers in processes that a DataLoader starts, too."""

import json
import mmap
import os
import random
import re
import socket
import struct
import sys
import sysconfig
import threading
import time

MAGIC = b"STARCALL"
FORMAT = 1
HEADER, ENTRY, OPEN, GROUPS = 256, 256, 16, 32
SIZE = HEADER + (OPEN + GROUPS) * ENTRY
_TEXT = ENTRY - 20  # bytes of text in an entry
_PHASE = 64  # bytes of the phase's name
_FIXED = struct.Struct("<8sIIqii")  # magic, format, reserved, pid, rank, world
_COUNT = struct.Struct("<Q")
_HEAD = struct.Struct("<QQI")  # token, number, bytes of text
_STEPS, _PROGRESS, _COMPUTING, _PHASE_AT = 32, 40, 48, 64

_now = time.monotonic


def _quiet():
    """Seconds without a change after which stacks are sent: a third of the shortest time that is called a hang."""
    try:
        return min(5.0, float(os.environ.get("STAR_WATCH_HANG", "15")) / 3)
    except ValueError:
        return 5.0


def shorten(ranks):
    """Ranks in words, as 0-3,8."""
    out, ranks = [], sorted(ranks)
    while ranks:
        n = 1
        while n < len(ranks) and ranks[n] == ranks[0] + n:
            n += 1
        out.append(str(ranks[0]) if n == 1 else "%d-%d" % (ranks[0], ranks[0] + n - 1))
        ranks = ranks[n:]
    return ",".join(out)


class Calls:
    """The file of this process."""

    def __init__(self, folder, rank, world):
        self.pid = os.getpid()
        self.path = os.path.join(folder, "calls-%d" % self.pid)
        with open(self.path, "w+b") as f:
            f.truncate(SIZE)
            self.map = mmap.mmap(f.fileno(), SIZE)
        self.free = list(range(OPEN))
        self.texts = {}
        self.groups = {}  # name: offset of its entry and text of its ranks
        self.steps = self.progress = self.last = 0
        self.outer = {}  # threads in a call that is recorded: calls inside it are not
        self.rank(rank, world)

    def rank(self, rank, world):
        _FIXED.pack_into(self.map, 0, MAGIC, FORMAT, 0, self.pid, rank, world)

    def stepped(self):
        self.steps += 1
        _COUNT.pack_into(self.map, _STEPS, self.steps)

    def progressed(self):
        self.progress += 1
        _COUNT.pack_into(self.map, _PROGRESS, self.progress)

    def computing(self, token):
        """Says that the call of token does not wait yet; 0: each one waits."""
        _COUNT.pack_into(self.map, _COMPUTING, token)

    def phase(self, name):
        self.map[_PHASE_AT : _PHASE_AT + _PHASE] = name.encode()[: _PHASE - 1].ljust(_PHASE, b"\0")

    def issued(self, group, ranks, seq, kind, detail):
        """Records that this process has entered a call; returns its text."""
        key = (group, kind, detail)
        text = self.texts.get(key)
        at = self.groups.get(group)
        if at is None:
            if len(self.groups) == GROUPS:
                return None
            at = self.groups[group] = (HEADER + (OPEN + len(self.groups)) * ENTRY, shorten(ranks))
        if text is None:
            if len(self.texts) > 4096:
                self.texts.clear()
            text = self.texts[key] = "\0".join((group[:64], at[1][:64], kind[:48], detail[:56])).encode()[:_TEXT]
        _HEAD.pack_into(self.map, at[0], 1, seq, len(text))
        self.map[at[0] + 20 : at[0] + 20 + len(text)] = text
        return text

    def opened(self, seq, text):
        """Records that this process waits in a call; returns the token that closed needs."""
        if text is None or not self.free:
            return 0
        slot = self.free.pop()
        self.last += 1
        token = self.last << 8 | slot + 1
        at = HEADER + slot * ENTRY
        _HEAD.pack_into(self.map, at, token, seq, len(text))
        self.map[at + 20 : at + 20 + len(text)] = text
        return token

    def closed(self, token):
        if token:
            slot = (token & 255) - 1
            _COUNT.pack_into(self.map, HEADER + slot * ENTRY, 0)
            self.free.append(slot)
            self.progressed()


def counts(data):
    """What the file of a process has counted: steps, progress, and tokens of open calls."""
    return data[_STEPS : _PROGRESS + 8] + b"".join(data[at : at + 8] for at in range(HEADER, HEADER + OPEN * ENTRY, ENTRY))


_library = {}  # path of a file: whether it is of Python, of a package or of ours


def _is_library(path):
    known = _library.get(path)
    if known is None:
        here = os.path.dirname(os.path.abspath(__file__))
        places = [sysconfig.get_path(n) for n in ("stdlib", "platstdlib")] + [here]
        known = path.startswith("<") or any(p and path.startswith(p + os.sep) for p in places) or "site-packages" in path or "dist-packages" in path
        if len(_library) < 10000:
            _library[path] = known
    return known


def _name(frame, path):
    return "%s:%d in %s" % (path, frame.f_lineno or 0, frame.f_code.co_name[:60])  # a frame may have no line


def where(frame):
    """The innermost line that is the script's own; the innermost one if none is."""
    f = frame
    while f is not None:
        if not _is_library(f.f_code.co_filename):
            break
        f = f.f_back
    f = f or frame
    return _name(f, os.path.basename(f.f_code.co_filename))


def stack(frame, most=24):
    """The lines of a stack, the innermost first, with their paths."""
    out = []
    while frame is not None and len(out) < most:
        if os.path.dirname(frame.f_code.co_filename) != os.path.dirname(__file__):
            out.append(_name(frame, frame.f_code.co_filename[-120:]))
        frame = frame.f_back
    return out


def _flight():
    """The newest entries of PyTorch's flight recorder, where this PyTorch has one that is on: the calls that C++ makes,
    as those of DDP. The recorder of Gloo does not say which of them are over."""
    d = sys.modules.get("torch._C._distributed_c10d")
    if d is None:
        torch = sys.modules.get("torch")
        d = getattr(getattr(torch, "_C", None), "_distributed_c10d", None)
    out = []
    for name, says in (("_dump_nccl_trace_json", True), ("_dump_fr_trace_json", False)):
        dump = getattr(d, name, None)
        if dump is None:
            continue
        try:
            entries = json.loads(dump(True, says)).get("entries", [])
        except Exception:  # another form, of another PyTorch
            continue
        by_group = {}
        for e in entries:
            if e.get("is_p2p") or not e.get("collective_seq_id"):
                continue
            names = e.get("process_group") or ["?"]
            sizes, types = e.get("input_sizes") or [[]], e.get("input_dtypes") or [""]
            detail = "%s[%s]" % (_dtype(types[0]), ",".join(map(str, sizes[0]))) if types[0] else ""
            by_group.setdefault(str(names[0])[:64], []).append(
                {"group": str(names[0])[:64], "number": int(e["collective_seq_id"]), "kind": str(e.get("profiling_name", "")).split(":")[-1][:48],
                 "detail": detail[:56], "open": says and e.get("state") != "completed" and not e.get("retired")})
        for group in list(by_group)[:4]:
            out += by_group[group][-12:]
    return out


def _dtype(name):
    known = {"Float": "float32", "Double": "float64", "Half": "float16", "BFloat16": "bfloat16", "Long": "int64", "Int": "int32", "Short": "int16", "Char": "int8",
             "Byte": "uint8", "Bool": "bool"}
    return known.get(name, re.sub(r"\W", "", name).lower())


_TCP_INFO = struct.Struct("<B15xI4xI116xI80xI")  # state, snd_mss, unacked, notsent_bytes, snd_wnd


_MEMINFO, _QUEUED = 55, struct.Struct("<8xI")  # SO_MEMINFO of Linux: bytes that were sent and are in a queue of this host


class Links:
    """The TCP connections of this process: whether data wait to be sent because a link, and not the receiver, is slow."""

    def __init__(self):
        self.sockets, self.found = [], -60.0

    def find(self):
        """The descriptors that are sockets, looked up every five seconds."""
        if _now() - self.found < 5:
            return
        self.found, self.sockets = _now(), []
        for fd in os.listdir("/proc/self/fd"):
            try:
                if os.readlink("/proc/self/fd/" + fd).startswith("socket:"):
                    self.sockets.append(int(fd))
            except OSError:
                pass

    def wait(self):
        """Whether a connection has data in a queue of this host, or that were not sent yet though the receiver has room."""
        self.find()
        for fd in self.sockets:
            try:
                with socket.socket(socket.AF_INET, socket.SOCK_STREAM, 0, os.dup(fd)) as s:
                    info = s.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
                    memory = s.getsockopt(socket.SOL_SOCKET, _MEMINFO, 64)
            except OSError:  # of another kind, or closed meanwhile
                continue
            if len(info) < _TCP_INFO.size:  # Linux before 5.4
                continue
            state, mss, unacked, unsent, window = _TCP_INFO.unpack_from(info)
            queued = _QUEUED.unpack_from(memory)[0]
            if state == 1 and (queued > _SMALL or unsent > 0 and (unacked + 1) * mss <= window):
                return True
        return False


_SMALL = 8192  # bytes that a queue may have at any time

# The share of looks below which data that wait are ignored: single looks say little.
_OFTEN = 0.25


class Watcher(threading.Thread):
    """Looks where a thread is. calls is that of the process, or of its parent; line is called with the line in which
    the training thread mostly is outside of calls, or with an empty text; sends with the share of the looks in calls
    at which data waited for a link."""

    def __init__(self, path, version, calls, train=None, busy=None, line=None, failed=None, parent=0, sends=None):
        threading.Thread.__init__(self, name="star watch", daemon=True)
        self.path, self.version, self.data, self.parent = path, version, calls, parent
        self.train, self.busy, self.line, self.failed = train, busy, line, failed
        self.pid = os.getpid()
        self.socket = None
        self.rank = 0
        self.lines = []
        self.sends, self.links, self.looks = sends, Links(), []

    def run(self):
        try:
            quiet, was, since, sent, flight = _quiet(), b"", _now(), 0.0, None
            while self.pid == os.getpid():
                time.sleep(random.uniform(0.2, 0.3) if self.train else 0.5)
                now = counts(self.data)
                if now != was:
                    was, since, flight = now, _now(), None
                self.sample()
                if _now() - since >= quiet and _now() - sent >= min(2.0, quiet):
                    sent = _now()
                    if flight is None and not self.parent:
                        flight = _flight()
                    self.send(flight)
        except Exception:  # the program goes on without us
            if self.failed is not None:
                self.failed()

    def sample(self):
        if self.train is None:
            return
        busy = self.busy()
        if busy and self.sends is not None:
            self.looks.append(self.links.wait())
            del self.looks[:-16]
            share = sum(self.looks) / len(self.looks)
            self.sends(share if len(self.looks) > 3 and share >= _OFTEN else 0.0)
        if not busy:
            frame = sys._current_frames().get(self.train())
            self.lines.append(where(frame) if frame is not None else "")
            del self.lines[:-40]
        lines = list(self.lines)
        best = max(set(lines), key=lines.count) if lines else ""
        self.line(best if lines.count(best) * 2 >= len(lines) and len(lines) > 1 else "")

    def send(self, flight):
        thread = self.train() if self.train else threading.main_thread().ident
        frames = sys._current_frames()
        frame = frames.get(thread)
        if frame is None:
            return
        names = {t.ident: t.name for t in threading.enumerate()}
        others = ["%s: %s" % (names.get(i, "thread %d" % i)[:40], where(f)) for i, f in frames.items() if i not in (thread, threading.get_ident())]
        row = {"k": "stack", "v": self.version, "pid": self.pid, "rank": self.rank, "parent": self.parent, "line": where(frame)[:200], "frames": stack(frame),
               "threads": others[:8], "flight": flight or []}
        line = json.dumps(row)
        if len(line) > 16000:
            row["frames"], row["flight"] = row["frames"][:8], row["flight"][-8:]
            line = json.dumps(row)
        try:
            if self.socket is None:
                self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                self.socket.settimeout(1)
                self.socket.connect(self.path)
            self.socket.sendall(line.encode() + b"\n")
        except OSError:  # a row that went out in part cannot be continued
            if self.socket is not None:
                self.socket.close()
            self.socket = None


def parent_of(folder, pid):
    """The file of another process, or None."""
    try:
        with open(os.path.join(folder, "calls-%d" % pid), "rb") as f:
            return mmap.mmap(f.fileno(), SIZE, access=mmap.ACCESS_READ)
    except (OSError, ValueError):
        return None
