"""The commands; torch and matplotlib come with late imports and the names of `tw`, so that `--help` answers at once."""
