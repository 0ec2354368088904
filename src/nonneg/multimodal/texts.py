"""One function per way to read text: `(captions, *, knobs) -> nn.Module`, made from the captions of the training set.

Such a module reads texts into rows of numbers once (`read`: tokens, or vectors that stay as they are), and turns rows
into N x dim features in every step. `bag` and `transformer` are learned from nothing; `sentences` and `vectors` are
frozen embeddings, of which only the projector behind them learns.

N texts, L tokens at most in each, `dim` the width of what `forward` gives.
"""

import math
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nonneg import pairs, progress
from nonneg.errors import BadInput
from nonneg.multimodal import tokens as subwords
from nonneg.multimodal.tokens import PAD, Tokenizer


class _Lookup(torch.autograd.Function):
    """weight[rows], whose gradient is summed by index_add_: torch's own for embeddings waits for the device when a
    batch has over 3,072 tokens, and cannot be recorded in a CUDA graph."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, rows: Tensor) -> Tensor:
        ctx.save_for_backward(rows)
        ctx.many = len(weight)
        return weight[rows]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (rows,), (grad,) = ctx.saved_tensors, grads
        out = grad.new_zeros(ctx.many, grad.shape[-1])
        return out.index_add_(0, rows.reshape(-1), grad.reshape(-1, grad.shape[-1])), None


class Tokens(nn.Module):
    """What `bag` and `transformer` have in common: a tokenizer and an embedding of its tokens."""

    def __init__(self, tokenizer: Tokenizer, width: int) -> None:
        super().__init__()
        if width < 1:
            raise BadInput(f"the text encoder's width is {width}; it must be at least 1")
        self.tokenizer, self.dim = tokenizer, width
        self.embedding = nn.Embedding(len(tokenizer), width)
        nn.init.normal_(self.embedding.weight, std=width**-0.5)

    def look_up(self, rows: Tensor) -> Tensor:
        """N x L x width, the embedding of each token."""
        return cast(Tensor, _Lookup.apply(self.embedding.weight, rows))

    def read(self, texts: Sequence[str]) -> tuple[Tensor, int]:
        """N x L tokens, and how many texts are longer than L and were cut."""
        return self.tokenizer.encode(texts)


class Bag(Tokens):
    """h = norm(sum of a text's token embeddings / sqrt(their number)): which subwords, not in which order."""

    def __init__(self, tokenizer: Tokenizer, *, width: int) -> None:
        super().__init__(tokenizer, width)
        self.norm = nn.LayerNorm(width)

    def forward(self, rows: Tensor) -> Tensor:
        there = (rows != PAD).unsqueeze(2)
        return self.norm((self.look_up(rows) * there).sum(1) / there.sum(1).clamp_min(1).sqrt())

    def about(self) -> dict[str, Any]:
        return {"kind": "bag", "width": self.dim, "tokenizer": self.tokenizer.to_json()}


class _Block(nn.Module):
    """Self-attention and an MLP, each behind a norm and around a shortcut."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor, there: Tensor) -> Tensor:
        n, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(n, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(q, k, v, attn_mask=there)
        x = x + self.out(seen.transpose(1, 2).reshape(n, length, width))
        return x + self.mlp(self.norm2(x))


class Transformer(Tokens):
    """h = the mean over a text's tokens of a small transformer's output; every token sees all others."""

    def __init__(self, tokenizer: Tokenizer, *, width: int, layers: int, heads: int) -> None:
        super().__init__(tokenizer, width)
        if layers < 1 or heads < 1 or width % heads:
            raise BadInput(
                f"transformer: {layers} layers and {heads} heads for width {width}; give 1 or more of each, and heads "
                "that divide the width"
            )
        self.layers, self.heads = layers, heads
        self.position = nn.Parameter(torch.randn(tokenizer.length, width) * 0.1 * width**-0.5)
        self.blocks = nn.ModuleList(_Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)

    def forward(self, rows: Tensor) -> Tensor:
        there = rows != PAD
        x = self.look_up(rows) + self.position
        for block in self.blocks:
            x = block(x, there[:, None, None, :])
        there = there.unsqueeze(2)
        return (self.norm(x) * there).sum(1) / there.sum(1).clamp_min(1)

    def about(self) -> dict[str, Any]:
        knobs = {"width": self.dim, "layers": self.layers, "heads": self.heads}
        return {"kind": "transformer", **knobs, "tokenizer": self.tokenizer.to_json()}


class Frozen(nn.Module):
    """h = sqrt(dim) x the text's embedding at length 1, an embedding that never changes."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, rows: Tensor) -> Tensor:
        return F.normalize(rows, dim=1) * math.sqrt(self.dim)


class Sentences(Frozen):
    """Embeddings by a model of the sentence-transformers package, loaded when the first text is read."""

    def __init__(self, *, model: str, dim: int) -> None:
        super().__init__(dim)
        self.name = model

    def read(self, texts: Sequence[str]) -> tuple[Tensor, int]:
        """N x dim embeddings; of texts longer than the model reads, it takes the beginning (how many, it knows)."""
        model = _sentence_model(self.name)
        limit, cut = getattr(model, "max_seq_length", None), 0
        if limit and hasattr(model, "tokenizer"):
            cut = sum(len(ids) > limit for ids in model.tokenizer(list(texts))["input_ids"])
        found = np.asarray(model.encode(list(texts), batch_size=256, show_progress_bar=False), dtype=np.float32)
        if found.shape != (len(texts), self.dim):
            raise BadInput(f"{self.name} gives embeddings of shape {found.shape}, not {(len(texts), self.dim)}")
        return torch.from_numpy(found), cut

    def about(self) -> dict[str, Any]:
        return {"kind": "sentences", "model": self.name, "dim": self.dim}


@cache
def _sentence_model(name: str) -> Any:
    try:
        from sentence_transformers import SentenceTransformer  # pyright: ignore[reportMissingImports]
    except (ImportError, RuntimeError) as error:  # the second where another package does not fit this torch
        raise BadInput(
            f"text sentences:{name} needs the sentence-transformers package ({error}): pip install 'nonneg[text]'"
        ) from None
    try:
        progress.say(f"loading {name}")
        return SentenceTransformer(name, device="cpu")
    except (OSError, ValueError) as error:
        why = str(error).strip().splitlines()[0]
        raise BadInput(
            f"sentence-transformers cannot load {name!r} ({why}); give the name of a model or a folder"
        ) from None


class Vectors(Frozen):
    """Embeddings of your own: row i of the file `path` is that of the i-th caption of the captions file `of`."""

    def __init__(self, *, path: str, of: str, dim: int) -> None:
        super().__init__(dim)
        self.path, self.of = path, of
        self.known: dict[str, np.ndarray] = {}

    def read(self, texts: Sequence[str]) -> tuple[Tensor, int]:
        """N x dim embeddings of texts that the captions file has."""
        self.known = self.known or _vectors(Path(self.path), Path(self.of))
        if (width := len(next(iter(self.known.values())))) != self.dim:
            raise BadInput(f"{self.path} holds embeddings of {width} numbers, not {self.dim}; put back those of then")
        for text in texts:
            if text not in self.known:
                raise BadInput(f"{self.path} has no embedding of {text!r}: the text is not in {self.of}")
        return torch.from_numpy(np.stack([self.known[text] for text in texts])), 0

    def about(self) -> dict[str, Any]:
        return {"kind": "vectors", "path": self.path, "of": self.of, "dim": self.dim}


def _vectors(path: Path, of: Path) -> dict[str, np.ndarray]:
    """The embedding of each text of the captions file `of`."""
    texts = [caption.text for caption in pairs.read_captions(of)]
    try:
        rows = np.load(path, allow_pickle=False)
    except FileNotFoundError:
        raise BadInput(f"{path} does not exist; give a .npy file of embeddings, one row for each caption") from None
    except (ValueError, OSError, EOFError) as error:
        raise BadInput(f"{path} is not a .npy file of numbers ({error})") from None
    if not isinstance(rows, np.ndarray) or rows.ndim != 2 or rows.dtype.kind not in "fiu":
        raise BadInput(f"{path} must hold one array of numbers, a row for each caption")
    if len(rows) != len(texts):
        raise BadInput(f"{path} has {len(rows)} rows for the {len(texts)} captions of {of}; give one row for each")
    for bad, what in ((~np.isfinite(rows).all(1), "NaN or infinite values"), (~rows.any(1), "nothing but zeros")):
        if bad.any():
            raise BadInput(f"{path} holds {what} in row {bad.argmax()}; make the embeddings again")
    first: dict[str, int] = {}
    for i, text in enumerate(texts):
        if not np.allclose(rows[first.setdefault(text, i)], rows[i], rtol=1e-3, atol=1e-5):
            raise BadInput(
                f"{path} has different rows, {first[text]} and {i}, for one caption, {text!r}; are they in the order "
                f"of the captions in {of}?"
            )
    return {text: rows[i].astype(np.float32) for text, i in first.items()}


def bag(captions: Sequence[str], *, tokens: int = 2048, length: int = 32, width: int = 256) -> nn.Module:
    """A bag of subwords, embeddings learned from nothing: at most `tokens` of them, `length` in a text."""
    return Bag(subwords.learn(captions, size=tokens, length=length), width=width)


def transformer(
    captions: Sequence[str], *, tokens: int = 2048, length: int = 32, width: int = 128, layers: int = 2, heads: int = 4
) -> nn.Module:
    """A small transformer over subwords, learned from nothing: it knows their order."""
    return Transformer(subwords.learn(captions, size=tokens, length=length), width=width, layers=layers, heads=heads)


def sentences(captions: Sequence[str], *, model: str = "all-MiniLM-L6-v2") -> nn.Module:
    """Frozen embeddings by a model (name or folder) of the sentence-transformers package, imported when asked for."""
    dim = np.asarray(_sentence_model(model).encode(list(captions[:1]))).shape[-1]
    return Sentences(model=model, dim=int(dim))


def vectors(captions: Sequence[str], *, path: str, of: str) -> nn.Module:
    """Frozen embeddings of your own: a .npy file `path` with a row for each caption of the captions file `of`."""
    known = _vectors(Path(path), Path(of))
    module = Vectors(path=str(Path(path).absolute()), of=str(Path(of).absolute()), dim=len(next(iter(known.values()))))
    module.known = known
    module.read(captions[:1])
    return module


KINDS: dict[str, type[Bag] | type[Transformer] | type[Sentences] | type[Vectors]] = {
    "bag": Bag,
    "transformer": Transformer,
    "sentences": Sentences,
    "vectors": Vectors,
}


def from_json(about: Any, where: Path) -> nn.Module:
    """The module that `about()` described, its parameters still to be loaded."""
    if not isinstance(about, dict) or about.get("kind") not in KINDS:
        raise BadInput(f"{where} is damaged: it does not describe a text encoder")
    knobs = {k: v for k, v in about.items() if k != "kind"}
    if "tokenizer" in knobs:
        knobs["tokenizer"] = subwords.from_json(knobs["tokenizer"], str(where))
    try:
        return KINDS[about["kind"]](**knobs)
    except TypeError as error:
        raise BadInput(f"{where} is damaged: {error}") from None
