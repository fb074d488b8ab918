"""Shared by all tests: one thread a process, as two test processes with two threads each fight over two cores."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is first imported
