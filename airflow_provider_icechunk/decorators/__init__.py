"""`@task` decorators whose function writes to a session that is committed when it returns.

May import `operators` and whatever operators may import; the engine inside methods only.
"""
