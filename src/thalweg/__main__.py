"""`python -m thalweg`"""

from .cli import main

main()
