"""The command line: the maintenance and inspection verbs for people at a terminal.

May import `hooks` and, inside commands only, `api`. What deletes shows its plan first and asks.
"""
