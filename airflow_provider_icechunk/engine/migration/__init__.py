"""Migrate a repository to a newer generation of the format, in place.

The newer generation is first stored next to the older one; then one conditional write creates its
entry point, which is the repository from then on. New ids are derived from old ones, so a
migration that died resumes where it was.
"""
