"""The session classes, each defined once, of the parts that the rooms below provide."""
