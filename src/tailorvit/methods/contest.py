"""The contest: family, stem, shape, learning rate and augmentation, chosen by short trainings before anything else.

It goes in rounds. Three choose the network, each longer and with fewer of them: the best on the search images go on
with the weights they have. Two more train the winner from fresh weights, with other learning rates and up the ladder of
augmentations. All entries of a round train for the same number of epochs (or, under a budget of time, for the same
time), each round from the learning rate down to nothing. Every training's result is stored, so a killed contest goes on
where it was.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from tailorvit.arch import Arch
from tailorvit.costs.limits import Limits
from tailorvit.costs.meter import Meter
from tailorvit.data.augment import LADDER
from tailorvit.errors import InfeasibleError, TailorError
from tailorvit.families import FAMILIES, family
from tailorvit.families.base import around
from tailorvit.methods import Method
from tailorvit.methods.first_space import data_settings, largest_of_row
from tailorvit.methods.stages import load_weights
from tailorvit.methods.team import spread
from tailorvit.rng import seed_everything
from tailorvit.search import Candidate
from tailorvit.space import Space
from tailorvit.stats import paired_difference
from tailorvit.train import Fixed, TrainSettings, hits

if TYPE_CHECKING:
    from tailorvit.config import Config
    from tailorvit.data import Data
    from tailorvit.methods.session import Session

NETWORK = ("family", "stem", "shape")  # what the first rounds choose
AUTO = "auto"  # as a family: all that fit take part
USUAL = "usual"  # the stem that suits the image size
HAND = "hand-designed"
RATES = (0.25, 0.5, 1.0, 2.0)  # times the recipe's learning rate: two are tried, and the next if one is clearly better
FAMILY = "best of each family"
CUTS = {"all networks": 6, FAMILY: 3, "best three": 1}  # the first rounds, and how many go on
SHARES = {  # of the final epochs
    "all networks": 1 / 24,
    FAMILY: 1 / 16,
    "best three": 1 / 8,
    "learning rate": 1 / 3,
    "augmentation": 1 / 3,
}
WARMUP = 0.2  # of a round's epochs, at most
ERRORS = 1.0  # standard errors within which learning rates and augmentations cannot be told apart


@dataclass(frozen=True)
class Entry:
    """One who takes part: a network and how it is trained."""

    family: str
    stem: str
    shape: str
    arch: Arch
    settings: tuple[tuple[str, Any], ...]  # shared settings of the family: image size, patch, ...
    augment: str
    lr: float

    @property
    def label(self) -> str:
        """As a person should read it."""
        stem = "" if self.stem == USUAL else f" {self.stem}"
        return f"{self.family}{stem}, {self.shape}, {self.augment} augmentation, learning rate {self.lr:g}"

    @property
    def space(self) -> Space:
        """The space that holds this network alone."""
        return Space(self.family, around(self.arch), self.settings)

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        settings = {k: list(v) if isinstance(v, tuple) else v for k, v in self.settings}
        return {**vars(self), "arch": self.arch.to_dict(), "settings": settings}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Entry:
        """Read :meth:`to_dict`'s form."""
        settings = tuple((k, tuple(v) if isinstance(v, list) else v) for k, v in data["settings"].items())
        return cls(**{**data, "arch": Arch.from_dict(data["arch"]), "settings": settings})


@dataclass
class Standing:
    """How an entry has done so far."""

    entry: Entry
    full: int  # epochs of the final training, should it win
    weights: str | None = None  # the stage that left the weights it has; None before its first training
    epochs: int = 0  # that its weights have seen
    rounds: list[dict[str, Any]] = field(default_factory=list)
    correct: Any = None  # for each search image whether it was right, after the last round

    def length(self, what: str) -> int:
        """Its epochs in a round."""
        return max(1, round(SHARES[what] * self.full))

    @property
    def accuracy(self) -> float:
        """Percent of the search images, after the last round."""
        return float(self.rounds[-1]["accuracy"]) if self.rounds else 0.0


# -- who takes part ---------------------------------------------------------------------------------------------------


def first_entries(
    family_name: str, data: Data, limits: Limits, train: TrainSettings, device: str = "cpu"
) -> list[Entry]:
    """The hand-designed network of every family and stem that fits data and limits, and the families' other shapes."""
    names = _families(data) if family_name == AUTO else [family(family_name).name]
    entries: list[Entry] = []
    refused: list[str] = []
    for name in names:
        for stem in (USUAL, *family(name).stems):
            try:
                settings = stem_settings(name, stem, data, limits)
                found = largest_of(family(name).baseline, name, settings, limits, device)
            except TailorError as error:
                refused.append(f"{name}{'' if stem == USUAL else ' ' + stem}: {error}")
                continue
            if found is None or any((name, settings) == (e.family, e.settings) for e in entries):
                continue
            own = Entry(name, stem, HAND, found, settings, _mildest(train), train.lr)
            entries += [own, *_other_shapes(own, limits, device)] if stem == USUAL else [own]
    if not entries:
        high, wide = data.image_size
        who = "family" if family_name == AUTO else family_name
        reason = f"; {refused[0]}" if refused else "."
        raise InfeasibleError(
            f"No {who} has a network for {len(data.classes)} classes at {high}x{wide} px that keeps "
            f"{limits.describe()}{reason}"
        )
    return entries


def _other_shapes(entry: Entry, limits: Limits, device: str) -> Iterator[Entry]:
    """Networks of its family with the same stem that are shallower and wider, or deeper and narrower."""
    seen = {entry.arch}
    for name, row in family(entry.family).shapes.items():
        arch = largest_of(row, entry.family, entry.settings, limits, device)
        if arch is not None and arch not in seen:
            seen.add(arch)
            yield replace(entry, shape=name, arch=arch)


def _mildest(train: TrainSettings) -> str:
    """Families and shapes are compared under one augmentation: the recipe's, or where that is open the mildest."""
    return LADDER[0] if train.augment == AUTO else train.augment


def _families(data: Data) -> list[str]:
    """Families whose networks read images; one for features of a trunk takes part only where there is a trunk."""
    working = (f for f in FAMILIES.working() if f.from_scratch)
    return [f.name for f in working if f.plain.takes_features == (data.trunk is not None)]


def stem_settings(name: str, stem: str, data: Data, limits: Limits) -> tuple[tuple[str, Any], ...]:
    """The shared settings of a family with one of its stems."""
    return tuple(data_settings(None, data, limits, name, None if stem == USUAL else stem).items())


def largest_of(
    row: Callable[[Mapping[str, Any]], Iterator[Arch]],
    family_name: str,
    settings: Iterable[tuple[str, Any]],
    limits: Limits,
    device: str = "cpu",
) -> Arch | None:
    """The largest network of a growing row that keeps the limits; None where none does."""
    known = dict(settings)
    meter, counted = Meter(family_name, known, limits, device=device), Meter(family_name, known, limits.counted())
    return largest_of_row(row(known), meter, counted)


# -- the rounds -------------------------------------------------------------------------------------------------------


class Contest:
    """The rounds of one run."""

    def __init__(
        self,
        session: Session,
        entries: Sequence[Entry],
        epochs: Sequence[int],
        lengthen: Callable[[Standing], int] | None = None,
    ) -> None:
        self.session, self.lengthen = session, lengthen  # the winner's final epochs by the time that is left
        self.standings = [Standing(e, full) for e, full in zip(entries, epochs, strict=True)]
        self.rounds: list[dict[str, Any]] = []
        self.worth: list[dict[str, Any]] = []

    def hold(self) -> Standing:
        """All rounds; the winner."""
        still = list(range(len(self.standings)))
        for what, kept in CUTS.items():
            if len(still) > kept:
                still = self.ask(what, still, kept)
        leader = self.standings[still[0]]
        if self.lengthen is not None and leader.rounds:
            leader.full = self.lengthen(leader)
        return self.climb(self.set_rate(leader))

    def set_rate(self, leader: Standing) -> int:
        """The leader from fresh weights, with its learning rate and half of it.

        Where one is clearly better, the next rate on its side is tried as well; else the best lies between the two.
        """
        self._forget(leader.weights)
        number, tried = len(self.rounds), list[int]()
        rates = [factor * self.session.config.final.train.lr for factor in RATES]
        tried += self._fresh([replace(leader.entry, lr=r) for r in rates[1:3]], leader.full, "learning rate", number)
        half, whole = (self.standings[n].correct for n in tried)
        gap = paired_difference(half, whole, ERRORS)
        if gap.clear:
            beyond = rates[0] if gap.difference > 0 else rates[3]
            tried += self._fresh([replace(leader.entry, lr=beyond)], leader.full, "learning rate", number)
        best = self._ranked(tried)[0]
        self._end(number, "learning rate", tried, [best])
        return best

    def climb(self, best: int) -> Standing:
        """Up the ladder of augmentations, each from fresh weights, until one is clearly worse than the best so far.

        Of those that cannot be told from the best the mildest wins: the final training takes one step more.
        """
        first = self.standings[best]
        if self.session.config.final.train.augment != AUTO:
            return first
        number, tried = len(self.rounds), [best]
        first.rounds.append({**first.rounds[-1], "rung": number, "seconds": 0.0})  # the lowest step, trained already
        for name in LADDER[1:]:
            tried += self._fresh([replace(first.entry, augment=name)], first.full, "augmentation", number)
            top = self.standings[self._ranked(tried)[0]].correct
            worse = [paired_difference(top, self.standings[n].correct, ERRORS).clear for n in tried]
            if worse[-1]:
                break
        mildest = tried[worse.index(False)]
        self._end(number, "augmentation", tried, [mildest])
        return self.standings[mildest]

    def facts(self, winner: Standing) -> dict[str, Any]:
        """For result.json and the report."""
        entries = []
        for number, standing in enumerate(self.standings):
            entry = standing.entry
            params, macs = self.session.for_space(entry.space).meter.counter.both(entry.arch)
            entries.append(
                {
                    "id": number,
                    **entry.to_dict(),
                    "params": params,
                    "macs": macs,
                    "rungs": standing.rounds,
                    "won": standing is winner,
                }
            )
        number = self.standings.index(winner)
        return {
            "entries": entries,
            "rungs": self.rounds,
            "worth": self.worth,
            "winner": number,
            "why": self._why(winner),
        }

    def _why(self, winner: Standing) -> str:
        most = max((w for w in self.worth if w["points"] > 0), key=lambda w: w["points"], default=None)
        text = f"{winner.entry.label} won with {winner.accuracy:.1f} % of the search images"
        if most is not None:
            text += f"; most was gained by the choice of {most['what']} ({most['points']:.1f} points)"
        final = self.final_augment(winner)
        if final != winner.entry.augment:
            text += f". The final training is longer and bears one step more: {final} augmentation"
        return f"{text}."

    def final_augment(self, winner: Standing) -> str:
        """The augmentation of the final training, which is three times as long as the climb and bears more.

        One step above the climb's best, unless that step was clearly worse in the climb: then it was no better at the
        end either, in seven of seven runs on four sets of images (benchmarks/win).
        """
        own = winner.entry.augment
        climbed = any(rung["asks"] == "augmentation" for rung in self.rounds)
        above = LADDER[LADDER.index(own) + 1 :] if climbed else ()
        entry = replace(winner.entry, augment=above[0]) if above else None
        tried = next((s for s in self.standings if s.entry == entry), None)
        worse = tried is not None and paired_difference(winner.correct, tried.correct, ERRORS).clear
        return own if worse or not above else above[0]

    # -- one round ----------------------------------------------------------------------------------------------------

    def ask(self, what: str, numbers: list[int], count: int) -> list[int]:
        """One round: train these on and keep the best, the best first."""
        number, first_round = len(self.rounds), what == next(iter(CUTS))
        self._train(numbers, what, number)
        ranked = self._ranked(numbers)
        kept = (self._first_cut(ranked) if first_round else ranked)[:count]
        self._end(number, what, numbers, kept)
        return kept

    def _ranked(self, numbers: list[int]) -> list[int]:
        """The best first; of equals the one that came first stays ahead."""
        return sorted(numbers, key=lambda n: -self.standings[n].accuracy)

    def _end(self, number: int, what: str, numbers: list[int], kept: list[int]) -> None:
        """Close a round: note who goes on, delete the others' weights, say who is ahead."""
        epochs = [self.standings[n].length(what) for n in numbers]
        for n in numbers:
            self.standings[n].rounds[-1]["kept"] = n in kept
            if n not in kept:
                self._forget(self.standings[n].weights)
        row = {"rung": number, "asks": what, "epochs": max(epochs), "entries": len(numbers), "kept": len(kept)}
        self.rounds.append(row)
        self._weigh(what, self._ranked(numbers))
        best = self.standings[kept[0]]
        self.session.log_once(
            "contest",
            f"Contest, {what}: {len(numbers)} entries, {_span(epochs)} epoch(s); ahead is {best.entry.label}, with "
            f"{best.accuracy:.1f} % of the search images.",
        )

    def _first_cut(self, ranked: list[int]) -> list[int]:
        """The best of each family before all others: the first round is too short to tell families apart."""
        names = [self.standings[n].entry.family for n in ranked]
        leaders = [n for i, n in enumerate(ranked) if names[i] not in names[:i]]
        return [*leaders, *(n for n in ranked if n not in leaders)]

    def _train(self, numbers: Sequence[int], what: str, number: int) -> None:
        """Train entries on for one round, or read how it went where that is stored; each by a process that is free."""
        session, results = self.session, dict[int, dict[str, Any]]()
        for n in numbers:
            known = session.run.result(f"contest-{number}-{n}")
            if known is not None and "correct" in known:
                results[n] = known
        todo, left = [n for n in numbers if n not in results], len(numbers)

        def done(i: int, known: dict[str, Any]) -> None:
            stage, entry = f"contest-{number}-{todo[i]}", self.standings[todo[i]].entry
            results[todo[i]] = known
            trial = session.for_space(entry.space).trial(Candidate(entry.arch, "contest"), known["accuracy"], number)
            session.run.record_trials(stage, [vars(trial)])
            session.run.finish(stage, known)
            at = left - len(todo) + i + 1
            session.progress.step(f"contest, {what}", at, left, {"accuracy": known["accuracy"]})

        items = []
        for n in todo:
            standing, stage = self.standings[n], f"contest-{number}-{n}"
            weights = None if standing.weights is None else session.stored_weights(standing.weights)
            items.append((standing.entry, standing.length(what), stage, f"contest-{number}", weights))
        # A single entry is trained by all processes together; of several, each by one.
        one = partial(train_entry, session.sharing(session.shared and len(items) == 1))
        spread(session, one, entries_trained, (), items, done)
        for n in numbers:
            self._note(n, what, number, results[n])

    def _note(self, n: int, what: str, number: int, known: Mapping[str, Any]) -> None:
        """Note how entry n did in a round."""
        session, standing, stage = self.session, self.standings[n], f"contest-{number}-{n}"
        epochs = standing.length(what)
        bits = np.frombuffer(bytes.fromhex(known["correct"]), dtype=np.uint8)
        standing.correct = np.unpackbits(bits)[: known["images"]].astype(bool)
        self._forget(standing.weights)
        standing.weights, standing.epochs = stage, standing.epochs + epochs
        standing.rounds.append(
            {
                "rung": number,
                "epochs": epochs,
                "total_epochs": standing.epochs,
                "accuracy": known["accuracy"],
                "images": known["images"],
                "seconds": session.run.seconds().get(stage, 0.0),
                "kept": True,
            }
        )

    def _fresh(self, entries: Sequence[Entry], full: int, what: str, number: int) -> list[int]:
        """New entries, trained for one round."""
        first = len(self.standings)
        self.standings += [Standing(entry, full) for entry in entries]
        numbers = list(range(first, len(self.standings)))
        self._train(numbers, what, number)
        return numbers

    def _forget(self, weights: str | None) -> None:
        """Delete weights nobody goes on with."""
        if weights is not None:
            self.session.run.drop_checkpoint(weights)

    # -- comparisons --------------------------------------------------------------------------------------------------

    def _weigh(self, what: str, ranked: list[int]) -> None:
        """What a choice was worth: the best against the worst that differ from it in this one thing.

        Family, stem and shape are weighed in the first round, in which all of them took part.
        """
        best, things = self.standings[ranked[0]], NETWORK if what in CUTS else (what,)
        if what in CUTS and len(self.rounds) > 1:
            return
        for thing in things:
            leaders: dict[Any, Standing] = {}
            for row in (self.standings[n] for n in ranked):
                if _others(row.entry, thing) == _others(best.entry, thing):
                    leaders.setdefault(_value(row.entry, thing), row)
            if len(leaders) < 2:
                continue
            worst = list(leaders.values())[-1]
            gap = paired_difference(best.correct, worst.correct)
            self.worth.append(
                {
                    "what": thing,
                    "best": _value(best.entry, thing),
                    "worst": _value(worst.entry, thing),
                    "points": gap.difference,
                    "low": gap.low,
                    "high": gap.high,
                }
            )


def _value(entry: Entry, what: str) -> Any:
    return {
        "family": entry.family,
        "stem": entry.stem,
        "shape": entry.shape,
        "learning rate": entry.lr,
        "augmentation": entry.augment,
    }[what]


def _others(entry: Entry, what: str) -> tuple[Any, ...]:
    """All choices but one; families are compared at their best stem and shape."""
    free = NETWORK if what == "family" else (what,)
    return tuple(_value(entry, n) for n in (*NETWORK, "learning rate", "augmentation") if n not in free)


def _span(epochs: Sequence[int]) -> str:
    low, high = min(epochs), max(epochs)
    return str(low) if low == high else f"{low} to {high}"


def train_entry(
    session: Session, entry: Entry, epochs: int, stage: str, stream: str, weights: Mapping[str, Tensor] | None
) -> dict[str, Any]:
    """Train an entry for one round, from weights if it has some: how many and which search images it gets right."""
    own = session.for_space(entry.space)
    settings = contest_training(own.config.final.train, entry, epochs)
    seed_everything(own.seed, "init", "plain")
    model = own.build(entry.arch, settings.drop_path)
    if weights is not None:
        load_weights(model, weights)
    model = own.fit(model, Fixed(), settings, stage, stream=stream)
    own.require_weights(stage)  # the next round begins with them
    correct = hits(model, own.search_batches(), own.device)
    return {
        "accuracy": 100 * float(correct.mean()),
        "images": len(correct),
        "correct": np.packbits(correct).tobytes().hex(),
    }


def entries_trained(session: Session) -> Callable[..., dict[str, Any]]:
    """What trains entries in another process."""
    return partial(train_entry, session)


def contest_training(final: TrainSettings, entry: Entry, epochs: int) -> TrainSettings:
    """The final training with the entry's choices, for a round of that many epochs; the warm-up shortened alike."""
    warmup = min(final.warmup, WARMUP * epochs)
    settings = replace(final, epochs=epochs, warmup=warmup, augment=entry.augment, lr=entry.lr, compile=False)
    return settings.ending_last()  # a round compares networks after the same training


# -- the method -------------------------------------------------------------------------------------------------------


def after_contest(session: Session) -> tuple[Session, Standing, dict[str, Any]]:
    """Hold the contest; the run as it goes on with the winner, the winner, and the facts of result.json."""
    from tailorvit.methods.schedule import TUNING, final_epochs, plan_time

    run, config = session.run, session.config
    known = run.result("contest-entries")
    entries = [Entry.from_dict(e) for e in known] if known else list(session.plan.entries)
    if known is None:
        run.finish("contest-entries", [e.to_dict() for e in entries])
    seconds, plan, epochs = config.seconds(), None, [config.final.train.epochs] * len(entries)
    if seconds is not None:
        session.progress.ends_at = time.monotonic() + seconds - sum(run.seconds().values())
        plan = run.result("plan")
        if plan is None:
            with session.timed("plan"):
                plan = plan_time(session, entries, seconds)
            run.finish("plan", plan)
        slow = [row["label"] for row in plan["entries"] if not row["inside"]]
        entries = [e for e, row in zip(entries, plan["entries"], strict=True) if row["inside"]]
        epochs = [row["epochs"] for row in plan["entries"] if row["inside"]]
        text = f"Plan: {len(entries)} entries, {_span(epochs)} final epochs by their speed"
        session.log_once("plan", text + (f"; too slow for the time: {', '.join(slow)}." if slow else "."))

    def epochs_left(stage: str, standing: Standing, before: float) -> int:
        """Final epochs in the time that is left, if so many times as many come before; settled once."""
        known = run.result(stage)
        if known is None:
            known = {"epochs": final_epochs(session, standing, seconds or 0.0, before)}
            run.finish(stage, known)
        return int(known["epochs"])

    timed = seconds is not None
    lengthen = (lambda leader: epochs_left("plan-tuning", leader, TUNING)) if timed else None
    contest = Contest(session, entries, epochs, lengthen)
    winner = contest.hold()
    final = epochs_left("plan-final", winner, 0) if timed else winner.full
    facts = {"contest": contest.facts(winner), **({} if plan is None else {"plan": {**plan, "final_epochs": final}})}
    chosen = won(config, winner.entry, final, contest.final_augment(winner))
    return session.for_space(winner.entry.space, chosen), winner, facts


def won(config: Config, entry: Entry, epochs: int, augment: str) -> Config:
    """The recipe with what the contest chose."""
    final = replace(config.final.train, augment=augment, lr=entry.lr, epochs=epochs)
    train = replace(config.train, augment=augment, lr=entry.lr)
    # The hand-designed network took part, so after a contest alone it needs no training as the baseline.
    baseline: bool | str | list[bool | str] = list(config.peers) if config.method == "contest" else config.baseline
    return replace(
        config, family=entry.family, baseline=baseline, train=train, final=replace(config.final, train=final)
    )


def contest(session: Session) -> dict[str, Any]:
    """Hold the contest, train the winner; the network that the contest left competes with it."""
    from tailorvit.methods.finish import Finished, finish

    session, winner, facts = after_contest(session)
    trial = session.trial(Candidate(winner.entry.arch, "contest"), winner.accuracy, 0)
    model = session.build(winner.entry.arch, session.config.final.train.drop_path)
    session.read_weights(model, str(winner.weights))
    left = Finished("contest", winner.entry.arch, trial, model.to(session.device), winner.correct, winner.entry.augment)
    return {**finish(session, [trial], None, others=[left]), **facts}


METHOD = Method("contest", "choose family, shape, augmentation and learning rate by short trainings", contest)
