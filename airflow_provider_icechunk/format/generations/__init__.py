"""One codec and one layout per generation of the on-disk format, all over the same model."""
