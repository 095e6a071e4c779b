"""Hand work out to other processes and take the results back.

What goes out is JSON without credentials; what comes back is columns of references. Neither is ever
pickled. Workers write chunks and cannot commit.
"""
