"""The data source `icechunk`: batch reads and writes, streams in both directions."""
