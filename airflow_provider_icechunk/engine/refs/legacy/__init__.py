"""Branches and tags of the generations before `1`."""
