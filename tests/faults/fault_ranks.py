"""One process of a torchrun at work on a disturbed run: ``fault_ranks.py JOB`` (made by fault_harness.py)."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path

from fault_children import MARK, Fault, work

from tailorvit import ranks

if __name__ == "__main__":
    place = Path(sys.argv[1])
    job = json.loads(place.read_text())
    hit = ranks.rank() == job["rank"] and not ranks.restarted()
    if hit and job["tick"]:
        os.environ[MARK] = str(place.with_name("killed"))
    end = work(job["verb"], job["args"], job["options"], Fault("SIGKILL", job["tick"]) if hit else Fault())
    if ranks.may_speak() or end.code == 0:
        place.with_name(f"end-{ranks.rank()}.json").write_text(json.dumps(asdict(end)))
    ranks.leave(end.code)
