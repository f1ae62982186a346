"""`python -m ninfer` is the `ninfer` command."""

from __future__ import annotations

from ninfer.cli.main import run

if __name__ == "__main__":
    run()
