"""Section 6: what the papers claim, tested on this run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from tailorvit.report import charts
from tailorvit.report.figure import Figure, tip
from tailorvit.report.guidelines import guidelines
from tailorvit.report.parts import arch_in_words, cell, grid, none, percent, size
from tailorvit.report.records import Facts, real, table
from tailorvit.report.views import Block, blocks, trim
from tailorvit.stats import kendall, mean_gap, spearman

_CANDIDATES = 40  # bars drawn; the CSV file has all
_CLEAR = 2.0  # standard errors from which a change counts


@dataclass(frozen=True)
class Candidate:
    """A finished candidate: accuracies in percent with inherited weights, after training, and on the test images."""

    arch: str
    params: float | None
    inherited: float | None
    final: float | None
    test: float | None
    chosen: bool


@dataclass(frozen=True)
class Gain:
    """A move of the space: the accuracy it promised and what its random members show."""

    step: int
    move: str
    predicted: float | None
    observed: float | None
    error: float | None
    before: int
    after: int
    longer: bool = False  # the second supernet went on from the first, so it gains by training alone

    @property
    def verdict(self) -> Literal["borne out", "not borne out", "cannot be judged"]:
        """Whether the mean moved the promised way by more than chance would."""
        if self.observed is None or self.error is None or self.predicted is None or self.longer:
            return "cannot be judged"
        if abs(self.observed) <= _CLEAR * self.error or self.predicted == 0:
            return "cannot be judged"
        return "borne out" if (self.observed > 0) == (self.predicted > 0) else "not borne out"


def figures(facts: Facts) -> list[Figure]:
    """The drawings of this section."""
    found = [_bars(candidates(facts), _how(facts)), _strips(blocks(facts)), _gains(gains(facts))]
    return [figure for figure in found if figure is not None]


def checks(facts: Facts) -> str:
    """Inherited against final accuracy, the design guidelines, and the promises of the moves."""
    drawn = {figure.key: figure for figure in figures(facts)}
    text = "<h3>Do inherited weights tell which network is best?</h3>" + _ranking(facts, drawn)
    verdicts = guidelines(blocks(facts))
    text += "<h3>Design guidelines on the network found</h3>"
    if verdicts:
        text += none(
            "S3 and AutoFormer report how good networks look. One network is no proof for or against: it was found on"
            " other data, at another size, and chosen by one search."
        )
        text += grid(("guideline", "this network", "numbers"), [(v.claim, v.verdict, v.numbers) for v in verdicts])
        text += drawn["checks-strips"].html() if "checks-strips" in drawn else ""
    else:
        text += none("There is no network to look at yet.")
    return text + _moves(facts, drawn)


def candidates(facts: Facts) -> list[Candidate]:
    """The finished candidates, in the order of the search."""
    return [
        Candidate(
            trim(arch_in_words(table(row.get("arch"))), 400),
            real(row.get("params")),
            real(row.get("search_accuracy")),
            real(row.get("final_search_accuracy")),
            real(row.get("test_accuracy")),
            row.get("chosen") is True,
        )
        for row in facts.candidates
        if row
    ]


def _how(facts: Facts) -> str:
    how = facts.result.get("final")
    return {"finetune": "fine-tuned", "retrain": "retrained", "inherit": "as inherited"}.get(str(how), "finished")


def correlation(pairs: Sequence[tuple[float, float]]) -> str:
    """Both rank correlations in words."""
    if len(pairs) < 3:
        return f"cannot be judged, for it takes 3 finished candidates and there are {len(pairs)}"
    a, b = [p[0] for p in pairs], [p[1] for p in pairs]
    tau, rho = kendall(a, b), spearman(a, b)
    if tau is None or rho is None:
        return f"cannot be judged, for all {len(pairs)} candidates are equal on one side"
    return f"Kendall's tau-b {tau:+.2f}, Spearman's rho {rho:+.2f} over {len(pairs)} candidates"


def _ranking(facts: Facts, drawn: dict[str, Figure]) -> str:
    found, how = candidates(facts), _how(facts)
    if not found:
        return none("No candidate has been finished yet, or this run did not record them.")
    if all(c.inherited is None for c in found):
        text = none("No candidate had inherited weights: this method trains only what it chose.")
    else:
        final = [(c.inherited, c.final) for c in found if c.inherited is not None and c.final is not None]
        test = [(c.inherited, c.test) for c in found if c.inherited is not None and c.test is not None]
        scale = " 1 is the same order, 0 none, -1 the reverse; a handful of candidates, all of them good, says little."
        text = (
            f"<p>Order by inherited accuracy against order once {cell(how)}, both on the search images:"
            f" {cell(correlation(final))}. Against the test images: {cell(correlation(test))}."
            f"{scale if len(final) > 2 else ''}</p>"
        )
    body = [
        (i, c.arch + (" (chosen)" if c.chosen else ""), size(c.params), *map(percent, (c.inherited, c.final, c.test)))
        for i, c in enumerate(found, 1)
    ]
    head = ("", "architecture", "parameters", "inherited, search images", f"{how}, search images", "test images")
    text += drawn["checks-candidates"].html() if "checks-candidates" in drawn else ""
    return text + f"<details><summary>The candidates in numbers</summary>{grid(head, body, 4)}</details>"


def _bars(found: Sequence[Candidate], how: str) -> Figure | None:
    values = [v for c in found for v in (c.inherited, c.final, c.test) if v is not None]
    if not values:
        return None
    shown = found[:_CANDIDATES]
    low, high = min(values), max(values)
    low = max(0.0, low - 0.25 * ((high - low) or 4.0)) if low >= 0 else low
    high = high if high > low else low + 1
    left, right, line = 34, charts.WIDTH - 54, 44
    parts = []
    for i, c in enumerate(shown):
        y = 4 + line * i
        name = f"{i + 1}{'*' if c.chosen else ''}"
        parts.append(charts.text(left - 6, y + 23, name, "end", "strong" if c.chosen else ""))
        for j, (kind, value) in enumerate((("inherited", c.inherited), (how, c.final), ("test", c.test))):
            if value is not None:
                width = max((value - low) / (high - low) * (right - left), 0.5)
                words = tip(f"{i + 1}, {kind}: {value:.2f} %; {c.arch}")
                parts.append(
                    f'<rect class="bar c{j}" x="{left}" y="{y + 12 * j + 2}" width="{width:.1f}" height="10"{words}/>'
                )
                parts.append(charts.text(left + width + 4, y + 12 * j + 11, f"{value:.2f}"))
    parts.append(f'<path class="axis" d="M{left} 0V{4 + line * len(shown)}"/>')
    more = f" Drawn are {_CANDIDATES} of {len(found)}." if len(found) > _CANDIDATES else ""
    return Figure(
        key="checks-candidates",
        title="The candidates before and after",
        caption=f"Accuracy in percent with inherited weights, once {how} (both search images) and on the test images;"
        f" * was chosen. Bars begin at {low:.1f} %, not at zero.{more}",
        columns=("candidate", "arch", "params", "inherited", "final", "test", "chosen"),
        rows=[(i, c.arch, c.params, c.inherited, c.final, c.test, c.chosen) for i, c in enumerate(found, 1)],
        svg=charts.svg(parts, "The candidates before and after", charts.WIDTH, 8 + line * len(shown)),
        legend=(("c0", "inherited"), ("c1", how), ("c2", "test images")),
    )


def _strips(found: Sequence[Block]) -> Figure | None:
    """Q-K-V width and MLP ratio over depth, as AutoFormer's figure 1 shows them."""
    qkv = [(float(i), b.qkv / b.embed) for i, b in enumerate(found, 1) if b.qkv is not None and b.embed]
    mlp = [(float(i), b.mlp) for i, b in enumerate(found, 1) if b.mlp is not None]
    if len(found) < 2 or not (qkv or mlp):
        return None
    names = {float(i): str(i) for i in range(1, len(found) + 1)} if len(found) <= 16 else None
    series = {"MLP ratio": mlp, "Q-K-V width / block width": qkv}
    title = "Q-K-V width and MLP ratio over depth"
    return Figure(
        key="checks-strips",
        title=title,
        caption="AutoFormer found Q-K-V wide and MLP narrow near the image, the reverse near the answer.",
        columns=("block", "stage", "mlp_ratio", "qkv_over_embed"),
        rows=[
            (i, b.stage, b.mlp, b.qkv / b.embed if b.qkv is not None and b.embed else None)
            for i, b in enumerate(found, 1)
        ],
        svg=charts.lines(series, title, "block", "ratio", x_names=names),
        legend=tuple(pair for pair in charts.legend(list(series)) if series[pair[1]]),
    )


def gains(facts: Facts) -> list[Gain]:
    """Every move that led to a further space, with the mean accuracy of random members before and after."""
    known: dict[int, list[float]] = {}
    for trial in facts.trials:
        name, _, step = trial.stage.partition("-")
        if name == "edf" and step.isdecimal() and len(step) < 6 and trial.accuracy is not None:
            known.setdefault(int(step), []).append(trial.accuracy)
    found, warm = [], table(facts.settings.get(facts.method)).get("warm_start") is True
    for decision in facts.decisions:
        if decision.stop or decision.gamma == "no move":
            continue
        predicted = next((d.gain for d in decision.legal if d.gamma == decision.gamma), None)
        before, after = known.get(decision.t, []), known.get(decision.t + 1, [])
        gap = mean_gap(before, after)
        seen, error = gap if gap is not None else (None, None)
        found.append(Gain(decision.t, decision.gamma, predicted, seen, error, len(before), len(after), warm))
    return found


def _gains(found: Sequence[Gain]) -> Figure | None:
    rows = [
        row
        for g in found
        if g.observed is not None
        for row in (
            *([(f"step {g.step}, promised", g.predicted, None)] if g.predicted is not None else []),
            (f"step {g.step}, seen", g.observed, g.error),
        )
    ]
    if not rows:
        return None
    title = "What each move promised, and what came"
    return Figure(
        key="checks-gains",
        title=title,
        caption="Points of accuracy: the gain predicted from the slopes, and the change of the mean accuracy of random"
        " members with its standard error.",
        columns=("step", "move", "predicted", "observed", "standard_error", "members_before", "members_after"),
        rows=[(g.step, g.move, g.predicted, g.observed, g.error, g.before, g.after) for g in found],
        svg=charts.bars(rows, title),
    )


def _moves(facts: Facts, drawn: dict[str, Figure]) -> str:
    if not facts.decisions and len(facts.spaces) < 2:
        return ""
    found = gains(facts)
    text = "<h3>Did the moves of the space keep their promise?</h3>"
    if found:
        body = [
            (
                g.step,
                g.move,
                None if g.predicted is None else f"{g.predicted:+.2f}",
                None if g.observed is None or g.error is None else f"{g.observed:+.2f} ± {g.error:.2f}",
                g.verdict,
            )
            for g in found
        ]
        text += grid(("step", "move", "promised", "seen", ""), body)
        text += none(
            "Seen is the change of the mean accuracy of random members. "
            + (
                "With warm start each supernet goes on from the one before it, so the change may all be training, and"
                " no move is judged."
                if any(g.longer for g in found)
                else f"A change below {_CLEAR:g} standard errors is not judged."
            )
        )
        text += drawn["checks-gains"].html() if "checks-gains" in drawn else ""
    else:
        text += none("The space did not move, or its moves were not recorded.")
    kept = [within(facts, metric) for metric in ("params", "macs")]
    return text + "".join(f"<p>{cell(sentence)}</p>" for sentence in kept if sentence)


def within(facts: Facts, metric: Literal["params", "macs"]) -> str:
    """Whether the largest member stayed within the upper limit at every step; empty without such a limit."""
    limit = real(table(table(facts.result.get("limits")).get(metric)).get("max"))
    known = [(s, v) for s in facts.spaces if (v := s.params if metric == "params" else s.macs) is not None]
    if limit is None or not known:
        return ""
    name = "parameters" if metric == "params" else "MACs"
    over = [f"{s.label} ({size(v, metric)})" for s, v in known if v > limit]
    bound = f"the limit of {size(limit, metric)} {name}"
    if not over:
        return f"The largest member of the space stayed within {bound} at all {len(known)} spaces visited."
    return f"The largest member of the space exceeded {bound} in {len(over)} of {len(known)} spaces: {', '.join(over)}."
