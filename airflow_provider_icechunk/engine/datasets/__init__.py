"""Datasets: their declaration, their growing dimensions, the positions of labels and their
coverage.

Declarations (`dataset`, `growing`) load only the standard library, because DAG files import them.
"""
