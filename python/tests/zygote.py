"""A Python that has PyTorch imported already: for tests that start many processes. To import PyTorch takes each of them seconds.

A server imports modules once and forks a process for each script. The program `python` that Zygote makes is started like Python
and takes its place: it hands over its arguments, environment, folder and open files, forwards signals, and ends as the process ends.
The process is not its child, and has a session of its own; it is killed when `python` is. Tests about starting processes use sys.executable.

usage: zygote.py SOCKET MODULE[,MODULE]    the server; it ends with its standard input
"""

import atexit
import contextlib
import gc
import importlib
import marshal
import os
import pathlib
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import threading
import types
from typing import Any, Dict, List, Sequence, Tuple

FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)

# What `python` is: started without site and without the environment's settings, it needs a hundredth of a second.
CLIENT = """#!%s -ISE
import marshal, os, signal, socket, sys
forwarded = %r
signal.pthread_sigmask(signal.SIG_BLOCK, forwarded)
ends = [signal.getsignal(s) != signal.SIG_IGN for s in forwarded]
files = [int(f) for f in os.listdir("/proc/self/fd") if os.path.exists("/proc/self/fd/" + f) and os.get_inheritable(int(f))]
server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
server.connect(%r)
socket.send_fds(server, [marshal.dumps((sys.argv, dict(os.environ), os.getcwd(), files))], files)
null = os.open(os.devnull, os.O_RDWR)
for f in files:
    os.dup2(null, f) if f < 3 else os.close(f)
pid = marshal.loads(server.recv(100) or sys.exit("the zygote has ended"))
for s in forwarded:
    signal.signal(s, lambda s, _: os.kill(pid, s))
signal.pthread_sigmask(signal.SIG_UNBLOCK, forwarded)
code = os.waitstatus_to_exitcode(marshal.loads(server.recv(100) or sys.exit("the zygote has ended")))
if code < 0:
    import resource
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    if -code != signal.SIGKILL:
        signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
os._exit(code)
"""


class Zygote:
    """The server, and the path of the program `python`."""

    def __init__(self, folder: pathlib.Path, modules: Sequence[str], env: Dict[str, str]) -> None:
        path = folder / "zygote"
        self.server = subprocess.Popen([sys.executable, __file__, str(path), ",".join(modules)], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self.server.stdout is not None
        assert self.server.stdout.readline() == b"ready\n", "the zygote has ended with %s" % self.server.wait()
        self.python = str(folder / "python")
        with open(self.python, "w") as f:
            f.write(CLIENT % (sys.executable, [int(s) for s in FORWARDED], str(path)))
        os.chmod(self.python, 0o755)

    def close(self) -> None:
        assert self.server.stdin is not None and self.server.stdout is not None
        self.server.stdin.close()
        self.server.stdout.close()
        self.server.wait(60)


Request = Tuple[List[str], Dict[str, str], str, List[int]]


def serve(path: str) -> "Tuple[Request, List[int]]":
    """Forks for each connection, and returns in the process that was forked: with what it is to be, and its open files."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(path)
    listener.listen(100)
    ready = selectors.DefaultSelector()
    ready.register(listener, selectors.EVENT_READ)
    ready.register(0, selectors.EVENT_READ)
    running: Dict[Any, Any] = {}  # by connection and by pidfd: (pid, pidfd, connection)
    print("ready", flush=True)
    while True:
        for key, _ in ready.select():
            if key.fileobj == 0:
                for pid in {pid for pid, _, _ in running.values()}:
                    kill(pid)
                sys.exit()
            if key.fileobj is listener:
                connection, _ = listener.accept()
                data, files, _, _ = socket.recv_fds(connection, 1 << 20, 250)
                if not data:
                    connection.close()
                    continue
                pid = os.fork()
                if pid == 0:
                    ready.close()
                    for f in [listener.detach(), connection.detach()] + [c if isinstance(c, int) else c.detach() for c in running]:
                        os.close(f)
                    return marshal.loads(data), list(files)
                for f in files:
                    os.close(f)
                ends = os.pidfd_open(pid)
                running[ends] = running[connection] = (pid, ends, connection)
                ready.register(ends, selectors.EVENT_READ)
                ready.register(connection, selectors.EVENT_READ)
                connection.send(marshal.dumps(pid))
            elif key.fileobj in running:
                pid, ends, connection = running[key.fileobj]
                if key.fileobj is connection:  # `python` was killed
                    kill(pid)
                    ready.unregister(connection)
                    continue
                status = os.waitpid(pid, 0)[1]
                try:
                    connection.send(marshal.dumps(status))
                except OSError:
                    pass
                for f in (ends, connection):
                    del running[f]
                    if f in ready.get_map():
                        ready.unregister(f)
                os.close(ends)
                connection.close()


def kill(pid: int) -> None:
    """Kills a process that was forked, and what it has started."""
    for f in (os.killpg, os.kill):  # it may not have its session yet
        try:
            f(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


def become(request: Request, files: List[int]) -> None:
    """Has this process run what `python` was started for, as Python does."""
    import fcntl

    args, env, folder, numbers = request
    os.setsid()
    high = [fcntl.fcntl(f, fcntl.F_DUPFD, 500) for f in files]
    for f in files:
        os.close(f)
    for f, n in zip(high, numbers):
        os.dup2(f, n)
        os.close(f)
    os.chdir(folder)
    added = [p for p in env.get("PYTHONPATH", "").split(os.pathsep) if p and p not in sys.path]
    os.environ.clear()
    os.environ.update(env)
    real, sys.executable = sys.executable, os.path.abspath(args.pop(0))  # what it starts is forked, too
    while args and args[0] == "-u":
        del args[0]
    kind = args[0] if args else "-"
    if kind.startswith("-") and kind not in ("-c", "-m"):
        os.execv(real, [real, *args])
    sys.path[:1] = ["" if kind in ("-c", "-m") else os.path.dirname(os.path.abspath(kind)), *added]
    sys.orig_argv, sys.argv = [sys.executable, *args], args
    if kind == "-m":
        sys.argv = args[1:]
        runpy.run_module(args[1], run_name="__main__", alter_sys=True)
        return
    main: Any = types.ModuleType("__main__")
    main.__builtins__ = __builtins__
    sys.modules["__main__"] = main
    if kind == "-c":
        sys.argv = ["-c", *args[2:]]
        code = compile(args[1], "<string>", "exec")
    else:
        main.__file__ = kind
        with open(kind, "rb") as script:
            code = compile(script.read(), kind, "exec")
    exec(code, main.__dict__)


if __name__ == "__main__":
    with contextlib.suppress(ImportError):  # an older PyTorch has only the first
        for module in sys.argv[2].split(","):
            importlib.import_module(module)
    gc.collect()
    gc.freeze()
    request, files = serve(sys.argv[1])
    code = 0
    try:
        become(request, files)
    except SystemExit as e:
        if e.code is not None and not isinstance(e.code, int):
            print(e.code, file=sys.stderr)
        code = e.code if isinstance(e.code, int) else int(e.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in sys.stdout, sys.stderr:
        stream.flush()
    os._exit(code)  # what Python does behind this takes long, and changes nothing
