"""A contest that is killed and resumed ends exactly as the uninterrupted one."""

from __future__ import annotations

import json
import signal

SETS = {"train.augment": "auto", "final.train.augment": "auto", "final.train.epochs": 3}
SMALL = {**SETS, "data.limit": 100, "analysis.images": 0, "analysis.mistakes": 0, "train.checkpoint_seconds": 0}


def test_killed_in_every_round_it_ends_the_same(forks, tmp_path):
    def options(folder):
        return {"recipe": "image-folder", "out": str(folder), "tiny": True, "settings": SMALL}

    def outcome(folder):
        facts = json.loads((folder / "result.json").read_text())
        facts.pop("seconds")
        for entry in facts["contest"]["entries"]:
            for rung in entry["rungs"]:
                rung.pop("seconds")
        return facts, (folder / "network" / "network.safetensors").read_bytes()

    code, writes = forks.do("run", **options(tmp_path / "whole"))
    assert code == 0, forks.said()
    reference = outcome(tmp_path / "whole")
    at = [i + 1 for i, w in enumerate(writes) if " trials " in w]
    for number, moment in enumerate([at[1], at[len(at) // 2], at[len(at) // 2] + 1, at[-1]]):
        folder = tmp_path / f"run-{number}"
        assert forks.do("run", moment=moment, **options(folder))[0] == -signal.SIGKILL
        assert forks.do("resume", str(folder))[0] == 0, forks.said()
        assert outcome(folder) == reference, moment
