"""Measure this package against the official one: `python -m benchmarks --help`.

As far as possible, modules import only the standard library at the top: they also run in an
environment with the official package and without this one.
"""
