"""`@task` flavours whose function works on a session that is committed when it returns.

May import `operators` and all that operators may import; the engine inside methods only.
"""
