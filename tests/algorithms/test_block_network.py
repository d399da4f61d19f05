"""The network that judges blocks: NumPy evaluates what PyTorch trained."""

from __future__ import annotations

import numpy as np
import torch

from benchmarks.extractor import training
from pipelines.algorithms.blocks.features import NAMES
from pipelines.algorithms.blocks.model import KINDS, BlockModel, evaluate, load_model
from pipelines.algorithms.blocks.text_features import values_table


def _example(blocks: int, random: np.random.Generator) -> training.Example:
    words = random.integers(1, 50, blocks).astype(np.float32)
    features = random.normal(size=(blocks, len(NAMES))).astype(np.float32) * 10
    labels = random.integers(0, 2, blocks).astype(np.float32)
    groups = random.integers(0, max(1, blocks // 2), (blocks, 2))
    return training.Example(features, groups, random.integers(0, 90, blocks), words, labels, words / words.sum(), 2)


def test_numpy_and_torch_agree_on_pages_of_a_batch(tmp_path) -> None:
    random = np.random.default_rng(1)
    examples = [_example(blocks, random) for blocks in (1, 3, 40)]
    torch.manual_seed(1)
    columns = np.ones((4, len(NAMES)), np.float32) * np.array([[-2], [3], [0.5], [0.7]], np.float32)
    scaling = training._Scaling(*columns)
    net = training._Net(len(NAMES), training.Recipe(hidden=8), scaling).eval()
    torch.nn.init.normal_(net.difference.weight)
    batch = training._collate([example._replace(features=scaling.apply(example.features)) for example in examples])
    with torch.no_grad():
        main, article, types = (values.numpy() for values in net(batch))
    network = training._export(net, scaling, sharpness=1)
    empty = values_table(np.zeros(0, np.uint32), np.zeros(0, np.float32))
    training.save_model(str(tmp_path / "model.npz"), BlockModel(network, empty, empty))
    stored = load_model(str(tmp_path / "model.npz")).network
    for number, example in enumerate(examples):
        count, groups = len(example.labels), np.ascontiguousarray(example.groups.T, np.int32)
        odds, kinds = evaluate(network, example.features, groups, example.tags.astype(np.uint8), example.words)
        np.testing.assert_allclose(odds[:, 0], main[number, :count], atol=1e-4)
        np.testing.assert_allclose(odds[:, 1], article[number, :count], atol=1e-4)
        np.testing.assert_allclose(kinds, types[number], atol=1e-4)
        assert kinds.shape == (len(KINDS),)
        rounded, _ = evaluate(stored, example.features, groups, example.tags.astype(np.uint8), example.words)
        np.testing.assert_allclose(rounded, odds, atol=0.05)
