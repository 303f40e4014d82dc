"""The commands; torch and matplotlib are imported inside them, so that `--help` answers at once."""
