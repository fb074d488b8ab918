"""``python -m tailorvit`` is the same program."""

from tailorvit.cli import main

main()
