"""Move a repository up to a newer generation of the format, in place.

Everything of the newer generation is stored beside the older one first; then one conditional write
creates its entry point, and from then on that is the repository. Ids of what is written follow from
what is read, so that a migration that died goes on where it was.
"""
