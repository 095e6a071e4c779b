"""Bytes to values and back: the on-disk format, every generation of it, and nothing else.

One model (`ids`, `names`, `chunk_refs`, `model`, `config`) serves all generations; `v1`, `v2` and
`legacy` have a codec for each, `wire` the encodings they share. Pure: no IO, no clock, no
randomness. Stored bytes are treated as hostile: bounded and verified, or a `FormatError`.
"""
