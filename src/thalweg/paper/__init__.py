"""Every table and figure of the paper, one entry each, with the paper's numbers next to ours."""
