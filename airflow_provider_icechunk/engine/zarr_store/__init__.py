"""The Zarr store of a session: keys of the Zarr specification over nodes and chunk references.

The place where Zarr's asynchronous interface meets the synchronous engine. It knows a session only
as a protocol; the classes are above it.
"""
