"""Tasks beyond naming a picture's class: a found network becomes the backbone of a detector, a segmenter, ...

TASKS names them; plug-ins add to it.
"""

from __future__ import annotations

from tailorvit.registry import Registry
from tailorvit.tasks.base import Task

__all__ = ["TASKS", "Task"]

TASKS: Registry[Task] = Registry(
    "task",
    "tailorvit.tasks",
    {
        "detect": "tailorvit.tasks.detect:TASK",
        "segment": "tailorvit.tasks.segment:TASK",
        "answer": "tailorvit.tasks.answer:TASK",
    },
)
