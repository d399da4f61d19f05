"""Kills `webtext build` at random several times, and compares its result with an undisturbed build.

    python tests/e2e/kill_build.py --kills 20 --seed 0 [--to STAGE]

The corpus is a small web on loopback, and every stage runs, or those up to STAGE. Exit code 0 if every stage wrote the
same bytes. The records of fetch contain times, which later stages copy: fetch is compared by its outcomes and pages,
and the later stages with an undisturbed build on the pages that the killed build had fetched. So the undisturbed build
of the reference ends with fetch.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

_TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(_TESTS), str(_TESTS / "contract")]

import small_web  # noqa: E402 - found through the path above
from contract_cases import TINY_MODEL, outcome, stage_names  # noqa: E402

_FIRST_STAGES = ["scrape", "fetch"]


def write_corpus(folder: Path, stages: Sequence[str]) -> None:
    """Write the inputs of the build: two dumps, a benchmark, and a `webtext.toml` with these stages."""
    (folder / "dumps").mkdir(parents=True)
    small_web.write_dumps(folder / "dumps")
    sentence = " ".join(small_web.words_text(2, 240).split()[5:40])
    (folder / "sentences.jsonl").write_text(json.dumps({"text": sentence}) + "\n")
    (folder / "webtext.toml").write_text(
        f"""
[build]
stages = {json.dumps(stages)}
[scrape]
dumps = ["dumps/*"]
shards = 3
[fetch]
per_host_delay = 0.0
[train-bpe]
vocab_size = 400
[tokenize]
held_out = 0.3
[pretrain]
preset = "tiny"
set = {json.dumps([*TINY_MODEL, "steps=60"])}
device = "cpu"
threads = 1
checkpoint_every = 5
[overlap-report]
benchmark = {{ sentences = "sentences.jsonl" }}
"""
    )


def start_build(corpus: Path, environment: dict[str, str], workers: int) -> subprocess.Popen[bytes]:
    """Start a build in a process group of its own."""
    command = [sys.executable, "-m", "webtext_cli", "build", "--corpus", str(corpus), "--workers", str(workers), "-q"]
    return subprocess.Popen(
        command,
        env={**os.environ, **environment},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


def finish_build(corpus: Path, environment: dict[str, str], workers: int) -> None:
    """Build to the end."""
    build = start_build(corpus, environment, workers)
    _, errors = build.communicate()
    if build.returncode:
        raise SystemExit(f"the build failed:\n{errors.decode()}")


def kill_builds(
    corpus: Path, stages: Sequence[str], environment: dict[str, str], kills: int, source: random.Random
) -> list[str]:
    """Start and kill builds of one corpus, `kills` times or until one gets through.

    The kills are spread over the stages: each comes a random moment after a build has reached a stage. Returns, for
    each kill, the last stage that was finished by then.
    """
    reached: list[str] = []
    for number in range(kills):
        folder = corpus / stages[int(len(stages) * (number + source.random()) / kills)]
        # A build needs about a second to start.
        delay_s = source.uniform(0.5, 2.5) if folder.exists() else source.uniform(0, 1)
        build = start_build(corpus, environment, 2)
        while build.poll() is None and not folder.exists():
            time.sleep(0.02)
        try:
            build.communicate(timeout=delay_s)
        except subprocess.TimeoutExpired:
            build.send_signal(signal.SIGKILL)
            build.communicate()
            done = [name for name in stages if (corpus / name / "manifest.json").exists()]
            reached.append(done[-1] if done else "nothing")
            continue
        if build.returncode:
            raise SystemExit("a build failed after a kill")
        break
    return reached


def compare(kills: int, seed: int, stages: Sequence[str]) -> int:
    """Build once undisturbed and, with kills, as often as it takes to kill so many; print what differs."""
    source = random.Random(seed)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with small_web.served(small_web.pages(), folder) as environment:
            write_corpus(folder / "clean", _FIRST_STAGES)
            finish_build(folder / "clean", environment, 1)
            left, differing, number = kills, [], 0
            while left:
                number += 1
                corpus = folder / f"killed-{number}"
                write_corpus(corpus, stages)
                reached = kill_builds(corpus, stages, environment, left, source)
                finish_build(corpus, environment, 1)
                left -= len(reached)
                print(f"{len(reached)} builds were killed, after: {', '.join(reached)}", flush=True)
                names = differing_stages(folder, corpus, stages, environment)
                differing += [f"{stage} of {corpus.name}" for stage in names]
    print("differing stages: " + (", ".join(differing) or "none"))
    return 1 if differing else 0


def differing_stages(folder: Path, corpus: Path, stages: Sequence[str], environment: dict[str, str]) -> list[str]:
    """Return the stages of a corpus that are not as those of an undisturbed build."""
    same_pages = folder / f"{corpus.name}-same-pages"
    write_corpus(same_pages, stages)
    for stage in _FIRST_STAGES:
        shutil.copytree(corpus / stage, same_pages / stage)
    finish_build(same_pages, environment, 1)
    references = {stage: folder / "clean" if stage in _FIRST_STAGES else same_pages for stage in stages}
    return [stage for stage, reference in references.items() if outcome(reference / stage) != outcome(corpus / stage)]


def main() -> int:
    """Read the options and compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--to", choices=stage_names(), default=stage_names()[-1])
    options = parser.parse_args()
    stages = stage_names()
    return compare(options.kills, options.seed, stages[: stages.index(options.to) + 1])


if __name__ == "__main__":
    sys.exit(main())
