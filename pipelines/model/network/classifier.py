"""GPT-1's fine-tuning: a linear head on the hidden state of the last token, and the loss of labels and tokens.

Three rows are added to the token embedding: start, delimiter and extract, whose final hidden state the head reads.
Texts are packed one after another, see `Packing`. Radford et al. 2018, section 3.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F  # noqa: N812 - torch's convention
from torch import Tensor, nn

from pipelines.model.device import derived_seed
from pipelines.model.network.gpt2 import GPT2, Architecture, empty_model, initialize, pack, summed_loss

SPECIAL_TOKENS = 3
_STD = 0.02
HEAD = "score.weight"  # as in GPT2ForSequenceClassification


class Classifier(GPT2):
    """A GPT-2 whose vocabulary ends with the special tokens, and a head without a bias.

    The head has an output per label, one if the target is a number, or one for each text of an example that is a
    candidate (`is_choice`), of which one is right.
    """

    def __init__(self, architecture: Architecture, outputs: int, is_choice: bool = False) -> None:
        super().__init__(architecture)
        self.is_choice = is_choice
        self.score = nn.Linear(architecture.width, outputs, bias=False)

    def states(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """Return the final hidden states, [tokens, width], of the texts of examples, one after another.

        `tokens` are [tokens], `lengths` their numbers by text, [examples, texts].
        """
        return self.hidden(tokens[None], packing=pack(lengths.flatten()))[0]

    def classify(self, hidden: Tensor, lengths: Tensor) -> Tensor:
        """Return the outputs of examples, [examples, labels or candidates], from what `states` returns.

        The head reads the extract token, the last one of a text. The texts of an example share the mask of dropout. If
        they are not candidates, their states are added.
        """
        states = hidden[lengths.flatten().cumsum(0) - 1].view(*lengths.shape, -1)
        mask = F.dropout(torch.ones_like(states[:, :1]), self.architecture.dropout, self.training)
        states = states * mask
        out: Tensor = self.score(states).squeeze(2) if self.is_choice else self.score(states.sum(1))
        return out


class FineTuningLoss(nn.Module):
    """A classifier together with its loss, L3 = L2 + `lm_weight` * L1."""

    def __init__(self, model: Classifier, lm_weight: float) -> None:
        super().__init__()
        self.model = model
        self.lm_weight = lm_weight

    def forward(self, tokens: Tensor, lengths: Tensor, golds: Tensor) -> Tensor:
        """Return the summed loss of examples, see `Classifier.states`; `golds` are labels or numbers.

        L1 is the mean loss of the tokens of a text after its first, up to its extract token, and of those the mean over
        the texts of an example.
        """
        hidden = self.model.states(tokens, lengths)
        loss = label_loss(self.model.classify(hidden, lengths), golds)
        if self.lm_weight:
            has_next = torch.ones_like(tokens, dtype=torch.bool)
            has_next[lengths.flatten().cumsum(0) - 1] = False
            places, counts = has_next.nonzero().squeeze(1), lengths.flatten() - 1
            weights = (self.lm_weight / lengths.shape[1] / counts.to(hidden.dtype)).repeat_interleave(counts)
            states = hidden.index_select(0, places)
            loss = loss + summed_loss(states, self.model.wte.weight, tokens[places + 1], token_weights=weights)
        return loss


def label_loss(outputs: Tensor, golds: Tensor) -> Tensor:
    """Return the summed loss: -log p(label), or of golds that are numbers the squared error."""
    if golds.is_floating_point():
        return F.mse_loss(outputs.squeeze(1), golds.to(outputs.dtype), reduction="sum")
    return F.cross_entropy(outputs.to(torch.promote_types(outputs.dtype, torch.float32)), golds, reduction="sum")


def layer_number(name: str, layers: int) -> int:
    """Return the number of the layer of a weight from 1: 0 for embeddings; the final norm belongs to the last layer."""
    if name.startswith("h."):
        return int(name.split(".")[1]) + 1
    return 0 if name.startswith("w") else layers + (name == HEAD)


def transfer_weights(pretrained: Mapping[str, Tensor], architecture: Architecture, transfer: int, seed: int) -> None:
    """Replace the weights of the layers after the first `transfer` ones by random ones, of -1 also the embeddings."""
    fresh = empty_model(architecture)
    initialize(fresh, seed)
    for name, weight in fresh.state_dict().items():
        if layer_number(name, architecture.layers) > transfer:
            pretrained[name].copy_(weight)


def initial_weights(
    pretrained: Mapping[str, Tensor], outputs: int, seed: int, special_tokens: int = SPECIAL_TOKENS
) -> dict[str, Tensor]:
    """Return the weights of a model with rows for new special tokens and a head, both drawn from N(0, 0.02)."""
    # Another sequence than that of `initialize`, with which the new rows would equal those of the first tokens.
    generator, embedding = torch.Generator().manual_seed(derived_seed(seed, HEAD)), pretrained["wte.weight"]
    rows = torch.randn(special_tokens, embedding.shape[1], generator=generator) * _STD
    head = torch.randn(outputs, embedding.shape[1], generator=generator) * _STD
    return {**pretrained, "wte.weight": torch.cat([embedding, rows]), HEAD: head}
