"""The command line: verbs to calls; parses, calls and prints."""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from tailorvit import ranks
from tailorvit.texts import shown

app = typer.Typer(
    name="tailorvit",
    help="Tailor a vision transformer to your data and your size budget.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

COMPLETE = "_TAILORVIT_COMPLETE"  # set by the shell's script
Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
MaxParams = Annotated[str | None, typer.Option(help="At most this many parameters, e.g. 5M.")]
MinParams = Annotated[str | None, typer.Option(help="At least this many parameters.")]
MaxMacs = Annotated[str | None, typer.Option(help="At most this many multiply-accumulates an image, e.g. 1.5G.")]
MaxLatency = Annotated[str | None, typer.Option(help="At most this long an image on this device, e.g. 12ms.")]
MaxMemory = Annotated[str | None, typer.Option(help="At most this much memory an image, e.g. 512MiB.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print the result only.")]
Open = Annotated[
    bool | None,
    typer.Option("--open/--no-open", help="Show report.html in a browser (default: in a desktop's terminal)."),
]
# Not --log: torchrun takes that as the beginning of options of its own.
Log = Annotated[
    str, typer.Option("--log-to", help="Send figures to: csv, tensorboard, wandb, mlflow, trackio, with commas.")
]
Plain = Annotated[bool, typer.Option("--plain", help="Plain lines instead of a live bar, for logs.")]


def _mode(quiet: bool, plain: bool) -> Any:
    return "quiet" if quiet else "plain" if plain else None


def _say(text: str, err: bool = False, nl: bool = True) -> None:
    """Print for people; names of files and classes may hold anything, control codes of terminals too."""
    typer.echo(shown(text, lines=True), err=err, nl=nl)


def _print_json(data: Any) -> None:
    _say(json.dumps(data, indent=1, default=str))


def _version(asked: bool) -> None:
    if asked:
        from tailorvit import __version__

        _say(f"tailorvit {__version__}")
        raise typer.Exit


@app.callback()
def _every(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="The version, and nothing else.")
    ] = False,
) -> None:
    """Tailor a vision transformer to your data and your size budget."""


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _print_result(work: Callable[[], Any], show: bool | None = False) -> None:
    """Do the work, print its result, open its page; Ctrl-C and SIGTERM say how to go on, which typer would not."""
    try:
        result = work()
    except KeyboardInterrupt as stop:
        if ranks.is_writer():
            _say(f"Stopped. Go on with: {stop}" if str(stop) else "Stopped.", err=True)
        raise typer.Exit(getattr(stop, "code", 130)) from None
    if ranks.is_writer():
        for line in result.summary():
            _say(line)
        _open(result.folder / "report.html", show)


def _open(page: Path, show: bool | None) -> None:
    from tailorvit.report.opening import open_page

    if trouble := open_page(page, show):
        _say(trouble, err=True)


@app.command()
def run(
    recipe: Annotated[str | None, typer.Argument(help="A recipe's name or TOML file (default: s4-digits).")] = None,
    data: Annotated[str | None, typer.Option(help="Image folder, .npz/.npy file, digits or torchvision:NAME.")] = None,
    start: Annotated[
        str | None,
        typer.Option(
            "--from",
            help="Pretrained network to cut: timm:NAME, hf:NAME, open_clip:NAME/TAG, a file, auto; none: from scratch.",
        ),
    ] = None,
    weights: Annotated[str | None, typer.Option(help="Local copy of its weights; nothing is downloaded.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the run (default: a new one under runs/).")] = None,
    method: Annotated[
        str | None, typer.Option(help="contest, tailor, s4, s3, autoformer, bignas, hat, tf-tas, fixed or finetune.")
    ] = None,
    max_params: MaxParams = None,
    min_params: MinParams = None,
    max_macs: MaxMacs = None,
    max_latency: MaxLatency = None,
    max_memory: MaxMemory = None,
    latency_table: Annotated[
        Path | None, typer.Option(help="Latency of another host: table.json of a latency kit (see latency-kit).")
    ] = None,
    front: Annotated[
        str | None, typer.Option(help="With --from: deliver a network for each of these sizes: 2M,4M,8M.")
    ] = None,
    baseline: Annotated[
        list[str] | None, typer.Option(help="Also train this model beside: timm:mobilevit_xxs; may be repeated.")
    ] = None,
    prefer: Annotated[
        str | None, typer.Option(help="small: of equally good networks the smallest (default: who uses the budget).")
    ] = None,
    image_size: Annotated[int | None, typer.Option(help="Side of the images in pixels.")] = None,
    budget: Annotated[str | None, typer.Option(help="Time for the whole run: 10m, 2h; or 60epochs.")] = None,
    plan: Annotated[bool, typer.Option("--plan", help="Say what a run would do and how long; train nothing.")] = False,
    seed: Annotated[int | None, typer.Option(help="Seed of everything random.")] = None,
    sets: Annotated[list[str] | None, typer.Option("--set", help="Change a recipe key: train.epochs=50.")] = None,
    tiny: Annotated[bool, typer.Option("--tiny", help="Shrink the recipe to seconds, to see that it runs.")] = False,
    show: Open = None,
    log: Log = "",
    quiet: Quiet = False,
    plain: Plain = False,
) -> None:
    """Find, train and save a network for your images and your budget."""
    from tailorvit import api

    options: dict[str, Any] = {
        "data": data,
        "start": start,
        "weights": weights,
        "front": front,
        "max_params": max_params,
        "min_params": min_params,
        "max_macs": max_macs,
        "max_latency": max_latency,
        "max_memory": max_memory,
        "latency_table": latency_table,
        "method": method,
        "baseline": baseline,
        "prefer": prefer,
        "image_size": image_size,
        "budget": budget,
        "seed": seed,
        "settings": sets or [],
        "tiny": tiny,
    }
    if plan:
        for line in api.plan(recipe, **options)["lines"]:
            _say(line)
        return
    _print_result(lambda: api.run(recipe, **options, out=out, callbacks=log, progress=_mode(quiet, plain)), show)


@app.command()
def resume(
    folder: Annotated[Path, typer.Argument(help="Folder of an unfinished run.")],
    data: Annotated[str | None, typer.Option(help="Where the run's images lie now, if they were moved.")] = None,
    show: Open = None,
    log: Log = "",
    quiet: Quiet = False,
    plain: Plain = False,
) -> None:
    """Go on with a run after a crash or Ctrl-C."""
    from tailorvit import api

    _print_result(lambda: api.resume(folder, data=data, callbacks=log, progress=_mode(quiet, plain)), show)


@app.command()
def finetune(
    source: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a finished run or of a network.")],
    data: Annotated[str, typer.Option(help="Image folder, .npz/.npy file, digits or torchvision:NAME.")],
    image_size: Annotated[int | None, typer.Option(help="Side of the images (default: preset's or as it was).")] = None,
    preset: Annotated[str, typer.Option(help="How to train (see: tailorvit list presets).")] = "default",
    windows: Annotated[str | None, typer.Option(help="At another size attention windows scale or keep.")] = None,
    beside: Annotated[
        bool, typer.Option("--beside", help="Also a linear probe, and the same network from scratch.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="Folder of the run (default: a new one under runs/).")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of everything random.")] = None,
    sets: Annotated[list[str] | None, typer.Option("--set", help="Change a recipe key: train.epochs=50.")] = None,
    tiny: Annotated[bool, typer.Option("--tiny", help="Two epochs on few images, to see that it runs.")] = False,
    show: Open = None,
    log: Log = "",
    quiet: Quiet = False,
    plain: Plain = False,
) -> None:
    """Train a finished network on: other images, other classes, another resolution."""
    from tailorvit import api

    _print_result(
        lambda: api.finetune(
            source,
            data=data,
            image_size=image_size,
            preset=preset,
            windows=windows,  # type: ignore[arg-type]  # checked with the recipe
            beside=beside,
            seed=seed,
            settings=sets or [],
            tiny=tiny,
            out=out,
            callbacks=log,
            progress=_mode(quiet, plain),
        ),
        show,
    )


def _task(name: str) -> Callable[..., None]:
    """The command of a task; all tasks have the same options."""

    def command(
        network: Annotated[str, typer.Argument(help="Folder of a finished run or of a network, or timm:NAME.")],
        data: Annotated[str, typer.Option(help="Pictures with their annotations (docs/tasks.md).")],
        out: Annotated[Path | None, typer.Option(help="Folder of the run (default: a new one under runs/).")] = None,
        preset: Annotated[str, typer.Option(help="How to train; default: for small data.")] = "default",
        image_size: Annotated[int | None, typer.Option(help="Side of the images in pixels.")] = None,
        weights: Annotated[str | None, typer.Option(help="Weight file for timm:NAME; nothing is downloaded.")] = None,
        scratch: Annotated[bool, typer.Option("--scratch", help="Fresh weights in place of the network's.")] = False,
        max_params: Annotated[str | None, typer.Option(help="Of the whole: at most so many parameters.")] = None,
        max_macs: Annotated[str | None, typer.Option(help="Of the whole: at most so many MACs an image.")] = None,
        candidates: Annotated[
            int | None, typer.Option(help="Try so many of the best networks of the run's search on the task.")
        ] = None,
        seed: Annotated[int | None, typer.Option(help="Seed of everything random.")] = None,
        sets: Annotated[list[str] | None, typer.Option("--set", help="Change a recipe key: train.epochs=50.")] = None,
        tiny: Annotated[bool, typer.Option("--tiny", help="A few steps, to see that it runs.")] = False,
        show: Open = None,
        log: Log = "",
        quiet: Quiet = False,
        plain: Plain = False,
    ) -> None:
        from tailorvit import downstream

        options: dict[str, Any] = {
            "data": data,
            "out": out,
            "preset": preset,
            "image_size": image_size,
            "weights": weights,
            "scratch": scratch,
            "max_params": max_params,
            "max_macs": max_macs,
            "candidates": candidates,
            "seed": seed,
            "settings": sets or [],
            "tiny": tiny,
        }
        _print_result(
            lambda: downstream.work(name, network, **options, callbacks=log, progress=_mode(quiet, plain)), show
        )

    return command


app.command("detect", help="Make a network the backbone of a detector: boxes, and masks, of objects.")(_task("detect"))
app.command("segment", help="Make a network the backbone of a segmenter: a class for every pixel.")(_task("segment"))
app.command("answer", help="Make a network the backbone of one that answers questions about images.")(_task("answer"))


@app.command()
def study(
    source: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a finished run of S4, S3 or AutoFormer.")],
    what: Annotated[str, typer.Option(help="spaces, networks or all.")] = "all",
    count: Annotated[int | None, typer.Option(help="Networks of the last space to compare (default: 10).")] = None,
    epochs: Annotated[
        int | None, typer.Option(help="Of each retraining (default: as many as the run's baseline had).")
    ] = None,
    data: Annotated[str | None, typer.Option(help="Where the run's images lie now, if they were moved.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the study (default: RUN/study).")] = None,
    log: Log = "",
    quiet: Quiet = False,
    plain: Plain = False,
) -> None:
    """Retrain the best of each space of a run; compare inherited, tuned, retrained weights."""
    from tailorvit import api

    _print_result(
        lambda: api.study(
            source,
            what=what,  # type: ignore[arg-type]  # checked with the other settings
            count=count,
            epochs=epochs,
            data=data,
            out=out,
            callbacks=log,
            progress=_mode(quiet, plain),
        )
    )


@app.command()
def space(
    name: Annotated[str, typer.Argument(help="A space's name (see: tailorvit list spaces) or TOML file.")],
    classes: Annotated[int | None, typer.Option(help="Number of classes.")] = None,
    image_size: Annotated[int | None, typer.Option(help="Side of the images in pixels.")] = None,
    max_params: MaxParams = None,
    min_params: MinParams = None,
    max_macs: MaxMacs = None,
    as_json: Json = False,
) -> None:
    """Show a space: dimensions, size, costs, and what share fits the limits."""
    from tailorvit import lookup, units

    limits = {"max_params": max_params, "min_params": min_params, "max_macs": max_macs}
    facts = lookup.space_info(name, classes=classes, image_size=image_size, limits=limits)
    if as_json:
        return _print_json(facts)
    _say(f"{name} ({facts['family']}): {facts['count']:.4g} architectures")
    for key, dim in facts["dims"].items():
        _say(f"  {key:<8} {dim['scope']:<7} {', '.join(map(str, dim['choices']))}")
    for which in ("smallest", "typical", "largest"):
        row = facts[which]
        _say(f"  {which:<9} {row['params']:>12,} parameters  {units.show(row['macs']):>8} MACs (papers' FLOPs)")
    if facts["limits"]:
        _say(f"  {100 * facts['fits']:.1f} % of {facts['samples']} sampled architectures fit the limits")
    return None


@app.command()
def cost(
    name: Annotated[str, typer.Argument(help="An architecture's name (see: tailorvit list archs) or ARCH.json.")],
    classes: Annotated[int | None, typer.Option(help="Number of classes.")] = None,
    image_size: Annotated[int | None, typer.Option(help="Side of the images in pixels.")] = None,
    measure: Annotated[bool, typer.Option("--measure", help="Also measure latency and memory here.")] = False,
    batch: Annotated[int, typer.Option(help="Images a batch when measuring.")] = 1,
    runtime: Annotated[
        str, typer.Option(help="What latency is measured in: torch, onnxruntime, auto: as a run would.")
    ] = "auto",
    as_json: Json = False,
) -> None:
    """Show what an architecture costs: exact parameters and MACs, per part."""
    from tailorvit import units
    from tailorvit.catalogue import known_cost

    facts = None if measure or (classes, image_size) != (None, None) else known_cost(name)
    if facts is None:
        from tailorvit import lookup

        facts = lookup.cost(name, classes=classes, image_size=image_size, measure=measure, batch=batch, runtime=runtime)
    if as_json:
        return _print_json(facts)
    _say(f"{name}: {facts['params']:,} parameters, {units.show(facts['macs'])} MACs (papers' FLOPs)")
    for row in facts["parts"]:
        _say(f"  {row['part']:<22} {row['params']:>12,} parameters {row['macs']:>16,} MACs")
    for reading, value in facts["readings"].items():
        _say(f"  reading {reading:<20} {value:>20,}")
    if measure:
        lat = facts["latency"]
        spread = f"{1e3 * lat['low']:.2f}-{1e3 * lat['high']:.2f} ms"
        where = f"{lat['device']}, {lat['runtime']}, {lat['threads']} threads"
        _say(
            f"  latency {1e3 * lat['median']:.2f} ms (quartiles {spread}), batch {lat['batch']}, "
            f"{where}; memory {units.show(facts['memory'], 'memory')}"
        )
    return None


@app.command("latency-kit")
def latency_kit(
    source: Annotated[str, typer.Argument(help="A space's name or TOML file, or a run's folder.")],
    out: Annotated[Path, typer.Option(help="Folder to write.")],
    n: Annotated[int, typer.Option("--n", help="Networks of the space to measure.")] = 40,
    classes: Annotated[int | None, typer.Option(help="Number of classes.")] = None,
    image_size: Annotated[int | None, typer.Option(help="Side of the images in pixels.")] = None,
    as_json: Json = False,
) -> None:
    """Write networks and a script that measures them on another host, for run --latency-table."""
    from tailorvit import latency_kit as kit
    from tailorvit import units

    made = kit.latency_kit(source, out, n=n, classes=classes, image_size=image_size)
    if as_json:
        return _print_json(made)
    _say(f"Wrote {len(made['networks'])} networks with random weights ({units.show(made['bytes'], 'memory')}) to {out}")
    _say("Copy the folder to the host, run there: python measure.py; and come back with its table.json")
    return None


@app.command("list")
def list_(
    what: Annotated[
        str | None,
        typer.Argument(
            help="families, methods, searchers, proxies, exporters, data, trunks, spaces, archs, presets or recipes; "
            "without it, everything that plug-ins may add to.",
            show_default=False,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """List what there is, and where it comes from."""
    from tailorvit import catalogue

    tables = {name: catalogue.listing(name) for name in ([what] if what else catalogue.kinds())}
    if as_json:
        return _print_json(tables[what] if what else tables)
    for number, (name, rows) in enumerate(tables.items()):
        if what is None:
            _say(("\n" if number else "") + name)
        width = max((len(r["name"]) for r in rows), default=0)
        for row in rows:
            origin = row.get("origin", "tailorvit")
            notes = ["experimental"] * bool(row.get("experimental")) + [origin] * (origin != "tailorvit")
            line = f"{row['name']:<{width}}  {row['summary']}" + (f"  [{', '.join(notes)}]" if notes else "")
            _say(line if what else "  " + line)
    return None


@app.command()
def runs(
    folder: Annotated[Path, typer.Argument(help="Where run folders lie.")] = Path("runs"),
    as_json: Json = False,
) -> None:
    """List the runs in a folder: state, network, accuracy."""
    from tailorvit import lookup

    rows = lookup.list_runs(folder)
    if as_json:
        return _print_json(rows)
    for line in lookup.run_lines(folder, rows):
        _say(line)
    return None


@app.command()
def score(
    name: Annotated[str, typer.Argument(help="A space or an architecture, by name, TOML or ARCH.json.")],
    proxy: Annotated[str, typer.Option(help="Proxies, with commas (see: tailorvit list proxies).")] = "dss",
    n: Annotated[int, typer.Option("--n", help="Architectures of the space to score.")] = 100,
    max_params: MaxParams = None,
    min_params: MinParams = None,
    max_macs: MaxMacs = None,
    classes: Annotated[int | None, typer.Option(help="Number of classes.")] = None,
    image_size: Annotated[int | None, typer.Option(help="Side of the images in pixels.")] = None,
    data: Annotated[str | None, typer.Option(help="Images for proxies that need them: a source as for run.")] = None,
    noise: Annotated[bool, typer.Option("--noise", help="Noise and random labels instead of images.")] = False,
    inits: Annotated[int, typer.Option(help="Initialisations to average over.")] = 1,
    batch: Annotated[int | None, typer.Option(help="Images in a batch (default: the proxy's own).")] = None,
    seed: Annotated[int, typer.Option(help="Of the sampling, the weights and the noise.")] = 0,
    device: Annotated[str, typer.Option(help="cpu, cuda or cuda:1.")] = "cpu",
    workers: Annotated[int, typer.Option(help="Processes; several fill a GPU, or all cores.")] = 1,
    top: Annotated[int, typer.Option(help="Rows to print; JSON has them all.")] = 10,
    as_json: Json = False,
) -> None:
    """Score untrained architectures: one, or many of a space, best first."""
    from tailorvit import scoring
    from tailorvit.proxies import ProxySettings

    settings = ProxySettings(tuple(_words(proxy)), inits, batch, image_size, noise)
    limits = {"max_params": max_params, "min_params": min_params, "max_macs": max_macs}

    def progress(done: int, total: int) -> None:
        if total > done:
            _say(f"{done} of {total}", err=True)

    options: dict[str, Any] = {"n": n, "limits": limits, "seed": seed, "classes": classes, "data": data}
    facts = scoring.score(name, settings, device=device, workers=workers, progress=progress, **options)
    if as_json:
        return _print_json(facts)
    _say("\n".join(scoring.lines(facts, top)))
    return None


@app.command()
def rank(
    table: Annotated[Path, typer.Argument(metavar="TABLE", help="JSON file of architectures with known accuracies.")],
    proxy: Annotated[str, typer.Option(help="Proxies, with commas, e.g. dss,naswot.")] = "dss",
    target: Annotated[str | None, typer.Option(help="The accuracy to rank by (default: every one there is).")] = None,
    band: Annotated[str, typer.Option(help="Pairs within this share of parameters are of similar size.")] = "5%",
    seeds: Annotated[int, typer.Option(help="Initialisations to score with, one after the other.")] = 1,
    seed: Annotated[int, typer.Option(help="The first of them.")] = 0,
    limit: Annotated[int | None, typer.Option(help="At most this many rows, evenly picked.")] = None,
    image_size: Annotated[int | None, typer.Option(help="Side of the images to score with, in pixels.")] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda or cuda:1.")] = "cpu",
    figure: Annotated[Path | None, typer.Option(help="Also draw it, as an .svg file.")] = None,
    as_json: Json = False,
) -> None:
    """Say how well scores rank architectures of known accuracy, beside their size alone."""
    from tailorvit.proxies.ranking import rank_file
    from tailorvit.report.ranking import check_figure, write_ranking

    check_figure(figure)
    options: dict[str, Any] = {"target": target, "band": band, "seeds": seeds, "seed": seed, "limit": limit}
    found = rank_file(table, _words(proxy), image_size=image_size, device=device, **options)
    if figure is not None:
        _say(f"Wrote {write_ranking(found, figure, target)}", err=True)
    if as_json:
        _print_json(found.to_dict())
    else:
        _say(found.text())


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(help="Folder of a run, finished or not.")],
    out: Annotated[Path | None, typer.Option(help="The page's file (default: report.html in the folder).")] = None,
    figures: Annotated[Path | None, typer.Option(help="Also write every figure into this folder.")] = None,
    formats: Annotated[str, typer.Option("--format", help="Of the figures: svg, png, csv, with commas.")] = "svg,csv",
    show: Open = None,
) -> None:
    """Write the run's report.html from what its folder holds."""
    from tailorvit.report import write_report, write_report_figures

    if figures is not None:  # first: a format nobody knows must stop before anything is written
        written = write_report_figures(folder, figures, _words(formats))
        _say(f"Wrote {len(written)} files into {figures}")
    page = write_report(folder, out)
    _say(f"Wrote {page}")
    _open(page, show)


@app.command()
def compare(
    folders: Annotated[list[Path], typer.Argument(help="Folders of runs: methods, seeds, limits.")],
    out: Annotated[Path | None, typer.Option(help="Also write one page with table and figures, e.g. c.html.")] = None,
    to: Annotated[
        str | None, typer.Option(help="optuna: write the trials into --out, e.g. trials.db, instead.")
    ] = None,
    figures: Annotated[Path | None, typer.Option(help="Also write every figure into this folder.")] = None,
    formats: Annotated[str, typer.Option("--format", help="Of the figures: svg, png, csv, with commas.")] = "svg,csv",
    as_csv: Annotated[bool, typer.Option("--csv", help="Print the table as CSV.")] = False,
    as_json: Json = False,
) -> None:
    """Put several runs into one table, with mean and spread over seeds."""
    if to is not None:
        from tailorvit.optuna_trials import write_trials

        _say("\n".join(write_trials(folders, to, out)))
        return
    from tailorvit.report import compare as compared
    from tailorvit.report import write_comparison, write_comparison_figures

    comparison = compared(folders)
    if out is not None:  # files first: what cannot be written must not follow a page of output
        _say(f"Wrote {write_comparison(comparison, out)}", err=True)
    if figures is not None:
        written = write_comparison_figures(comparison, figures, _words(formats))
        _say(f"Wrote {len(written)} files into {figures}", err=True)
    if as_json:
        _print_json(comparison.to_dict())
    else:
        _say(comparison.csv() if as_csv else comparison.text(), nl=not as_csv)


@app.command()
def watch(
    folder: Annotated[Path, typer.Argument(help="Folder of a run, also one under way.")],
    port: Annotated[int, typer.Option(help="Port on this machine (0: any free one).")] = 0,
) -> None:
    """Show the report live in a browser on this machine while the run goes on; reads only."""
    from tailorvit.report import watch as serve

    note = "" if folder.exists() else "; there is no such folder yet, and the page waits for it"
    serve(folder, port, lambda url: _say(f"Watching {folder} at {url} (Ctrl-C ends{note})"))


@app.command()
def export(
    folder: Annotated[Path, typer.Argument(help="Folder of a finished run, or of a network.")],
    to: Annotated[
        str, typer.Option(help="onnx, torch, safetensors, timm, hf, torchscript, openvino, executorch, coreml.")
    ],
    out: Annotated[Path | None, typer.Option(help="Folder to write (default: export/FORMAT in the run).")] = None,
    data: Annotated[str | None, typer.Option(help="Where the run's images lie now, to check on.")] = None,
    int8: Annotated[bool, typer.Option("--int8", help="Also an int8 network, its accuracy measured (onnx).")] = False,
    as_json: Json = False,
) -> None:
    """Write the network in a format for other programs, checked against PyTorch."""
    from tailorvit.downstream import export as write

    exported = write(folder, to, out, data=data, int8=int8)
    if as_json:
        return _print_json(exported.to_dict())
    for line in exported.lines():
        _say(line)
    return None


@app.command()
def push(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a finished run, or of a network.")],
    name: Annotated[str, typer.Argument(metavar="USER/NAME", help="Its name on the Hugging Face hub.")],
    public: Annotated[bool, typer.Option("--public", help="For everybody to see (default: private).")] = False,
    license: Annotated[str | None, typer.Option(help="Licence to state, e.g. apache-2.0 (default: none).")] = None,
    data: Annotated[str | None, typer.Option(help="Where the run's images lie now, to check on.")] = None,
    as_json: Json = False,
) -> None:
    """Upload the network and its model card to the Hugging Face hub; your token is taken from HF_TOKEN."""
    from tailorvit.export import push as upload

    pushed = upload(folder, name, public=public, license=license, data=data)
    if as_json:
        return _print_json(pushed.to_dict())
    for line in pushed.lines():
        _say(line)
    return None


@app.command("import")
def import_(
    file: Annotated[Path, typer.Argument(help="A published checkpoint: .pth or .safetensors.")],
    name: Annotated[str, typer.Option("--as", help="Its architecture (see: tailorvit list archs) or ARCH.json.")],
    classes_file: Annotated[Path | None, typer.Option(help="Names of the classes, one a line.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder to write (default: networks/NAME).")] = None,
    image_size: Annotated[int | None, typer.Option(help="Side of the images in pixels.")] = None,
    origin: Annotated[
        str | None, typer.Option(help="timm:NAME, whose mean, deviation and crop to write (default: by the file).")
    ] = None,
    as_json: Json = False,
) -> None:
    """Make a network folder of a published checkpoint: AutoFormer, S3, DeiT, Swin, PiT."""
    from tailorvit.importing import import_checkpoint

    options: dict[str, Any] = {"classes_file": classes_file, "image_size": image_size, "origin": origin}
    imported = import_checkpoint(file, name, out=out, **options)
    if as_json:
        return _print_json(imported.to_dict())
    for line in imported.lines():
        _say(line)
    return None


@app.command()
def predict(
    source: Annotated[Path, typer.Argument(help="Run or network folder, hf:USER/NAME, or an exported .onnx.")],
    images: Annotated[list[str], typer.Argument(help="Image files, folders, or - for standard input.")],
    top: Annotated[int, typer.Option(help="Classes to print an image (0: all).")] = 3,
    form: Annotated[str, typer.Option("--format", help="text, json or csv.")] = "text",
    question: Annotated[str | None, typer.Option(help="For a network that answers: what to ask.")] = None,
    as_json: Json = False,
) -> None:
    """Say what is on images. An .onnx file needs no PyTorch. Standard input: one image, or paths one a line."""
    from tailorvit.predict import run_predict

    code = run_predict(source, images, "json" if as_json else form, top, sys.stdout, question)
    if code:
        raise typer.Exit(code)


@app.command()
def evaluate(
    source: Annotated[
        Path, typer.Argument(metavar="RUN", help="Run or network folder, hf:USER/NAME, or an exported .onnx.")
    ],
    data: Annotated[str, typer.Option(help="Labelled images: image folder, .npz/.npy file, digits, torchvision:NAME.")],
    split: Annotated[
        str | None, typer.Option(help="train, val, test or all (default: test if there, else all).")
    ] = None,
    as_json: Json = False,
) -> None:
    """Measure a network on labelled images: accuracy, precision, recall and F1 per class."""
    from tailorvit import evaluation

    found = evaluation.evaluate(source, data, split=split)
    if as_json:
        return _print_json(found.to_dict())
    for line in found.lines():
        _say(line)
    return None


@app.command()
def doctor(
    folder: Annotated[
        Path | None, typer.Argument(metavar="[RUN]", help="Folder of a run: say whether it is whole.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Say whether this machine has what TailorViT needs, or whether a run folder is whole."""
    from tailorvit import health, lookup

    rows = lookup.doctor() if folder is None else health.check_run(folder)
    if as_json:
        _print_json(rows)
    for row in () if as_json else rows:
        _say(f"{row['state']:<8} {row['what']:<18} {row['text']}")
    if folder is not None and not health.sound(rows):
        raise typer.Exit(2)


@app.command()
def schema() -> None:
    """Print the JSON schema of recipes, by which editors complete and check them."""
    from tailorvit import config

    _print_json(config.schema())


class Shell(StrEnum):
    """The shells whose completion can be printed."""

    BASH, ZSH, FISH = "bash", "zsh", "fish"


@app.command()
def completion(shell: Annotated[Shell, typer.Argument(help="Your shell.")]) -> None:
    """Print a script that completes commands and options: eval "$(tailorvit completion bash)"."""
    from typer import completion as scripts

    script: Any = scripts.get_completion_script  # type: ignore[attr-defined]
    _say(script(prog_name="tailorvit", complete_var=COMPLETE, shell=shell.value))


def main() -> None:
    """Entry point: user mistakes become one sentence and exit code 2."""
    # Waiting threads sleep instead of spinning: on a busy two-core machine that trained four times as fast.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the memory measurement starts torch's profiler, which chats
    os.environ.setdefault("PYTORCH_ENABLE_MPS_FALLBACK", "1")  # what Apple's GPU lacks is done by the CPU
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # names may hold what the terminal cannot show
    from tailorvit.errors import TailorError, out_of_memory

    if COMPLETE in os.environ:  # a shell asks for words
        from typer import completion as scripts

        scripts.completion_init()  # type: ignore[attr-defined]
    try:
        app(prog_name="tailorvit")
    except SystemExit as end:
        if ranks.world() > 1:
            ranks.leave(end.code if isinstance(end.code, int) else 0 if end.code is None else 1)
        raise
    except TailorError as error:
        if ranks.may_speak():
            _say(f"tailorvit: {shown(str(error))}", err=True)
        sys.exit(2)
    except (MemoryError, RuntimeError) as error:
        if not out_of_memory(error):
            raise
        _say("tailorvit: There is not enough memory for this: take a smaller batch, image size or network.", err=True)
        sys.exit(2)
    except OSError as error:  # a full disk, output nobody reads: nothing a traceback would explain
        place = f" '{error.filename}'" if error.filename else ""
        _say(f"tailorvit: Cannot read or write{place}: {error.strerror or error}.", err=True)
        sys.exit(2)


if __name__ == "__main__":
    main()
