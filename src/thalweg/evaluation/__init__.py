"""Numbers along curves, planes and lists of weights."""
