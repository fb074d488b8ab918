"""What a run leaves: how quickly its report opens with thousands of trials, and whether all exports agree.

    python benchmarks/takeaway/takeaway.py RUN            # RUN: a finished run whose data is there
    python benchmarks/takeaway/takeaway.py RUN --quick    # fewer trials, writes nothing
    python benchmarks/takeaway/takeaway.py table          # the page's tables, from the stored results

Needs Chromium (TAILORVIT_BROWSER names it) and the extras of `dev`.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from common import fill, machine, markdown, read, write

from tailorvit import load, named_space, open_data, write_report
from tailorvit.rng import generator
from tailorvit.runs import Run

HERE = Path(__file__).parent
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
FORMATS = ("onnx", "torch", "safetensors", "timm", "hf")

# What a user's process does with each format: read images.npy, write logits.npy, print what it had to import.
OPEN = {
    "onnx": "import onnxruntime as o; s = o.InferenceSession(f + '/network.onnx'); y = s.run(None, {'images': x})[0]",
    "torch": "import torch; m = torch.export.load(f + '/network.pt2').module()\n"
    "with torch.inference_mode(): y = m(torch.from_numpy(x)).numpy()",
    "safetensors": "import torch, tailorvit; m = tailorvit.load(f).eval()\n"
    "with torch.inference_mode(): y = m(torch.from_numpy(x)).numpy()",
    # Folders of the first version bring their own source file, later ones need tailorvit installed.
    "timm": "import sys, torch, timm\n"
    "try: import tailorvit.for_timm\n"
    "except ImportError: sys.path.insert(0, f); import tailorvit_network\n"
    "m = timm.create_model('local-dir:' + f, pretrained=True).eval()\n"
    "with torch.inference_mode(): y = m(torch.from_numpy(x)).numpy()",
    "hf": "import torch; from transformers import AutoModelForImageClassification as A\n"
    "try: import tailorvit.for_transformers\n"
    "except ImportError: pass\n"
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


def opening(browser, page: Path, repeats: int) -> float:
    """Median seconds from asking for a page until its last chart is there."""
    times = []
    for _ in range(repeats):
        tab = browser.new_page()
        start = time.monotonic()
        tab.goto(page.as_uri())
        tab.wait_for_selector(".js figure:last-of-type svg", state="attached")
        times.append(time.monotonic() - start)
        tab.close()
    return statistics.median(times)


def pages(place: Path, trials: int, repeats: int) -> dict:
    """Time to write the page of a run with many trials, its size, and the time to open it."""
    from playwright.sync_api import sync_playwright

    folder, page = place / "many", place / "page.html"
    made_up(folder, trials)
    start = time.monotonic()
    write_report(folder, page)
    found = {"trials": trials, "write_seconds": time.monotonic() - start, "bytes": page.stat().st_size}
    with sync_playwright() as play:
        path = os.environ.get("TAILORVIT_BROWSER") or shutil.which("chromium")
        browser = play.chromium.launch(executable_path=path, args=FLAGS)
        found["open_seconds"] = opening(browser, page, repeats)
        browser.close()
    return found


def exports(run: Path, place: Path) -> list[dict]:
    """Each format written, then opened in a process of its own on the whole test split."""
    import numpy as np
    import torch

    from tailorvit.export import export

    network = load(run).eval()
    recipe = tomllib.loads((run / "recipe.toml").read_text(encoding="utf-8"))
    size = recipe["data"].get("image_size")
    data = open_data(recipe["data"]["source"], image_size=size, saved=read(run / "splits.json"))
    data.unseal_test("to check exports")
    batches = list(data.eval_batches("test", 256))
    images, truth = torch.cat([x for x, _ in batches]), torch.cat([y for _, y in batches])
    with torch.inference_mode():
        expected = network(images)
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


def tables_of(found: dict) -> dict[str, str]:
    """The tables of one measurement by name."""
    page = found["pages"]

    def line(what: str, written: str, size: int, seconds: float) -> tuple[str, ...]:
        return what, f"{page['trials']:,}", written, f"{size / 2**20:.2f}", f"{seconds:.2f}"

    lines = [line("ours", f"{page['write_seconds']:.2f}", page["bytes"], page["open_seconds"])]
    if "plotly_bytes" in page:
        lines.append(line("plotly", "-", page["plotly_bytes"], page["plotly_open_seconds"]))
    rows = [
        (r["format"], r["imports"].replace(",", ", "), r["images"], f"{r['difference']:.1e}", f"{r['accuracy']:.2f} %")
        for r in found["exports"]
    ]
    onnx = next(r["facts"] for r in found["exports"] if r["format"] == "onnx")
    int8 = onnx["int8"]
    accuracy = {"PyTorch": int8["test_accuracy"]["float"], "onnxruntime": int8["test_accuracy"]["float"]}
    accuracy["int8"] = int8["test_accuracy"]["int8"]
    size = {"onnxruntime": int8["bytes"]["float"], "int8": int8["bytes"]["int8"]}
    speed = [
        (name, f"{1e3 * seconds:.2f}", f"{size[name] / 1e3:.1f}" if name in size else "-", f"{accuracy[name]:.2f} %")
        for name, seconds in onnx["latency"].items()
    ]
    head = ("format", "opened with", "test images", "largest difference of a logit", "test accuracy")
    return {
        "page": markdown(("page", "trials", "written in s", "MiB", "opens in s"), lines),
        "exports": markdown(head, rows),
        "int8": markdown(("one image in", "ms", "kB", "test accuracy"), speed),
    }


def tables() -> dict[str, str]:
    """The page's tables by name."""
    return tables_of(read(HERE / "results" / "takeaway-2026-11-15.json"))


def main() -> None:
    """Measure, print, write."""
    if sys.argv[1:] == ["table"]:
        fill(HERE / "README.md", tables())
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        found = {
            **machine(),
            "pages": pages(Path(place), 300 if options.quick else 5000, 1 if options.quick else 5),
            "exports": exports(options.run, Path(place)),
        }
    print("\n\n".join(tables_of(found).values()))
    if not options.quick:
        write(found, HERE / "results" / f"takeaway-{found['date']}.json")


if __name__ == "__main__":
    main()
