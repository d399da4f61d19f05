"""Mixtures: the order of their blocks, their shares, and trainings that are killed, extended or have two ranks."""

from __future__ import annotations

import itertools
import json
import os
import resource
import shutil
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from small_training import SMALL, train_small
from token_folder import encode, train_tokenizer, write_token_folder
from tokenizers import Tokenizer
from training_run import FILES, StopsAtStep, contents, metrics

from pipelines.build import check_stages, status
from pipelines.corpus.removal import _trained_steps
from pipelines.corpus_config import CorpusConfig
from pipelines.engine.manifest import read_manifest
from pipelines.engine.run import RunOptions
from pipelines.errors import ChangedRunError, InputError, UsageError
from pipelines.model.io.export import model_card
from pipelines.model.io.model_folder import open_model
from pipelines.model.training.data import Mixture, open_mixture
from pipelines.model.training.mixture import Segment, Source, parse_sources
from pipelines.model.training.order import BatchOrder, Block, BlockOrder
from pipelines.model.training.recipe import Recipe, make_recipe
from pipelines.records.inputs import open_stage
from pipelines.stages.pretrain.config import PretrainConfig
from pipelines.stages.pretrain.sources import plan_recipe
from pipelines.stages.pretrain.stage import show_batch
from pipelines.stages.pretrain.training import replay
from webtext_cli.main import main

# Weights of GPT-3 (table 2.2), which add up to 101.
GPT3 = {"books1": 8, "books2": 8, "crawl": 60, "webtext2": 22, "wikipedia": 3}


def _segment(start: int, **weights: float) -> Segment:
    return {"from_step": start, "shares": {name: weight / sum(weights.values()) for name, weight in weights.items()}}


def _read(order: BatchOrder, steps: int) -> list[Block]:
    return [block for step in range(steps) for block in order.batch(step)]


@pytest.mark.parametrize("batch_size", [1, 7, 50, 512])
def test_each_source_is_read_in_its_own_order(batch_size: int) -> None:
    blocks = {"books1": 31, "books2": 400, "crawl": 9_000, "webtext2": 700, "wikipedia": 60}
    sequence = _read(BatchOrder(blocks, batch_size, 3, [_segment(0, **GPT3)]), 10_000 // batch_size + 1)
    counts = Counter(name for name, _ in sequence)
    for name, count in counts.items():
        epochs = [
            BlockOrder(blocks[name], 3, name).numbers(start, start + blocks[name])
            for start in range(0, count, blocks[name])
        ]
        assert all(sorted(epoch) == [*range(blocks[name])] for epoch in epochs)
        assert [block.number for block in sequence if block.source == name] == [*itertools.chain(*epochs)][:count]
    assert counts.keys() == GPT3.keys()


@pytest.mark.parametrize(("batch_size", "period_steps"), [(1, 34), (4, 9), (50, 1), (512, 1)])
def test_shares_are_exact_to_one_block_at_the_end_of_every_period(batch_size: int, period_steps: int) -> None:
    order = BatchOrder(dict.fromkeys(GPT3, 50), batch_size, 0, [_segment(0, **GPT3)])
    counts: Counter[str] = Counter()
    for step in range(10_000 // batch_size):
        counts.update(name for name, _ in order.batch(step))
        total = (step + 1) * batch_size
        assert counts.total() == total
        exact = (step + 1) % period_steps == 0
        for name, weight in GPT3.items():
            slack = 1 if exact else 2 + Fraction(len(GPT3) * weight, 101)
            assert abs(counts[name] - Fraction(total * weight, 101)) <= slack


def test_a_rare_source_does_not_make_the_others_uneven() -> None:
    weights = {"a": 0.5, "b": 0.499, "c": 0.001}
    order = BatchOrder(dict.fromkeys(weights, 50), 4, 0, [_segment(0, **weights)])
    counts: Counter[str] = Counter()
    for step in range(250):  # a period
        counts.update(name for name, _ in order.batch(step))
        assert all(abs(counts[name] - (step + 1) * 4 * weights[name]) < 2 for name in weights)
    assert counts == {"a": 500, "b": 499, "c": 1}


def test_decimal_weights_are_exact() -> None:
    order = BatchOrder({"a": 10, "b": 10}, 100, 0, [_segment(0, a=0.6, b=0.4)])
    for step in range(100):
        assert Counter(name for name, _ in order.batch(step)) == {"a": 60, "b": 40}


def test_a_source_keeps_its_order_whatever_the_others_are() -> None:
    def read(name: str, sizes: dict[str, int], *segments: Segment) -> list[int]:
        sequence = _read(BatchOrder(sizes, 8, 5, segments), 60)
        return [block.number for block in sequence if block.source == name]

    alone = BlockOrder(40, 5, "books").numbers(0, 480)
    first = read("books", {"books": 40, "web": 100}, _segment(0, books=1, web=1))
    second = read("books", {"web": 9, "wiki": 3, "books": 40}, _segment(0, web=3, books=2, wiki=1))
    changed = read("books", {"web": 9, "books": 40}, _segment(0, web=1, books=1), _segment(11, web=1, books=9))
    assert len(first) == 240
    for numbers in (first, second, changed):
        assert numbers == alone[: len(numbers)]
    assert alone != BlockOrder(40, 5, "web").numbers(0, 480)
    assert alone != BlockOrder(40, 6, "books").numbers(0, 480)


def test_a_batch_is_the_same_after_any_restart_and_never_changes() -> None:
    sizes, segments = {"a": 11, "b": 70, "c": 5}, [_segment(0, a=1, b=2), _segment(7, a=0.01, b=0.9, c=0.09)]
    order = BatchOrder(sizes, 6, 9, segments)
    whole = [order.batch(step) for step in range(60)]
    assert whole == [BatchOrder(sizes, 6, 9, segments).batch(step) for step in range(60)]
    assert whole[:7] == [BatchOrder(sizes, 6, 9, segments[:1]).batch(step) for step in range(7)]
    assert order.batch(2) == whole[2]
    # Philox's bits are the same everywhere, and so must this be.
    assert [f"{name}{number}" for name, number in whole[0] + whole[8]] == _GOLDEN


_GOLDEN = "b66 b26 a7 a0 b24 b55 b22 b1 b61 b56 b51 b43".split()


def test_blocks_of_a_source_that_is_not_at_hand_are_left_out() -> None:
    segments = [_segment(0, a=1, b=2)]
    some = _read(BatchOrder({"b": 70}, 6, 9, segments), 20)
    assert some == [block for block in _read(BatchOrder({"a": 11, "b": 70}, 6, 9, segments), 20) if block.source == "b"]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (["web:0.5"], "expected NAME=DIR:WEIGHT"),
        (["web=x"], "expected NAME=DIR:WEIGHT"),
        (["web=x:-1"], "expected NAME=DIR:WEIGHT"),
        (["web=x:much"], "expected NAME=DIR:WEIGHT"),
        (["web=x:nan"], "expected NAME=DIR:WEIGHT"),
        (["web=x:1e400"], "expected NAME=DIR:WEIGHT"),
        (["=x:1"], "expected NAME=DIR:WEIGHT"),
        (["web=x:1", "web=y:1"], "the name web is used twice"),
    ],
)
def test_other_forms_of_mix_are_refused(values: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=f"--mix .*{message}"):
        parse_sources(values)


def test_the_weight_is_what_follows_the_last_colon() -> None:
    sources = parse_sources(["web=s3://bucket/a:b/tokenize:0.25", "a=x:2epochs", "b=y:1epoch", "c=z:1e-05"])
    assert sources == {
        "a": Source("x", epochs=2),
        "b": Source("y", epochs=1),
        "c": Source("z", weight=1e-05),
        "web": Source("s3://bucket/a:b/tokenize", weight=0.25),
    }
    assert parse_sources([source.argument(name, source.folder) for name, source in sources.items()]) == sources
    amounts = {"1e-3": 1e-3, "2E1": 20, "3.": 3, ".5": 0.5, "1e+100": 1e100}
    for amount, weight in amounts.items():
        assert parse_sources([f"a=x:{amount}"]) == {"a": Source("x", weight=weight)}
    assert parse_sources("a=b:c") == {"tokens": Source("a=b:c", weight=1)}


@pytest.fixture(scope="module")
def folders(documents: list[str], tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Three folders of tokenize with one tokenizer; the third has no held-out tokens."""
    root, texts = tmp_path_factory.mktemp("sources"), [documents[:14], documents[14:24], documents[24:]]
    return {
        name: write_token_folder(
            root / name,
            [encode(tokenizer, part[2:])],
            [encode(tokenizer, part[:2])] if name != "code" else [],
            tokenizer,
        )
        for name, part in zip(("web", "books", "code"), texts, strict=True)
    }


def _mix(folders: dict[str, str], **amounts: str) -> list[str]:
    return [f"{name}={folders[name]}:{amount}" for name, amount in amounts.items()]


def _train(folders: dict[str, str], output: Path, *more: str, progress: Any = None, **amounts: str) -> list[str]:
    """Train the small model on a mixture; return the notes."""
    progress = progress or StopsAtStep()
    train_small(_mix(folders, **amounts), output, *more, options=RunOptions(progress=progress))  # type: ignore[arg-type]
    return list(progress.notes)


def _result(folder: Path) -> dict[str, str]:
    return {name: digest for name, digest in contents(folder).items() if name in FILES}


@pytest.fixture(scope="module")
def mixed(folders: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small model of 6 steps, on 3 parts of web and 1 of books."""
    output = tmp_path_factory.mktemp("mixed") / "pretrain"
    _train(folders, output, web="0.75", books="0.25")
    return output


def test_what_is_trained_on_is_what_is_shown(
    folders: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[Sequence[Block]] = []
    real = Mixture.read_blocks

    def spied(mixture: Mixture, blocks: Sequence[Block], context: int) -> Any:
        read.append(blocks)
        return real(mixture, blocks, context)

    monkeypatch.setattr(Mixture, "read_blocks", spied)
    with pytest.raises(KeyboardInterrupt):
        _train(folders, tmp_path / "out", web="3", books="1", progress=StopsAtStep(4))
    before = [block for blocks in read for block in blocks]
    read.clear()
    _train(folders, tmp_path / "out", web="3", books="1")
    recipe, mix = make_recipe("tiny", SMALL), _mix(folders, books="0.25", web="0.75")  # the order does not matter
    shown = [show_batch(recipe, tokens=mix, step=step, output=str(tmp_path / "none")) for step in range(1, 7)]
    numbers = [Block(block.source or "", block.number) for batch in shown for block in batch]
    assert before == numbers[:16]
    assert [block for blocks in read for block in blocks] == numbers[12:]  # after the checkpoint of step 3
    assert Counter(source for source, _ in numbers) == {"web": 18, "books": 6}


def test_a_killed_training_has_the_same_bytes(folders: dict[str, str], mixed: Path, tmp_path: Path) -> None:
    for step in (3, 2):
        with pytest.raises(KeyboardInterrupt):
            _train(folders, tmp_path / "out", web="0.75", books="0.25", progress=StopsAtStep(step))
    _train(folders, tmp_path / "out", books="1", web="3")  # the same shares
    assert _result(tmp_path / "out") == _result(mixed)
    assert (tmp_path / "out" / "manifest.json").read_bytes() == (mixed / "manifest.json").read_bytes()


def test_the_losses_of_sources_and_of_the_mixture(folders: dict[str, str], mixed: Path) -> None:
    for row in metrics(mixed):
        if "held_out_loss" in row:
            for name in ("held_out_loss", "held_out_tokens", "held_out_bits_per_byte"):
                assert name in row
            web, books = row["held_out_loss.web"], row["held_out_loss.books"]
            assert row["held_out_loss"] == pytest.approx(0.75 * web + 0.25 * books)
            assert row["held_out_tokens"] == row["held_out_tokens.web"] + row["held_out_tokens.books"]
    last = metrics(mixed)[-1]
    inputs = read_manifest(str(mixed)).identity.inputs
    assert inputs.keys() == {"tokens of books", "tokens of web"}
    assert read_manifest(str(mixed)).counts["held_out_loss.web"] == last["held_out_loss.web"]
    page = (mixed / "training.html").read_text()
    assert "Held-out loss by source" in page
    assert '<li class="color-0">books</li><li class="color-1">web</li>' in page
    config = json.loads((mixed / "config.json").read_text())
    assert config["recipe"]["mixture"] == [{"from_step": 0, "shares": {"books": 0.25, "web": 0.75}}]
    assert config["sources"].keys() == {"books", "web"}
    card = model_card(open_model(str(mixed)))
    epochs = 288 / config["sources"]["web"]["tokens"]
    assert f"- web: 288 tokens, {epochs:.2f} epochs, fingerprint `{inputs['tokens of web']}`" in card
    assert f"; books {last['held_out_loss.books']:.4f}; web {last['held_out_loss.web']:.4f}." in card


def test_a_source_of_weight_zero_or_without_held_out_tokens(folders: dict[str, str], tmp_path: Path) -> None:
    notes = _train(folders, tmp_path / "out", "steps=3", web="0", code="1")
    last = metrics(tmp_path / "out")[-1]
    # The only source that is trained on has no held-out tokens.
    assert last["held_out_loss"] == pytest.approx(last["held_out_loss.web"])
    assert "held_out_loss.code" not in last
    assert any(note.endswith("code: no held-out tokens, so the held-out loss is not measured") for note in notes)
    assert any(note.startswith("  web: 0.00% of the blocks, 0 tokens, 0.00 epochs") for note in notes)


def test_a_source_that_is_only_evaluated_needs_no_blocks(
    folders: dict[str, str], tokenizer: Tokenizer, documents: list[str], tmp_path: Path
) -> None:
    folder = write_token_folder(tmp_path / "neutral", [], [encode(tokenizer, documents[:1])], tokenizer)
    sources = {"tokens": folders["web"], "neutral": folder}
    _train(sources, tmp_path / "out", "steps=1", "warmup_steps=0", tokens="1", neutral="0")
    assert metrics(tmp_path / "out")[-1]["held_out_loss.neutral"] > 0
    # The shares are those of a training without --mix.
    card = model_card(open_model(str(tmp_path / "out")))
    assert "- neutral: 0 tokens, 0.00 epochs" in card
    assert "- tokens: 64 tokens, " in card


def test_the_table_before_the_first_step(folders: dict[str, str], tmp_path: Path) -> None:
    notes = _train(folders, tmp_path / "out", web="0.75", books="0.25")
    table = [note for note in notes if "epochs of the train split" in note]
    starts = ["  books: 25.00% of the blocks, 96 tokens, ", "  web: 75.00% of the blocks, 288 tokens, "]
    assert all(note.startswith(start) for note, start in zip(table, starts, strict=True))


def test_too_many_epochs_are_refused(folders: dict[str, str], tmp_path: Path) -> None:
    amounts = {"web": "0.01", "books": "0.99"}
    message = (
        r"--mix books: \d+\.\d\d epochs of .*books are more than --max-epochs 4; use a lower weight, .*higher --max"
    )
    with pytest.raises(UsageError, match=message):
        _train(folders, tmp_path / "out", "steps=200", **amounts)
    assert not (tmp_path / "out" / "checkpoints").exists()
    train_small(_mix(folders, web="0.5", books="4epochs"), tmp_path / "exact", "steps=80", "eval_every=80")  # type: ignore[arg-type]
    last = json.loads((tmp_path / "exact" / "config.json").read_text())
    assert last["recipe"]["mixture"][0]["shares"].keys() == {"books", "web"}


def _plan(folders: dict[str, str], *sets: str, trained: Recipe | None = None, **amounts: str) -> Recipe:
    recipe = make_recipe("tiny", (*SMALL, *sets))
    return plan_recipe(recipe, parse_sources(_mix(folders, **amounts)), vars(trained) if trained else {})


def test_epochs_follow_from_the_length_of_the_run(folders: dict[str, str]) -> None:
    sizes = {name: (json.loads(Path(path, "tokens.json").read_text())["splits"]["train"][0]["tokens"] - 1) // 16
             for name, path in folders.items()}  # fmt: skip
    recipe = _plan(folders, "steps=100", books="2epochs", web="3", code="1")
    shares = recipe.mixture[0]["shares"]
    assert shares["books"] == 2 * sizes["books"] / 400
    assert shares["web"] == pytest.approx(3 * shares["code"])
    order = BatchOrder(sizes, 4, 0, recipe.mixture)
    counts = Counter(block for block in _read(order, 100) if block.source == "books")
    assert abs(counts.total() - 2 * sizes["books"]) <= 1 + 4 / min(shares.values()) / 100
    # All sources may have epochs if these fill the run.
    steps = round((sizes["books"] + 2 * sizes["web"]) / 4)
    both = _plan(folders, f"steps={steps}", books="1epoch", web="2epochs").mixture[0]["shares"]
    assert both["books"] / both["web"] == pytest.approx(sizes["books"] / sizes["web"] / 2)
    with pytest.raises(UsageError, match=r"with epochs fill \d+.\d of 100 steps, but should fill all; .* or a weight"):
        _plan(folders, "steps=100", books="1epoch", web="2epochs")
    with pytest.raises(UsageError, match=r"fill \d+.\d of 10 steps, but should fill fewer; .* or no weight"):
        _plan(folders, "steps=10", books="2epochs", web="1")
    with pytest.raises(UsageError, match="--mix: no source is read; give one of them a weight above 0"):
        _plan(folders, books="0", web="0")
    with pytest.raises(UsageError, match="--mix books: its share is 1e-07, below one block in a million"):
        _plan(folders, books="1e-07", web="1")
    # More steps: the epochs count those that were read before.
    longer = _plan(folders, "steps=200", trained=recipe, books="3epochs", web="1", code="0")
    assert [segment["from_step"] for segment in longer.mixture] == [0, 100]
    assert longer.mixture[1]["shares"]["books"] == pytest.approx(sizes["books"] / 400)
    assert longer.mixture[1]["shares"].keys() == {"books", "web"}
    assert _plan(folders, "steps=200", trained=longer, books="3epochs", web="1", code="0") == longer
    with pytest.raises(
        UsageError, match=r"--mix books: 1 epochs are fewer than 2.00 before step 101; use more, or wei"
    ):
        _plan(folders, "steps=200", trained=recipe, books="1epoch", web="1")


@pytest.fixture(scope="module")
def extended(folders: dict[str, str], mixed: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The mixed training, extended to 9 steps with another source and other shares."""
    folder = tmp_path_factory.mktemp("extended") / "pretrain"
    shutil.copytree(mixed, folder)
    _train(folders, folder, "steps=9", web="1", books="0", code="1")
    return folder


def test_changed_shares_begin_a_new_segment(folders: dict[str, str], mixed: Path, extended: Path) -> None:
    recipe = json.loads((extended / "config.json").read_text())["recipe"]
    assert recipe["mixture"] == [
        {"from_step": 0, "shares": {"books": 0.25, "web": 0.75}},
        {"from_step": 6, "shares": {"code": 0.5, "web": 0.5}},
    ]
    assert metrics(extended)[:7] == metrics(mixed)
    last = metrics(extended)[-1]
    assert last["held_out_loss"] == pytest.approx(last["held_out_loss.web"])  # code has none, and books no share
    mix = _mix(folders, web="1", books="0", code="1")
    shown = [
        show_batch(make_recipe("tiny", (*SMALL, "steps=9")), tokens=mix, step=step, output=str(extended))
        for step in range(1, 10)
    ]
    assert Counter(block.source for block in itertools.chain(*shown[:6])) == {"web": 18, "books": 6}
    assert Counter(block.source for block in itertools.chain(*shown[6:])) == {"web": 6, "code": 6}
    web = [block.number for block in itertools.chain(*shown) if block.source == "web"]
    assert len({*web}) == 24  # the epoch continues


def test_an_extended_mixture_is_complete_repeatable_and_replayable(
    folders: dict[str, str], extended: Path, tmp_path: Path
) -> None:
    again = shutil.copytree(extended, tmp_path / "again")
    assert "pretrain: already complete; checksums verified" in _train(
        folders, again, "steps=9", web="1", books="0", code="1"
    )
    # Recipe and tokens determine the bytes: without checkpoints all steps are repeated with the same result.
    shutil.rmtree(again / "checkpoints")
    (again / "model.safetensors").unlink()
    _train(folders, again, "steps=9", web="1", books="0", code="1")
    assert _result(again) == _result(extended)
    config = PretrainConfig(preset="tiny", set=(*SMALL, "steps=9"), device="cpu", threads=1)
    mix = _mix(folders, web="1", books="0", code="1")
    for step in (5, 8):
        report = json.loads(replay(config, tokens=mix, output=str(extended), step=step, note=lambda _: None))
        assert report["spike"]["value"] == metrics(extended)[step]["loss"]
        assert {block["source"] for block in report["blocks"]} <= {"web", "books" if step == 5 else "code"}
        assert report["replay"].count("--mix") == 3


@pytest.mark.parametrize(
    ("steps", "amounts", "message"),
    [
        (9, {"web": "1"}, r"--mix: .*out has read books; add --mix books=DIR:0"),
        (6, {"web": "1"}, r"its input 'tokens of books' was removed"),
        (6, {"web": "0.5", "books": "0.5"}, r"mixture was .*0.25.* is now .*0.5"),
        (5, {"web": "0.75", "books": "0.25"}, r"steps was 6, is now 5"),
    ],
)
def test_other_changes_are_refused(
    folders: dict[str, str], mixed: Path, tmp_path: Path, steps: int, amounts: dict[str, str], message: str
) -> None:
    shutil.copytree(mixed, tmp_path / "out")
    with pytest.raises((ChangedRunError, UsageError), match=message):
        _train(folders, tmp_path / "out", f"steps={steps}", **amounts)


def test_epochs_need_to_fit_only_the_extension_or_only_the_new_training(
    folders: dict[str, str], mixed: Path, tmp_path: Path
) -> None:
    out, blocks = shutil.copytree(mixed, tmp_path / "out"), 0
    for file in json.loads(Path(folders["code"], "tokens.json").read_text())["splits"]["train"]:
        blocks += (file["tokens"] - 1) // 16
    steps = f"steps={6 + blocks // 4}"
    _train(folders, out, steps, web="0", books="0", code="1epoch")
    with pytest.raises(UsageError, match=r"code: 0.1 epochs are fewer than [01]\.\d\d before step"):
        _train(folders, out, "steps=90", web="1", books="0", code="0.1epochs")
    # All steps again: with other shares from the first on.
    options = RunOptions(overwrite=True)
    train_small(_mix(folders, web="1", books="0", code="0.1epochs"), out, steps, options=options)  # type: ignore[arg-type]
    recipe = json.loads((out / "config.json").read_text())["recipe"]
    assert "extended_from" not in recipe
    assert [segment["from_step"] for segment in recipe["mixture"]] == [0]


def test_equal_shares_need_no_new_segment(folders: dict[str, str], mixed: Path, tmp_path: Path) -> None:
    shutil.copytree(mixed, tmp_path / "out")
    _train(folders, tmp_path / "out", "steps=7", web="6", books="2")
    assert len(json.loads((tmp_path / "out" / "config.json").read_text())["recipe"]["mixture"]) == 1


def test_with_wsd_other_shares_begin_before_the_decay(folders: dict[str, str], tmp_path: Path) -> None:
    wsd, out = ("schedule=wsd", "decay_steps=2"), tmp_path / "out"
    _train(folders, out, *wsd, web="3", books="1")
    before = metrics(out)
    with pytest.raises(KeyboardInterrupt):
        _train(folders, out, *wsd, "steps=9", web="1", books="1", progress=StopsAtStep(2))
    _train(folders, out, *wsd, "steps=9", web="1", books="1")
    _train(folders, out, *wsd, "steps=9", web="1", books="1")  # is complete
    assert metrics(out)[:5] == before[:5]
    recipe = json.loads((out / "config.json").read_text())["recipe"]
    assert "extended_from" not in recipe
    assert recipe["mixture"] == [_segment(0, books=1, web=3), _segment(4, books=1, web=1)]
    _train(folders, out, *wsd, "decay_steps=5", "steps=12", web="1", books="3")
    # Another decay from the same step on replaces that segment.
    _train(folders, out, *wsd, "decay_steps=1", "steps=8", books="1", web="0")
    recipe = json.loads((out / "config.json").read_text())["recipe"]
    assert recipe["mixture"] == [_segment(0, books=1, web=3), _segment(4, books=1, web=1), _segment(7, books=1)]


def test_a_training_without_mix_is_extended_as_the_source_tokens(
    folders: dict[str, str], tokens: str, trained: Path, tmp_path: Path
) -> None:
    shutil.copytree(trained, tmp_path / "out")
    sources = {**folders, "tokens": tokens}
    _train(sources, tmp_path / "out", "steps=9", tokens="0.5", web="0.5")
    assert metrics(tmp_path / "out")[:7] == metrics(trained)
    recipe = json.loads((tmp_path / "out" / "config.json").read_text())["recipe"]
    assert recipe["mixture"] == [
        {"from_step": 0, "shares": {"tokens": 1.0}},
        {"from_step": 6, "shares": {"tokens": 0.5, "web": 0.5}},
    ]


def test_another_tokenizer_is_refused_with_both_folders(
    folders: dict[str, str], documents: list[str], tmp_path: Path
) -> None:
    other = train_tokenizer(documents[:3], 290)
    folder = write_token_folder(tmp_path / "other", [encode(other, documents[:9])], [], other)
    with pytest.raises(
        InputError, match=r"web: has another tokenizer.json \(by its SHA-256\) than .*other; tokenize all"
    ):
        _train({**folders, "other": folder}, tmp_path / "out", web="1", other="1")


def test_sources_may_have_more_shards_than_the_usual_limit_of_open_files(
    folders: dict[str, str], tokenizer: Tokenizer, tmp_path: Path
) -> None:
    folder = write_token_folder(tmp_path / "many", [[1, 2, 3]] * 60, [], tokenizer)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 40, hard))
    try:
        mixture = open_mixture(parse_sources(_mix({"many": folder, "web": folders["web"]}, many="1", web="1")))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert mixture.sources["many"].train.tokens == 180
    assert mixture.sources["many"].tokenizer is mixture.sources["web"].tokenizer


def test_a_folder_with_two_names_is_refused(folders: dict[str, str], tmp_path: Path) -> None:
    mix = _mix({"a": folders["web"], "b": folders["web"]}, a="1", b="1")
    with pytest.raises(UsageError, match="--mix a: has the same tokens as b; use one of them"):
        train_small(mix, tmp_path / "out")  # type: ignore[arg-type]
    assert not (tmp_path / "out").exists()


def test_a_source_without_a_block_is_refused(folders: dict[str, str], tokenizer: Tokenizer, tmp_path: Path) -> None:
    folder = write_token_folder(tmp_path / "small", [[1, 2, 3]], [], tokenizer)
    with pytest.raises(
        InputError, match=r"small: the train split has 3 tokens, 0 blocks of 16, fewer than 1; use more"
    ):
        _train({**folders, "small": folder}, tmp_path / "out", web="1", small="1")


def test_without_mix_the_result_is_the_same_as_before_there_were_mixtures(trained: Path) -> None:
    recipe = read_manifest(str(trained)).identity.config
    assert recipe["mixture"] == []
    config = json.loads((trained / "config.json").read_text())
    assert "mixture" not in config["recipe"]
    assert "sources" not in config
    assert not [name for row in metrics(trained) for name in row if "." in name]


def test_on_the_command_line_and_in_webtext_toml(
    folders: dict[str, str], mixed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.delenv("WEBTEXT_CORPUS", raising=False)
    options = ["--preset", "tiny", *(part for value in SMALL for part in ("--set", value)), "--device", "cpu"]
    options += ["--threads", "1", "-q"]
    mix = [part for value in _mix(folders, web="0.75", books="0.25") for part in ("--mix", value)]
    assert main(["pretrain", *mix, "-o", str(tmp_path / "out"), *options]) == 0
    assert _result(tmp_path / "out") == _result(mixed)
    capsys.readouterr()
    assert main(["pretrain", *mix, "-o", str(tmp_path / "out"), *options, "--show-batch", "2"]) == 0
    assert "step 2, 4 of 4: block " in (printed := capsys.readouterr().out)
    assert {line.rpartition(" ")[2] for line in printed.splitlines() if line.startswith("step")} == {"web", "books"}
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    (tmp_path / "web").symlink_to(folders["web"])
    table = f'[pretrain.mix]\nweb = {{ folder = "../web", weight = 3 }}\nbooks = {{ folder = "{folders["books"]}", '
    sets = "\n".join(
        ["[build]", 'stages = ["pretrain"]', "[pretrain]", 'preset = "tiny"', f"set = {json.dumps(SMALL)}"]
    )
    (corpus / "webtext.toml").write_text(f'{sets}\ndevice = "cpu"\nthreads = 1\n{table}weight = 1.0 }}\n')
    assert main(["build", "--corpus", str(corpus), "-q", "--dry-run"]) == 0
    assert main(["build", "--corpus", str(corpus), "-q"]) == 0
    assert _result(corpus / "pretrain") == _result(mixed)
    assert main(["pretrain", "--corpus", str(corpus), "-q"]) == 0
    capsys.readouterr()
    for wrong, message in (
        ("weight = 1.0, epochs = 2 }", "needs either weight or epochs"),
        ("wieght = 1.0 }", "did you mean weight?"),
        ("weight = -1 }", "weight = -1: expected a number >= 0"),
        ("weight = nan }", "weight = nan: expected a number >= 0"),
    ):
        (corpus / "webtext.toml").write_text(f"{table}{wrong}\n")
        assert main(["pretrain", "--corpus", str(corpus), "-q"]) == 2
        assert message in (printed := capsys.readouterr().err)
        assert "webtext.toml [pretrain.mix.books]" in printed
    (corpus / "webtext.toml").write_text('[pretrain.mix]\n"a=b" = { folder = "x", weight = 1 }\n')
    assert main(["pretrain", "--corpus", str(corpus), "-q"]) == 2
    assert "webtext.toml [pretrain.mix]: 'a=b' is not a name" in capsys.readouterr().err
    assert main(["pretrain", *mix, "-i", folders["web"]]) == 2
    assert main(["pretrain", *mix, "-o", folders["web"]]) == 2


def test_the_own_tokens_of_a_corpus_can_be_a_source(folders: dict[str, str], mixed: Path, tmp_path: Path) -> None:
    table = f'web = {{ folder = "./tokenize", weight = 3 }}\nbooks = {{ folder = "{folders["books"]}", weight = 1 }}'
    (tmp_path / "webtext.toml").write_text(f'[pretrain]\npreset = "tiny"\n[pretrain.mix]\n{table}\n')
    config = CorpusConfig(str(tmp_path))
    assert config.upstream("pretrain") == {"tokens of web": "tokenize"}
    # It need not be there if `tokenize` runs first.
    with pytest.raises(UsageError, match=r"pretrain reads tokenize, which is neither .*; add --from tokenize"):
        check_stages(config, ["pretrain"], RunOptions())
    shutil.copytree(folders["web"], tmp_path / "tokenize")
    shutil.copytree(mixed, tmp_path / "pretrain")
    assert [stage.state for stage in status(str(tmp_path), False) if stage.stage in ("tokenize", "pretrain")] == [
        "done",
        "done",
    ]
    shutil.rmtree(tmp_path / "tokenize")
    shutil.copytree(folders["code"], tmp_path / "tokenize")
    assert [stage.stage for stage in status(str(tmp_path), False) if stage.state == "stale"] == ["pretrain"]


def test_a_batch_is_not_shown_without_a_source_that_it_has(folders: dict[str, str], extended: Path) -> None:
    recipe = make_recipe("tiny", (*SMALL, "steps=9"))
    with pytest.raises(InputError, match="the training has read books; add --mix books=DIR:0"):
        show_batch(recipe, tokens=_mix(folders, web="1", code="1"), step=2, output=str(extended))


@pytest.mark.parametrize(("name", "steps"), [("books", [*range(1, 7)]), ("code", [7, 8, 9]), ("web", [*range(1, 10)])])
def test_a_removal_finds_the_steps_of_a_source(
    folders: dict[str, str], extended: Path, name: str, steps: list[int]
) -> None:
    stages = {"pretrain": open_stage(str(extended), ["pretrain"]), "tokenize": open_stage(folders[name], ["tokenize"])}
    assert _trained_steps(stages, {"train-00000.bin": 0}) == {0: steps}  # the only document of the shard
