"""Points, paths and planes in the space of a network's weights; the network at a point."""
