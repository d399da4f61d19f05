"""The exported folder: its files, and that transformers compute the same from it."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
from pathlib import Path

import pytest
import safetensors
import safetensors.torch
import torch
from small_training import train_small
from token_folder import encode, write_token_folder
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from training_run import StopsAtStep

from pipelines.engine.manifest import read_manifest
from pipelines.engine.run import RunOptions
from pipelines.errors import ChangedRunError, DamagedShardError, InputError, WebtextError
from pipelines.model.inference.options import SamplingOptions
from pipelines.model.inference.sampling import generate
from pipelines.model.io import export as export_module
from pipelines.model.io.export import ExportConfig, export, model_card
from pipelines.model.io.hugging_face import from_hugging_face, to_hugging_face
from pipelines.model.io.model_folder import open_model

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


def test_the_folder_has_the_files_of_transformers(exported: Path) -> None:
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


def test_weights_have_the_names_and_orientation_of_transformers(exported: Path, trained: Path) -> None:
    own = open_model(str(trained)).model.state_dict()
    with safetensors.safe_open(exported / "model.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt"}
        assert file.get_tensor("transformer.h.1.attn.c_attn.weight").shape == (16, 48)
        assert torch.equal(file.get_tensor("transformer.h.0.mlp.c_fc.weight"), own["h.0.mlp.c_fc.weight"].T)
        assert "lm_head.weight" not in file.keys()  # noqa: SIM118 - not a dictionary
    back = from_hugging_face(to_hugging_face(own), "x")
    assert all(torch.equal(back[name], own[name]) for name in own)


def test_older_files_with_masks_and_without_a_prefix_are_read(trained: Path) -> None:
    own = open_model(str(trained)).model.state_dict()
    reference = {name.removeprefix("transformer."): weight for name, weight in to_hugging_face(own).items()}
    reference |= {"h.0.attn.bias": torch.ones(1, 1, 16, 16), "lm_head.weight": reference["wte.weight"]}
    assert from_hugging_face(reference, "x").keys() == own.keys()


def test_the_model_card_has_the_measured_figures(exported: Path, trained: Path) -> None:
    card = (exported / "README.md").read_text()
    figures = read_manifest(str(trained)).counts
    assert f"{figures['parameters']:,.0f} parameters: 2 layers, width 16" in card
    assert f"Held-out loss: {figures['held_out_loss']:.4f} nats per token" in card
    assert "`tiny`, 6 of 6 steps, 384 tokens" in card
    assert "| `learning_rate` | 0.01 |\n" in card
    assert "training started from random weights" in card
    assert hashlib.sha256((exported / "tokenizer.json").read_bytes()).hexdigest() in card
    assert card.startswith("---\nlibrary_name: transformers\n")
    assert "{" not in card.split("```python")[0]


def test_the_model_card_names_initial_weights(trained: Path) -> None:
    begun = {"initial_weights": {"source": "hugging-face", "sha256": "ab12"}}
    model = open_model(str(trained))
    card = model_card(dataclasses.replace(model, config=model.config | begun))
    assert "continued from existing weights (sha256 `ab12`, source `hugging-face`)" in card
    assert "random" not in card


def test_the_exported_model_is_verified(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    summary = export(ExportConfig(), model=str(trained), output=str(tmp_path / "good"), options=RunOptions())
    assert summary.extra["compared_logits"] == 16 * 300

    def wrong(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        named = to_hugging_face(tensors)
        # A square matrix, whose shape does not tell that it stands the wrong way.
        return named | {"transformer.h.1.attn.c_proj.weight": tensors["h.1.attn.c_proj.weight"].clone()}

    monkeypatch.setattr(export_module, "to_hugging_face", wrong)
    with pytest.raises(WebtextError, match=r"bad: the exported model differs .*: its logits differ by up"):
        export(ExportConfig(), model=str(trained), output=str(tmp_path / "bad"), options=RunOptions())
    assert not (tmp_path / "bad" / "manifest.json").exists()


def test_a_changed_tokenizer_is_detected(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(tokenizer_json: bytes, context: int, end_of_text: int) -> dict[str, bytes]:
        settings = json.loads(tokenizer_json)
        settings["normalizer"] = {"type": "Lowercase"}
        return {"tokenizer.json": json.dumps(settings).encode()}

    monkeypatch.setattr(export_module, "tokenizer_files", wrong)
    with pytest.raises(WebtextError, match=r"its tokenizer gives different ids"):
        export(ExportConfig(), model=str(trained), output=str(tmp_path / "bad"), options=RunOptions())


def test_a_model_with_logits_that_are_not_finite_is_refused(trained: Path, tmp_path: Path) -> None:
    for name in ("config.json", "tokenizer.json"):
        shutil.copy(trained / name, tmp_path)
    weights = safetensors.torch.load_file(trained / "model.safetensors")
    weights["ln_f.weight"][3] = float("nan")
    safetensors.torch.save_file(weights, tmp_path / "model.safetensors")
    with pytest.raises(InputError, match=r"the model's logits are not finite: training diverged"):
        export(ExportConfig(), model=str(tmp_path), output=str(tmp_path / "out"), options=RunOptions())


def test_an_untied_output_is_refused(exported: Path, tmp_path: Path) -> None:
    for name in ("config.json", "tokenizer.json"):
        shutil.copy(exported / name, tmp_path)
    weights = safetensors.torch.load_file(exported / "model.safetensors")
    weights["lm_head.weight"] = weights["transformer.wte.weight"] + 1
    safetensors.torch.save_file(weights, tmp_path / "model.safetensors")
    with pytest.raises(InputError, match=r"model.safetensors: lm_head.weight differs from wte.weight"):
        open_model(str(tmp_path))


def test_vocab_and_merges_define_the_same_tokenizer(exported: Path, tokenizer: Tokenizer) -> None:
    bare = models.BPE.from_file(str(exported / "vocab.json"), str(exported / "merges.txt"))
    rebuilt = Tokenizer(bare)
    rebuilt.pre_tokenizer = tokenizer.pre_tokenizer
    for text in TEXTS[:2]:
        assert rebuilt.encode(text).ids == tokenizer.encode(text).ids


def test_generate_reads_an_exported_folder(exported: Path, trained: Path) -> None:
    options = SamplingOptions(max_tokens=10)
    own = list(generate(str(trained), ["the cat"], 2, options, "cpu"))
    assert list(generate(str(exported), ["the cat"], 2, options, "cpu")) == own


def test_a_tokenizer_with_more_entries_than_the_model_is_refused(exported: Path, tmp_path: Path) -> None:
    shutil.copytree(exported, tmp_path / "out")
    (tmp_path / "out" / "manifest.json").unlink()
    tokenizer = Tokenizer.from_file(str(exported / "tokenizer.json"))
    tokenizer.add_tokens(["one more"])
    (tmp_path / "out" / "tokenizer.json").write_text(tokenizer.to_str())
    with pytest.raises(InputError, match=r"tokenizer.json: has 301 entries, the model 300"):
        next(generate(str(tmp_path / "out"), [""], 1, SamplingOptions(), "cpu"))


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json"])
def test_a_damaged_file_of_an_exported_folder_is_named(exported: Path, tmp_path: Path, name: str) -> None:
    shutil.copytree(exported, tmp_path / "out")
    file = tmp_path / "out" / name
    data = bytearray(file.read_bytes())
    data[-3] ^= 1
    file.write_bytes(data)
    with pytest.raises(DamagedShardError, match=rf"{name}: is damaged.*re-run `webtext export`"):
        next(generate(str(tmp_path / "out"), [""], 1, SamplingOptions(), "cpu"))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"eos_token_id": None}, r"config.json: eos_token_id is null, expected an integer"),
        ({"eos_token_id": [299, 1]}, r"eos_token_id is \[299, 1\], expected an integer"),
        ({"n_layer": "two"}, r'n_layer is "two", expected an integer'),
        ({"activation_function": "relu"}, r'config.json: activation_function is "relu", GPT-2 has "gelu_new"'),
        ({"layer_norm_epsilon": 1e-6}, r"layer_norm_epsilon is 1e-06, GPT-2 has 1e-05"),
        ({"scale_attn_weights": False}, r"scale_attn_weights is false"),
        ({"scale_attn_by_inverse_layer_idx": True}, r"scale_attn_by_inverse_layer_idx is true"),
        ({"tie_word_embeddings": False}, r"tie_word_embeddings is false"),
        ({"n_inner": 32}, r"n_inner is 32"),
    ],
)
def test_a_model_that_differs_from_gpt2_is_refused(
    exported: Path, tmp_path: Path, changed: dict[str, object], message: str
) -> None:
    for name in ("model.safetensors", "tokenizer.json"):
        shutil.copy(exported / name, tmp_path)
    config = json.loads((exported / "config.json").read_text()) | changed
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match=message):
        open_model(str(tmp_path))


def test_missing_settings_default_to_gpt2(exported: Path, tmp_path: Path) -> None:
    for name in ("model.safetensors", "tokenizer.json"):
        shutil.copy(exported / name, tmp_path)
    config = json.loads((exported / "config.json").read_text())
    required = ("model_type", "n_layer", "n_embd", "n_head", "n_positions", "vocab_size", "eos_token_id")
    (tmp_path / "config.json").write_text(json.dumps({name: config[name] for name in required}))
    assert open_model(str(tmp_path)).model.architecture == open_model(str(exported)).model.architecture


def exported_with(tokenizer: Tokenizer, documents: list[str], folder: Path) -> Path:
    """Train on a corpus that was encoded by another tokenizer, and export."""
    tokens = write_token_folder(folder / "tokenize", [encode(tokenizer, documents)], [], tokenizer)
    train_small(tokens, folder / "pretrain", "steps=3", "warmup_steps=1")
    output = str(folder / "export")
    export(ExportConfig(), model=str(folder / "pretrain"), output=output, options=RunOptions())
    return folder / "export"


@pytest.mark.parametrize("part", ["normalizer", "pre_tokenizer"])
def test_other_bpe_tokenizers_give_the_same_ids_in_transformers(
    tokenizer: Tokenizer, documents: list[str], tmp_path: Path, part: str
) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    foreign = Tokenizer.from_str(tokenizer.to_str())
    if part == "normalizer":
        foreign.normalizer = normalizers.Lowercase()
    else:
        foreign.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Split("e", "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)]
        )
    assert foreign.encode("The cat hears").ids != tokenizer.encode("The cat hears").ids
    output = exported_with(foreign, documents, tmp_path)
    assert not (output / "merges.txt").exists()  # an older loader would take them for GPT-2's
    reference = transformers.AutoTokenizer.from_pretrained(output)
    for text in (*TEXTS, "The Cat sees 1998 birds"):
        assert reference(text, truncation=False)["input_ids"] == foreign.encode(text).ids
    assert reference.eos_token_id == 299


def test_truncation_padding_and_added_tokens_are_removed(
    tokenizer: Tokenizer, documents: list[str], tmp_path: Path
) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    cutting = Tokenizer.from_str(tokenizer.to_str())
    cutting.post_processor = processors.TemplateProcessing(
        single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", 299)]
    )
    encoded = cutting.to_str()
    cutting.enable_truncation(3)
    cutting.enable_padding(length=12, pad_id=5)
    output = exported_with(cutting, documents, tmp_path)
    cutting = Tokenizer.from_str(encoded)
    prompt = "the cat sees the dog"
    (sample,) = generate(str(tmp_path / "pretrain"), [prompt], 1, SamplingOptions(max_tokens=6), "cpu")
    assert list(generate(str(output), [prompt], 1, SamplingOptions(max_tokens=6), "cpu")) == [sample]
    own = open_model(str(tmp_path / "pretrain"))
    assert own.tokenizer().encode(prompt, add_special_tokens=False).ids == tokenizer.encode(prompt).ids
    reference = transformers.AutoTokenizer.from_pretrained(output)
    written = Tokenizer.from_file(str(output / "tokenizer.json"))
    for text in (prompt, *TEXTS):
        assert reference(text)["input_ids"] == written.encode(text).ids == tokenizer.encode(text).ids


def test_an_exported_folder_is_not_exported_again(exported: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="already in Hugging Face format"):
        export(ExportConfig(), model=str(exported), output=str(tmp_path / "out"), options=RunOptions())


def test_an_unfinished_training_is_exported_with_a_note(tokens: str, exported: Path, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        train_small(tokens, tmp_path / "pretrain", options=RunOptions(progress=StopsAtStep(3)))
    notes = StopsAtStep()
    notes.start = lambda label, total, unit: None  # type: ignore[method-assign]
    output = tmp_path / "export"
    export(ExportConfig(), model=str(tmp_path / "pretrain"), output=str(output), options=RunOptions(progress=notes))
    assert ["training has not finished; exporting the checkpoint of step 2" in note for note in notes.notes] == [True]
    card = (output / "README.md").read_text()
    assert "Preset `tiny`, 2 of 6 steps" in card
    assert "These are the weights of the checkpoint of step 2." in card
    assert "Held-out loss at step 0: 5.7" in card
    train_small(tokens, tmp_path / "pretrain")
    with pytest.raises(ChangedRunError, match=r"its input 'model' has changed.*--overwrite"):
        export(ExportConfig(), model=str(tmp_path / "pretrain"), output=str(output), options=RunOptions())
    export(ExportConfig(), model=str(tmp_path / "pretrain"), output=str(output), options=RunOptions(overwrite=True))
    assert (output / "README.md").read_bytes() == (exported / "README.md").read_bytes()


def test_transformers_compute_the_same_logits(exported: Path, trained: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    reference = transformers.AutoModelForCausalLM.from_pretrained(exported).eval()
    assert type(reference).__name__ == "GPT2LMHeadModel"
    own = open_model(str(trained)).model
    tokens = torch.randint(0, 300, (4, 16), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(reference(tokens).logits, own(tokens), rtol=1e-5, atol=1e-5)


def test_transformers_generate_the_same_text(exported: Path, trained: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    reference = transformers.AutoModelForCausalLM.from_pretrained(exported).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(exported)
    prompt = tokenizer("the cat", return_tensors="pt")
    result = reference.generate(**prompt, do_sample=False, max_new_tokens=6)[0, prompt["input_ids"].shape[1] :]
    (own,) = generate(str(trained), ["the cat"], 1, SamplingOptions(max_tokens=6, temperature=0), "cpu")
    assert tokenizer.decode(result) == own.text
    assert reference.generation_config.pad_token_id == reference.generation_config.eos_token_id == 299


def test_transformers_read_the_same_tokenizer(exported: Path, tokenizer: Tokenizer) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    reference = transformers.AutoTokenizer.from_pretrained(exported)
    for text in TEXTS:
        assert reference(text)["input_ids"] == tokenizer.encode(text).ids
        assert reference.decode(tokenizer.encode(text).ids) == text
    assert reference.eos_token_id == reference.bos_token_id == 299
    assert reference.model_max_length == 16


def test_transformers_own_weights_give_the_same_logits_in_our_model() -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    from pipelines.model.network.gpt2 import Architecture, empty_model

    config = transformers.GPT2Config(
        vocab_size=101, n_positions=24, n_embd=32, n_layer=3, n_head=4, initializer_range=0.2
    )
    torch.manual_seed(0)
    reference = transformers.GPT2LMHeadModel(config).eval()
    own = empty_model(Architecture(layers=3, width=32, heads=4, context=24, vocab_size=101)).eval()
    own.load_state_dict(from_hugging_face(reference.state_dict(), "x"))
    tokens = torch.randint(0, 101, (3, 24), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        torch.testing.assert_close(own(tokens), reference(tokens).logits, rtol=1e-4, atol=1e-4)
