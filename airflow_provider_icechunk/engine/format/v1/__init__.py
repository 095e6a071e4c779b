"""Generation `1`: FlatBuffers in a 39-byte header, references in conditional `ref.json` files.

What official releases from 0.2 to 2.x open. `codec` turns files into the model and back and names
the keys; the other modules each know one kind of file.
"""
