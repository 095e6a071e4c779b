"""Encodings that generations share: FlatBuffers, MessagePack, JSON and bounded zstd.

No input makes a reader here allocate more than its budget or fail with anything but `FormatError`.
"""
