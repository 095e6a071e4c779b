"""Keep a repository small and sound: expire, collect, compact, rewrite, verify, measure.

Each verb makes a plan first, which can be shown and thrown away, and then carries it out. Objects
are deleted here and nowhere else.
"""
