"""Bytes to values and back: the on-disk format, every generation of it, and nothing else.

One in-memory model (`ids`, `names`, `references`, `snapshot`, `transactions`, `config`) serves all
generations; `generations` has a codec and a layout for each, `wire` the encodings they share. Pure:
no IO, no clock, no randomness. May import `exceptions` and the encoding libraries only.
"""
