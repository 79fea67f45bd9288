"""Training draft heads: the only package here that imports torch."""
