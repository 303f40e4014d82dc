"""Files that are written whole or not at all, and read without running code."""
