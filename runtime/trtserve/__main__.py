"""``python -m trtserve``."""

from trtserve.cli import main

if __name__ == "__main__":
    main()
