"""Whole models, with random weights, as their users write them: what `models.py` times.

Each has the structure of a family that is widely served, a few layers of it, and the sizes that
change from call to call. `Scale` says how wide it is: on a CPU so that a call takes milliseconds,
on a GPU so that products have some work to do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional

Sizes: TypeAlias = tuple[int, ...]
Arguments: TypeAlias = tuple[Tensor, ...]
VOCABULARY = 8000
PLACES = 1024
"""Of a cache of keys and values, and of positions."""


@dataclass(frozen=True, slots=True)
class Scale:
    """How wide models are, on which device, and in which dtype."""

    width: int
    heads: int
    layers: int
    device: str
    dtype: torch.dtype

    def tensor(self, *shape: int) -> Tensor:
        """Normal numbers."""
        return torch.randn(shape, device=self.device, dtype=self.dtype)

    def ids(self, *shape: int, limit: int = VOCABULARY) -> Tensor:
        """Places in a table, int64."""
        return torch.randint(limit, shape, device=self.device)


SCALES: Mapping[str, Scale] = {
    "cpu": Scale(256, 8, 3, "cpu", torch.float32),
    "cuda": Scale(1024, 16, 4, "cuda", torch.bfloat16),
}


@dataclass(frozen=True, slots=True)
class ModelCase:
    """A family: what makes its model, and its arguments at some sizes.

    `tuned` are sizes that are called before anything is timed, `timed` are others between them, but
    for a batch of one. `symbols` are the names of both.
    """

    name: str
    model: Callable[[Scale], nn.Module]
    arguments: Callable[[Scale, Sizes], Arguments]
    symbols: tuple[str, ...]
    tuned: tuple[Sizes, ...]
    timed: tuple[Sizes, ...]


class RmsNorm(nn.Module):
    """Of Llama: in f32, whatever the dtype."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """x: (..., width)."""
        wide = x.float()
        scaled = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)
        return self.weight * scaled.to(x.dtype)


def rotated(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Rotary embedding of x: (batch, heads, tokens, size); the others: (tokens, size)."""
    low, high = x.chunk(2, -1)
    return x * cosines + torch.cat((-high, low), -1) * sines


class DecoderLayer(nn.Module):
    """Of Llama: attention of half as many heads for keys and values, and SwiGLU."""

    def __init__(self, scale: Scale) -> None:
        super().__init__()
        width, self.heads = scale.width, scale.heads
        self.size = width // scale.heads
        self.query, self.out = (nn.Linear(width, width, bias=False) for _ in range(2))
        self.key, self.value = (nn.Linear(width, width // 2, bias=False) for _ in range(2))
        self.gate, self.up = (nn.Linear(width, 3 * width, bias=False) for _ in range(2))
        self.down = nn.Linear(3 * width, width, bias=False)
        self.before, self.between = RmsNorm(width), RmsNorm(width)

    def heads_of(self, x: Tensor) -> Tensor:
        """(batch, tokens, n * size) as (batch, n, tokens, size)."""
        return x.view(*x.shape[:2], -1, self.size).transpose(1, 2)

    def attended(
        self, x: Tensor, cosines: Tensor, sines: Tensor, cache: Tensor | None, place: Tensor
    ) -> Tensor:
        """What attention adds; with a cache, (2, batch, heads, PLACES, size), x is one token."""
        query = rotated(self.heads_of(self.query(x)), cosines, sines)
        key = rotated(self.heads_of(self.key(x)), cosines, sines)
        value = self.heads_of(self.value(x))
        mask = None
        if cache is not None:
            key = cache[0].index_copy_(2, place, key)
            value = cache[1].index_copy_(2, place, value)
            mask = (torch.arange(PLACES, device=x.device) <= place)[None, None, None, :]
        mixed = functional.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, is_causal=cache is None, enable_gqa=True
        )
        made: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return made

    def forward(
        self, x: Tensor, cosines: Tensor, sines: Tensor, cache: Tensor | None, place: Tensor
    ) -> Tensor:
        """x: (batch, tokens, width); place: (tokens), int64."""
        x = x + self.attended(self.before(x), cosines, sines, cache, place)
        y = self.between(x)
        made: Tensor = x + self.down(functional.silu(self.gate(y)) * self.up(y))
        return made


class Decoder(nn.Module):
    """A decoder of Llama's form; with a cache it makes one token a call."""

    def __init__(self, scale: Scale) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, scale.width)
        self.layers = nn.ModuleList(DecoderLayer(scale) for _ in range(scale.layers))
        self.norm = RmsNorm(scale.width)
        self.head = nn.Linear(scale.width, VOCABULARY, bias=False)
        half = scale.width // scale.heads // 2
        self.register_buffer("frequencies", 10_000.0 ** -(torch.arange(half) / half))

    def forward(self, ids: Tensor, place: Tensor, *caches: Tensor) -> Tensor:
        """ids: (batch, tokens); place: (tokens); the last token's logits."""
        angles = torch.outer(place.float(), self.get_buffer("frequencies").float()).repeat(1, 2)
        x = self.words(ids)
        cosines, sines = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        for number, layer in enumerate(self.layers):
            x = layer(x, cosines, sines, caches[number] if caches else None, place)
        logits: Tensor = self.head(self.norm(x[:, -1]))
        return logits


class EncoderLayer(nn.Module):
    """Of BERT: attention under a mask and two products with GELU; norms come after."""

    def __init__(self, scale: Scale, *, is_first: bool = False) -> None:
        super().__init__()
        width, self.heads, self.is_first = scale.width, scale.heads, is_first
        self.mixed, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))

    def attended(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """What attention adds to x: (batch, tokens, width)."""
        parts = self.mixed(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        query, key, value = parts.unbind(0)
        mixed = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        made: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return made

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """x: (batch, tokens, width); `is_first` has norms before, as vision transformers do."""
        if self.is_first:
            x = x + self.attended(self.norms[0](x), mask)
            first: Tensor = x + self.narrow(functional.gelu(self.wide(self.norms[1](x))))
            return first
        x = self.norms[0](x + self.attended(x, mask))
        last: Tensor = self.norms[1](x + self.narrow(functional.gelu(self.wide(x))))
        return last


class Encoder(nn.Module):
    """Of BERT's form: token ids and their mask to one embedding a text."""

    def __init__(self, scale: Scale) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, scale.width)
        self.places = nn.Embedding(PLACES, scale.width)
        self.norm = nn.LayerNorm(scale.width)
        self.layers = nn.ModuleList(EncoderLayer(scale) for _ in range(scale.layers))

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Both: (batch, tokens); the mask is 1 where there is a token."""
        x = self.words(ids) + self.places.weight[: ids.shape[1]]
        x = self.norm(x)
        added = (1.0 - mask[:, None, None, :].to(x.dtype)) * torch.finfo(x.dtype).min
        for layer in self.layers:
            x = layer(x, added)
        kept = mask[:, :, None].to(x.dtype)
        pooled = (x * kept).sum(1) / kept.sum(1).clamp(min=1)
        made: Tensor = functional.normalize(pooled, dim=-1)
        return made


class Vision(nn.Module):
    """A vision transformer of patches of 16 x 16."""

    SIDE = 112

    def __init__(self, scale: Scale) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, scale.width, 16, stride=16)
        self.first = nn.Parameter(torch.zeros(1, 1, scale.width))
        self.places = nn.Parameter(torch.zeros(1, (self.SIDE // 16) ** 2 + 1, scale.width))
        self.layers = nn.ModuleList(EncoderLayer(scale, is_first=True) for _ in range(scale.layers))
        self.norm = nn.LayerNorm(scale.width)

    def forward(self, images: Tensor) -> Tensor:
        """images: (batch, 3, SIDE, SIDE)."""
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat((self.first.expand(x.shape[0], -1, -1), x), 1) + self.places
        for layer in self.layers:
            x = layer(x)
        made: Tensor = self.norm(x[:, 0])
        return made


class ConvBlock(nn.Module):
    """Of ConvNeXt: each channel alone, a norm over channels, two products with GELU."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.depth = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.scale = nn.Parameter(torch.full((width,), 0.1))

    def forward(self, x: Tensor) -> Tensor:
        """x: (batch, width, height, width of the image)."""
        y = self.norm(self.depth(x).permute(0, 2, 3, 1))
        y = self.scale * self.narrow(functional.gelu(self.wide(y)))
        made: Tensor = x + y.permute(0, 3, 1, 2)
        return made


class Convolutions(nn.Module):
    """Of ConvNeXt's form, two stages, over images of any size."""

    def __init__(self, scale: Scale) -> None:
        super().__init__()
        width = scale.width // 4
        self.stem = nn.Conv2d(3, width, 4, stride=4)
        self.first = nn.ModuleList(ConvBlock(width) for _ in range(2))
        self.halved = nn.Conv2d(width, 2 * width, 2, stride=2)
        self.second = nn.ModuleList(ConvBlock(2 * width) for _ in range(2))
        self.norm = nn.LayerNorm(2 * width)

    def forward(self, images: Tensor) -> Tensor:
        """images: (batch, 3, side, side)."""
        x = self.stem(images)
        for block in self.first:
            x = block(x)
        x = self.halved(x)
        for block in self.second:
            x = block(x)
        made: Tensor = self.norm(x.mean((2, 3)))
        return made


class DiffusionBlock(nn.Module):
    """Of a diffusion model's U-Net: group norms and SiLU before each convolution."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.GroupNorm(8, width) for _ in range(2))
        self.convs = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in range(2))
        self.time = nn.Linear(width, width)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        """x: (batch, width, side, side); time: (batch, width)."""
        y = self.convs[0](functional.silu(self.norms[0](x)))
        y = y + self.time(functional.silu(time))[:, :, None, None]
        made: Tensor = x + self.convs[1](functional.silu(self.norms[1](y)))
        return made


class Diffusion(nn.Module):
    """Two such blocks around an attention over all places."""

    def __init__(self, scale: Scale) -> None:
        super().__init__()
        self.width = scale.width // 4
        self.blocks = nn.ModuleList(DiffusionBlock(self.width) for _ in range(2))
        self.norm = nn.GroupNorm(8, self.width)
        self.mixed = nn.Linear(self.width, 3 * self.width)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        """x: (batch, width, side, side); time: (batch)."""
        half = self.width // 2
        steps = torch.exp(torch.arange(half, device=x.device) * (-9.2 / half))
        angles = time[:, None].float() * steps
        embedded = torch.cat((angles.cos(), angles.sin()), -1).to(x.dtype)
        x = self.blocks[0](x, embedded)
        places = self.norm(x).flatten(2).transpose(1, 2)
        query, key, value = self.mixed(places).chunk(3, -1)
        mixed = functional.scaled_dot_product_attention(
            query[:, None], key[:, None], value[:, None]
        )
        x = x + mixed[:, 0].transpose(1, 2).reshape(x.shape)
        made: Tensor = self.blocks[1](x, embedded)
        return made


class Experts(nn.Module):
    """A mixture of experts: each token's best two of eight, by weights from a router."""

    COUNT, CHOSEN = 8, 2

    def __init__(self, scale: Scale) -> None:
        super().__init__()
        width = scale.width
        self.norm, self.router = RmsNorm(width), nn.Linear(width, self.COUNT, bias=False)
        self.up = nn.Parameter(torch.randn(self.COUNT, width, 2 * width) * width**-0.5)
        self.down = nn.Parameter(torch.randn(self.COUNT, width, width) * width**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        """x: (tokens, width)."""
        y = self.norm(x)
        shares, chosen = torch.softmax(self.router(y).float(), -1).topk(self.CHOSEN, -1)
        shares = shares / shares.sum(-1, keepdim=True)
        weights = torch.zeros(x.shape[0], self.COUNT, device=x.device, dtype=shares.dtype)
        weights = weights.scatter(1, chosen, shares).to(x.dtype)
        gate, up = torch.einsum("tw,ewm->etm", y, self.up).chunk(2, -1)
        made = torch.einsum("etm,emw->etw", functional.silu(gate) * up, self.down)
        return x + (made * weights.t()[:, :, None]).sum(0)


class Recommender(nn.Module):
    """Of DLRM's form: tables looked up, all pairs of what was found, and two towers."""

    TABLES, ROWS, DENSE = 8, 5000, 13

    def __init__(self, scale: Scale) -> None:
        super().__init__()
        self.size = scale.width // 4
        self.tables = nn.ModuleList(nn.Embedding(self.ROWS, self.size) for _ in range(self.TABLES))
        self.bottom = nn.Sequential(
            nn.Linear(self.DENSE, scale.width), nn.ReLU(), nn.Linear(scale.width, self.size)
        )
        pairs = (self.TABLES + 1) * self.TABLES // 2
        self.top = nn.Sequential(
            nn.Linear(self.size + pairs, scale.width), nn.ReLU(), nn.Linear(scale.width, 1)
        )
        self.register_buffer("places", torch.tril_indices(self.TABLES + 1, self.TABLES + 1, -1))

    def forward(self, dense: Tensor, ids: Tensor) -> Tensor:
        """dense: (batch, DENSE); ids: (batch, TABLES)."""
        found = [table(ids[:, number]) for number, table in enumerate(self.tables)]
        bottom = functional.relu(self.bottom(torch.log1p(dense.abs())))
        stacked = torch.stack((bottom, *found), 1)
        rows, columns = self.get_buffer("places")
        pairs = (stacked @ stacked.transpose(1, 2))[:, rows, columns]
        return torch.sigmoid(self.top(torch.cat((bottom, pairs), 1))).squeeze(1)


def _prompt(scale: Scale, sizes: Sizes) -> Arguments:
    batch, tokens = sizes
    return scale.ids(batch, tokens), torch.arange(tokens, device=scale.device)


def _step(scale: Scale, sizes: Sizes) -> Arguments:
    batch, place = sizes
    size = scale.width // scale.heads
    caches = [scale.tensor(2, batch, scale.heads // 2, PLACES, size) for _ in range(scale.layers)]
    return scale.ids(batch, 1), torch.tensor([place], device=scale.device), *caches


def _texts(scale: Scale, sizes: Sizes) -> Arguments:
    batch, tokens = sizes
    lengths = torch.randint(tokens // 2, tokens + 1, (batch, 1), device=scale.device)
    mask = (torch.arange(tokens, device=scale.device) < lengths).long()
    return scale.ids(batch, tokens), mask


def _noise(scale: Scale, sizes: Sizes) -> Arguments:
    batch, side = sizes
    time = torch.randint(1000, (batch,), device=scale.device).float()
    return scale.tensor(batch, scale.width // 4, side, side), time


TEXTS = ((1, 16), (1, 128), (4, 64), (16, 32), (4, 256)), ((1, 23), (1, 181), (3, 50), (13, 37))

MODELS = (
    ModelCase("decoder, a prompt", Decoder, _prompt, ("batch", "tokens"), *TEXTS),
    ModelCase(
        "decoder, a step",
        Decoder,
        _step,
        ("batch", "place"),
        ((1, 5), (4, 100), (16, 600)),
        ((1, 77), (3, 300), (13, 900)),
    ),
    ModelCase("encoder", Encoder, _texts, ("batch", "tokens"), *TEXTS),
    ModelCase(
        "vision transformer",
        Vision,
        lambda scale, sizes: (scale.tensor(*sizes, 3, Vision.SIDE, Vision.SIDE),),
        ("batch",),
        ((1,), (4,), (16,)),
        ((1,), (3,), (11,)),
    ),
    ModelCase(
        "convolutions",
        Convolutions,
        lambda scale, sizes: (scale.tensor(sizes[0], 3, sizes[1], sizes[1]),),
        ("batch", "side"),
        ((1, 64), (4, 128), (8, 96)),
        ((1, 80), (3, 112), (7, 80)),
    ),
    ModelCase(
        "diffusion",
        Diffusion,
        _noise,
        ("batch", "side"),
        ((1, 16), (2, 32), (8, 16)),
        ((1, 24), (3, 28), (6, 20)),
    ),
    ModelCase(
        "experts",
        Experts,
        lambda scale, sizes: (scale.tensor(*sizes, scale.width),),
        ("tokens",),
        ((8,), (64,), (512,)),
        ((13,), (77,), (389,)),
    ),
    ModelCase(
        "recommender",
        Recommender,
        lambda scale, sizes: (
            scale.tensor(*sizes, Recommender.DENSE),
            scale.ids(*sizes, Recommender.TABLES, limit=Recommender.ROWS),
        ),
        ("batch",),
        ((16,), (256,), (2048,)),
        ((23,), (300,), (1500,)),
    ),
)
