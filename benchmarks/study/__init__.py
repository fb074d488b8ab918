"""The parts of benchmarks/cifar10.py: jobs, the queue that runs them, its worker, and the tables told from rows."""
