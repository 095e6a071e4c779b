"""Collect, compact, verify and measure on Spark, with the same plans as in one process."""
