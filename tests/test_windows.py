"""What Windows lacks, taken away on this system: a run goes through, and no Unix-only name is used unguarded."""

from __future__ import annotations

import ast
import functools
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import tailorvit

HOUSE = Path(tailorvit.__file__).parent

# msvcrt.locking stands on flock: both lock per descriptor, exclude other descriptors of their own process, and end with
# their holder. That a locked byte cannot be read by others is not imitated; the byte's place is checked instead.
WINDOWS = """
import errno, os, subprocess, sys, types  # subprocess: it takes msvcrt for a sign of Windows
import numpy  # libraries go by sys.platform, which stays
import fcntl
flock, unix = fcntl.flock, fcntl
places = set()

def locking(file, mode, count):
    places.add((os.lseek(file, 0, os.SEEK_CUR), count))
    try:
        flock(file, {0: unix.LOCK_UN, 2: unix.LOCK_EX | unix.LOCK_NB}[mode])
    except BlockingIOError:
        raise OSError(errno.EACCES, "Permission denied") from None

sys.modules["msvcrt"] = types.ModuleType("msvcrt")
sys.modules["msvcrt"].__dict__.update(LK_UNLCK=0, LK_NBLCK=2, locking=locking)
for name in ("fcntl", "resource", "termios", "pwd", "grp"):
    sys.modules[name] = None
GONE = ("pread", "pwrite", "fork", "forkpty", "getuid", "geteuid", "getpgid", "setsid", "killpg", "sched_getaffinity",
        "statvfs", "getloadavg", "mkfifo", "nice", "sysconf", "fchmod", "chown")
for name in GONE:
    delattr(os, name)
import signal
for name in ("SIGUSR1", "SIGUSR2", "SIGHUP", "SIGKILL", "SIGALRM", "SIGCHLD", "alarm", "setitimer"):
    delattr(signal, name)
"""


def on_windows(code: str, *arguments: object, before: str = "") -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", before + WINDOWS + code, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_run_needs_nothing_that_windows_lacks(tmp_path):
    code = """
import json, tailorvit
found = tailorvit.run("autoformer-digits", method="fixed", tiny=True, out=sys.argv[1], progress="quiet",
    settings={"baseline": False})
network = tailorvit.load(sys.argv[1])
print(json.dumps([found.params, sorted(places)]))
"""
    out, errors = on_windows(code, tmp_path / "run", before="import torch, timm\n").communicate()
    assert out, errors
    params, places = json.loads(out)
    assert params > 0 and (tmp_path / "run" / "report.html").is_file()
    assert places == [[1 << 30, 1]], "one byte behind all content, which others may read"


HOLD = """
from pathlib import Path
from tailorvit.runs.lock import Lock
from tailorvit.errors import TailorError
try:
    lock = Lock(Path(sys.argv[1]))
except TailorError as error:
    print(error)
else:
    print("taken", flush=True)
    sys.stdin.read()
"""


def test_two_processes_one_folder_and_a_killed_one_leaves_no_lock(tmp_path):
    first = subprocess.Popen(
        [sys.executable, "-c", WINDOWS + HOLD, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert first.stdout.readline() == "taken\n"
        assert (tmp_path / ".lock").read_text() == f"{first.pid}\n"
        out, errors = on_windows(HOLD, tmp_path).communicate()
        assert f"in use by process {first.pid}" in out, errors
    finally:
        first.kill()
        first.communicate()
    again = subprocess.run(
        [sys.executable, "-c", WINDOWS + HOLD, str(tmp_path)], input="", capture_output=True, text=True, check=False
    )
    assert again.stdout == "taken\n", again.stderr


def test_files_at_places_and_a_lock_that_is_waited_for(tmp_path):
    code = """
import threading, time
from pathlib import Path
from tailorvit.data.disk_cache import DiskCache
from tailorvit.descriptors import open_file, read_at, write_at
file = open_file(Path(sys.argv[1]) / "bytes", os.O_RDWR | os.O_CREAT)
write_at(file, b"one\\r\\ntwo", 3)
write_at(file, memoryview(b"\\x00\\x1a\\n"), 0)
assert read_at(file, 99, 0) == b"\\x00\\x1a\\none\\r\\ntwo" and read_at(file, 3, 3) == b"one"
made = []
def make(into):
    made.append(1)
    time.sleep(0.1)
    write_at(into, b"x" * 10, 0)
    return 10
def fetch():
    os.close(cache.open("a", 10, make))
cache = DiskCache(Path(sys.argv[1]) / "cache")
threads = [threading.Thread(target=fetch) for _ in range(4)]
for t in threads: t.start()
for t in threads: t.join()
assert made == [1], "one makes the file, the others wait for it"
"""
    process = on_windows(code, tmp_path)
    assert process.wait() == 0, process.communicate()[1]


def test_a_file_that_is_read_at_the_moment_is_replaced_a_little_later(tmp_path, monkeypatch):
    from tailorvit.runs import atomic

    (tmp_path / "a").write_text("old")
    refused, replace = [], Path.replace

    def busy(self, target):
        if len(refused) < 3:
            refused.append(1)
            raise PermissionError(13, "in use")
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", busy)
    monkeypatch.setattr(time, "sleep", lambda _: None)
    with pytest.raises(PermissionError):
        atomic.write_text(tmp_path / "a", "lost")
    monkeypatch.setattr(sys, "platform", "win32")
    atomic.write_text(tmp_path / "a", "new")
    assert (tmp_path / "a").read_text() == "new" and len(refused) == 3
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


# -- names ------------------------------------------------------------------------------------------------------------

MODULES = "fcntl resource termios pwd grp pty tty syslog posix"
CALLS = """
pread pwrite preadv pwritev fork forkpty getuid geteuid getgid getegid getpgid getpgrp setsid setpgid killpg
sched_getaffinity sched_setaffinity statvfs fstatvfs uname getloadavg mkfifo nice sysconf fchmod fchown chown lchown
posix_fadvise posix_fallocate sendfile symlink wait wait3 wait4 WNOHANG openpty mknod sync
"""
SIGNALS = """
SIGUSR1 SIGUSR2 SIGHUP SIGKILL SIGALRM SIGCHLD SIGQUIT SIGPIPE SIGTSTP alarm setitimer pause pthread_kill sigwait
"""
PLACES = {"module": MODULES, "os": CALLS, "signal": SIGNALS}
UNIX = {name: place for place, names in PLACES.items() for name in names.split()}
# Where such a name stands with something else for a system without it, and what is only done on Linux.
GUARDED = {
    ("descriptors.py", "pread"),
    ("descriptors.py", "pwrite"),
    ("descriptors.py", "open"),
    ("portable.py", "sched_getaffinity"),
    ("costs/measure_on_host.py", "getloadavg"),  # AttributeError: not known
    ("memory.py", "sysconf"),  # AttributeError: unknown
    ("runs/atomic.py", "open"),  # of a folder, where it is allowed
    ("data/batches.py", "fork"),
    ("data/shards.py", "fork"),
}


def unix_only(tree: ast.Module) -> set[str]:
    """Names of a file that Windows has not, or has in another way."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {a.name for a in node.names if UNIX.get(a.name) == "module"}
        elif isinstance(node, ast.ImportFrom):
            found |= {node.module} if UNIX.get(node.module or "") == "module" else set()
            found |= {a.name for a in node.names if UNIX.get(a.name) == node.module}
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if UNIX.get(node.attr) == node.value.id or (node.value.id, node.attr) == ("os", "open"):
                found.add(node.attr)
        elif isinstance(node, ast.Call):
            if isinstance(node.func, ast.Attribute) and node.func.attr in ("symlink_to", "hardlink_to"):
                found.add(node.func.attr)
            for value in (*node.args, *(k.value for k in node.keywords)):
                if isinstance(value, ast.Constant) and value.value == "fork":
                    found.add("fork")
    return found


@functools.cache
def trees() -> dict[str, ast.Module]:
    return {p.relative_to(HOUSE).as_posix(): ast.parse(p.read_text(encoding="utf-8")) for p in HOUSE.rglob("*.py")}


def test_no_name_that_windows_lacks_is_used_unguarded():
    assert {(path, name) for path, tree in trees().items() for name in unix_only(tree)} == GUARDED


@pytest.mark.parametrize(
    "line",
    [
        "import fcntl",
        "from fcntl import flock",
        "os.pwrite(f, b, 0)",
        "os.open(p, os.O_RDONLY)",
        "signal.SIGUSR1",
        "get_context('fork')",
        "DataLoader(d, multiprocessing_context='fork')",
        "a.symlink_to(b)",
        "from os import fork",
    ],
)
def test_the_check_can_fail(line):
    assert len(unix_only(ast.parse(line))) == 1


def test_text_files_are_utf8_on_every_system():
    """Windows would use the code page of its country."""
    unnamed = []
    for path, tree in trees().items():
        for node in ast.walk(tree):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
                continue
            words = [a.value for a in (*node.args, *(k.value for k in node.keywords)) if isinstance(a, ast.Constant)]
            named = any(k.arg == "encoding" for k in node.keywords) or "utf-8" in words
            modes = [w for w in words if isinstance(w, str) and w[:1] in "rwax" and len(w) <= 3]
            text = node.func.attr == "read_text" or (
                node.func.attr == "open" and modes and not any("b" in m for m in modes)
            )
            if text and not named:
                unnamed.append(f"{path}:{node.lineno}")
    assert unnamed == []


def test_names_of_files_have_no_character_that_windows_refuses(tmp_path):
    from tailorvit.runs import checkpoint

    with pytest.raises(ValueError, match="not a checkpoint name"):
        checkpoint.files(tmp_path, "peer-timm:resnet18")
    tracked = [p.name for p in (HOUSE.parents[1] / "tests").rglob("*") if "__pycache__" not in p.parts]
    assert not [n for n in [p.name for p in HOUSE.rglob("*")] + tracked if set(n) & set('<>:"|?*\\')]
    assert os.sep == "/"
