"""The causal objective: what counts as a target, its loss, and what a trivial guess would lose."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sequifier_ray.config.model import ModelConfig
from sequifier_ray.config.train import Dataset
from sequifier_ray.data.batch import SequenceBatch
from sequifier_ray.data.metadata import DatasetDescription
from sequifier_ray.errors import ConfigError, nearest
from sequifier_ray.model.embedding import check_columns
from sequifier_ray.model.heads import NOT_PREDICTABLE, output_index

CATEGORICAL_CRITERIA = ("CrossEntropyLoss", "MultiMarginLoss", "NLLLoss")
REAL_CRITERIA = (
    "BCEWithLogitsLoss",
    "HuberLoss",
    "L1Loss",
    "MSELoss",
    "PoissonNLLLoss",
    "SmoothL1Loss",
    "SoftMarginLoss",
)


def _criterion(column: str, name: str, is_categorical: bool) -> nn.Module:
    field = f"dataset.criterion.{column}"
    losses = [loss for loss in dir(nn) if loss.endswith("Loss")]
    if name not in losses:
        raise ConfigError(f'{field}: "{name}" is no loss of torch.nn{nearest(name, losses)}')
    allowed = CATEGORICAL_CRITERIA if is_categorical else REAL_CRITERIA
    if name not in allowed:
        kind = "categorical" if is_categorical else "real"
        raise ConfigError(
            f'{field}: "{name}" does not suit a {kind} target, which needs a loss '
            "per prediction from one input and one "
            f"target: {', '.join(allowed)}"
        )
    criterion: nn.Module = getattr(nn, name)(reduction="none")
    return criterion


class CausalObjective:
    """Loss of predicting each target event from those before it.

    A target token is valid when it is an event of a real sample and, if categorical, of a class that the head
    can predict. B samples, P predicted positions, T targets in the order of ``target_columns``.

    Raises:
        ConfigError: an unknown column, or a criterion that torch lacks or that does not suit its column.
    """

    def __init__(self, model: ModelConfig, dataset: Dataset, description: DatasetDescription) -> None:
        interface = model.interface
        self.target_columns: tuple[str, ...] = tuple(interface.target_columns)
        check_columns("target_columns", self.target_columns, description)
        self._categorical = {name: name in description.id_maps for name in self.target_columns}
        self._criteria = {
            name: _criterion(name, dataset.criterion[name], self._categorical[name])
            for name in self.target_columns
        }
        self._criterion_names = {name: dataset.criterion[name] for name in self.target_columns}
        self._inputs = set(interface.input_columns)
        weights = dataset.loss_weights or {}
        self.weights = torch.tensor([float(weights.get(name, 1.0)) for name in self.target_columns])
        host = torch.device("cpu")
        self._index_tables: dict[tuple[str, torch.device], Tensor] = {
            (name, host): output_index(interface, description, name)
            for name in self.target_columns
            if self._categorical[name]
        }

    def is_categorical(self, name: str) -> bool:
        """Whether a target's values are classes."""
        return self._categorical[name]

    def _valid(self, batch: SequenceBatch, name: str) -> tuple[Tensor, Tensor]:
        """A target as the criterion wants it and which of it is valid; both (B, P)."""
        target = batch.targets[name]
        if not self._categorical[name]:
            return target, batch.target_is_real
        key = (name, target.device)
        if key not in self._index_tables:
            self._index_tables[key] = self._index_tables[name, torch.device("cpu")].to(target.device)
        index = self._index_tables[key][target]
        valid = batch.target_is_real & (index != NOT_PREDICTABLE)
        return torch.where(valid, index, 0), valid

    def count_targets(self, batch: SequenceBatch) -> Tensor:
        """Valid tokens per target, (T,) int64."""
        return torch.stack([self._valid(batch, name)[1].sum() for name in self.target_columns])

    def loss_sums(self, outputs: dict[str, Tensor], batch: SequenceBatch) -> Tensor:
        """The criterion summed over valid tokens per target, (T,) float32; exactly 0 where none is valid."""
        sums = []
        for name in self.target_columns:
            wanted, valid = self._valid(batch, name)
            each = self._losses(name, outputs[name].float(), wanted)  # (B, P)
            sums.append(torch.where(valid, each, 0.0).sum())
        return torch.stack(sums)

    def _losses(self, name: str, predicted: Tensor, wanted: Tensor) -> Tensor:
        """(B, P, outputs) and (B, P) → (B, P)."""
        if not self._categorical[name]:
            each: Tensor = self._criteria[name](predicted.squeeze(-1), wanted)
            return each
        if self._criterion_names[name] == "NLLLoss":
            predicted = F.log_softmax(predicted, dim=-1)
        flat: Tensor = self._criteria[name](predicted.flatten(0, 1), wanted.flatten())
        return flat.view_as(wanted)

    def accuracy_sums(self, outputs: dict[str, Tensor], batch: SequenceBatch) -> Tensor:
        """Valid tokens whose likeliest class is right, per target, (T,) float32; 0 for real targets."""
        sums = []
        for name in self.target_columns:
            wanted, valid = self._valid(batch, name)
            if self._categorical[name]:
                sums.append(((outputs[name].argmax(-1) == wanted) & valid).sum().float())
            else:
                sums.append(torch.zeros((), device=valid.device))
        return torch.stack(sums)

    def naive_sums(self, batch: SequenceBatch) -> tuple[Tensor, Tensor]:
        """The guess "as before": its summed loss (real) or hits (categorical), and tokens; (T,) each.

        The value before is the target column's input at the same place of the view, ``target_offset``
        events earlier; for a target that is no input, the target before it. Tokens without one are left out.
        """
        sums, counts = [], []
        for name in self.target_columns:
            wanted, valid = self._valid(batch, name)
            before, has_before = self._before(batch, name)
            valid = valid & has_before
            if self._categorical[name]:
                sums.append(((before == batch.targets[name]) & valid).sum().float())
            else:
                each = self._criteria[name](before.float(), wanted)
                sums.append(torch.where(valid, each, 0.0).sum())
            counts.append(valid.sum())
        return torch.stack(sums), torch.stack(counts)

    def _before(self, batch: SequenceBatch, name: str) -> tuple[Tensor, Tensor]:
        """The value before each target token, and whether there is one; (B, P) each."""
        target = batch.targets[name]
        n = target.shape[1]
        if name in self._inputs:
            return batch.inputs[name][:, -n:], batch.is_real[:, -n:]
        before = torch.roll(target, 1, dims=1)
        has_before = torch.roll(batch.target_is_real, 1, dims=1)
        has_before[:, 0] = False
        return before, has_before
