"""Models with alternating attention as GPT-Neo: exported, computed by transformers, and imported."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from small_training import train_small

from pipelines.engine.run import RunOptions
from pipelines.errors import InputError
from pipelines.model.inference.options import SamplingOptions
from pipelines.model.inference.sampling import generate
from pipelines.model.io import export as export_module
from pipelines.model.io.export import ExportConfig, export
from pipelines.model.io.gpt_neo import from_gpt_neo, to_gpt_neo
from pipelines.model.io.hugging_face import from_hugging_face, model_config, read_config
from pipelines.model.io.import_weights import import_weights
from pipelines.model.io.model_folder import open_model
from pipelines.model.network.gpt2 import GPT2, Architecture, empty_model, initialize

ALTERNATING = ("layers=3", "attention=alternating", "attention_window=5")
SIZE = Architecture(layers=5, width=32, heads=4, context=64, vocab_size=97, attention_window=7)


@pytest.fixture(scope="module")
def banded(tokens: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("banded") / "pretrain"
    train_small(tokens, folder, *ALTERNATING)
    return folder


@pytest.fixture(scope="module")
def exported(banded: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("exported") / "export"
    export(ExportConfig(), model=str(banded), output=str(output), options=RunOptions())
    return output


def uneven_model() -> GPT2:
    """A model all of whose weights, also biases of query, key and value, and of norms, have an effect."""
    model = empty_model(SIZE)
    initialize(model, 0)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn(weight.shape, generator=generator) * 0.1)
    return model.eval()


def neo_logits(model: GPT2, weights: dict[str, torch.Tensor], ids: torch.Tensor) -> torch.Tensor:
    transformers = pytest.importorskip("transformers")
    config = {name: value for name, value in model_config(SIZE, 96).items() if name not in ("architectures", "dtype")}
    reference = transformers.GPTNeoForCausalLM(transformers.GPTNeoConfig(**config))
    result = reference.load_state_dict(weights, strict=False)
    assert (result.missing_keys, result.unexpected_keys) == (["lm_head.weight"], [])
    with torch.no_grad():
        logits: torch.Tensor = reference.eval()(ids).logits
    return logits


def test_all_biases_of_attention_survive_the_format_without_them() -> None:
    model = uneven_model()
    ids = torch.randint(0, 97, (3, 64), generator=torch.Generator().manual_seed(2))
    weights = to_gpt_neo(model.state_dict(), SIZE.heads, "x")
    assert not any("q_proj.bias" in name or "c_attn" in name for name in weights)
    with torch.no_grad():
        own = model(ids)
    assert own.abs().max() > 1
    torch.testing.assert_close(neo_logits(model, weights, ids), own, rtol=0, atol=1e-5)
    back = empty_model(SIZE)
    back.load_state_dict(from_hugging_face(weights, "x", SIZE.heads))
    with torch.no_grad():
        torch.testing.assert_close(back.eval()(ids), own, rtol=0, atol=1e-5)


def test_without_biases_the_weights_are_the_same() -> None:
    model = empty_model(SIZE)
    initialize(model, 0)
    weights = {name.removeprefix("transformer."): part for name, part in model.state_dict().items()}
    query, key, value = weights["h.1.attn.c_attn.weight"].chunk(3)
    ids = torch.randint(0, 97, (1, 64), generator=torch.Generator().manual_seed(2))
    neo = {f"transformer.{name}": weight for name, weight in weights.items() if ".attn." not in name}
    for layer in range(SIZE.layers):
        query, key, value = weights[f"h.{layer}.attn.c_attn.weight"].chunk(3)
        prefix = f"transformer.h.{layer}.attn.attention."
        neo |= {f"{prefix}{name}_proj.weight": part for name, part in (("q", query / 8**0.5), ("k", key), ("v", value))}
        neo |= {f"{prefix}out_proj.{kind}": weights[f"h.{layer}.attn.c_proj.{kind}"] for kind in ("weight", "bias")}
    with torch.no_grad():
        torch.testing.assert_close(neo_logits(model, neo, ids), model.eval()(ids), rtol=0, atol=1e-5)
    # As in files of older versions of transformers, with their masks.
    neo |= {"transformer.h.1.attn.attention.bias": torch.ones(1), "lm_head.weight": weights["wte.weight"]}
    neo |= {"transformer.h.1.attn.attention.masked_bias": torch.ones(1)}
    torch.testing.assert_close(from_hugging_face(neo, "x", SIZE.heads), dict(model.state_dict()))


def test_the_exported_folder_is_a_gpt_neo_of_transformers(banded: Path, exported: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = json.loads((exported / "config.json").read_text())
    assert (config["model_type"], config["num_layers"], config["window_size"]) == ("gpt_neo", 3, 5)
    reference = transformers.AutoModelForCausalLM.from_pretrained(exported).eval()
    assert type(reference).__name__ == "GPTNeoForCausalLM"
    assert reference.config.attention_layers == ["global", "local", "global"]
    own = open_model(str(banded)).model
    ids = torch.arange(16)[None] * 37 % 300
    with torch.no_grad():
        torch.testing.assert_close(reference(ids).logits, own(ids), rtol=0, atol=1e-5)
    card = (exported / "README.md").read_text()
    assert "every second layer attends to the latest 5 tokens only" in card
    assert "- gpt_neo\n" in card


def test_training_generation_and_the_export_agree(banded: Path, exported: Path) -> None:
    assert json.loads((banded / "config.json").read_text())["architecture"]["attention_window"] == 5
    options = SamplingOptions(max_tokens=30, temperature=0)
    samples = [list(generate(str(folder), ["the cat"], 1, options, "cpu")) for folder in (banded, exported)]
    assert samples[0] == samples[1]


def test_the_export_is_verified(banded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(tensors: dict[str, torch.Tensor], heads: int, path: str) -> dict[str, torch.Tensor]:
        named = to_gpt_neo(tensors, heads, path)
        name = "transformer.h.1.attn.attention.q_proj.weight"
        return named | {name: named[name] * 1.5}

    monkeypatch.setattr(export_module, "to_gpt_neo", wrong)
    with pytest.raises(Exception, match="its logits differ by up to"):
        export(ExportConfig(), model=str(banded), output=str(tmp_path / "bad"), options=RunOptions())


def test_a_gain_of_zero_is_refused() -> None:
    model = uneven_model()
    with torch.no_grad():
        model.get_parameter("h.2.ln_1.weight")[3] = 0
    with pytest.raises(InputError, match=r"x: h.2.ln_1.weight has a gain of 0"):
        to_gpt_neo(model.state_dict(), SIZE.heads, "x")


def test_initial_weights_can_be_a_gpt_neo(tokens: str, exported: Path, tmp_path: Path) -> None:
    imported = import_weights(str(exported))
    assert (imported.source, imported.architecture.attention_window) == ("hugging-face", 5)
    with pytest.raises(InputError, match=r"attention_window 5, the recipe has attention_window 0; use .*attention=alt"):
        train_small(tokens, tmp_path / "out", "layers=3", init_from=str(exported))
    with pytest.raises(InputError, match=r"attention_window 5, .* attention_window 3; use --set attention_window=5 "):
        train_small(tokens, tmp_path / "out", *ALTERNATING, "attention_window=3", init_from=str(exported))
    train_small(tokens, tmp_path / "out", *ALTERNATING, init_from=str(exported))
    first = json.loads((tmp_path / "out" / "metrics.jsonl").read_text().splitlines()[0])
    assert first["held_out_loss"] < 5.5  # that of a uniform guess is 5.7


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attention_layers": ["local"] * 5}, r'x: attention_layers is \["local", .* and window_size 7'),
        ({"attention_layers": ["global"] * 4}, "attention_layers is"),
        ({"attention_layers": 3}, "attention_layers is 3"),
        ({"window_size": "all"}, 'window_size "all"'),
        ({"window_size": 0}, "window_size 0"),
        ({"intermediate_size": 9}, "intermediate_size is 9, GPT-2 has null"),
        ({"num_heads": 5}, "num_heads is 5, which is impossible"),
        ({"hidden_size": None}, "hidden_size is null, expected an integer"),
    ],
)
def test_another_gpt_neo_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_config(model_config(SIZE, 96) | changes, "x")


def test_a_config_of_gpt_neo_is_read() -> None:
    assert read_config(model_config(SIZE, 96), "x") == (SIZE, 96)
    whole = model_config(SIZE, 96) | {"attention_layers": ["global"] * 5, "intermediate_size": 128}
    assert read_config(whole, "x")[0].attention_window == 0


def test_the_config_of_the_published_model_is_read() -> None:
    transformers = pytest.importorskip("transformers")
    published = Architecture(24, 2048, 16, 2048, 50_257, attention_window=256)
    assert read_config(transformers.GPTNeoConfig().to_dict(), "x") == (published, 50_256)


def test_an_incomplete_layer_is_refused() -> None:
    weights = to_gpt_neo(uneven_model().state_dict(), SIZE.heads, "x")
    named = {name.removeprefix("transformer."): weight for name, weight in weights.items()}
    del named["h.3.attn.attention.k_proj.weight"]
    with pytest.raises(InputError, match=r"x: h.3.attn has no q_proj, k_proj and v_proj of one size"):
        from_gpt_neo(named, SIZE.heads, "x")


def test_an_older_model_has_full_attention(trained: Path, tmp_path: Path) -> None:
    shutil.copytree(trained, tmp_path / "old", ignore=shutil.ignore_patterns("manifest.json", "checkpoints"))
    config = json.loads((tmp_path / "old" / "config.json").read_text())
    assert config["architecture"].pop("attention_window") == 0
    (tmp_path / "old" / "config.json").write_text(json.dumps(config))
    ids = torch.arange(16)[None]
    with torch.no_grad():
        assert torch.equal(open_model(str(tmp_path / "old")).model(ids), open_model(str(trained)).model(ids))
