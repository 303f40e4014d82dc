"""Which units of a network can be renumbered, found in its graph and proven; and matching those of two networks."""
