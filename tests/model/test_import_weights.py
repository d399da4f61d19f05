"""Imported weights: the same logits as at their origin, and refusal of anything that does not fit."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from nanogpt_model import SIZES, nanogpt_logits, nanogpt_weights, save_nanogpt
from tokenizers import Tokenizer

from pipelines.engine.run import RunOptions
from pipelines.errors import DamagedShardError, InputError
from pipelines.model.io.export import ExportConfig, export
from pipelines.model.io.hugging_face import model_config, to_hugging_face
from pipelines.model.io.import_weights import ImportedModel, check_compatible, import_weights
from pipelines.model.io.model_folder import open_model
from pipelines.model.network.gpt2 import GPT2, Architecture

ARCHITECTURE = Architecture(layers=2, width=16, heads=2, context=12, vocab_size=300)
TOKENS = torch.randint(0, 250, (3, 12), generator=torch.Generator().manual_seed(1))


def logits(imported: ImportedModel, tokens: torch.Tensor = TOKENS) -> torch.Tensor:
    model = GPT2(imported.architecture).eval()
    model.load_state_dict(imported.tensors)
    with torch.no_grad():
        result: torch.Tensor = model(tokens)
    return result


def our_names(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name.removeprefix("transformer."): weight for name, weight in weights.items() if name != "lm_head.weight"}


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    """A `ckpt.pt` of nanoGPT."""
    return save_nanogpt(tmp_path / "ckpt.pt", nanogpt_weights())


@pytest.fixture
def folder(tmp_path: Path, tokenizer: Tokenizer) -> Path:
    """A folder of transformers, written without them."""
    path = tmp_path / "theirs"
    path.mkdir()
    safetensors.torch.save_file(to_hugging_face(our_names(nanogpt_weights())), path / "model.safetensors")
    (path / "config.json").write_text(json.dumps(model_config(ARCHITECTURE, 299)))
    tokenizer.save(str(path / "tokenizer.json"))
    return path


def test_nanogpt_weights_give_the_same_logits(checkpoint: str) -> None:
    imported = import_weights(checkpoint)
    assert (imported.source, imported.architecture, imported.tokenizer_json) == ("nanogpt", ARCHITECTURE, None)
    assert imported.sha256 == hashlib.sha256(Path(checkpoint).read_bytes()).hexdigest()
    torch.testing.assert_close(
        logits(imported), nanogpt_logits(nanogpt_weights(), TOKENS, "tanh"), rtol=1e-4, atol=1e-4
    )


def test_the_exact_gelu_of_nanogpt_is_close_and_noted(checkpoint: str) -> None:
    imported = import_weights(checkpoint)
    off = (logits(imported) - nanogpt_logits(nanogpt_weights(), TOKENS)).abs().max().item()
    assert 1e-6 < off < 0.02
    assert any("tanh formula" in note for note in imported.notes)
    assert any("has no tokenizer" in note for note in imported.notes)


def test_a_nanogpt_folder_is_read(checkpoint: str) -> None:
    assert import_weights(str(Path(checkpoint).parent)).sha256 == import_weights(checkpoint).sha256


def test_a_compiled_model_with_masks_of_nanogpt_is_read(tmp_path: Path) -> None:
    weights = nanogpt_weights()
    named = {f"_orig_mod.{name}": weight for name, weight in weights.items()}
    named["_orig_mod.transformer.h.0.attn.bias"] = torch.ones(1, 1, 12, 12)
    imported = import_weights(save_nanogpt(tmp_path / "ckpt.pt", named))
    assert imported.tensors.keys() == our_names(weights).keys()
    assert all(torch.equal(imported.tensors[name], weight) for name, weight in our_names(weights).items())


def test_a_model_without_biases_gets_zeros_and_computes_the_same(tmp_path: Path) -> None:
    weights = nanogpt_weights(bias=False)
    imported = import_weights(save_nanogpt(tmp_path / "ckpt.pt", weights, bias=False))
    assert any("added 13 zero biases" in note for note in imported.notes)
    torch.testing.assert_close(logits(imported), nanogpt_logits(weights, TOKENS, "tanh"), rtol=1e-4, atol=1e-4)


def test_half_precision_is_copied_to_float32(tmp_path: Path) -> None:
    weights = {name: weight.half() for name, weight in nanogpt_weights().items()}
    path = save_nanogpt(tmp_path / "ckpt.pt", weights)
    imported = import_weights(path)
    assert {weight.dtype for weight in imported.tensors.values()} == {torch.float32}
    before = {name: weight.clone() for name, weight in imported.tensors.items()}
    Path(path).write_bytes(bytes(os.path.getsize(path)))  # nanoGPT, still training, writes its next checkpoint
    assert all(torch.equal(before[name], weight) for name, weight in imported.tensors.items())


def test_vocabulary_padding_is_cut_off(checkpoint: str) -> None:
    imported = import_weights(checkpoint, vocab_size=257)
    assert imported.architecture.vocab_size == 257
    assert torch.equal(imported.tensors["wte.weight"], nanogpt_weights()["lm_head.weight"][:257])
    assert "dropped the last 43 rows of its embedding" in imported.notes[-1]
    torch.testing.assert_close(logits(imported), logits(import_weights(checkpoint))[:, :, :257], rtol=1e-5, atol=1e-5)
    assert import_weights(checkpoint, vocab_size=300).architecture.vocab_size == 300
    assert import_weights(checkpoint, vocab_size=500).architecture.vocab_size == 300


def test_more_rows_than_padding_are_kept(tmp_path: Path) -> None:
    weights = nanogpt_weights(vocab_size=1400)
    path = save_nanogpt(tmp_path / "ckpt.pt", weights, model_args=SIZES | {"vocab_size": 1400, "bias": True})
    assert import_weights(path, vocab_size=300).architecture.vocab_size == 1400
    assert import_weights(path, vocab_size=377).architecture.vocab_size == 377


def test_a_folder_of_transformers_is_read(folder: Path, tokenizer: Tokenizer) -> None:
    imported = import_weights(str(folder))
    assert (imported.source, imported.architecture, imported.notes) == ("hugging-face", ARCHITECTURE, ())
    assert imported.tokenizer_json == (folder / "tokenizer.json").read_bytes()
    assert imported.sha256 == hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    assert all(torch.equal(imported.tensors[name], weight) for name, weight in our_names(nanogpt_weights()).items())
    check_compatible(imported, ARCHITECTURE, tokenizer.to_str().encode())


@pytest.mark.parametrize("kind", ["safetensors", "shards", "bin", "old bin"])
def test_transformers_models_give_the_same_logits(tmp_path: Path, kind: str) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    config = transformers.GPT2Config(
        vocab_size=300, n_positions=12, n_embd=16, n_layer=2, n_head=2, initializer_range=0.3, eos_token_id=299
    )
    torch.manual_seed(0)
    reference = transformers.GPT2LMHeadModel(config).eval()
    reference.save_pretrained(tmp_path, max_shard_size="5KB" if kind == "shards" else "1GB")
    if "bin" in kind:
        (tmp_path / "model.safetensors").unlink()
        zipped = kind == "bin"
        torch.save(reference.state_dict(), tmp_path / "pytorch_model.bin", _use_new_zipfile_serialization=zipped)
    assert (tmp_path / "model.safetensors.index.json").exists() == (kind == "shards")
    imported = import_weights(str(tmp_path))
    with torch.no_grad():
        torch.testing.assert_close(logits(imported), reference(TOKENS).logits, rtol=1e-4, atol=1e-4)


def test_shards_are_read_as_one(folder: Path) -> None:
    whole = import_weights(str(folder))
    weights = safetensors.torch.load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(weights)
    places = {name: f"model-0000{1 + index % 2}-of-00002.safetensors" for index, name in enumerate(names)}
    for file in set(places.values()):
        safetensors.torch.save_file({name: weights[name] for name in names if places[name] == file}, folder / file)
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": places}))
    imported = import_weights(str(folder))
    assert all(torch.equal(imported.tensors[name], weight) for name, weight in whole.tensors.items())
    index.write_text(json.dumps({"weight_map": {"wte.weight": "../elsewhere.safetensors"}}))
    with pytest.raises(InputError, match=r"index.json: does not list the weight files"):
        import_weights(str(folder))


def test_older_folders_have_vocabulary_and_merges_only(folder: Path, tokenizer: Tokenizer) -> None:
    (folder / "tokenizer.json").unlink()
    assert import_weights(str(folder)).tokenizer_json is None
    described = json.loads(tokenizer.to_str())
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in described["model"]["merges"]]
    (folder / "vocab.json").write_text(json.dumps(tokenizer.get_vocab()))
    (folder / "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges) + "\n")
    imported = import_weights(str(folder))
    assert imported.tokenizer_json is not None
    rebuilt = Tokenizer.from_str(imported.tokenizer_json.decode())
    assert rebuilt.encode("the cat, größer").ids == tokenizer.encode("the cat, größer").ids
    check_compatible(imported, ARCHITECTURE, tokenizer.to_str().encode())
    (folder / "vocab.json").write_text(json.dumps(tokenizer.get_vocab() | {"added": 5000}))
    imported = import_weights(str(folder))
    assert imported.tokenizer_json is None
    assert "the token ids of the weights are assumed to be those of the corpus" in imported.notes[0]


def test_pretrain_and_export_folders_are_read(trained: Path, tmp_path: Path) -> None:
    model = open_model(str(trained))
    imported = import_weights(str(trained))
    assert (imported.source, imported.architecture, imported.notes) == ("webtext", model.model.architecture, ())
    assert imported.sha256 == hashlib.sha256((trained / "model.safetensors").read_bytes()).hexdigest()
    assert imported.tokenizer_json == model.tokenizer_json
    shutil.copytree(trained, tmp_path / "unfinished")
    for name in ("manifest.json", "model.safetensors"):
        (tmp_path / "unfinished" / name).unlink()
    assert "the weights of step 6" in import_weights(str(tmp_path / "unfinished")).notes[0]
    export(ExportConfig(), model=str(trained), output=str(tmp_path / "export"), options=RunOptions())
    exported = import_weights(str(tmp_path / "export"))
    assert exported.source == "hugging-face"
    assert all(torch.equal(exported.tensors[name], weight) for name, weight in imported.tensors.items())
    check_compatible(exported, imported.architecture, model.tokenizer_json)
    weights = tmp_path / "export" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    with pytest.raises(DamagedShardError, match=r"model.safetensors: is damaged"):
        import_weights(str(tmp_path / "export"))


class Runs:
    """A pickle that would make a folder when it is read."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self.path,)


# torch says of a pickle that it did not write which protocol it has.
@pytest.mark.filterwarnings("ignore:Detected pickle protocol 4:UserWarning")
@pytest.mark.parametrize("kind", ["zip", "old", "plain", "bin"])
def test_no_pickle_is_executed(tmp_path: Path, folder: Path, kind: str) -> None:
    made = tmp_path / "made"
    file = folder / "pytorch_model.bin" if kind == "bin" else tmp_path / "ckpt.pt"
    saved = {"model": Runs(made), "model_args": SIZES}
    if kind == "plain":
        file.write_bytes(pickle.dumps(saved))
    else:
        torch.save(saved, file, _use_new_zipfile_serialization=kind != "old")
    (folder / "model.safetensors").unlink()
    with pytest.raises(InputError, match=rf"{file.name}: not a torch.save file, or one with more than weights"):
        import_weights(str(folder if kind == "bin" else file))
    assert not made.exists()
    with pytest.raises(pickle.UnpicklingError):
        torch.load(file, weights_only=True)


def test_damaged_files_are_named(checkpoint: str) -> None:
    data = Path(checkpoint).read_bytes()
    source = random.Random(1)
    broken = [b"", data[: len(data) // 2], data[:100], data[2:], b"\x80\x02garbage", bytes(source.randbytes(500))]
    for content in broken:
        Path(checkpoint).write_bytes(content)
        with pytest.raises(InputError, match=r"ckpt.pt: not a torch.save file"):
            import_weights(checkpoint)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"model": [1]}, r"ckpt.pt: not a nanoGPT checkpoint"),
        ({"model_args": None}, r"ckpt.pt: not a nanoGPT checkpoint"),
        ({"model_args": {"n_layer": 2}}, r"model_args has no n_embd"),
        ({"model_args": SIZES | {"use_rmsnorm": True}}, r"model_args has use_rmsnorm, which nanoGPT does not have"),
        ({"model_args": SIZES | {"n_layer": 3}}, r"weight h.2.attn.c_attn.bias is missing"),
        ({"model_args": SIZES | {"n_layer": 1}}, r"weight h.1.attn.c_attn.bias is unexpected"),
        ({"model_args": SIZES | {"n_embd": 32, "n_head": 4}}, r"wte.weight has shape \[300, 16\].*\[300, 32\]"),
        ({"model": {"transformer.wte.weight": "text"}}, r"'transformer.wte.weight' is a str, expected weights only"),
    ],
)
def test_other_pickles_and_models_are_refused(tmp_path: Path, changed: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        import_weights(save_nanogpt(tmp_path / "ckpt.pt", nanogpt_weights(), **changed))


def test_an_untied_output_is_refused(tmp_path: Path, folder: Path) -> None:
    untied = {"lm_head.weight": torch.ones(300, 16)}
    with pytest.raises(InputError, match=r"ckpt.pt: lm_head.weight differs from wte.weight"):
        import_weights(save_nanogpt(tmp_path / "ckpt.pt", nanogpt_weights() | untied))
    weights = safetensors.torch.load_file(folder / "model.safetensors")
    safetensors.torch.save_file(weights | untied, folder / "model.safetensors")
    with pytest.raises(InputError, match=r"theirs: lm_head.weight differs from wte.weight"):
        import_weights(str(folder))


def test_weights_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    weights = nanogpt_weights()
    weights["transformer.h.1.mlp.c_fc.weight"][0, 0] = torch.nan
    with pytest.raises(InputError, match=r"h.1.mlp.c_fc.weight has values that are not finite"):
        import_weights(save_nanogpt(tmp_path / "ckpt.pt", weights))


def test_wrong_folders_are_refused(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(InputError, match=r"nowhere: no such file or folder; name a model's folder"):
        import_weights(str(tmp_path / "nowhere"))
    with pytest.raises(InputError, match=r"has no model \(neither config.json nor ckpt.pt\)"):
        import_weights(str(tmp_path))
    with pytest.raises(InputError, match=r"model.safetensors: a weights file without its config; name its folder"):
        import_weights(str(folder / "model.safetensors"))
    (folder / "model.safetensors").write_bytes(b"not safetensors")
    with pytest.raises(InputError, match=r"model.safetensors: not a safetensors file"):
        import_weights(str(folder))
    (folder / "model.safetensors").unlink()
    with pytest.raises(InputError, match=r"has a config.json, but neither model.safetensors nor pytorch_model.bin"):
        import_weights(str(folder))
    for config, message in (
        ({"model_type": "llama"}, r"of type 'llama'; only gpt2"),
        ({}, r"config.json: not the config of a GPT-2"),
        ([], r"config.json: not a model config"),
    ):
        (folder / "config.json").write_text(json.dumps(config))
        with pytest.raises(InputError, match=message):
            import_weights(str(folder))


def test_a_broken_tokenizer_is_refused(folder: Path) -> None:
    for content, message in (
        ("{", "is not a tokenizer.json"),
        ("[]", "is JSON but not a tokenizer.json"),
        ('{"model": 1}', "is JSON but not a tokenizer.json"),
    ):
        (folder / "tokenizer.json").write_text(content)
        with pytest.raises(InputError, match=rf"tokenizer.json: {message}"):
            import_weights(str(folder))


@pytest.mark.parametrize(
    ("architecture", "message"),
    [
        (
            Architecture(layers=4, width=32, heads=2, context=12, vocab_size=300),
            r"the weights have layers 2, width 16, the recipe has layers 4, width 32; "
            r"use --set layers=2 --set width=16$",
        ),
        (
            Architecture(layers=2, width=16, heads=4, context=1024, vocab_size=300),
            r"the weights have heads 2, context 12, the recipe has heads 4, context 1,024; "
            r"use --set heads=2 --set context=12$",
        ),
        (
            Architecture(layers=2, width=16, heads=2, context=12, vocab_size=301),
            r"the weights have 300 vocabulary entries, the tokenizer of the corpus has 301; re-run `webtext tokenize`",
        ),
    ],
)
def test_weights_of_another_size_are_refused_with_matching_options(
    folder: Path, tokenizer: Tokenizer, architecture: Architecture, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        check_compatible(import_weights(str(folder)), architecture, tokenizer.to_str().encode())


def test_the_matching_preset_is_suggested(folder: Path) -> None:
    medium = Architecture(layers=24, width=1024, heads=16, context=1024, vocab_size=300)
    imported = ImportedModel(
        path="x", architecture=medium, tensors={}, source="hugging-face", tokenizer_json=None, sha256=""
    )
    with pytest.raises(InputError, match=r"use --preset gpt2-medium$"):
        check_compatible(imported, ARCHITECTURE, b"")
    check_compatible(imported, medium, b"")


def test_weights_of_another_tokenizer_are_refused(folder: Path, tokenizer: Tokenizer) -> None:
    imported = import_weights(str(folder))
    relaid = json.loads(tokenizer.to_str())
    relaid["model"]["merges"] = [
        merge if isinstance(merge, str) else " ".join(merge) for merge in relaid["model"]["merges"]
    ]
    check_compatible(imported, ARCHITECTURE, json.dumps(relaid, indent=7).encode())
    swapped = json.loads(json.dumps(relaid))
    vocab = swapped["model"]["vocab"]
    vocab["!"], vocab['"'] = vocab['"'], vocab["!"]
    with pytest.raises(InputError, match=r"its tokenizer is not the tokenizer of the corpus \(token \d+ is '!'"):
        check_compatible(imported, ARCHITECTURE, json.dumps(swapped).encode())
    swapped = json.loads(json.dumps(relaid))
    swapped["model"]["merges"].reverse()
    with pytest.raises(InputError, match=r"same vocabulary, but different merges"):
        check_compatible(imported, ARCHITECTURE, json.dumps(swapped).encode())
    with pytest.raises(InputError, match=r"different kinds of tokenizer"):
        check_compatible(imported, ARCHITECTURE, json.dumps({"model": {"type": "WordLevel", "vocab": {}}}).encode())
