"""Generation `alpha1`: the specification of autumn 2024, with JSON documents and 16-byte ids.

Its schemas define the documents, not their encoding, so the encoding is this project's choice:
UTF-8 JSON. What the software of that time actually wrote (MessagePack under other names) is read,
not written.
"""
