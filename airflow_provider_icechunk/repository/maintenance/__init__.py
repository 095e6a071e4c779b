"""What keeps a repository small and sound: expire, collect, rewrite, verify, measure.

Each verb makes a plan first, which can be shown and thrown away, and then carries it out; deletion
happens here and nowhere else. May import what `repository` may, and `repository` itself.
"""
