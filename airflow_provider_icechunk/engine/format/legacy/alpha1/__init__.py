"""Generation `alpha1`: the specification of autumn 2024, with JSON documents and 16-byte ids.

Its schemas say what the documents hold, not how they are stored, so the encoding is this project's
choice: UTF-8 JSON. What the software of that time really wrote (MessagePack under other names) is
read, not written.
"""
