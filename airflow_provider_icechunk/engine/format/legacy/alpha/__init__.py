"""Generation `alpha`: MessagePack files and numbered branch files, up to release 0.1.3.

Ten successive shapes were written between October 2024 and February 2025; all are read, identified
by what is in the file. The last one, that of releases 0.1.0 to 0.1.3, is written: a header of 39
bytes, zstd, structs as arrays. Two unreleased states kept the numbered branch files but already
used FlatBuffers; such files are handed to the codec of generation `1`.
"""
