"""A teacher in a training: what it adds to the loss, that it stays as it is, and that students come to resemble it."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from recorded_networks import Small
from torch import Tensor, nn
from train_toys import SPACE, Store, Toys, no_onednn, plain, same, settings, supernet, weights

from tailorvit.data import Batch
from tailorvit.errors import TailorError
from tailorvit.families import family
from tailorvit.families.tailored.spaces import cut_space
from tailorvit.rng import seed_everything
from tailorvit.train import Fixed, Rule, Sandwich, SinglePath, Sink, Teacher, train
from tailorvit.train import loop as loop_module
from tailorvit.train.compiled import CompiledBlocks, compiled
from tailorvit.train.graphs import GraphSteps
from tailorvit.train.loop import Trainer
from tailorvit.train.teacher import Lesson, Telling, token_difference, told

TAILORED = family("tailored")
CUT = cut_space(
    (1, 2), (8, 16), (1, 2), (8, 12), image_size=(4, 4), patch=2, channels=1, classes=3, head_dim=4, order=(1, 0)
)


def tailored(elastic: bool = False, seed: int = 3, drop_path: float = 0.0) -> nn.Module:
    seed_everything(seed, "toy")
    if elastic:
        return TAILORED.supernet(CUT, drop_path)
    return TAILORED.build(TAILORED.settings(dict(CUT.settings)), CUT.largest(), drop_path)


class Says(nn.Module):
    """Says the same logits about every image."""

    def __init__(self, *logits: float) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.tensor(logits))

    def forward(self, x: Tensor) -> Tensor:
        return self.logits.expand(len(x), -1)


class Noise(Toys):
    """Images without a pattern."""

    def at(self, step: int) -> Batch:
        rng = torch.Generator().manual_seed(step)
        y = torch.randint(0, 3, (self.batch,), generator=rng)
        return Batch(torch.randn(self.batch, 1, 4, 4, generator=rng), y, torch.eye(3)[y])


def ends(model: nn.Module, rule: Rule, teacher: Teacher | None, sink: Sink | None = None, **options: Any) -> Any:
    """The weights at the end of a training."""
    toys = Toys(steps_per_epoch=3)
    train(model, toys, rule, settings(**options), 5, sink, teacher=teacher)
    return weights(model)


# -- the loss ---------------------------------------------------------------------------------------------------------


def test_a_share_of_the_target_is_the_teachers() -> None:
    label, logits = torch.tensor([[1.0, 0.0, 0.0]]), torch.tensor([[0.0, 0.0, math.log(2)]])
    teacher = Teacher(Says(math.log(3), math.log(6), 0.0), share=0.25)  # it says 0.3, 0.6, 0.1
    lesson = teacher.lesson(torch.zeros(1, 1), label)
    assert lesson.soft is None and lesson.tokens is None and not lesson.target.requires_grad
    assert torch.allclose(lesson.target, torch.tensor([[0.825, 0.15, 0.025]]))
    # The student says 1/4, 1/4, 1/2.
    assert float(teacher.loss(logits, None, lesson)) == pytest.approx(0.975 * math.log(4) + 0.025 * math.log(2))


def test_at_another_temperature_its_outputs_are_a_loss_of_their_own() -> None:
    label, logits = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, math.log(9)]])
    teacher = Teacher(Says(math.log(16), 0.0), share=0.25, temperature=2.0)  # softened: 0.8, 0.2
    lesson = teacher.lesson(torch.zeros(1, 1), label)
    assert torch.equal(lesson.target, label)
    assert lesson.soft is not None and torch.allclose(lesson.soft, torch.tensor([[0.8, 0.2]]))
    hard, soft = math.log(10), 0.8 * math.log(4) + 0.2 * math.log(4 / 3)  # the student's: 0.1, 0.9; softened 1/4, 3/4
    assert float(teacher.loss(logits, None, lesson)) == pytest.approx(0.75 * hard + 0.25 * 4 * soft)


def test_tokens_are_compared_relative_to_the_teachers() -> None:
    torch.manual_seed(0)
    theirs = 5 * torch.randn(8, 9, 12)
    assert float(token_difference(theirs, theirs)) == 0
    assert float(token_difference(torch.zeros_like(theirs), theirs)) == pytest.approx(1)
    assert float(token_difference(0.1 * torch.randn(8, 9, 12), theirs)) == pytest.approx(1, abs=0.02)
    # Noise as large as the tokens themselves adds its own square.
    assert float(token_difference(5 * torch.randn(8, 9, 12), theirs)) == pytest.approx(2, abs=0.2)
    assert float(token_difference(theirs[..., :8], theirs)) == 0, "a narrower student has the first channels"
    assert float(token_difference(theirs[..., 4:], theirs)) > 1
    assert token_difference(theirs.bfloat16(), theirs).dtype == torch.float32
    assert torch.isfinite(token_difference(theirs, torch.zeros_like(theirs)))


def test_their_weight_is_features() -> None:
    torch.manual_seed(0)
    network, x, target = tailored().eval(), torch.randn(2, 1, 4, 4), torch.eye(3)[:2]
    teacher = Teacher(network, share=0, features=0.3)
    lesson = teacher.lesson(x, target)
    with torch.no_grad():
        logits, tokens = network(x), network.forward_features(x)  # type: ignore[operator]
    alone = F.cross_entropy(logits, target)
    assert torch.allclose(teacher.loss(logits, tokens, lesson), alone)
    assert torch.allclose(teacher.loss(logits, 0 * tokens, lesson), alone + 0.3)


def test_maps_are_compared_as_tokens_are() -> None:
    theirs = torch.randn(2, 3, 3, 12)
    assert token_difference(theirs[..., :5], theirs) == 0
    mine = theirs[..., :5] + 0.1
    assert torch.allclose(token_difference(mine, theirs), token_difference(mine.flatten(1, 2), theirs.flatten(1, 2)))
    with pytest.raises(TailorError, match="cannot be compared"):
        token_difference(theirs[:, :2], theirs)


@pytest.mark.parametrize("shape", [(2, 9, 13), (2, 8, 12), (2, 12), (2, 12, 3, 3)])
def test_tokens_that_cannot_be_compared(shape: tuple[int, ...]) -> None:
    with pytest.raises(TailorError, match=r"tokens \(2, .*teacher's \(2, 9, 12\).*channels\.$"):
        token_difference(torch.zeros(shape), torch.zeros(2, 9, 12))


# -- tokens of the tailored family ------------------------------------------------------------------------------------


def test_every_member_of_a_supernet_tells_its_tokens() -> None:
    model, x = tailored(elastic=True).eval(), torch.randn(2, 1, 4, 4)
    for arch in (None, *Sandwich(CUT).archs_at(0, 0)):
        logits, tokens = told(Telling(model)(x, arch))
        network = TAILORED.extract(model, arch or CUT.largest())
        assert torch.equal(logits, model(x, arch) if arch else model(x))
        assert tokens is not None
        assert torch.allclose(tokens, network.forward_features(x), atol=1e-6)  # type: ignore[operator]
        assert torch.allclose(logits, network(x), atol=1e-6)


def test_a_network_in_its_own_place_has_nothing_to_learn_from_its_tokens() -> None:
    network, model, x = tailored().eval(), tailored(elastic=True).eval(), torch.randn(4, 1, 4, 4)
    teacher, target = Teacher(network, features=1.0), torch.eye(3)[torch.zeros(4, dtype=torch.long)]
    lesson = teacher.lesson(x, target)
    assert lesson.tokens is not None
    _, tokens = told(Telling(model)(x))
    assert tokens is not None
    assert float(token_difference(tokens, lesson.tokens).detach()) < 1e-9, "the same weights"
    _, narrow = told(Telling(model)(x, CUT.smallest()))
    assert narrow is not None and narrow.shape[-1] < lesson.tokens.shape[-1]
    first = lesson.tokens[..., : narrow.shape[-1]]
    by_hand = (narrow - first).square().sum() / first.square().sum()
    assert torch.allclose(token_difference(narrow, lesson.tokens), by_hand)


# -- in a training ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("training", [False, True])
def test_the_teacher_stays_as_it_is(training: bool) -> None:
    """In evaluation mode during the training, and as it was afterwards; no gradient, no statistic, no checkpoint."""
    network, sink, modes = Small().train(training), Store(), []
    network.norm.eval()
    network.register_forward_hook(lambda *_: modes.append(any(m.training for m in network.modules())))
    before = {n: t.clone() for n, t in network.state_dict().items()}
    ends(plain(), Fixed(), Teacher(network), sink)
    assert modes == [False] * 9
    assert network.training is training and not network.norm.training and network.fc.training is training
    assert same(before, dict(network.state_dict()))
    assert all(p.grad is None and p.requires_grad for p in network.parameters())
    assert sink.checkpoint is not None
    assert {n.split("/")[1] for n in sink.checkpoint[0] if n.startswith("model/")} == set(plain().state_dict())


def test_the_step_is_that_of_the_definition() -> None:
    """All architectures of a step learn the same, and the teacher is asked once."""
    model, network, batch = tailored(elastic=True), tailored(seed=4).eval(), Toys().at(0)
    asked: list[int] = []
    network.patch_embed.register_forward_hook(lambda *_: asked.append(1))  # type: ignore[union-attr]
    options, archs = settings(rule="sandwich", clip=0.0), Sandwich(CUT).archs_at(0, 3)
    one = Trainer(model, Toys(), Fixed(), options, 0, Sink(), teacher=Teacher(network, 0.4, 0.7))
    model.train()
    loss, _ = one._add_gradients(batch, archs)
    assert asked == [1]
    found = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    with torch.no_grad():
        tokens = network.forward_features(batch.x)  # type: ignore[operator]
        target = 0.6 * batch.target + 0.4 * network(batch.x).softmax(-1)
    losses = []
    for arch in archs:
        mine = model.forward_features(batch.x, arch)  # type: ignore[operator]
        first = tokens[..., : mine.shape[-1]]
        compared = F.mse_loss(mine, first) / first.square().mean()
        losses.append(F.cross_entropy(model(batch.x, arch), target) + 0.7 * compared)
    torch.stack(losses).sum().backward()
    assert loss == pytest.approx(float(torch.stack(losses).mean().detach()), rel=1e-5)
    for name, p in model.named_parameters():
        assert p.grad is None or torch.allclose(found[name], p.grad, atol=1e-5, rtol=1e-3), name


def test_without_a_teacher_nothing_changes() -> None:
    """Nor with one that says nothing: its forward draws no random numbers and leaves none behind."""
    for make, rule in ((lambda: supernet(0.3), Sandwich(SPACE)), (lambda: supernet(0.3), SinglePath(SPACE))):
        alone, silent = ends(make(), rule, None), ends(make(), rule, Teacher(plain(), share=0.0))
        assert same(alone, silent)
        assert not same(alone, ends(make(), rule, Teacher(plain(), share=0.5)))


@pytest.mark.parametrize("features", [0.0, 0.5])
@pytest.mark.parametrize("kind", ["plain", "supernet"])
def test_resume_is_bit_identical(kind: str, features: float) -> None:
    teacher = Teacher(tailored(seed=4).eval(), features=features, temperature=1.5)
    rule: Rule = Sandwich(CUT) if kind == "supernet" else Fixed()
    sink = Store()
    whole = ends(tailored(kind == "supernet", drop_path=0.3), rule, teacher, sink)
    for stop in (2, 4, 8):
        store = Store(stop_at=stop)
        with pytest.raises(KeyboardInterrupt):
            ends(tailored(kind == "supernet", drop_path=0.3), rule, teacher, store)
        later = Store(store.checkpoint)
        resumed = ends(tailored(kind == "supernet", drop_path=0.3), rule, teacher, later)
        assert same(resumed, whole), stop
        assert later.checkpoint is not None and sink.checkpoint is not None
        assert same(later.checkpoint[0], sink.checkpoint[0])


@pytest.mark.parametrize("kind", ["plain", "supernet"])
def test_a_student_comes_to_resemble_a_random_teacher(kind: str) -> None:
    """On images without a pattern, whose labels say nothing."""
    network = tailored(seed=4).eval()
    with torch.no_grad():
        network.head.weight.mul_(60)  # type: ignore[union-attr, operator]
    student, rule = tailored(kind == "supernet"), Sandwich(CUT) if kind == "supernet" else Fixed()
    x = Noise(batch=64).at(1000).x

    def apart_by() -> tuple[float, float]:
        """From the outputs and from the tokens."""
        with torch.no_grad():
            logits, tokens = told(Telling(student.eval())(x))
            theirs, their_tokens = told(Telling(network)(x))
            assert tokens is not None and their_tokens is not None
            outputs = F.kl_div(logits.log_softmax(-1), theirs.log_softmax(-1), log_target=True, reduction="batchmean")
            return float(outputs), float(token_difference(tokens, their_tokens))

    before = apart_by()
    options = settings(epochs=1, rule="sandwich", warmup=0.0)
    train(student, Noise(60, batch=64), rule, options, 0, teacher=Teacher(network, share=1.0, features=1.0))
    after = apart_by()
    assert before[0] > 0.1 and after[0] < before[0] / 4
    assert before[1] > 1 and after[1] < before[1] / 2


def test_a_teacher_that_is_not_finite_skips_the_step() -> None:
    model = plain()
    before = weights(model)
    with pytest.raises(TailorError, match="gave up"):
        train(model, Toys(), Fixed(), settings(), 0, teacher=Teacher(Says(math.nan, 0.0, 0.0)))
    assert same(before, weights(model))


def test_in_16_bits_the_teacher_answers_in_16_bits() -> None:
    kinds: list[torch.dtype] = []
    network = plain().eval()
    network.head.register_forward_hook(lambda _, __, out: kinds.append(out.dtype))  # type: ignore[union-attr]
    with no_onednn():
        found = ends(plain(), Fixed(), Teacher(network), precision="bf16", epochs=1)
    assert kinds == [torch.bfloat16] * 3 and all(t.isfinite().all() for t in found.values())


# -- recorded and compiled --------------------------------------------------------------------------------------------


class Counted(GraphSteps):
    """Counts its steps."""

    steps = 0

    def step(self, *given: Any) -> Any:
        Counted.steps += 1
        return super().step(*given)


def recorded(monkeypatch: pytest.MonkeyPatch, record: bool, model: nn.Module, rule: Rule, **teaching: Any) -> Any:
    """A whole training: (weights, steps replayed, its sink). On a CPU a recording is the work itself."""
    options = {"lr": 2**-7, "warmup": 0.0, "schedule": "constant", "rule": "sandwich"}
    options |= {k: teaching.pop(k) for k in ("precision",) if k in teaching}
    monkeypatch.setattr(loop_module, "can_record", lambda *_: record)
    monkeypatch.setattr(loop_module, "GraphSteps", Counted)
    monkeypatch.setattr(Counted, "steps", 0)
    network, sink = teaching.pop("network", None) or tailored(seed=4), Store()
    with no_onednn():
        train(model, Toys(), rule, settings(**options), 0, sink, teacher=Teacher(network, **teaching))
    return {n: t.clone() for n, t in model.state_dict().items()}, Counted.steps, sink


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("teaching", [{}, {"temperature": 2.0}, {"features": 0.5}], ids=str)
def test_recorded_steps_are_those_of_eager_ones(
    monkeypatch: pytest.MonkeyPatch, teaching: dict[str, float], precision: str
) -> None:
    given = {**teaching, "precision": precision}
    (eager, none, _), (replayed, steps, sink) = (
        recorded(monkeypatch, r, tailored(drop_path=0.3), Fixed(), **given) for r in (False, True)
    )
    assert (none, steps, sink.events) == (0, 12, [])
    assert [n for n, t in eager.items() if not torch.equal(replayed[n], t)] == []


def test_a_recorded_sandwich_learns_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    network = plain()
    (eager, _, _), (replayed, steps, sink) = (
        recorded(monkeypatch, r, supernet(), Sandwich(SPACE), network=network) for r in (False, True)
    )
    assert steps == 12 and sink.events == []
    for name, tensor in eager.items():
        torch.testing.assert_close(replayed[name], tensor, rtol=1e-4, atol=1e-4)


def test_a_supernet_whose_tokens_are_compared_is_not_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    _, steps, sink = recorded(monkeypatch, True, tailored(elastic=True), Sandwich(CUT), features=0.5)
    assert steps == 0 and sink.events == []


def test_a_teacher_that_cannot_be_recorded_teaches_eagerly(monkeypatch: pytest.MonkeyPatch) -> None:
    class Looks(Says):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) * (2.0 if float(x.sum()) > 0 else 1.0)

    (eager, _, _), (tried, steps, sink) = (
        recorded(monkeypatch, r, tailored(), Fixed(), network=Looks(1.0, 2.0, 3.0)) for r in (False, True)
    )
    ((kind, text),) = sink.events
    assert steps == 0 and kind == "graphs" and "eagerly" in text
    assert same(eager, tried)


def test_a_compiled_student_tells_its_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    monkeypatch.setattr(torch, "compile", lambda work, **_: calls.append(work) or work)
    given: dict[str, Any] = {"epochs": 1}
    teacher = Teacher(tailored(seed=4), features=0.5)
    assert same(ends(tailored(), Fixed(), teacher, **given), ends(tailored(), Fixed(), teacher, **given, compile=True))
    assert len(calls) == 2, "block by block"
    model = tailored()
    assert isinstance(compiled(model, called=Telling(model)), CompiledBlocks)
    other, wrapped = Small(), Telling(Small())
    assert compiled(other, called=wrapped) is wrapped and calls[-1] is wrapped, "others whole"
    supernet = tailored(elastic=True)
    assert compiled(supernet, called=(telling := Telling(supernet))) is telling, "supernets not"


# -- mistakes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"share": 1.5}, r"share must be between 0 and 1, not 1\.5\.$"),
        ({"share": math.nan}, r"share must be between 0 and 1, not nan\.$"),
        ({"features": -1.0}, r"features must be at least 0, not -1\.0\.$"),
        ({"temperature": 0.0}, r"temperature must be above 0, not 0\.0\.$"),
    ],
)
def test_bad_figures(options: dict[str, float], text: str) -> None:
    with pytest.raises(TailorError, match=text):
        Teacher(Says(0.0), **options)


def test_what_cannot_be_taught_is_refused_before_the_first_step() -> None:
    toys = Toys()
    for student, teacher, options, text in (
        (supernet(), Teacher(plain(), features=1.0), {}, r"^The student \w+ has no forward_features.*features of 1\.0"),
        (plain(), Teacher(Says(0.0), features=1.0), {}, r"^The teacher Says has no forward_features"),
        (supernet(), Teacher(plain()), {"rule": "sandwich", "distill": True}, r"^train\.distill .* false"),
    ):
        with pytest.raises(TailorError, match=text):
            train(student, toys, Sandwich(SPACE), settings(**options), 0, teacher=teacher)
    assert toys.requested == []


def test_other_classes_are_refused() -> None:
    with pytest.raises(TailorError, match=r"shape \(8, 2\).*labels.*\(8, 3\)\.$"):
        train(plain(), Toys(), Fixed(), settings(), 0, teacher=Teacher(Says(0.0, 1.0)))


def test_a_lesson_is_made_of_constants() -> None:
    teacher = Teacher(tailored().eval(), features=1.0, temperature=3.0)
    lesson = teacher.lesson(torch.randn(2, 1, 4, 4), torch.eye(3)[:2])
    assert isinstance(lesson, Lesson) and not any(t.requires_grad for t in lesson if t is not None)
