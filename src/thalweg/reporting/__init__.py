"""Tables and figures, made from results alone."""
