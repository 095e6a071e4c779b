"""Generation `1`: FlatBuffers in a 39-byte header, refs in conditional `ref.json` files.

Official releases from 0.2 to 2.x open it. `codec` turns files into the model and back and names
the keys; the other modules each handle one kind of file.
"""
