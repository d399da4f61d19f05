"""Presets, `--set`, learning-rate schedule and weight decay."""

from __future__ import annotations

import dataclasses

import pytest

from pipelines.errors import UsageError
from pipelines.model.network.gpt2 import Architecture, empty_model
from pipelines.model.training.engine import make_optimizer
from pipelines.model.training.recipe import PRESETS, Recipe, learning_rate, make_recipe, read_preset


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_gives_every_value_and_where_it_is_from(preset: str) -> None:
    values = read_preset(preset)
    assert ["preset", "seed", *values, "extended_from", "mixture"] == [
        field.name for field in dataclasses.fields(Recipe)
    ]
    assert all(entry.origin in ("stated", "inherited", "chosen") and entry.note for entry in values.values())
    assert make_recipe(preset).context == values["context"].value


@pytest.mark.parametrize("preset", [name for name in PRESETS if name.startswith("gpt2")])
def test_values_of_the_paper_are_marked_as_stated(preset: str) -> None:
    stated = {key: entry.value for key, entry in read_preset(preset).items() if entry.origin == "stated"}
    sizes = {"gpt2": (12, 768), "gpt2-medium": (24, 1024), "gpt2-large": (36, 1280), "gpt2-xl": (48, 1600)}
    layers, width = sizes[preset]
    assert stated == {"layers": layers, "width": width, "context": 1024, "batch_size": 512}
    recipe = make_recipe(preset)
    assert (recipe.schedule, recipe.decay_steps, recipe.attention, recipe.attention_window) == ("cosine", 0, "full", 0)


# Brown et al. 2020, table 2.1: layers, width, dimensions per head, batch in million tokens, learning rate.
GPT3 = {
    "gpt3-125m": (12, 768, 64, 0.5, 6e-4),
    "gpt3-350m": (24, 1024, 64, 0.5, 3e-4),
    "gpt3-760m": (24, 1536, 96, 0.5, 2.5e-4),
    "gpt3-1.3b": (24, 2048, 128, 1, 2e-4),
    "gpt3-2.7b": (32, 2560, 80, 1, 1.6e-4),
}


@pytest.mark.parametrize("preset", GPT3)
def test_a_preset_of_gpt3_has_the_values_of_its_paper(preset: str) -> None:
    recipe, tokens = make_recipe(preset), make_recipe(preset).batch_tokens
    assert (recipe.layers, recipe.width, recipe.width / recipe.heads) == GPT3[preset][:3]
    assert tokens / 1e6 == pytest.approx(GPT3[preset][3], rel=0.05)
    assert recipe.learning_rate == GPT3[preset][4]
    lengths = [steps * tokens for steps in (recipe.warmup_steps, recipe.decay_steps, recipe.steps)]
    assert lengths == pytest.approx([375e6, 260e9, 300e9], rel=2e-3)
    ends = recipe.warmup_steps + recipe.decay_steps
    rates = [learning_rate(step, recipe) / recipe.learning_rate for step in (ends - 1, ends, recipe.steps - 1)]
    assert rates == pytest.approx([0.1] * 3)
    assert learning_rate(ends - 1000, recipe) > learning_rate(ends - 1, recipe)
    assert (recipe.context, recipe.attention_window, recipe.micro_batch) == (2048, 256, recipe.micro_batch)
    assert recipe.batch_size % recipe.micro_batch == 0
    origins = {key: entry.origin for key, entry in read_preset(preset).items()}
    assert origins["heads"] == ("chosen" if preset == "gpt3-1.3b" else "stated")
    assert {key for key, origin in origins.items() if origin == "chosen"} - {"heads"} == {
        "dropout", "micro_batch", "eval_every", "eval_blocks", "attention_window",
    }  # fmt: skip


def test_overrides_replace_values_of_the_preset() -> None:
    recipe = make_recipe("tiny", ("steps=70", "learning-rate=1e-3", "steps=80"))
    assert (recipe.steps, recipe.learning_rate) == (80, 0.001)
    assert recipe.width == make_recipe("tiny").width


def test_two_ways_to_write_the_same_overrides_are_one_recipe() -> None:
    other = ("learning_rate=0.001", "steps=9", "steps=80", "width=128")
    assert make_recipe("tiny", ("steps=80", "learning-rate = 1e-3")) == make_recipe("tiny", other)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("layrs=3", "--set layrs=3: unknown key 'layrs'; did you mean layers\\?"),
        ("seed=3", "--set seed=3: unknown key 'seed'"),
        ("layers", "--set layers: expected key=value; the keys are layers, width,"),
        ("layers=many", "--set layers=many: 'many' is not a number"),
        ("layers=1.5", "--set: layers = 1.5: expected a whole number"),
        ("layers=0", "--set: layers = 0 must be at least 1"),
        ("dropout=1", "--set: dropout = 1.0 must be at least 0 and at most 0.99"),
        ("learning_rate=NaN", "learning_rate = nan is not a finite number"),
        ("learning_rate=1e999", "learning_rate = inf is not a finite number"),
        ("learning_rate=true", "learning_rate = true: expected a number"),
        ("schedule=linear", "--set: schedule = 'linear' is not one of cosine, wsd"),
        (
            "schedule=wsd",
            "decay_steps=0 does not fit wsd with 1200 steps: expected 1 to 1140; add --set decay_steps=240",
        ),
        ("decay_steps=1141", "decay_steps=1141 does not fit cosine .* expected 0 to 1140; add --set decay_steps=0"),
        ("attention=alternating", "contradicts a window of 0; add --set attention_window=64"),
        ("attention_window=9", "--set attention=full contradicts a window of 9; add --set attention_window=0"),
        ("heads=5", "--set width=128 is not divisible by 5 heads"),
        ("steps=30", "--set steps=30 ends within the 60 warm-up steps; add --set warmup_steps=3"),
    ],
)
def test_a_wrong_override_is_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make_recipe("tiny", (text,))


def test_the_learning_rate_warms_up_and_falls_along_a_cosine() -> None:
    overrides = ("steps=110", "warmup_steps=10", "learning_rate=1.0", "final_learning_rate=0.2")
    recipe = make_recipe("tiny", overrides)
    rates = [learning_rate(step, recipe) for step in range(110)]
    assert rates[:10] == pytest.approx([0.1 * step for step in range(1, 11)])
    assert rates[59] == pytest.approx(0.6)  # half way
    assert rates[34] == pytest.approx(0.2 + 0.8 * (1 + 2**-0.5) / 2)  # a quarter
    assert (max(rates), rates.index(1.0), rates[-1]) == (1.0, 9, 0.2)
    assert sorted(rates[9:], reverse=True) == rates[9:]
    assert {learning_rate(step, recipe) for step in (110, 111, 500)} == {0.2}


WSD = ("schedule=wsd", "steps=110", "warmup_steps=10", "learning_rate=0.3", "final_learning_rate=0.1")


def test_with_wsd_the_rate_is_constant_until_the_last_steps() -> None:
    recipe = make_recipe("tiny", (*WSD, "decay_steps=16"))
    rates = [learning_rate(step, recipe) for step in range(112)]
    assert rates[:10] == pytest.approx([0.03 * step for step in range(1, 11)])
    assert set(rates[9:94]) == {0.3}
    assert rates[94:110] == pytest.approx([0.1 + 0.2 * (1 - (step / 16) ** 0.5) for step in range(1, 17)])
    assert rates[109:] == [0.1, 0.1, 0.1]
    assert recipe.branch_step == 94


def test_schedules_of_wsd_have_the_same_rates_until_the_first_decay() -> None:
    short, long = (make_recipe("tiny", (*WSD, "decay_steps=16", f"steps={steps}")) for steps in (50, 110))
    assert [learning_rate(step, short) for step in range(34)] == [learning_rate(step, long) for step in range(34)]


def test_a_cosine_can_end_before_the_training() -> None:
    whole = make_recipe("tiny", ("steps=60", "warmup_steps=10", "final_learning_rate=1e-4"))
    longer = make_recipe("tiny", ("steps=90", "warmup_steps=10", "final_learning_rate=1e-4", "decay_steps=50"))
    rates = [learning_rate(step, longer) for step in range(90)]
    assert rates[:60] == [learning_rate(step, whole) for step in range(60)]
    assert set(rates[59:]) == {1e-4}


@pytest.mark.parametrize("final", [0.0, 3e-5, 0.7])
@pytest.mark.parametrize(("steps", "warmup_steps"), [(30, 5), (30, 29), (30, 1), (30, 0), (3, 1), (2, 1), (2, 0)])
def test_the_first_step_the_peak_and_the_last_step_have_exact_rates(
    steps: int, warmup_steps: int, final: float
) -> None:
    overrides = (f"steps={steps}", f"warmup_steps={warmup_steps}", "learning_rate=0.1", f"final_learning_rate={final}")
    recipe = make_recipe("tiny", overrides)
    rates = [learning_rate(step, recipe) for step in range(steps)]
    peak = max(1, warmup_steps)
    assert (rates[0], rates[peak - 1], rates[-1]) == (0.1 * (1 / peak), 0.1, final)
    assert rates.count(0.1) == 1


def test_a_single_step_has_the_peak_rate() -> None:
    recipe = make_recipe("tiny", ("steps=1", "warmup_steps=0"))
    assert learning_rate(0, recipe) == recipe.learning_rate > 0


@pytest.mark.parametrize("steps", [1, 60])
def test_a_training_that_ends_with_its_warm_up_is_refused(steps: int) -> None:
    with pytest.raises(UsageError, match=f"--set steps={steps} ends within the 60 warm-up steps"):
        make_recipe("tiny", (f"steps={steps}", "warmup_steps=60"))


def test_each_schedule_of_an_extended_training_ends_with_the_final_rate() -> None:
    whole = make_recipe("tiny", ("steps=50", "warmup_steps=5", "final_learning_rate=1e-4"))
    extended = dataclasses.replace(whole, extended_from=(20, 30))
    rates = [learning_rate(step, extended) for step in range(50)]
    assert [rates[step] for step in (4, 19, 29, 49)] == [whole.learning_rate, 1e-4, 1e-4, 1e-4]
    assert rates[:20] == [learning_rate(step, dataclasses.replace(whole, steps=20)) for step in range(20)]
    assert rates[20:30] == [learning_rate(step, dataclasses.replace(whole, steps=30)) for step in range(20, 30)]
    assert rates[30:] == [learning_rate(step, whole) for step in range(30, 50)]


def test_only_matrices_decay() -> None:
    model = empty_model(Architecture(layers=1, width=8, heads=2, context=4, vocab_size=11))
    optimizer = make_optimizer(model, make_recipe("tiny"))
    decayed, kept = optimizer.param_groups
    names = {id(weight): name for name, weight in model.named_parameters()}
    assert {names[id(weight)] for weight in decayed["params"]} == {
        "wte.weight", "wpe.weight", "h.0.attn.c_attn.weight", "h.0.attn.c_proj.weight", "h.0.mlp.c_fc.weight",
        "h.0.mlp.c_proj.weight",
    }  # fmt: skip
    assert (decayed["weight_decay"], kept["weight_decay"]) == (0.01, 0.0)
    assert len(decayed["params"]) + len(kept["params"]) == len(names)


def test_another_schedule_does_not_keep_the_decay_of_the_preset() -> None:
    with pytest.raises(UsageError, match=r"decay_steps=0 does not fit wsd with 572205 steps.*decay_steps=114441"):
        make_recipe("gpt3-125m", ["schedule=wsd"])
    assert make_recipe("gpt3-125m", ["schedule=wsd", "decay_steps=9"]).decay_steps == 9
    assert make_recipe("gpt3-125m", ["schedule=cosine"]).decay_steps == 495_911
