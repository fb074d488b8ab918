"""The parts of benchmarks/gpu.py: what it measures, how that is timed, and the tables told from its rows."""
