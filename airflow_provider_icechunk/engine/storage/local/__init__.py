"""A folder of a local or network file system as storage.

Conditional writes hold a lock of the file system, and what was settled survives a loss of power.
"""
