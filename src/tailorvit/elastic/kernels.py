"""Whether our Triton kernels can run here: Triton comes with torch for CUDA on Linux."""

from __future__ import annotations

from importlib.util import find_spec

import torch

AVAILABLE = torch.cuda.is_available() and find_spec("triton") is not None
