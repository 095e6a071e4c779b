"""Generation `draft`: the first sketch of the format, with Parquet files behind one `state.json`.

What the sketch leaves open is decided here: file names are UUIDs, nested values are JSON, chunk
coordinates are big-endian numbers of one width. Its integers are narrow; what does not fit them is
refused before anything is stored.
"""
