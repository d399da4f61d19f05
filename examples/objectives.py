"""Train BERT, RoBERTa, ALBERT, BART or a translation model on the shards of `webtext tokenize`, with transformers.

python examples/objectives.py roberta --tokens my-corpus/tokenize --output roberta
"""

from __future__ import annotations

from typing import Any

import click
import numpy as np
import numpy.typing as npt
import torch
import transformers as hf
from tokenizers import AddedToken, Tokenizer, processors

import webtext

Ids = npt.NDArray[np.int64]
Rng = np.random.Generator
Example = dict[str, Any]
SPECIAL = ("<pad>", "<s>", "</s>", "<mask>")


class Vocabulary:
    """The tokens of the shards, with the same ids, and after them special tokens."""

    def __init__(self, dataset: webtext.TokenDataset, **options: Any) -> None:
        tokens, self.end_of_text = Tokenizer.from_file(dataset.tokenizer_path), dataset.end_of_text
        texts = [tokens.decode([id], skip_special_tokens=False) for id in range(dataset.vocab_size)]
        # The token of a word includes the space before it, and so does the blank.
        tokens.add_special_tokens([AddedToken(name, lstrip=name == "<mask>") for name in SPECIAL])
        self.pad, self.start, self.separator, self.mask = map(tokens.get_vocab().__getitem__, SPECIAL)
        ids = [("<s>", self.start), ("</s>", self.separator)]
        tokens.post_processor = processors.TemplateProcessing("<s> $A </s>", "<s> $A </s> $B:1 </s>:1", ids)
        self.tokenizer = hf.PreTrainedTokenizerFast(
            tokenizer_object=tokens, pad_token="<pad>", bos_token="<s>", cls_token="<s>", eos_token="</s>",
            sep_token="</s>", mask_token="<mask>", **options,
        )  # fmt: skip
        self.size = max(tokens.get_vocab().values()) + 1
        self.is_special = np.isin(range(self.size), [*map(tokens.get_vocab().__getitem__, SPECIAL), self.end_of_text])
        self.starts_word = np.array([text[:1].isspace() for text in texts])
        self.ends_sentence = np.array([text.rstrip(" ").endswith((".", "!", "?", "\n")) for text in texts])
        self.ends_sentence[self.end_of_text] = True

    def sentence_starts(self, text: Ids) -> Ids:
        """Return where sentences start, except the first: after tokens that end with . ! ? or a line break."""
        ends = self.ends_sentence[text]
        return np.flatnonzero(ends[:-1] & ~ends[1:]) + 1

    def cut(self, text: Ids, rng: Rng) -> int:
        """Return the start of a random sentence, except the first; the middle of a single sentence."""
        starts = self.sentence_starts(text)
        return int(rng.choice(starts)) if len(starts) else len(text) // 2


class Examples(torch.utils.data.Dataset[Example]):
    """The first `count` examples of an objective, epoch after epoch, each of which is a permutation of the texts.

    Random numbers depend on the seed, the epoch and the text only: any number of processes gets the same examples.
    BERT's masks are drawn before training, ten per text; the others in every epoch (RoBERTa, section 4.1).
    """

    def __init__(self, objective: str, texts: Any, vocabulary: Vocabulary, count: int, seed: int) -> None:
        self.make, self.texts, self.vocabulary, self.seed = getattr(self, objective), texts, vocabulary, seed
        self.draws = 10 if objective == "bert" else count
        epochs = (np.random.default_rng([seed, epoch]) for epoch in range(count // len(texts) + 1))
        self.order = np.concatenate([rng.permutation(len(texts)) for rng in epochs])[:count].tolist()

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, number: int) -> Any:
        epoch, item = number // len(self.texts), self.order[number]
        return self.make(rng=np.random.default_rng([self.seed, epoch % self.draws, item]), **self.texts[item])

    def bert(self, input_ids: Ids, rng: Rng) -> Example:
        """Mask 15% of the tokens; predict whether the second segment is the next one, or a random one of the corpus.

        Source: BERT (Devlin et al. 2019), section 3.1 and appendix A.2.
        """
        first, second = np.split(input_ids, [self.vocabulary.cut(input_ids, rng)])
        is_random = rng.random() < 0.5
        if is_random:
            other = self.texts[int(rng.integers(len(self.texts)))]["input_ids"]
            # As long as the next segment: its length must not show which of them it is.
            start = self.vocabulary.cut(other[: max(0, len(other) - len(second))], rng)
            second = other[start : start + len(second)]
        return self.mask([first, second], rng) | {"next_sentence_label": int(is_random)}

    def roberta(self, input_ids: Ids, rng: Rng) -> Example:
        """Mask 15% of the tokens of full sentences, which may be of several documents, with separators in between.

        They are the sentences that begin in the block, but not in its overlap with the next block, in which the last
        one ends. Source: RoBERTa (Liu et al. 2019), sections 4.1 and 4.2.
        """
        starts = self.vocabulary.sentence_starts(input_ids)
        count = np.searchsorted(starts, len(input_ids) - self.texts.options["overlap"], side="right")
        text = input_ids[starts[0] : [*starts, len(input_ids)][count]] if count else input_ids[1:]
        is_end = text == self.vocabulary.end_of_text
        is_kept = ~is_end | ~np.append(is_end[1:], True)  # removed documents consist of <|endoftext|>
        return self.mask([np.where(is_end, self.vocabulary.separator, text)[is_kept]], rng)

    def albert(self, input_ids: Ids, rng: Rng) -> Example:
        """Mask n-grams; predict whether two segments are swapped (ALBERT, Lan et al. 2020, sections 3.1 and 4.1)."""
        is_swapped = rng.random() < 0.5
        segments = np.split(input_ids, [self.vocabulary.cut(input_ids, rng)])[:: -1 if is_swapped else 1]
        return self.mask(segments, rng, ngrams=True) | {"sentence_order_label": int(is_swapped)}

    def bart(self, input_ids: Ids, rng: Rng) -> Example:
        """Permute sentences and replace spans, 30% of the tokens, with one mask each; the target is the original text.

        The lengths of spans are Poisson with mean 3, and may be 0. Source: BART (Lewis et al. 2020), section 2.2 and 3.
        """
        sentences = np.split(input_ids, self.vocabulary.sentence_starts(input_ids))
        text = np.concatenate([sentences[number] for number in rng.permutation(len(sentences))])
        lengths = rng.poisson(3, int(0.3 / 3 * len(text) + rng.random()))
        parts, end = [], 0
        for start, length in place_spans(lengths, len(text), rng):
            parts += [text[end:start], [self.vocabulary.mask]]
            end = start + length
        infilled = np.concatenate([*parts, text[end:]])
        return self.seq2seq(infilled[: self.texts.length].tolist(), input_ids.tolist(), rng)

    def seq2seq(self, input_ids: list[int], labels: list[int], rng: Rng) -> Example:
        """Return a source and its target. Source: Transformer (Vaswani et al. 2017), section 3.1."""
        start, end = [self.vocabulary.start], [self.vocabulary.separator]
        return {"input_ids": [*start, *input_ids, *end], "labels": [*start, *labels, *end]}

    def mask(self, segments: list[Ids], rng: Rng, ngrams: bool = False) -> Example:
        """Join segments, and mask 80% of 15% of their tokens, replace 10%, and leave 10% (BERT, section 3.1)."""
        parts = [np.append(segment, self.vocabulary.separator) for segment in segments]
        ids = np.concatenate([[self.vocabulary.start], *parts])
        types = np.repeat(range(len(parts)), [len(part) for part in parts])
        ordinary = np.flatnonzero(~self.vocabulary.is_special[ids])
        # Rounded up or down at random, so that the mean of short texts is 15%, too.
        count = min(len(ordinary), max(1, int(0.15 * len(ordinary) + rng.random())))
        chosen = self.choose_ngrams(ids, ordinary, rng) if ngrams else rng.choice(ordinary, count, replace=False)
        labels = np.full(len(ids), -100)
        labels[chosen] = ids[chosen]
        draws = rng.random(len(chosen))
        ids[chosen[draws < 0.8]] = self.vocabulary.mask
        ids[chosen[draws >= 0.9]] = rng.choice(np.flatnonzero(~self.vocabulary.is_special), sum(draws >= 0.9))
        return {"input_ids": ids.tolist(), "token_type_ids": [0, *types.tolist()], "labels": labels.tolist()}

    def choose_ngrams(self, ids: Ids, ordinary: Ids, rng: Rng) -> Ids:
        """Return the positions of n-grams, 15% of the words of each segment; n is up to 3, with a share in 1/n."""
        sizes, shares, chosen = np.array([1, 2, 3]), np.array([6, 3, 2]) / 11, list[int]()
        for positions in np.split(ordinary, np.flatnonzero(np.diff(ordinary) > 1) + 1):
            words = [0, *(np.flatnonzero(self.vocabulary.starts_word[ids[positions[1:]]]) + 1), len(positions)]
            count = int(0.15 * (len(words) - 1) / (shares @ sizes) + rng.random())
            for start, length in place_spans(rng.choice(sizes, count, p=shares), len(words) - 1, rng):
                chosen += positions[words[start] : words[start + length]].tolist()
        # A short text may have no room for those that were drawn, but a batch without labels has no loss.
        return np.array(chosen) if chosen else self.choose_ngrams(ids, ordinary, rng)


def place_spans(lengths: Ids, size: int, rng: Rng) -> list[tuple[int, int]]:
    """Return the start and length of those spans that have room in `size` positions, with one or more in between."""
    lengths = lengths[np.cumsum(lengths + 1) <= size + 1]
    gaps = np.sort(rng.choice(size + 1 - lengths.sum(), len(lengths), replace=False))
    return list(zip((gaps + np.cumsum(lengths) - lengths).tolist(), lengths.tolist(), strict=True))


def read_pairs(path: str, tokenizer: Any, length: int) -> list[Example]:
    """Return the pairs of texts of a TSV file, cut to a length; raise UsageError for a line without one tab."""
    with open(path, encoding="utf-8") as lines:
        rows = [line.rstrip("\n").split("\t") for line in lines]
    if bad := [number for number, row in enumerate(rows, 1) if len(row) != 2]:
        raise click.UsageError(f"{path}, line {bad[0]}: expected a source, a tab and a target")
    if len(rows) < 20:
        raise click.UsageError(f"{path}: expected at least 20 pairs, found {len(rows)}; each 20th is held out")
    pairs = [tokenizer(row, add_special_tokens=False).input_ids for row in rows]
    return [{"input_ids": source[:length], "labels": target[:length]} for source, target in pairs]


def make_model(objective: str, vocabulary: Vocabulary, length: int, layers: int, width: int) -> Any:
    """Return the network of an objective with random weights, with one head per 64 dimensions as in the papers."""
    shared: Any = {"vocab_size": vocabulary.size, "max_position_embeddings": length, "pad_token_id": vocabulary.pad}
    scale = 0.02 * (768 / width) ** 0.5  # that of the papers, at their width
    encoder: Any = {"hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": width // 64, **shared}
    encoder |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}  # for many epochs; slow on CPUs
    encoder |= {"intermediate_size": 4 * width, "initializer_range": scale}
    sides = {"layers": layers, "attention_heads": width // 64, "ffn_dim": 4 * width}
    both: Any = {f"{side}_{name}": size for side in ("encoder", "decoder") for name, size in sides.items()}
    both |= {"d_model": width, "init_std": scale, "dropout": 0.0, "bos_token_id": vocabulary.start, **shared}
    both |= dict.fromkeys(("eos_token_id", "forced_eos_token_id", "decoder_start_token_id"), vocabulary.separator)
    if objective == "bert":
        return hf.BertForPreTraining(hf.BertConfig(**encoder))
    if objective == "roberta":
        # RobertaModel is the same network, but numbers positions from the id of <pad>, here the vocabulary's end.
        return hf.BertForMaskedLM(hf.BertConfig(**encoder, type_vocab_size=1))
    if objective == "albert":  # with a factorized embedding, and the same weights in all layers
        return hf.AlbertForPreTraining(hf.AlbertConfig(**encoder, embedding_size=min(128, width // 2)))
    return hf.BartForConditionalGeneration(hf.BartConfig(**both))


@click.command()
@click.argument("objective", type=click.Choice(["bert", "roberta", "albert", "bart", "seq2seq"]))
@click.option("--tokens", required=True, type=click.Path(exists=True), help="Folder of `webtext tokenize`.")
@click.option("--output", required=True, help="Folder for the model and its tokenizer.")
@click.option("--pairs", type=click.Path(exists=True), help="For seq2seq: TSV file, a source and a target per line.")
@click.option("--length", default=32, show_default=True, help="Maximum tokens of an example.")
@click.option("--layers", default=2, show_default=True, help="Layers, of the encoder and of the decoder.")
@click.option("--width", type=click.IntRange(64), default=128, show_default=True, help="Hidden size, a multiple of 64.")
@click.option("--steps", default=1000, show_default=True, type=click.IntRange(1), help="Steps of training.")
@click.option("--batch-size", default=32, show_default=True, help="Examples per step and process.")
@click.option("--learning-rate", default=2e-3, show_default=True, help="Highest learning rate, after 10% of the steps.")
@click.option("--seed", default=0, show_default=True, help="Seed of all random numbers.")
def main(
    objective: str, tokens: str, output: str, pairs: str | None, length: int, steps: int, batch_size: int,
    learning_rate: float, seed: int, **sizes: int,
) -> None:  # fmt: skip
    """Train a model from scratch, and compare its held-out loss with that of unigrams."""
    if (objective == "seq2seq") != bool(pairs):
        raise click.UsageError("seq2seq needs --pairs FILE; the other objectives do not have it")
    # Examples have up to 3 special tokens; those of roberta have 2, and leave out the first token of their block.
    block = {"length": length - 1, "overlap": min(64, length // 4)}
    options: Any = block if objective == "roberta" else {"length": length - 3, "documents": True}
    texts: Any = {split: webtext.TokenDataset(tokens, split, **options) for split in ("train", "held-out")}
    inputs = ["input_ids", "attention_mask", "token_type_ids"][: 2 if objective in ("bart", "seq2seq") else 3]
    vocabulary = Vocabulary(texts["train"], model_max_length=length, model_input_names=inputs)
    if pairs:
        rows = read_pairs(pairs, vocabulary.tokenizer, length - 3)
        texts = {"train": [row for number, row in enumerate(rows) if number % 20], "held-out": rows[::20]}
    training = hf.TrainingArguments(
        output, max_steps=steps, per_device_train_batch_size=batch_size, learning_rate=learning_rate, warmup_steps=0.1,
        adam_beta2=0.98, seed=seed, train_sampling_strategy="sequential", save_strategy="no",
        logging_steps=max(1, steps // 10), dataloader_pin_memory=torch.cuda.is_available(),
    )  # fmt: skip
    count = steps * training.train_batch_size * training.world_size
    train = Examples(objective, texts["train"], vocabulary, count, seed)
    held_out = Examples(objective, texts["held-out"], vocabulary, min(256, len(texts["held-out"])), seed)
    collator = hf.DataCollatorForSeq2Seq(vocabulary.tokenizer)
    hf.set_seed(seed)
    model = make_model(objective, vocabulary, length, **sizes)
    trainer = hf.Trainer(model, training, collator, train, processing_class=vocabulary.tokenizer)
    trainer.train()
    trainer.save_model()
    # Without what predicts whether segments follow each other: unigrams have no part in that.
    saved = hf.AutoModelForMaskedLM.from_pretrained(output)
    loss = hf.Trainer(saved, training, collator, processing_class=vocabulary.tokenizer).evaluate(held_out)["eval_loss"]
    some = [np.concatenate([part[n]["labels"] for n in range(min(len(part), 5000))]) for part in (train, held_out)]
    counts, held_out_counts = (np.bincount(labels[labels >= 0], minlength=vocabulary.size) for labels in some)
    unigrams = np.average(np.log(counts.sum() + vocabulary.size) - np.log(counts + 1), weights=held_out_counts)
    print(f"{objective}: held-out loss {loss:.2f}, that of unigrams {unigrams:.2f}; saved in {output}")


if __name__ == "__main__":
    main()
