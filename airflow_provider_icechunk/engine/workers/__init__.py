"""Hand work out to other processes and take it back.

What goes out is JSON without credentials, what comes back are columns of references; neither is
ever pickled. Workers write chunks and cannot commit.
"""
