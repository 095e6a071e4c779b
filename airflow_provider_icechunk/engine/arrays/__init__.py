"""Arrays as pipelines handle them: regions, labels, whole chunks and cells.

Without Zarr's array machinery. Above the store, whose codecs it shares, and below the sessions,
which it knows only as a protocol.
"""
