"""Keys and bytes: memory, a local POSIX file system, object stores. Knows nothing of the format.

Losing a race is a returned value; exceptions are for what a caller cannot be expected to handle.
`testing.conformance.StorageSuite` tests what a back end guarantees.
"""
