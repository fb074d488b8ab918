"""Costs of an architecture: parameters and MACs are counted, latency and memory measured; limits on any of them."""

from tailorvit.costs.clock import Clock
from tailorvit.costs.count import Counter
from tailorvit.costs.limits import METRICS, Limits
from tailorvit.costs.measure import Latency, measure_latency, measure_memory
from tailorvit.costs.meter import Meter
from tailorvit.costs.runtime import Runtime

__all__ = ["METRICS", "Clock", "Counter", "Latency", "Limits", "Meter", "Runtime", "measure_latency", "measure_memory"]
