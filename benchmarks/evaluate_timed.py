"""Run the command line of webtext or lm_eval, and print the seconds of its evaluation alone to stderr.

    python benchmarks/evaluate_timed.py webtext evaluate ...
    python benchmarks/evaluate_timed.py lm_eval --model hf ...

What is timed begins with a loaded model: building the requests, computing and writing answers, and the metrics.
"""

from __future__ import annotations

import functools
import sys
import time
from typing import Any


def main() -> None:
    """Time one function of the program named first."""
    program = sys.argv.pop(1)
    if program == "webtext":
        from pipelines.evaluation.stage import TaskRun
        from webtext_cli.main import run

        time_calls(TaskRun, "run")
        run()
    else:
        from lm_eval import evaluator
        from lm_eval.__main__ import cli_evaluate

        time_calls(evaluator, "evaluate")
        cli_evaluate()


def time_calls(owner: Any, name: str) -> None:
    """Replace a function by one that prints its seconds."""
    function = getattr(owner, name)

    @functools.wraps(function)
    def timed(*arguments: Any, **options: Any) -> Any:
        start = time.perf_counter()
        result = function(*arguments, **options)
        print(f"\nevaluation seconds: {time.perf_counter() - start:.3f}", file=sys.stderr, flush=True)
        return result

    setattr(owner, name, timed)


if __name__ == "__main__":
    main()
