"""The mutable part of a repository, one module per generation, behind one protocol."""
