"""What a dataset is: its declaration, its growing dimensions, where labels are and which are there.

Declarations (`dataset`, `growing`) load the standard library alone, because DAG files import them.
"""
