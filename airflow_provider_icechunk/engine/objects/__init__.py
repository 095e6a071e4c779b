"""Immutable objects of a repository: snapshots, manifests, logs and chunks.

They are stored before anything names them and never change, so whatever was loaded may be cached.
"""
