"""A trained network of a task: saved with all it needs, loaded without the run, asked about image files, exported."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from tailorvit.config import checked
from tailorvit.errors import TailorError
from tailorvit.export.base import MARK as EXPORT_MARK
from tailorvit.export.base import TOLERANCE, Exported, require_free, whole_folder
from tailorvit.export.network import CHECKSUM, weights
from tailorvit.portable import image_list
from tailorvit.rng import preserved_state
from tailorvit.tasks import TASKS
from tailorvit.tasks.backbone import backbone_of
from tailorvit.tasks.base import OnnxForm, Task, TaskData, TaskNetwork
from tailorvit.tensors import read_safetensors, require_finite
from tailorvit.texts import read_table
from tailorvit.tracing import OPSET, quiet

FORMAT = 1
CARD, WEIGHTS = "task.json", "task.safetensors"
_TUPLES = ("classes", "image_size", "mean", "std")  # of the data's facts


def data_facts(data: TaskData) -> dict[str, Any]:
    """What a network must know of the data it was trained on, as plain data."""
    return {
        "classes": list(data.classes),
        "image_size": list(data.image_size),
        "channels": data.channels,
        "mean": list(data.mean),
        "std": list(data.std),
    }


def save_task(folder: Path, task: Task, network: TaskNetwork, data: TaskData, settings: Any) -> None:
    """Write the network's weights and its card, each whole or not at all."""
    from tailorvit.runs.atomic import write_bytes

    folder.mkdir(parents=True, exist_ok=True)
    held = weights(network)
    card = {
        "format": FORMAT,
        "task": task.name,
        "backbone": network.backbone.settings,
        "settings": asdict(settings),
        "network": network.settings,
        "data": data_facts(data),
        CHECKSUM: hashlib.sha256(held).hexdigest(),
    }
    write_bytes(folder / WEIGHTS, held)
    write_bytes(folder / CARD, json.dumps(card, indent=1).encode())


@dataclass(frozen=True, eq=False)
class TrainedTask:
    """A trained network of a task with its card: ``predict`` asks it about image files."""

    task: Task
    network: TaskNetwork
    settings: Any
    facts: Mapping[str, Any]  # of the data, and the network's own settings

    @property
    def classes(self) -> tuple[str, ...]:
        """The class names."""
        return tuple(self.facts["classes"])

    def predict(self, images: str | Path | Iterable[str | Path], **more: Any) -> Any:
        """What it says of an image file, or a list for several files or a folder; a task may need more by name."""
        sources, several = image_list(images)
        rows = []
        for source in sources:
            if not isinstance(source, str | Path):
                raise TailorError(f"The task {self.task.name} takes image files, not the type {type(source).__name__}.")
            if not Path(source).is_file():
                raise TailorError(f"There is no image file '{source}'.")
            rows.append(self.one(Path(source), **more))
        return rows if several else rows[0]

    def one(self, path: Path, **more: Any) -> dict[str, Any]:
        """What it says of one image file."""
        try:
            with torch.inference_mode():
                return self.task.predict(self.network.eval(), self.facts, path, **more)
        except TypeError as error:
            refused = [name for name in more if f"'{name}'" in str(error)]
            if not refused:
                raise
            raise TailorError(f"The task {self.task.name} takes no {refused[0]}.") from None


def task_folder(folder: str | Path) -> Path | None:
    """Where the card is: the folder itself, or ``network`` inside a run folder; None where there is none."""
    place = Path(folder)
    return next((p for p in (place, place / "network") if (p / CARD).is_file()), None)


def load_task(folder: str | Path) -> TrainedTask:
    """The trained network of a task run, or of a folder that holds ``task.json`` and its weights."""
    place = task_folder(folder)
    if place is None:
        raise TailorError(f"'{folder}' holds no network of a task (no {CARD}); is the run finished?")
    where = f"The network in '{folder}'"
    try:
        card = read_table(place / CARD)
        if card.get("format") != FORMAT:
            raise ValueError(f"its format is {card.get('format')!r}, and this version reads {FORMAT}")
        found = hashlib.sha256((place / WEIGHTS).read_bytes()).hexdigest()
        if found != card[CHECKSUM]:
            raise ValueError(f"{WEIGHTS} has the checksum {found[:12]}, and {CARD} says {str(card[CHECKSUM])[:12]}")
        state = read_safetensors(place / WEIGHTS)
        task, own = TASKS[str(card["task"])], dict(card["network"])
        facts = {**own, **{k: tuple(v) if k in _TUPLES else v for k, v in card["data"].items()}}
        require_libraries(task)
        settings: Any = checked(task.settings, card["settings"], task.name)
        with preserved_state():
            network = rebuilt(task, card["backbone"], own, facts, settings)
    except (OSError, LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise TailorError(f"{where} cannot be read: {error}.") from None
    require_finite(state, where)
    try:
        network.load_state_dict(state)
    except RuntimeError:
        raise TailorError(f"The weights in '{place}' do not belong to the network in {CARD}.") from None
    return TrainedTask(task, network.eval(), settings, facts)


def rebuilt(
    task: Task, backbone: Mapping[str, Any], own: Mapping[str, Any], facts: Mapping[str, Any], settings: Any
) -> TaskNetwork:
    """The network of stored settings, with fresh weights."""
    made = backbone_of(backbone)
    if (rebuild := getattr(task, "rebuild", None)) is not None:
        again: TaskNetwork = rebuild(made, own)
        return again
    stand_in: Any = SimpleNamespace(**facts)
    return task.build(made, stand_in, settings)


def require_libraries(task: Task) -> None:
    """Refuse a task whose libraries are missing, and name the extra that brings them."""
    from importlib.util import find_spec

    for module, extra in task.needs:
        if find_spec(module) is None:
            raise TailorError(f"The task {task.name} needs {module}: pip install 'tailorvit[{extra}]'.")


# -- export -----------------------------------------------------------------------------------------------------------


def export_task(folder: str | Path, to: str, out: str | Path | None = None, data: TaskData | None = None) -> Exported:
    """Write a task's network as one ONNX file, compared with PyTorch on the inputs it was traced with."""
    if to != "onnx":
        raise TailorError(f"A task's network is exported to onnx, not to {to}; tailorvit.load_task reads the folder.")
    for module in ("onnx", "onnxscript", "onnxruntime"):
        from importlib.util import find_spec

        if find_spec(module) is None:
            raise TailorError(f"The format onnx needs '{module}': pip install 'tailorvit[export]'.")
    trained = load_task(folder)
    place = Path(folder) / "export" / to if out is None else Path(out)
    require_free(place)
    given: Any = data if data is not None else SimpleNamespace(**trained.facts)
    try:
        form = trained.task.for_onnx(trained.network, given)
    except AttributeError as error:
        if data is not None:
            raise
        raise TailorError(
            f"The network in '{folder}' is traced with the run's data, which cannot be read ({error}): "
            "say where they lie with --data."
        ) from None
    with whole_folder(place) as beside:
        path = beside / "network.onnx"
        _trace(form, path)
        facts = {**_compared(form, path), "opset": OPSET, "notes": [form.note] if form.note else []}
        source = task_folder(folder)
        assert source is not None
        (beside / CARD).write_bytes((source / CARD).read_bytes())
        files = sorted(p.name for p in beside.iterdir())
        facts["bytes"] = {name: (beside / name).stat().st_size for name in files}
        record = {"format": to, "files": files, "facts": facts}
        (beside / EXPORT_MARK).write_text(json.dumps(record, indent=1), encoding="utf-8")
    return ExportedTask(to, place, tuple(files), facts)


class ExportedTask(Exported):
    """An exported network of a task."""

    def lines(self) -> list[str]:
        """The lines that the command line prints."""
        sizes = ", ".join(f"{name} ({self.facts['bytes'][name] / 1e6:.1f} MB)" for name in self.files)
        return [
            f"Wrote {self.path}: {sizes}",
            "Checked on the inputs it was traced with; largest difference to PyTorch "
            f"{self.facts['max_difference']:.1e}, largest value {self.facts['largest']:.3g}",
            *self.facts["notes"],
        ]


def _trace(form: OnnxForm, path: Path) -> None:
    dims = [dict.fromkeys(form.dynamic.get(name, {}), torch.export.Dim.DYNAMIC) for name in form.inputs]
    try:
        with quiet(), torch.no_grad():
            program = torch.onnx.export(
                form.module.eval(),
                tuple(form.inputs.values()),
                dynamo=True,
                dynamic_shapes=tuple(dims) if any(dims) else None,
                input_names=list(form.inputs),
                output_names=list(form.outputs),
                opset_version=OPSET,
                verbose=False,
            )
            assert program is not None
            program.save(str(path), external_data=False)
        _without_places(path)
    except Exception as error:  # the exporter raises errors of many types
        why = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise TailorError(f"PyTorch's exporter cannot write this network: {why}") from error


def _without_places(path: Path) -> None:
    """Remove what names this machine: every node carries its Python stack."""
    import onnx

    model = onnx.load(str(path))
    for owner in (model, model.graph, *model.graph.node, *model.graph.input, *model.graph.output):
        owner.ClearField("metadata_props")
        owner.ClearField("doc_string")
    onnx.checker.check_model(model)
    onnx.save(model, str(path))


def _compared(form: OnnxForm, path: Path) -> dict[str, float]:
    """The largest difference to PyTorch over all outputs; an error where it is not rounding."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    with torch.inference_mode():
        expected = form.module(*form.inputs.values())
    wanted = [expected] if isinstance(expected, Tensor) else list(expected)
    taken = {i.name for i in session.get_inputs()}
    given = {name: x.numpy() for name, x in form.inputs.items() if name in taken}
    worst, largest = 0.0, 0.0
    for name, mine, found in zip(form.outputs, wanted, session.run(list(form.outputs), given), strict=True):
        theirs = torch.from_numpy(found)
        if tuple(mine.shape) != tuple(theirs.shape) or not torch.isfinite(theirs.double()).all():
            raise TailorError(f"The export's '{name}' has the shape {tuple(theirs.shape)}, or is not finite.")
        if not mine.numel():
            continue
        size, off = float(mine.double().abs().max()), float((mine.double() - theirs.double()).abs().max())
        if off > TOLERANCE * max(1.0, size):
            raise TailorError(
                f"The export's '{name}' is off by {off:.1e}; at most {TOLERANCE * max(1.0, size):.1e} is rounding."
            )
        worst, largest = max(worst, off), max(largest, size)
    return {"max_difference": worst, "largest": largest}
