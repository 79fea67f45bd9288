"""``python -m eagle_edge`` is ``eagle-edge``."""

from .cli import main

main()
