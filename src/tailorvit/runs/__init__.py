"""The run folder: recipe, database of trials, checkpoints, result."""

from tailorvit.runs.folder import Run

__all__ = ["Run"]
