"""`python -m webtext_cli` is `webtext`."""

from __future__ import annotations

from webtext_cli.main import run

if __name__ == "__main__":
    run()
