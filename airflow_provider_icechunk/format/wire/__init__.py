"""Encodings that generations share: FlatBuffers, MessagePack, bounded zstd. Pure, hostile-proof."""
