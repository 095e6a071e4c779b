"""Chunks that live in foreign files: which locations may be read, and reading them.

A stored reference may name any address; nothing is fetched unless a grant covers it.
"""
