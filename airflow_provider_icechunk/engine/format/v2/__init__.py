"""Generation `2`: one `repo` object names every version; files as in `1`, with some new tables.

Official 2.x writes it by default. `codec` turns files into the model and back, reading each file
by its own header, because a migrated repository keeps its files of generation `1`; `repo` is the
mutable state as a value, `updates` are the changes it can undergo, and `repo_codec` its bytes.
"""
