"""DeBERTa-v2's forward pass for inference, with the same results as transformers in less time.

The projections of relative positions depend on the weights alone, so they are computed once when
the model is opened and stored by distance: row i of a product with them, shifted by i, is the bias
of row i, which is a view instead of a gather. Query, key and value are one matrix product, and
batches without padding skip the mask.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def fits(model: nn.Module) -> bool:
    """Whether :class:`LeanDeberta` supports this model."""
    config: Any = model.config
    return (
        config.model_type == "deberta-v2"
        and bool(config.relative_attention)
        and {"c2p", "p2c"} == set(config.pos_att_type or ())
        and not getattr(config, "conv_kernel_size", 0)
    )


@dataclass(frozen=True, slots=True)
class _Layer:
    """Weights of one layer; (out, in) as everywhere in torch."""

    qkv: nn.Linear
    position_keys: Tensor  # (H, d, 2 max_tokens), of falling distance i - j
    position_queries: Tensor  # (H, d, 2 max_tokens), of rising distance
    attended: nn.Linear
    attended_norm: nn.LayerNorm
    widened: nn.Linear
    activation: nn.Module
    narrowed: nn.Linear
    narrowed_norm: nn.LayerNorm


class LeanDeberta:
    """The last hidden states of a model that :func:`fits`, in its dtype and on its device.

    Args:
        model: A ``DebertaV2Model``; embeddings and norms are shared with it, the rest is copied.
        max_tokens: Maximum number of tokens of a text.
    """

    def __init__(self, model: nn.Module, max_tokens: int) -> None:
        self.config: Any = model.config
        self._embeddings = cast(nn.Module, model.embeddings)
        encoder: Any = model.encoder
        self._heads = int(self.config.num_attention_heads)
        self._max_tokens = max_tokens
        with torch.no_grad():
            positions: Tensor = encoder.get_rel_embedding()
            # One distance more than there is: then a product with them has an even width, and on a
            # GPU its rows are aligned.
            distances = torch.arange(1 - max_tokens, max_tokens + 1)
            rising, falling = (
                _buckets(encoder, each).to(positions.device) for each in (distances, -distances)
            )
            self._layers = [self._layer(each, positions, rising, falling) for each in encoder.layer]

    def _layer(self, layer: Any, positions: Tensor, rising: Tensor, falling: Tensor) -> _Layer:
        attention, output = layer.attention.self, layer.attention.output
        parts: list[nn.Linear] = [
            attention.query_proj,
            attention.key_proj,
            attention.value_proj,
        ]
        shared = attention.share_att_key
        keys = attention.key_proj if shared else attention.pos_key_proj
        queries = attention.query_proj if shared else attention.pos_query_proj

        def table(projection: nn.Linear, rows: Tensor) -> Tensor:
            projected = projection(positions) * self._scale(projection.out_features)
            return projected.unflatten(-1, (self._heads, -1))[rows].permute(1, 2, 0).contiguous()

        return _Layer(
            qkv=_columns(
                torch.cat([each.weight for each in parts]), torch.cat([each.bias for each in parts])
            ),
            position_keys=table(keys, falling),
            position_queries=table(queries, rising),
            attended=_columns(output.dense.weight, output.dense.bias),
            attended_norm=output.LayerNorm,
            widened=_columns(layer.intermediate.dense.weight, layer.intermediate.dense.bias),
            activation=layer.intermediate.intermediate_act_fn,
            narrowed=_columns(layer.output.dense.weight, layer.output.dense.bias),
            narrowed_norm=layer.output.LayerNorm,
        )

    def _scale(self, width: int) -> float:
        """Of content on content, content on position and position on content: three terms."""
        return 1.0 / math.sqrt(3 * (width // self._heads))

    def __call__(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        *,
        padded: bool | None = None,
    ) -> Tensor:
        """Hidden states (B, T, D); those of padding are undefined.

        Args:
            input_ids: Shape (B, T).
            attention_mask: Shape (B, T), 0 where ``input_ids`` is padding.
            padded: Whether there is padding; None reads the mask, which synchronises a GPU.
        """
        batch, tokens = input_ids.shape
        embedded: Tensor = self._embeddings(input_ids=input_ids, mask=attention_mask)
        hidden = embedded.flatten(0, 1)
        if padded is None:
            padded = not bool(attention_mask.all())
        padding = attention_mask[:, None, None, :] == 0 if padded else None
        for layer in self._layers:
            hidden = self._attend(layer, hidden, padding, batch, tokens)
            wide = layer.activation(layer.widened(hidden))
            hidden = layer.narrowed_norm(layer.narrowed(wide) + hidden)
        return hidden.view(batch, tokens, -1)

    def _attend(
        self, layer: _Layer, hidden: Tensor, padding: Tensor | None, batch: int, tokens: int
    ) -> Tensor:
        # (3, H, B T, d): all heads of one kind, every token of the batch
        query, key, value = (
            layer.qkv(hidden).unflatten(-1, (3, self._heads, -1)).permute(1, 2, 0, 3)
        )
        bias = self._shifted(query, layer.position_keys, batch, tokens)
        bias = bias + self._shifted(key, layer.position_queries, batch, tokens).transpose(-1, -2)
        if padding is not None:
            bias = bias.masked_fill_(padding, torch.finfo(bias.dtype).min)
        context = F.scaled_dot_product_attention(
            *(each.unflatten(1, (batch, tokens)).transpose(0, 1) for each in (query, key, value)),
            attn_mask=bias,
            scale=self._scale(self._heads * query.shape[-1]),
        )
        context = context.transpose(1, 2).reshape(batch * tokens, -1)
        return layer.attended_norm(layer.attended(context) + hidden)

    def _shifted(self, content: Tensor, positions: Tensor, batch: int, tokens: int) -> Tensor:
        """Content on position, (B, H, T, T), as a view.

        With distances -(T-1) to T in 2T columns, row i needs columns T-1-i to 2T-2-i: each
        row begins one column before the row above it.
        """
        first = self._max_tokens - tokens
        product = torch.bmm(content, positions[:, :, first : positions.shape[-1] - first])
        width = 2 * tokens
        return product.as_strided(
            (batch, self._heads, tokens, tokens),
            (tokens * width, batch * tokens * width, width - 1, 1),
            tokens - 1,
        )


def _columns(weight: Tensor, bias: Tensor) -> nn.Linear:
    """A linear map whose weight lies in memory as (in, out): CPU kernels read few rows faster."""
    out_features, in_features = weight.shape
    linear = nn.Linear(in_features, out_features, device="meta")
    linear.weight = nn.Parameter(weight.t().contiguous().t(), requires_grad=False)
    linear.bias = nn.Parameter(bias.contiguous(), requires_grad=False)
    return linear


def _buckets(encoder: Any, distances: Tensor) -> Tensor:
    """The row of the position embeddings for each distance i - j."""
    from transformers.models.deberta_v2 import modeling_deberta_v2 as theirs

    span = encoder.max_relative_positions
    if encoder.position_buckets > 0:
        bucket = cast("Callable[[Tensor, int, int], Tensor]", theirs.make_log_bucket_position)
        distances = bucket(distances, encoder.position_buckets, span).long()
        span = encoder.position_buckets
    return (distances + span).clamp(0, 2 * span - 1)
