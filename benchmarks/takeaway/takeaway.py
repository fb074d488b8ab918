"""What a run leaves: how quickly its page opens with thousands of trials, and whether every export says the same.

    python benchmarks/takeaway.py RUN            # RUN: a finished run whose data is at hand
    python benchmarks/takeaway.py RUN --quick    # fewer trials, writes nothing

Needs Chromium (TAILORVIT_BROWSER names it), the extras of `dev`, and, for the comparison, plotly.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import date
from pathlib import Path

from tailorvit import named_space
from tailorvit.report import collect, figures, render
from tailorvit.rng import generator
from tailorvit.runs import Run

HERE = Path(__file__).parent
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
FORMATS = ("onnx", "torch", "safetensors", "timm", "hf")

# What a stranger's process does with each format: read images.npy, write logits.npy, say what it had to import.
OPEN = {
    "onnx": "import onnxruntime as o; s = o.InferenceSession(f + '/network.onnx'); y = s.run(None, {'images': x})[0]",
    "torch": "import torch; m = torch.export.load(f + '/network.pt2').module()\n"
    "with torch.inference_mode(): y = m(torch.from_numpy(x)).numpy()",
    "safetensors": "import torch, tailorvit; m = tailorvit.load(f).eval()\n"
    "with torch.inference_mode(): y = m(torch.from_numpy(x)).numpy()",
    "timm": "import sys, torch, timm; sys.path.insert(0, f); import tailorvit_network\n"
    "m = timm.create_model('local-dir:' + f, pretrained=True).eval()\n"
    "with torch.inference_mode(): y = m(torch.from_numpy(x)).numpy()",
    "hf": "import torch; from transformers import AutoModelForImageClassification as A\n"
    "m = A.from_pretrained(f, trust_remote_code=True).eval()\n"
    "with torch.inference_mode(): y = m(pixel_values=torch.from_numpy(x)).logits.numpy()",
}
WATCHED = ("torch", "tailorvit", "tailorvit.elastic", "tailorvit.families", "timm", "transformers", "onnxruntime")


def made_up(folder: Path, trials: int) -> None:
    """A run folder with many trials, as a long search leaves it."""
    space, rng = named_space("autoformer-s"), generator(0, "takeaway")
    archs = list(dict.fromkeys(space.sample(rng) for _ in range(trials * 2)))[:trials]
    rows = [
        {
            "arch": arch,
            "accuracy": 70 + 10 * float(rng.random()),
            "params": int(14e6 + 20e6 * float(rng.random())),
            "macs": int(3e9 + 4e9 * float(rng.random())),
            "source": ("random", "cross", "mutate")[i % 3],
            "generation": i // 50,
            "parents": archs[max(i - 60, 0) : max(i - 58, 0)],
        }
        for i, arch in enumerate(archs)
    ]
    with Run.create(folder, "seed = 0\n", {"seed": 0}) as run:
        run.record_space(0, space, largest={"params": 34e6, "macs": 7e9}, count_log10=17.0)
        run.record_trials("search", rows)


def opening(browser, page: Path, drawn: str, repeats: int) -> float:
    """Median seconds from asking for a page to its last chart being there."""
    times = []
    for _ in range(repeats):
        tab = browser.new_page()
        start = time.monotonic()
        tab.goto(page.as_uri())
        tab.wait_for_selector(drawn, state="attached")
        times.append(time.monotonic() - start)
        tab.close()
    return statistics.median(times)


def plotly_page(folder: Path, path: Path) -> bool:
    """The same figures drawn by plotly with its script in the page; False where plotly is not installed."""
    try:
        import plotly.graph_objects as go
        import plotly.io
    except ImportError:
        return False
    facts = collect(folder)
    trials = [t for t in facts.trials if t.params is not None]
    hover = [str(dict(t.arch)) for t in trials]
    cloud = go.Scattergl(
        x=[t.params for t in trials], y=[t.accuracy for t in trials], mode="markers", text=hover, name="trials"
    )
    drawings = [go.Figure(cloud)]
    for figure in figures(facts):
        numbers = [
            i for i, c in enumerate(figure.columns) if figure.rows and isinstance(figure.rows[0][i], int | float)
        ]
        if figure.key != "search-trials" and numbers:
            values = [row[numbers[-1]] for row in figure.rows[:2000]]
            drawings.append(go.Figure(go.Scatter(y=values, name=figure.title)))
    parts = [
        plotly.io.to_html(d, full_html=False, include_plotlyjs=i == 0, div_id=f"drawing-{i}")
        for i, d in enumerate(drawings)
    ]
    path.write_text(f"<!DOCTYPE html><meta charset=utf-8><body>{''.join(parts)}<p id=last-{len(parts)}></body>")
    return True


def pages(place: Path, trials: int, repeats: int) -> dict:
    """Time to write, size, and time to open; ours and plotly's."""
    from playwright.sync_api import sync_playwright

    folder = place / "many"
    made_up(folder, trials)
    start = time.monotonic()
    text = render(collect(folder))
    seconds = time.monotonic() - start
    (place / "ours.html").write_text(text, encoding="utf-8")
    found = {"trials": trials, "write_seconds": seconds, "bytes": (place / "ours.html").stat().st_size}
    with sync_playwright() as play:
        path = os.environ.get("TAILORVIT_BROWSER") or shutil.which("chromium")
        browser = play.chromium.launch(executable_path=path, args=FLAGS)
        found["open_seconds"] = opening(browser, place / "ours.html", ".js figure:last-of-type svg", repeats)
        if plotly_page(folder, place / "plotly.html"):
            found["plotly_bytes"] = (place / "plotly.html").stat().st_size
            found["plotly_open_seconds"] = opening(browser, place / "plotly.html", "#drawing-0 .gl-canvas", repeats)
        browser.close()
    return found


def exports(run: Path, place: Path) -> list[dict]:
    """Each format written, then opened in a process of its own on the whole test split."""
    import numpy as np
    import torch

    from tailorvit import load
    from tailorvit.export import export
    from tailorvit.export.images import images_of

    network = load(run)
    batches = list(images_of(run, network.card).batches("test"))
    images, truth = torch.cat([x for x, _ in batches]), torch.cat([y for _, y in batches])
    with torch.inference_mode():
        expected = network.eval()(images)
    np.save(place / "images.npy", images.numpy())
    rows = []
    for name in FORMATS:
        done = export(run, name, place / name, int8=name == "onnx")
        code = (
            "import sys, numpy as np\n"
            f"f, x = {str(place / name)!r}, np.load({str(place / 'images.npy')!r})\n{OPEN[name]}\n"
            f"np.save({str(place / 'logits.npy')!r}, y)\n"
            f"print(','.join(m for m in {WATCHED!r} if m in sys.modules))"
        )
        answer = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=place
        ).stdout.strip()
        logits = torch.from_numpy(np.load(place / "logits.npy"))
        rows.append(
            {
                "format": name,
                "images": len(images),
                "difference": float((logits - expected).abs().max()),
                "accuracy": 100 * float((logits.argmax(1) == truth).float().mean()),
                "imports": answer.split("\n")[-1],
                "facts": done.facts,
            }
        )
    return rows


def show(found: dict) -> str:
    """The tables of benchmarks/README.md."""
    page = found["pages"]
    lines = [
        "| page | trials | written in s | MiB | opens in s |",
        "|---|---|---|---|---|",
        f"| ours | {page['trials']:,} | {page['write_seconds']:.2f} | {page['bytes'] / 2**20:.2f}"
        f" | {page['open_seconds']:.2f} |",
    ]
    if "plotly_bytes" in page:
        weight, seconds = page["plotly_bytes"] / 2**20, page["plotly_open_seconds"]
        lines.append(f"| plotly | {page['trials']:,} | | {weight:.2f} | {seconds:.2f} |")
    lines += [
        "",
        "| format | opened with | test images | largest difference of a logit | test accuracy |",
        "|---|---|---|---|---|",
    ]
    for row in found["exports"]:
        lines.append(
            f"| {row['format']} | {row['imports'].replace(',', ', ')} | {row['images']} | {row['difference']:.1e}"
            f" | {row['accuracy']:.2f} % |"
        )
    onnx = next(r["facts"] for r in found["exports"] if r["format"] == "onnx")
    times = ", ".join(f"{k} {1e3 * v:.2f} ms" for k, v in onnx["latency"].items())
    whole = onnx["int8"]["test_accuracy"]
    lines += [
        "",
        f"One image: {times}. int8 ({onnx['int8']['way']}): {whole['int8']:.2f} % against {whole['float']:.2f} %.",
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        found = {
            "machine": {"cpu": platform.machine(), "cores": os.cpu_count(), "python": platform.python_version()},
            "pages": pages(Path(place), 300 if options.quick else 5000, 1 if options.quick else 5),
            "exports": exports(options.run, Path(place)),
        }
    print(show(found))
    if not options.quick:
        path = HERE / "results" / f"takeaway-{date.today()}.json"
        path.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
