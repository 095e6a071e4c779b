"""Files as virtual references, without Spark.

Needs the extra `hdf5`. Only the headers of files are read, and only where a grant covers them.
"""
