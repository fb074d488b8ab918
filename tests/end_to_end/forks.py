"""Children to kill: a process that has everything imported and forks one child per job, so that a kill costs no start.

A job is one line of JSON: a verb of ``tailorvit.api``, its options, and after how many writes the child kills itself.
The answer is one line: how the child ended and which writes it saw.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path


def arm(moment: int | None, log: Path) -> None:
    """Note every write to the run folder, before and after it happens, and die at the given one."""
    from tailorvit.runs import atomic, checkpoint, database

    seen = 0
    note = log.open("a")

    def tick(what: str) -> None:
        nonlocal seen
        seen += 1
        note.write(f"{what}\n")
        note.flush()
        if seen == moment:
            os.kill(os.getpid(), signal.SIGKILL)

    write, write_bytes = database.Database.write, atomic.write_bytes

    def watched(self, statement, rows):
        rows = [tuple(r) for r in rows]
        what = f"{statement.split()[2]} {rows[0][0] if rows else ''}"
        tick(f"before {what}")
        write(self, statement, rows)
        tick(f"after {what}")

    def watched_bytes(path, data, before=None):
        tick(f"before file {path.name}")

        def between() -> None:
            if before is not None:
                before()
            tick(f"within file {path.name}")

        write_bytes(path, data, between)
        tick(f"after file {path.name}")

    database.Database.write = watched
    atomic.write_bytes = checkpoint.atomic.write_bytes = watched_bytes


def child(job: dict) -> int:
    from tailorvit import api

    arm(job.get("moment"), Path(job["log"]))
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where the tests run in a shell's background
    try:
        getattr(api, job["verb"])(*job.get("args", []), progress="quiet", **job.get("options", {}))
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return 0


def main() -> None:
    from tailorvit import api
    from tailorvit.memory import bf16_pays

    # Warm up in the parent: the first run imports what runs import late, and bf16 is tried once.
    bf16_pays()
    api.run("s4-digits", out=sys.argv[1], tiny=True, settings=["s4.iterations=0", "train.epochs=1"], progress="quiet")
    print("ready", flush=True)
    for line in sys.stdin:
        job = json.loads(line)
        pid = os.fork()
        if pid == 0:
            os._exit(child(job))
        print(json.dumps({"pid": pid}), flush=True)
        _, status = os.waitpid(pid, 0)
        print(json.dumps({"code": os.waitstatus_to_exitcode(status)}), flush=True)


if __name__ == "__main__":
    main()
