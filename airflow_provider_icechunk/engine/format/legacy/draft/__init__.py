"""Generation `draft`: the first sketch of the format, with Parquet files behind one `state.json`.

What the sketch leaves open is decided here: file names are UUIDs, nested values are JSON, chunk
coordinates are big-endian numbers of one width. Its integers are narrow; values that do not fit
are refused before anything is stored.
"""
