"""Convolutions in the early stages, attention in the last ones, batch norm throughout."""
