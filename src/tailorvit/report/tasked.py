"""The page of a task's run: what one gets, the figures, the candidates, the pictures."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from html import escape
from typing import Any

from tailorvit.report import charts
from tailorvit.report.charts import Figure, Point, figures_of
from tailorvit.report.fields import checked_picture, finite, listed, number, objects, table
from tailorvit.report.markup import (
    Html,
    cards,
    cell,
    clean,
    duration,
    fold,
    grid,
    limits_in_words,
    metric_name,
    paragraph,
    size,
    soft,
    stage_name,
)
from tailorvit.report.reading import Facts

_GETS = {
    "detect": "a detector",
    "segment": "a segmenter, which gives every pixel a class,",
    "answer": "a network that answers questions about images",
}
_PICTURE, _PICTURES = 4_000_000, 40_000_000  # characters of one picture, and of all on the page


def there(facts: Facts) -> bool:
    """Whether the run is one of a task."""
    return bool(facts.task_name)


def lead(facts: Facts) -> str:
    """One sentence in a paragraph; nothing while there is no network."""
    metric, test = clean(facts.task.get("metric"), 40), finite(facts.task.get("test"))
    if not facts.finished or metric not in test:
        return ""
    name = _GETS.get(facts.task_name, f"a network of the task {clean(facts.task_name, 40)}")
    params, body = (size(table(part).get("params")) for part in (facts.task, facts.task.get("backbone")))
    counts = f" with {params} parameters, {body} of them the backbone's" if params and body else ""
    network = clean(table(facts.task.get("network")).get("name"), 100)
    command = shlex.join(["tailorvit", "predict", clean(facts.place or facts.folder, 1000), "IMAGE"])
    words = f"You get {name} on the backbone {network}{counts}: {metric} {test[metric]:.2f} on the test images"
    return f'<p class="lead">{cell(words)}; to use it, run {Html(f"<code>{cell(command)}</code>")}.</p>\n'


def figures(facts: Facts) -> list[Figure]:
    """The figure of this section."""
    return figures_of(_scores(facts))


def section(facts: Facts) -> str:
    """Headline numbers, the table of figures, what stands beside, the time."""
    times = [(stage_name(k), duration(v)) for k, v in facts.spent.items()]
    spent = fold("Time of every stage", grid(("stage", "time"), times, 1)) if times else ""
    drawn = "".join(figure.html() for figure in figures(facts))
    if not facts.finished:
        return soft("The run has not finished.") + drawn + spent
    task = facts.task
    metric, body = clean(task.get("metric"), 40), table(task.get("backbone"))
    search, test = finite(task.get("search")), finite(task.get("test"))
    latency = number(task.get("latency"))
    heads = cards(
        [
            (_figure(test.get(metric)), f"{metric} on the test images"),
            (size(task.get("params")), f"parameters, {size(body.get('params'))} of them the backbone's"),
            (size(task.get("macs"), "macs"), f"MACs an image, {size(body.get('macs'), 'macs')} of them the backbone's"),
            (size(latency, "latency") if latency is not None else None, "an image, measured once here"),
        ]
    )
    names = list(dict.fromkeys([metric, *test, *search]))
    rows = [(name, _figure(search.get(name)), _figure(test.get(name))) for name in names]
    text = f"{paragraph(_story(facts))}{heads}{grid(('figure', 'search split', 'test split'), rows, 2)}"
    text += _beside(task, metric) + _candidates(task, metric)
    return text + drawn + spent


def _story(facts: Facts) -> str:
    network, data = table(facts.task.get("network")), facts.data
    words = [f"The backbone is {clean(network.get('name'))} ({clean(network.get('family'), 40)})"]
    words[0] += {
        "fresh": ", from scratch.",
        "inherited": ", with the weights it had.",
    }.get(clean(network.get("weights"), 40), f", with weights {clean(network.get('weights'), 40)}.")
    counts = ", ".join(f"{int(n):,} {clean(split, 20)}" for split, n in data.counts.items())
    sides = " x ".join(str(v) for v in listed(facts.task.get("image_size"))[:2])
    words.append(f"Images: {counts}, at {clean(sides, 40)} px (rows x columns).")
    if limits := limits_in_words(facts.result.limits):
        words.append(f"The limit was {limits}, for the whole network.")
    if data.skipped:
        words.append(f"{data.skipped} left out; skipped.json says why.")
    words.append("Test images were looked at once, at the end.")
    return " ".join(words)


def _figure(value: float | None) -> str | None:
    return None if value is None else f"{value:.2f}"


def _beside(task: Mapping[str, Any], metric: str) -> str:
    rows = [
        (clean(row.get("name")), *(_figure(finite(row.get(split)).get(metric)) for split in ("search", "test")))
        for row in objects(task.get("beside"))
    ]
    if not rows:
        return ""
    mine = ("this network", *(_figure(finite(task.get(split)).get(metric)) for split in ("search", "test")))
    head = ("trained by the same recipe", f"{metric}, search split", f"{metric}, test split")
    return f"<h3>Beside it</h3>{grid(head, [mine, *rows], 2)}"


def _candidates(task: Mapping[str, Any], metric: str) -> str:
    rows = [
        (
            clean(row.get("name")) + (" (chosen)" if row.get("chosen") is True else ""),
            size(row.get("params")),
            size(row.get("macs"), "macs"),
            _figure(finite(row.get("search")).get(metric)),
        )
        for row in objects(task.get("candidates"))
    ]
    if not rows:
        return ""
    head = ("network", *map(metric_name, ("params", "macs")), f"{metric}, search split")
    words = "Each was tuned on the task for a part of the epochs; the best went on to the full training."
    return f"<h3>Candidates</h3>{paragraph(words)}{grid(head, rows, 3)}"


def _scores(facts: Facts) -> Figure | None:
    """The metric on the search split over the epochs, stage by stage."""
    series: dict[str, list[Point]] = {}
    for epoch in facts.epochs:
        if epoch.score is not None:
            series.setdefault(epoch.stage, []).append((float(epoch.epoch), epoch.score))
    metric = clean(facts.task.get("metric") or "figure", 40)
    shown = {stage_name(stage): sorted(points) for stage, points in series.items()}
    title = f"{metric} on the search split"
    return Figure(
        key="task-score",
        title=title,
        caption="Measured about ten times in a training, on images that are not trained on.",
        columns=("stage", "epoch", metric),
        rows=[(stage, int(x), y) for stage, points in series.items() for x, y in sorted(points)],
        svg=charts.lines(shown, title, "epoch", metric),
        legend=charts.legend(list(shown)),
    )


# -- pictures ---------------------------------------------------------------------------------------------------------


def no_figures(facts: Facts) -> list[Figure]:
    """Pictures are no figures."""
    return []


def pictures(facts: Facts) -> str:
    """Test images with what was predicted and what is true."""
    left, shown = _PICTURES, []
    for row in objects(facts.pictures):
        href = checked_picture(row.get("picture"), _PICTURE)
        if href is None or len(href) > left:
            continue
        left -= len(href)
        name = escape(clean(row.get("name")), quote=True)
        image = f'<img src="{href}" alt="{name}" style="max-width:100%;height:auto">'
        shown.append(f"<figure>{image}<figcaption>{cell(row.get('caption'))}</figcaption></figure>\n")
    missing = len(objects(facts.pictures)) - len(shown)
    note = soft(f"{missing} pictures are damaged or too large for the page.") if missing else ""
    return ("".join(shown) or soft("There are no pictures yet.")) + note
