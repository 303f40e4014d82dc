"""The commands; torch and matplotlib are imported late, so that `--help` is fast."""
