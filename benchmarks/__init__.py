"""Measure this package against the official one: `python -m benchmarks --help`.

Nothing here imports more than the standard library at module level where it can be helped: the
modules also run in an environment that has the official package and nothing of this one.
"""
