"""``python -m trtbuild``."""

from trtbuild.cli import main

if __name__ == "__main__":
    main()
