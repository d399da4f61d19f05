"""The Hugging Face folder: its files, and that transformers read from it what we computed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import safetensors
import torch
from conftest import train_small
from test_pretrain import StopsAtStep
from tokenizers import Tokenizer, models

from pipelines.core.errors import ChangedRunError, InputError
from pipelines.core.manifest import read_manifest
from pipelines.core.run import RunOptions
from pipelines.model.export import ExportConfig, export
from pipelines.model.hugging_face import from_hugging_face, to_hugging_face
from pipelines.model.model_folder import open_model
from pipelines.model.sampling import SamplingOptions, generate

FILES = {
    "config.json", "model.safetensors", "generation_config.json", "tokenizer.json", "tokenizer_config.json",
    "vocab.json", "merges.txt", "README.md",
}  # fmt: skip
TEXTS = ["the cat, größer than 日本 😀", "  two  spaces\n\n", "It runs.<|endoftext|>the dog", ""]


@pytest.fixture(scope="module")
def exported(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("exported") / "export"
    export(ExportConfig(), model=str(trained), output=str(output), options=RunOptions())
    return output


def test_the_folder_holds_what_transformers_look_for(exported: Path) -> None:
    assert {file.name for file in read_manifest(str(exported)).files} == FILES
    config = json.loads((exported / "config.json").read_text())
    assert (config["model_type"], config["n_layer"], config["n_embd"], config["n_positions"]) == ("gpt2", 2, 16, 16)
    assert config["eos_token_id"] == config["bos_token_id"] == 299
    vocab = json.loads((exported / "vocab.json").read_text())
    assert vocab["<|endoftext|>"] == 299
    assert sorted(vocab.values()) == list(range(300))
    merges = (exported / "merges.txt").read_text().splitlines()
    assert merges[0] == "#version: 0.2"
    assert all("".join(merge.split(" ")) in vocab for merge in merges[1:])


def test_weights_stand_under_their_names_and_turned(exported: Path, trained: Path) -> None:
    ours = open_model(str(trained)).model.state_dict()
    with safetensors.safe_open(exported / "model.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt"}
        assert file.get_tensor("transformer.h.1.attn.c_attn.weight").shape == (16, 48)
        assert torch.equal(file.get_tensor("transformer.h.0.mlp.c_fc.weight"), ours["h.0.mlp.c_fc.weight"].T)
        assert "lm_head.weight" not in file.keys()  # noqa: SIM118 - it is no dictionary
    back = from_hugging_face(to_hugging_face(ours))
    assert all(torch.equal(back[name], ours[name]) for name in ours)


def test_older_files_with_masks_and_without_a_prefix_are_read(trained: Path) -> None:
    ours = open_model(str(trained)).model.state_dict()
    theirs = {name.removeprefix("transformer."): weight for name, weight in to_hugging_face(ours).items()}
    theirs |= {"h.0.attn.bias": torch.ones(1, 1, 16, 16), "lm_head.weight": theirs["wte.weight"]}
    assert from_hugging_face(theirs).keys() == ours.keys()


def test_the_model_card_says_what_was_measured(exported: Path, trained: Path) -> None:
    card = (exported / "README.md").read_text()
    figures = read_manifest(str(trained)).counts
    assert f"{figures['parameters']:,.0f} parameters: 2 layers, width 16" in card
    assert f"Held-out loss: {figures['held_out_loss']:.4f} nats a token" in card
    assert "`tiny` for 6 of 6 steps, 384 tokens" in card
    assert "- learning_rate: 0.01\n" in card


def test_the_tokenizer_files_alone_are_the_tokenizer(exported: Path, tokenizer: Tokenizer) -> None:
    bare = models.BPE.from_file(str(exported / "vocab.json"), str(exported / "merges.txt"))
    rebuilt = Tokenizer(bare)
    rebuilt.pre_tokenizer = tokenizer.pre_tokenizer
    for text in TEXTS[:2]:
        assert rebuilt.encode(text).ids == tokenizer.encode(text).ids


def test_generate_reads_an_exported_folder(exported: Path, trained: Path) -> None:
    options = SamplingOptions(max_tokens=10)
    ours = list(generate(str(trained), ["the cat"], 2, options, "cpu"))
    assert list(generate(str(exported), ["the cat"], 2, options, "cpu")) == ours


def test_a_tokenizer_with_more_entries_than_the_model_is_refused(exported: Path, tmp_path: Path) -> None:
    shutil.copytree(exported, tmp_path / "out")
    tokenizer = Tokenizer.from_file(str(exported / "tokenizer.json"))
    tokenizer.add_tokens(["one more"])
    (tmp_path / "out" / "tokenizer.json").write_text(tokenizer.to_str())
    with pytest.raises(InputError, match=r"tokenizer.json: has 301 entries, the model 300"):
        next(generate(str(tmp_path / "out"), [""], 1, SamplingOptions(), "cpu"))


def test_an_exported_folder_is_not_exported_again(exported: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is a Hugging Face folder already"):
        export(ExportConfig(), model=str(exported), output=str(tmp_path / "out"), options=RunOptions())


def test_an_unfinished_training_is_exported_with_a_word_about_it(tokens: str, exported: Path, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        train_small(tokens, tmp_path / "pretrain", options=RunOptions(progress=StopsAtStep(3)))
    notes = StopsAtStep()
    notes.start = lambda label, total, unit: None  # type: ignore[method-assign]
    output = tmp_path / "export"
    export(ExportConfig(), model=str(tmp_path / "pretrain"), output=str(output), options=RunOptions(progress=notes))
    assert ["training is not finished; this is its checkpoint of step 2" in note for note in notes.notes] == [True]
    card = (output / "README.md").read_text()
    assert "for 2 of 6 steps" in card
    assert "This is the checkpoint of step 2: it is unfinished." in card
    assert "not measured on held-out text" in card
    train_small(tokens, tmp_path / "pretrain")
    with pytest.raises(ChangedRunError, match=r"its input model has changed.*--overwrite"):
        export(ExportConfig(), model=str(tmp_path / "pretrain"), output=str(output), options=RunOptions())
    export(ExportConfig(), model=str(tmp_path / "pretrain"), output=str(output), options=RunOptions(overwrite=True))
    assert (output / "README.md").read_bytes() == (exported / "README.md").read_bytes()


def test_transformers_compute_the_same_logits(exported: Path, trained: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(exported).eval()
    assert type(theirs).__name__ == "GPT2LMHeadModel"
    ours = open_model(str(trained)).model
    tokens = torch.randint(0, 300, (4, 16), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(theirs(tokens).logits, ours(tokens), rtol=1e-5, atol=1e-5)


def test_transformers_read_the_same_tokenizer(exported: Path, tokenizer: Tokenizer) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    theirs = transformers.AutoTokenizer.from_pretrained(exported)
    for text in TEXTS:
        assert theirs(text)["input_ids"] == tokenizer.encode(text).ids
        assert theirs.decode(tokenizer.encode(text).ids) == text
    assert theirs.eos_token_id == theirs.bos_token_id == 299
    assert theirs.model_max_length == 16


def test_transformers_own_weights_give_the_same_logits_in_our_model() -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    from pipelines.model.gpt2 import Architecture, empty_model

    config = transformers.GPT2Config(
        vocab_size=101, n_positions=24, n_embd=32, n_layer=3, n_head=4, initializer_range=0.2
    )
    torch.manual_seed(0)
    theirs = transformers.GPT2LMHeadModel(config).eval()
    ours = empty_model(Architecture(layers=3, width=32, heads=4, context=24, vocab_size=101)).eval()
    ours.load_state_dict(from_hugging_face(theirs.state_dict()))
    tokens = torch.randint(0, 101, (3, 24), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        torch.testing.assert_close(ours(tokens), theirs(tokens).logits, rtol=1e-4, atol=1e-4)
