"""Files that are written atomically and read without running code."""
