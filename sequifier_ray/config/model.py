"""The ``model:`` section of train.yaml: backbone and interface."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator
from typing_extensions import Self

from sequifier_ray.config.base import (
    Count,
    Flag,
    Names,
    NaturalNumber,
    Positive,
    Problem,
    Section,
    Text,
    require,
)

SpecialToken = Literal["[unknown]", "[other]", "[mask]"]


class Attention(Section):
    """Self-attention of every block."""

    type: Literal["mha", "mqa", "gqa"] = Field(
        default="mha",
        description="Keys and values per query head (mha), for all heads (mqa), or per group of heads (gqa).",
    )
    n_heads: Count = Field(description="Query heads; divides `dim_model`.")
    n_kv_heads: Count | None = Field(
        default=None,
        description="Key/value heads. mha: `n_heads` (or null); mqa: 1 (or null); gqa: required, "
        "divides `n_heads`.",
    )
    output_projection: Flag = Field(default=True, description="A linear map after the heads are joined.")

    @property
    def kv_heads(self) -> int:
        """Number of key/value heads."""
        if self.n_kv_heads is not None:
            return self.n_kv_heads
        return 1 if self.type == "mqa" else self.n_heads

    @model_validator(mode="after")
    def _check(self) -> Self:
        found, text = self.n_kv_heads, ""
        if self.type == "gqa" and found is None:
            text = f"gqa needs it; allowed: a divisor of n_heads {self.n_heads}"
        elif self.type == "gqa" and found is not None and self.n_heads % found:
            text = (
                f"found {found}, which does not divide n_heads {self.n_heads}; allowed with "
                "gqa: a divisor of it"
            )
        elif self.type == "mha" and found not in (None, self.n_heads):
            text = (
                f"found {found}; allowed with mha: n_heads ({self.n_heads}) or null; set type: "
                "gqa to share heads"
            )
        elif self.type == "mqa" and found not in (None, 1):
            text = f"found {found}; allowed with mqa: 1 or null; set type: gqa for more"
        require([Problem("n_kv_heads", text)] if text else [])
        return self


class FeedForward(Section):
    """Position-wise network of every block."""

    dim: Count = Field(description="Hidden width.")
    activation: Literal["relu", "gelu", "swiglu"] = Field(
        default="relu", description="swiglu is `w3(silu(w1 x) · w2 x)`, three maps instead of two."
    )


class Normalization(Section):
    """Normalization of every block."""

    type: Literal["layer_norm", "rmsnorm"] = Field(default="layer_norm", description="rmsnorm has eps 1e-6.")
    norm_first: Flag = Field(
        default=True, description="Before attention and feed-forward (pre-norm) or after them."
    )


class PositionEncoding(Section):
    """How the model knows where an event stands."""

    type: Literal["learned", "rope", "sinusoidal"] = Field(
        default="learned",
        description="rope turns queries and keys, in the half-split form, and needs an even head width.",
    )
    theta: Positive = Field(default=10000.0, description="Base of the angles of rope and sinusoidal.")


class Architecture(Section):
    """The transformer between ingestion and decoder."""

    dim_model: Count = Field(description="Width of the residual stream; divisible by `attention.n_heads`.")
    max_context_length: Count | None = Field(
        default=None, description="Longest context in events; null: `global_training.context_length`."
    )
    num_layers: Count = Field(description="Depth, counting shared blocks every time they are used.")
    attention: Attention
    feed_forward: FeedForward
    normalization: Normalization = Field(default_factory=Normalization)
    position_encoding: PositionEncoding = Field(default_factory=PositionEncoding)
    positional_encoding_scope: Literal["per_feature", "global"] = Field(
        default="global",
        description="Add positions to each feature's embedding, or once to the joined ones (no "
        "effect on rope).",
    )
    dropout: float = Field(
        default=0.0,
        strict=True,
        ge=0,
        lt=1,
        description="Probability of dropping an activation of the embedding and of what each sublayer adds; "
        "attention weights are never dropped, which would rule out fused kernels.",
    )
    shared_layer_groups: tuple[tuple[NaturalNumber, ...], ...] = Field(
        default=(), description="Groups of layer numbers, from 0, that use one and the same block."
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        problems = []
        heads = self.attention.n_heads
        if self.dim_model % heads:
            text = f"found {self.dim_model}; allowed: a multiple of attention.n_heads {heads}"
            problems.append(Problem("dim_model", text))
        elif self.position_encoding.type == "rope" and (self.dim_model // heads) % 2:
            text = (
                f"rope needs an even head width; dim_model {self.dim_model} over {heads} heads gives "
                f"{self.dim_model // heads}; change dim_model or attention.n_heads"
            )
            problems.append(Problem("position_encoding.type", text))
        members = [layer for group in self.shared_layer_groups for layer in group]
        if len(set(members)) < len(members) or any(layer >= self.num_layers for layer in members):
            found = [list(group) for group in self.shared_layer_groups]
            text = f"found {found}; allowed: layers 0 to {self.num_layers - 1}, each in one group at most"
            problems.append(Problem("shared_layer_groups", text))
        require(problems)
        return self


class Backbone(Section):
    """The part of the model that all interfaces would share."""

    architecture: Architecture


class Ingestion(Section):
    """From columns to vectors: one table per categorical column, one linear map per real one, joined."""

    type: Literal["embedding"] = Field(default="embedding", description="How columns become vectors.")
    output_dim: Count = Field(description="Width of the joined embedding; the sum of the features' widths.")
    feature_embedding_dims: dict[Text, Count] | None = Field(
        default=None,
        description="Width per input column. Null: categorical columns share `output_dim` by log "
        "cardinality, "
        "at least 2 each; with real columns the widths must be given.",
    )
    columns: Names | None = Field(
        default=None, description="The input columns once more; null: `input_columns`."
    )


class Decoder(Section):
    """From the last positions of the backbone to predictions."""

    type: Literal["linear", "mlp"] = Field(
        default="linear", description="One map per target, or a hidden layer before it."
    )
    prediction_length: Count = Field(
        default=1, description="Events predicted: the last ones of the view; also what the loss covers."
    )
    support: Literal[1] = Field(default=1, description="Positions that each prediction looks at.")


class Interface(Section):
    """What goes into the model and what comes out."""

    input_columns: Names = Field(description="Columns the model sees.")
    target_columns: Names = Field(description="Columns the model predicts.")
    ingestion: Ingestion
    decoder: Decoder = Field(default_factory=Decoder)
    categorical_decoder_special_tokens: dict[Text, tuple[SpecialToken, ...]] = Field(
        default_factory=dict,
        description="Per categorical target, reserved classes that may be predicted besides the real ones.",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        problems = []
        for field in ("input_columns", "target_columns"):
            columns = getattr(self, field)
            repeated = sorted({c for c in columns if columns.count(c) > 1})
            if repeated:
                problems.append(Problem(field, f"found {repeated} more than once; allowed: each column once"))
        inputs, dims = self.input_columns, self.ingestion.feature_embedding_dims
        if self.ingestion.columns is not None and set(self.ingestion.columns) != set(inputs):
            text = f"found {list(self.ingestion.columns)}; allowed: the input_columns {list(inputs)}, or null"
            problems.append(Problem("ingestion.columns", text))
        if dims is not None and set(dims) != set(inputs):
            text = (
                f"{differences(dims, inputs)}; allowed: a width for each of the input_columns {list(inputs)}"
            )
            problems.append(Problem("ingestion.feature_embedding_dims", text))
        elif dims is not None and sum(dims.values()) != self.ingestion.output_dim:
            text = f"the widths sum to {sum(dims.values())}; allowed: output_dim {self.ingestion.output_dim}"
            problems.append(Problem("ingestion.feature_embedding_dims", text))
        for name in self.categorical_decoder_special_tokens:
            if name not in self.target_columns:
                text = f'found "{name}"; allowed: target_columns {list(self.target_columns)}'
                problems.append(Problem("categorical_decoder_special_tokens", text))
        require(problems)
        return self


class ModelConfig(Section):
    """Backbone and the one interface."""

    backbone: Backbone
    interface: Interface


def differences(found: dict[str, int] | dict[str, str] | dict[str, float], wanted: tuple[str, ...]) -> str:
    """What a mapping by column lacks and has too much, in words."""
    lacking = [name for name in wanted if name not in found]
    extra = [name for name in found if name not in wanted]
    words = [f"lacks {lacking}"] * bool(lacking) + [f"names {extra} besides"] * bool(extra)
    return " and ".join(words)
