"""The Python API: every stage of webtext as a function, its config, and how to run it.

    import webtext

    webtext.dedup(webtext.DedupConfig(), documents="docs.jsonl", output="unique", options=webtext.RunOptions())

Each name is imported when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pipelines.api import *  # noqa: F403
else:
    from pipelines.api import __dir__, __getattr__  # noqa: F401
