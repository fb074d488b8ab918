"""A made-up run with everything a report can tell."""

from __future__ import annotations

import pytest

from tailorvit.rng import generator
from tailorvit.runs import Run
from tailorvit.space import Dim, Space

SPACE = Space(
    "vit",
    (
        Dim("depth", (12, 13, 14)),
        Dim("mlp", (3.5, 4), "block"),
        Dim("heads", (2, 4), "block"),
        Dim("embed", (64, 96, 128)),
    ),
)


def fill(run: Run, trials: int = 60, evil: str = "", finished: bool = True) -> None:
    rng = generator(0, "fake run")
    moved = SPACE.shift({"depth": -1, "embed": 1})
    for t, space in enumerate((SPACE, moved)):
        run.record_space(t, space, largest={"params": 9e6 - t * 1e6, "macs": 1e9}, count_log10=7.5, repair=t == 1)
        for i, key in enumerate(space.keys):
            z = 0.02 * (i - 1.5)
            run.record_slope(t, key, {"dim": key, "z": z, "se": 0.01, "z_step": z * 2, "pairs": 40})
    legal = [
        {"gamma": {"depth": -1, "embed": 1}, "size": 8e6, "cosine": 0.9, "gain": 0.4},
        {"gamma": {"mlp": 1}, "size": 7e6, "cosine": -0.2, "gain": -0.1},
    ]
    sentence = f"Moved depth down and embed up{evil}: cosine 0.90."
    run.record_decision(0, {"t": 0, "gamma": legal[0]["gamma"], "reason": "best", "sentence": sentence, "legal": legal})
    for epoch in range(5):
        run.record_epoch(
            "supernet.0", epoch, loss=2 / (epoch + 1), accuracy=10.0 * epoch, lr=1e-3, images_per_second=500
        )
    run.record_epoch("supernet.0", 5, loss=float("nan"), accuracy=None)
    run.event("skipped", f"3 images could not be read{evil}: a.jpg", count=3)
    run.event("resume", "went on after epoch 3")
    archs = list(dict.fromkeys(moved.sample(rng) for _ in range(3 * trials)))[:trials]
    rows = [
        {
            "arch": a,
            "accuracy": 60 + 5 * float(rng.random()),
            "params": 10**6 * int(rng.integers(2, 9)) + i,
            "macs": 10**8,
            "source": f"cross{evil}",
            "generation": i * 4 // len(archs),
        }
        for i, a in enumerate(archs)
    ]
    run.record_trials("slopes.0", rows[:6])
    if not finished:
        return
    run.record_trials(f"search{evil}", rows)
    run.spend(f"search{evil}", 75.0)
    best = max(rows, key=lambda r: r["accuracy"])
    run.write_json(
        "result",
        {
            "method": "s4",
            "arch": best["arch"].to_dict(),
            "params": best["params"],
            "macs": best["macs"],
            "limits": {"params": {"min": None, "max": 8e6}},
            "search_accuracy": best["accuracy"],
            "test_accuracy": 63.5,
            "baseline": {"arch": archs[0].to_dict(), "params": 7.9e6, "macs": 9e8, "test_accuracy": 62.25},
            "spaces": [{"t": 0, "dims": {"depth": [12, 13, 14]}, "largest": {"params": 9e6, "macs": 1e9}}],
            "seconds": {"search": 75.0},
            "seed": 5,
            "parts": [
                {"part": f"patch{evil}", "params": 3e6, "macs": 1e7},
                {"part": "head", "params": 1e6, "macs": 1e6},
            ],
        },
    )


@pytest.fixture
def make(tmp_path):
    """Build a fake run and hand back its folder."""

    def build(evil: str = "", **how):
        info = {
            "command": ["tailorvit", "search", f"my data{evil}"],
            "versions": {"torch": f"2.6{evil}"},
            "seed": 5,
            "data_fingerprint": "abc123",
            "classes": [f"rose{evil}"],
        }
        with Run.create(tmp_path / "run", f"# recipe{evil}\nseed = 5\n", info) as run:
            fill(run, evil=evil, **how)
            return run.folder

    return build
