"""TailorViT: tailor a vision transformer to your data and your size budget.

``run(data=..., max_params=...)`` finds, trains and saves a network; ``load(RUN).predict(image)`` uses it; ``resume``,
``finetune``, ``evaluate`` and ``list_runs`` do what the commands do; ``work("detect", RUN, data=...)`` makes it the
backbone of a task, and ``load_task`` uses that; ``register`` adds a part of your own. Names are loaded when they are
first used, so that importing the package stays quick.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tailorvit.api import Result, Study, finetune, resume, run, study
    from tailorvit.arch import Arch
    from tailorvit.callbacks import Callback
    from tailorvit.catalogue import listing
    from tailorvit.costs import Counter, Limits, Meter
    from tailorvit.data import open_data
    from tailorvit.downstream import TaskResult, work
    from tailorvit.errors import InfeasibleError, TailorError
    from tailorvit.evaluation import Evaluation, evaluate
    from tailorvit.export import Network, load
    from tailorvit.families import FAMILIES, named_arch, named_space
    from tailorvit.lookup import cost, doctor, list_runs, space_info
    from tailorvit.plugins import register
    from tailorvit.report import write_report
    from tailorvit.space import Dim, Space
    from tailorvit.tasks.saved import TrainedTask, load_task

__version__ = "0.2.0"

_HOME = {
    "Arch": "arch",
    "Callback": "callbacks",
    "Counter": "costs",
    "Dim": "space",
    "Evaluation": "evaluation",
    "FAMILIES": "families",
    "InfeasibleError": "errors",
    "Limits": "costs",
    "Meter": "costs",
    "Network": "export",
    "Result": "api",
    "Space": "space",
    "Study": "api",
    "TailorError": "errors",
    "TaskResult": "downstream",
    "TrainedTask": "tasks.saved",
    "cost": "lookup",
    "doctor": "lookup",
    "evaluate": "evaluation",
    "finetune": "api",
    "list_runs": "lookup",
    "listing": "catalogue",
    "load": "export",
    "load_task": "tasks.saved",
    "named_arch": "families",
    "named_space": "families",
    "open_data": "data",
    "register": "plugins",
    "resume": "api",
    "run": "api",
    "space_info": "lookup",
    "study": "api",
    "work": "downstream",
    "write_report": "report",
}

__all__ = [
    "FAMILIES",
    "Arch",
    "Callback",
    "Counter",
    "Dim",
    "Evaluation",
    "InfeasibleError",
    "Limits",
    "Meter",
    "Network",
    "Result",
    "Space",
    "Study",
    "TailorError",
    "TaskResult",
    "TrainedTask",
    "cost",
    "doctor",
    "evaluate",
    "finetune",
    "list_runs",
    "listing",
    "load",
    "load_task",
    "named_arch",
    "named_space",
    "open_data",
    "register",
    "resume",
    "run",
    "space_info",
    "study",
    "work",
    "write_report",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'tailorvit' has no attribute '{name}'")
    return getattr(import_module(f"tailorvit.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
