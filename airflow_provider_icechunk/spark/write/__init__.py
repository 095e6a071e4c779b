"""Jobs that fill arrays: tasks write whole chunks, one driver merges, and nothing is committed
twice.
"""
