"""Measure, decide and prove which engine of a kernel library should lead for which graphs."""

__version__ = "0.1.0"
