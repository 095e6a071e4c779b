"""The configuration of a repository: chosen settings, their storage, effective values."""
