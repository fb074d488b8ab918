"""The verb score: parses, calls, prints. It stands beside cli.py, which holds as much as a file should."""

from __future__ import annotations

import json
from typing import Annotated

import typer


def score(
    name: Annotated[str, typer.Argument(help="A space or an architecture, by name, TOML or ARCH.json.")],
    proxy: Annotated[str, typer.Option(help="Scores, with commas (see: tailorvit list proxies).")] = "dss",
    n: Annotated[int, typer.Option("--n", help="Members of the space to score.")] = 100,
    max_params: Annotated[str | None, typer.Option(help="At most this many parameters, e.g. 5M.")] = None,
    min_params: Annotated[str | None, typer.Option(help="At least this many parameters.")] = None,
    max_macs: Annotated[str | None, typer.Option(help="At most this many multiply-accumulates an image.")] = None,
    classes: Annotated[int | None, typer.Option(help="Number of classes.")] = None,
    image_size: Annotated[int | None, typer.Option(help="Side of the images in pixels.")] = None,
    data: Annotated[str | None, typer.Option(help="Images for snip and grasp: a source as for run.")] = None,
    noise: Annotated[bool, typer.Option("--noise", help="Noise and random labels for snip and grasp.")] = False,
    reading: Annotated[str, typer.Option(help="Of dss: fixed, paper or official.")] = "fixed",
    inits: Annotated[int, typer.Option(help="Initialisations to average over.")] = 1,
    batch: Annotated[int | None, typer.Option(help="Images a batch (default: what suits the proxy).")] = None,
    seed: Annotated[int, typer.Option(help="Of the draw, the weights and the noise.")] = 0,
    device: Annotated[str, typer.Option(help="cpu, cuda or cuda:1.")] = "cpu",
    workers: Annotated[int, typer.Option(help="Processes; several fill a GPU, or all cores.")] = 1,
    top: Annotated[int, typer.Option(help="Rows to print; JSON has them all.")] = 10,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
) -> None:
    """Score untrained architectures: one, or many members of a space, best first."""
    from tailorvit import scoring
    from tailorvit.proxies import ProxySettings

    names = tuple(word.strip() for word in proxy.split(",") if word.strip())
    settings = ProxySettings(names, reading, inits, batch, image_size, noise)  # type: ignore[arg-type]
    limits = {"max_params": max_params, "min_params": min_params, "max_macs": max_macs}

    def look(done: int, total: int) -> None:
        if total > done:
            typer.echo(f"{done} of {total}", err=True)

    facts = scoring.score(
        name,
        settings,
        n=n,
        limits=limits,
        seed=seed,
        classes=classes,
        data=data,
        device=device,
        workers=workers,
        look=look,
    )
    typer.echo(json.dumps(facts, indent=1) if as_json else "\n".join(scoring.lines(facts, top)))
