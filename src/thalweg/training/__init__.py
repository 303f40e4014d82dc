"""Everything that calls backward()."""
