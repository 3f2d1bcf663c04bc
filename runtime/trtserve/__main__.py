"""``python -m trtserve``."""

from trtserve.cli import main

main()
