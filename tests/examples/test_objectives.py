"""`examples/objectives.py`: what its objectives make of texts, and training with each."""

from __future__ import annotations

import re
import runpy
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from accelerate.data_loader import prepare_data_loader
from click.testing import CliRunner
from scipy.stats import chisquare, poisson

import webtext
from pipelines.demo.corpus import write_demo_corpus

_REPOSITORY = Path(__file__).resolve().parents[2]
_EXAMPLE = runpy.run_path(str(_REPOSITORY / "examples" / "objectives.py"))
_OBJECTIVES = ("bert", "roberta", "albert", "bart", "seq2seq")
_MASKED = ("bert", "roberta", "albert")
_TEXTS = {"length": 253, "documents": True}
_BLOCKS = {"length": 255, "overlap": 64}


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The language reference of Python, which is a benchmark of the demo, as token shards."""
    corpus = str(tmp_path_factory.mktemp("objectives"))
    write_demo_corpus(corpus)
    documents, tokenizer, tokens = f"{corpus}/benchmarks/language-reference.jsonl", f"{corpus}/bpe", f"{corpus}/tokens"
    options = webtext.RunOptions()
    webtext.train_bpe(webtext.TrainBpeConfig(vocab_size=300), documents=documents, output=tokenizer, options=options)
    config = webtext.TokenizeConfig(held_out=0.1)
    webtext.tokenize(config, documents=documents, tokenizer=tokenizer, output=tokens, options=options)
    return tokens


@pytest.fixture(scope="module")
def vocabulary(tokens: str) -> Any:
    return _EXAMPLE["Vocabulary"](webtext.TokenDataset(tokens, length=8))


@pytest.fixture(scope="module")
def pairs(tokens: str, vocabulary: Any) -> Path:
    """Lines of the corpus in capitals, and as they are."""
    ids = np.concatenate([item["input_ids"] for item in webtext.TokenDataset(tokens, **_TEXTS)])
    lines = [line.strip() for line in vocabulary.tokenizer.decode(ids).splitlines() if 10 < len(line.strip()) < 80]
    path = Path(tokens).parent / "pairs.tsv"
    path.write_text("".join(f"{line.upper()}\t{line}\n" for line in lines))
    return path


def _examples(objective: str, tokens: str, vocabulary: Any, count: int, *, seed: int = 0) -> Any:
    options = _BLOCKS if objective == "roberta" else _TEXTS
    return _EXAMPLE["Examples"](objective, webtext.TokenDataset(tokens, **options), vocabulary, count, seed)


@pytest.fixture(scope="module", params=[550, pytest.param(5500, marks=pytest.mark.slow)], ids=["quick", "million"])
def sample(request: pytest.FixtureRequest, tokens: str, vocabulary: Any) -> dict[str, list[dict[str, Any]]]:
    """Examples of at least 100,000 tokens, or a million, of each objective on shards."""
    sample = {}
    for objective in (*_MASKED, "bart"):
        lazy = _examples(objective, tokens, vocabulary, request.param)
        sample[objective] = [_arrays(lazy[number]) for number in range(len(lazy))]
    return sample


def _margin(size: int) -> float:
    """The share by which a share may differ by chance: 0.003 for a million tokens."""
    return 0.003 * (5500 / size) ** 0.5


def _arrays(example: dict[str, Any]) -> dict[str, Any]:
    return {name: np.array(values) for name, values in example.items()}


@pytest.mark.parametrize("objective", _MASKED)
def test_the_shares_of_masked_tokens_are_those_of_the_paper(objective: str, sample: Any, vocabulary: Any) -> None:
    ids, labels = (np.concatenate([each[name] for each in sample[objective]]) for name in ("input_ids", "labels"))
    margin = _margin(len(sample[objective]))
    assert len(ids) > 180 * len(sample[objective])
    originals = np.where(labels == -100, ids, labels)
    ordinary = ~vocabulary.is_special[originals]
    chosen = labels != -100
    assert not chosen[~ordinary].any()
    assert chosen.sum() / ordinary.sum() == pytest.approx(0.15, abs=margin / 2)
    assert (ids[chosen] == vocabulary.mask).mean() == pytest.approx(0.8, abs=margin)
    # A random token is sometimes the original.
    assert (ids[chosen] == labels[chosen]).mean() == pytest.approx(0.1, abs=margin)
    replaced = ids[chosen & (ids != labels) & (ids != vocabulary.mask)]
    assert not vocabulary.is_special[replaced].any()
    counts = np.bincount(replaced, minlength=vocabulary.size)[~vocabulary.is_special]
    assert chisquare(counts).pvalue > 0.001


@pytest.mark.parametrize(("objective", "label"), [("bert", "next_sentence_label"), ("albert", "sentence_order_label")])
def test_half_of_the_pairs_are_as_in_the_corpus(
    objective: str, label: str, sample: Any, tokens: str, vocabulary: Any
) -> None:
    changed = [example[label] for example in sample[objective]]
    assert np.mean(changed) == pytest.approx(0.5, abs=1.5 / len(changed) ** 0.5)
    texts = {item["input_ids"].tobytes() for item in webtext.TokenDataset(tokens, **_TEXTS)}
    for example, is_changed in zip(sample[objective][:300], changed, strict=False):
        first, second = _segments(example)
        assert ((first + second) in texts) != is_changed
        assert ((second + first) in texts) == (is_changed and objective == "albert")


def _segments(example: dict[str, Any]) -> tuple[bytes, bytes]:
    """The original tokens of both segments, without special ones."""
    ids = np.where(example["labels"] == -100, example["input_ids"], example["labels"])
    length = int((example["token_type_ids"] == 0).sum())
    return ids[1 : length - 1].tobytes(), ids[length:-1].tobytes()


def test_full_sentences_are_each_in_one_example(tokens: str, vocabulary: Any) -> None:
    blocks = webtext.TokenDataset(tokens, **_BLOCKS)
    examples = _examples("roberta", tokens, vocabulary, len(blocks))
    read = []
    for number in np.argsort(examples.order):
        example = _arrays(examples[int(number)])
        ids = np.where(example["labels"] == -100, example["input_ids"], example["labels"])
        assert len(ids) <= 256
        assert [ids[0], ids[-1]] == [vocabulary.start, vocabulary.separator]
        text = ids[1:-1]
        read.append(text[text < blocks.vocab_size])
    step = _BLOCKS["length"] - _BLOCKS["overlap"]
    stream = np.concatenate([*(blocks[item]["input_ids"][:step] for item in range(len(blocks)))])
    stream = stream[stream != blocks.end_of_text]
    # Sentences longer than the overlap are cut; none is read twice.
    assert 0.95 < len(np.concatenate(read)) / len(stream) <= 1.001
    pieces = vocabulary.tokenizer.decode(np.concatenate(read[:20])).splitlines()
    assert set(pieces[2:-2]) <= set(vocabulary.tokenizer.decode(stream[:4000]).splitlines())


class _Texts(list[dict[str, Any]]):
    """Texts other than those of a TokenDataset."""

    length, options = 8, types.MappingProxyType({"overlap": 0})


def test_removed_documents_are_one_gap(vocabulary: Any) -> None:
    end, word = vocabulary.end_of_text, vocabulary.tokenizer.encode("a", add_special_tokens=False)
    # Removed documents consist of end-of-text.
    for text, expected in [
        ([end, *word, end, end, end, *word, end, end], [*word, vocabulary.separator, *word]),
        ([end] * 8, []),
    ]:
        examples = _EXAMPLE["Examples"]("roberta", _Texts([{"input_ids": np.array(text)}]), vocabulary, 1, 0)
        example = _arrays(examples[0])
        ids = np.where(example["labels"] == -100, example["input_ids"], example["labels"])
        assert ids.tolist() == [vocabulary.start, *expected, vocabulary.separator]


@pytest.mark.parametrize("objective", ["bert", "albert", "bart"])
def test_short_texts_have_labels(objective: str, vocabulary: Any) -> None:
    words = vocabulary.tokenizer.encode("a class is. It\nhas", add_special_tokens=False)
    texts = _Texts({"input_ids": np.array(words[:length])} for length in range(1, len(words)))
    examples = _EXAMPLE["Examples"](objective, texts, vocabulary, 200, 0)
    assert all(max(examples[number]["labels"]) >= 0 for number in range(len(examples)))


def test_infilling_and_permutation_keep_seven_tenths_of_the_tokens(sample: Any, vocabulary: Any) -> None:
    sources, targets = ([each[name] for each in sample["bart"]] for name in ("input_ids", "labels"))
    originals = sum(len(target) - 2 for target in targets)
    kept = sum(int((~vocabulary.is_special[source]).sum()) for source in sources)
    masks = sum(int((source == vocabulary.mask).sum()) for source in sources)
    assert kept / originals == pytest.approx(0.7, abs=_margin(len(sources)))
    assert masks / originals == pytest.approx(0.1, abs=_margin(len(sources)) / 3)
    permuted = 0
    for source, target in zip(sources[:200], targets, strict=False):
        kept_ids, counts = np.unique(source[~vocabulary.is_special[source]], return_counts=True)
        assert (counts <= [np.sum(target == id) for id in kept_ids]).all()
        permuted += not _is_subsequence(source[~vocabulary.is_special[source]].tolist(), target.tolist())
    assert permuted > 180


def _is_subsequence(part: list[int], whole: list[int]) -> bool:
    rest = iter(whole)
    return all(id in rest for id in part)


@pytest.mark.parametrize("count", [550, pytest.param(5500, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("objective", "shares"), [("albert", [0, 6 / 11, 3 / 11, 2 / 11]), ("bart", None)])
def test_the_lengths_of_spans_have_the_distribution_of_the_paper(
    objective: str,
    shares: list[float] | None,
    count: int,
    tokens: str,
    vocabulary: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    examples, lengths = _examples(objective, tokens, vocabulary, count), []

    def place(wanted: Any, size: int, rng: Any) -> list[tuple[int, int]]:
        spans: list[tuple[int, int]] = _EXAMPLE["place_spans"](wanted, size, rng)
        ends = [-1, *(start + length for start, length in spans)]
        assert all(end < start for end, (start, _) in zip(ends, spans, strict=False))
        assert ends[-1] <= size
        lengths.extend(length for _, length in spans)
        return spans

    monkeypatch.setitem(_EXAMPLE["Examples"].bart.__globals__, "place_spans", place)
    for number in range(len(examples)):
        _ = examples[number]
    probabilities = np.array(shares or [*poisson.pmf(range(10), 3), poisson.sf(9, 3)])
    counts = np.bincount(np.minimum(lengths, len(probabilities) - 1), minlength=len(probabilities))
    possible = probabilities > 0
    assert counts[~possible].sum() == 0
    assert chisquare(counts[possible], len(lengths) * probabilities[possible]).pvalue > 0.001


def test_the_words_of_an_ngram_are_complete(sample: Any, vocabulary: Any) -> None:
    for example in sample["albert"][:300]:
        labels = example["labels"]
        ids = np.where(labels == -100, example["input_ids"], labels)
        inside = np.flatnonzero(~vocabulary.is_special[ids[1:]] & ~vocabulary.is_special[ids[:-1]]) + 1
        inside = inside[~vocabulary.starts_word[ids[inside]]]
        assert ((labels[inside] == -100) == (labels[inside - 1] == -100)).all()


def test_masks_of_bert_repeat_after_ten_epochs_and_those_of_roberta_never(tokens: str, vocabulary: Any) -> None:
    for objective, repeats in (("bert", True), ("roberta", False)):
        size = len(webtext.TokenDataset(tokens, **(_BLOCKS if objective == "roberta" else _TEXTS)))
        examples = _examples(objective, tokens, vocabulary, 11 * size)
        places = [
            np.flatnonzero(np.array(examples.order[epoch * size : (epoch + 1) * size]) == 5) for epoch in (0, 1, 10)
        ]
        first, next_epoch, tenth = (
            examples[epoch * size + int(place[0])]["input_ids"] for epoch, place in zip((0, 1, 10), places, strict=True)
        )
        assert first != next_epoch
        assert (first == tenth) is repeats


@pytest.mark.parametrize("objective", _OBJECTIVES[:4])
def test_runs_with_the_same_seed_have_the_same_batches_with_any_number_of_ranks(
    objective: str, tokens: str, vocabulary: Any
) -> None:
    def rows(processes: int, seed: int = 0) -> list[list[Any]]:
        """The rows of each step, of all ranks."""
        steps: list[list[Any]] = [[] for _ in range(4)]
        for rank in range(processes):
            examples = _examples(objective, tokens, vocabulary, 64, seed=seed)
            collator = transformers.DataCollatorForSeq2Seq(vocabulary.tokenizer)
            loader = torch.utils.data.DataLoader(examples, 16 // processes, collate_fn=collator)
            sharded = prepare_data_loader(loader, num_processes=processes, process_index=rank, put_on_device=False)
            for step, batch in zip(steps, sharded, strict=True):
                ids, labels = batch["input_ids"].tolist(), batch["labels"].tolist()
                step += [
                    ([id for id in row if id != vocabulary.pad], [label for label in targets if label != -100])
                    for row, targets in zip(ids, labels, strict=True)
                ]
        return [sorted(step) for step in steps]

    alone = rows(1)
    assert alone == rows(1) == rows(2)
    assert alone != rows(1, seed=1)


@pytest.mark.parametrize("objective", _OBJECTIVES)
def test_the_loss_of_a_model_falls_below_that_of_unigrams(
    objective: str, tokens: str, pairs: Path, tmp_path: Path
) -> None:
    # Masked tokens are a seventh of the labels, and those of the others contain most of their source.
    steps = 200 if objective in _MASKED else 80
    sizes = "--length=32 --layers=1 --width=64 --batch-size=16 --learning-rate=4e-3".split()
    options = ["--tokens", tokens, "--output", str(tmp_path), f"--steps={steps}", *sizes]
    result = CliRunner().invoke(
        _EXAMPLE["main"], [objective, *options, *(["--pairs", str(pairs)] if objective == "seq2seq" else [])]
    )
    assert result.exception is None, result.output
    summary = re.search(r"held-out loss ([\d.]+), that of unigrams ([\d.]+);", result.stdout)
    assert summary
    assert float(summary[1]) < float(summary[2])
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    blank = "The <mask> of a class"
    assert tokenizer.decode(tokenizer(blank).input_ids) == "<s>The<mask> of a class</s>"
    if objective != "seq2seq":
        fill = transformers.pipeline("fill-mask", model=str(tmp_path))
        assert len({guess["token"] for guess in fill(blank)}) == 5
    if objective not in _MASKED:
        model = transformers.BartForConditionalGeneration.from_pretrained(tmp_path)
        written = model.generate(**tokenizer(blank, return_tensors="pt"), max_new_tokens=8)
        assert written[0, 1] == tokenizer.bos_token_id


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["seq2seq"], "seq2seq needs --pairs FILE"),
        (["bert", "--pairs", "one-column.tsv"], "the other objectives do not"),
        (["seq2seq", "--pairs", "one-column.tsv"], "one-column.tsv, line 2: expected a source, a tab and a target"),
    ],
)
def test_wrong_arguments_are_refused(
    arguments: list[str], message: str, tokens: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("one-column.tsv").write_text("a\tb\nc\n")
    result = CliRunner().invoke(_EXAMPLE["main"], [*arguments, "--tokens", tokens, "--output", "out"])
    assert result.exit_code == 2
    assert message in result.output
