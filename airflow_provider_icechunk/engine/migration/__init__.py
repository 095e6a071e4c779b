"""Migrate a repository to a newer generation of the format, in place.

Everything of the newer generation is first stored beside the older one; then one conditional write
creates its entry point, which from then on is the repository. New ids are derived from old ones, so
a migration that died resumes where it was.
"""
