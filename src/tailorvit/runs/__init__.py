"""The run folder: recipe, database, checkpoints, result."""

from tailorvit.runs.folder import Run

__all__ = ["Run"]
