"""Shorter vectors: keep some features, or each sample's largest activations, in few bytes, and say what was lost.

N images, D features, k kept; z is N x D, sparse or dense. Values are cosine-compared after decoding. Widths: a value
takes `bits` bits, the index of a feature 1 byte up to 256 features, 2 up to 65,536, 4 beyond; the quantum of each
feature, and the axes or directions of `curve`, are stored once for all vectors and not counted.
"""

import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import sparse

from nonneg import files, metrics
from nonneg.errors import BadInput, unknown
from nonneg.metrics.correlation import gram
from nonneg.metrics.sparsity import Matrix, as_csr, unit_rows

BUDGETS = (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)  # bytes per vector
REDUCTIONS = ("features", "pca", "projection", "activations")
BITS = (32, 8, 4, 1)
WAYS = (  # to keep features: ranking, ReLU in the ranking, ReLU in the features
    ("activation", False, False),
    ("activation", True, False),
    ("activation", False, True),
    ("activation", True, True),
    ("random", False, False),
    ("random", False, True),
)
ROWS = 4096  # samples sorted at once


# What to keep


def rank(
    z_train: Matrix, *, by: str = "activation", relu: bool = True, rng: np.random.Generator | None = None
) -> np.ndarray:
    """All D features, best first: by expected activation EA_d = mean_n z_nd / |z_n|, or in a random order.

    With `relu`, EA of max(z, 0); without, of |z|, so that a feature far below zero counts as used. For non-negative
    features both are the same. Of equal EA the lowest feature goes first. Rank on training features.
    """
    z = as_csr(z_train)
    if by == "random":
        if rng is None:
            raise BadInput("a random order needs a random generator: give rng=np.random.default_rng(seed)")
        return rng.permutation(z.shape[1])
    if by != "activation":
        raise unknown("ranking", by, ("activation", "random"))
    if not z.shape[0]:
        raise BadInput("there are no training samples to rank features on")
    expected = metrics.expected_activation(z.maximum(0) if relu else z, absolute=not relu)
    return np.argsort(-expected, kind="stable")


def keep_features(z: Matrix, chosen: Sequence[int] | np.ndarray) -> Matrix:
    """The columns `chosen` of z, in that order: N x k."""
    z, chosen = as_csr(z), np.asarray(chosen)
    if chosen.ndim != 1 or not chosen.size or chosen.min() < 0 or chosen.max() >= z.shape[1]:
        raise BadInput(f"there are {z.shape[1]} features: choose one or more, from 0 to {z.shape[1] - 1}")
    return z[:, chosen]


def keep_top(z: Matrix, k: int) -> Matrix:
    """z with only the k largest |z| of each sample: N x D; of equal ones the lowest feature is kept."""
    z = as_csr(z)
    _check_kept(k, z.shape[1])
    kept = np.zeros(z.nnz, dtype=bool)
    for first in range(0, z.shape[0], ROWS):
        indptr = z.indptr[first : first + ROWS + 1]
        here = slice(indptr[0], indptr[-1])
        kept[here] = _largest_of_each(np.abs(z.data[here]), np.diff(indptr), k)
    kept &= z.data != 0  # a stored zero is still a zero
    kept_before = np.concatenate([[0], np.cumsum(kept)])
    return sparse.csr_array((z.data[kept], z.indices[kept], kept_before[z.indptr]), shape=z.shape)


def _largest_of_each(values: np.ndarray, count: np.ndarray, k: int) -> np.ndarray:
    """Which of the values, `count` of them for each sample one after the other, are among its k largest."""
    sample = np.repeat(np.arange(len(count)), count)
    place = np.arange(len(values)) - np.repeat(np.cumsum(count) - count, count)
    table = np.full((len(count), count.max(initial=0)), -1, dtype=values.dtype)  # short samples end in -1
    table[sample, place] = values
    kept = np.zeros(table.shape, dtype=bool)
    np.put_along_axis(kept, np.argsort(-table, axis=1, kind="stable")[:, :k], True, axis=1)
    return kept[sample, place]


# Bytes


def index_bytes(width: int) -> int:
    """Bytes of an index below `width`."""
    return 1 if width <= 2**8 else 2 if width <= 2**16 else 4


def bytes_per_vector(kept: int, *, bits: int = 8, index_of: int | None = None) -> int:
    """ceil(kept * bits / 8), and for each kept value an index below `index_of` where each sample keeps its own."""
    return -(-kept * bits // 8) + (kept * index_bytes(index_of) if index_of is not None else 0)


def quanta(z_train: Matrix, *, bits: int = 8) -> np.ndarray:
    """The step of each feature, D: max_n |z_nd| / (2^bits - 1), or / (2^(bits-1) - 1) where z has negative values.

    A feature that is zero on all training samples gets the largest step of the others.
    """
    z = as_csr(z_train)
    largest = np.zeros(z.shape[1])
    np.maximum.at(largest, z.indices, np.abs(z.data))
    if not largest.any():
        raise BadInput("every feature is zero on every training sample: there is nothing to keep")
    step = (largest / _levels(bits, _signed(z))).astype(np.float32)  # which may vanish where a value hardly is one
    return np.where(step > 0, step, max(step.max(), np.finfo(np.float32).tiny))


def to_cells(z: Matrix, quantum: np.ndarray, *, signed: bool, bits: int = 8) -> Matrix:
    """Whole numbers of `bits` bits: 1 + floor(z / quantum) of non-negative z, round(z / quantum) of signed z; N x D.

    0 stands for zero alone where z is non-negative: what fires never becomes zero. What exceeds the training data is
    clipped to the largest cell.
    """
    z = as_csr(z)
    if not signed and _signed(z):
        raise BadInput("these features have negative values, those of training had none: use one model for both")
    top, steps = _levels(bits, signed), z.data / quantum[z.indices]
    cell = np.rint(steps).clip(-top, top) if signed else (1 + np.floor(steps)).clip(1, top) * (z.data != 0)
    kind = np.int8 if signed else np.uint8
    return sparse.csr_array((cell.astype(kind), z.indices, z.indptr), shape=z.shape)


def from_cells(cells: Matrix, quantum: np.ndarray, *, signed: bool) -> Matrix:
    """The values cells stand for: cell * quantum if signed, else the middle of the cell, (cell - 1/2) * quantum."""
    cell = cells.data.astype(np.float32)
    middle = cell if signed else np.where(cell > 0, cell - np.float32(0.5), 0)
    return sparse.csr_array((middle * quantum[cells.indices], cells.indices, cells.indptr), shape=cells.shape)


def quantised(z_train: Matrix, z: Matrix, *, bits: int) -> Matrix:
    """z as read back from `bits` bits a value; with 1 bit, whether z > 0: 1 or 0, or +1 or -1 where z is signed."""
    if bits == 32:
        return as_csr(z).astype(np.float32)
    signed = _signed(as_csr(z_train))
    if bits == 1:
        on = (as_csr(z) > 0).astype(np.float32)
        return sparse.csr_array(2 * on.toarray() - 1) if signed else on
    quantum = quanta(z_train, bits=bits)
    return from_cells(to_cells(z, quantum, signed=signed, bits=bits), quantum, signed=signed)


# Codes in a file


@dataclass(frozen=True)
class Codes:
    """Vectors in fixed-width records of 8-bit values.

    cells: N x k, uint8 or (signed) int8, 0 for nothing; indices: the feature of each, k where all samples keep the same
    ones, N x k where each keeps its largest; quantum: D; labels: N or None; ids: one name per sample.
    """

    cells: np.ndarray
    indices: np.ndarray
    quantum: np.ndarray
    labels: np.ndarray | None
    ids: list[str]

    @property
    def signed(self) -> bool:
        return self.cells.dtype == np.int8

    @property
    def bytes_per_vector(self) -> int:
        kept, own = self.cells.shape[1], self.indices.ndim == 2
        return bytes_per_vector(kept, index_of=len(self.quantum) if own else None)

    def decode(self) -> Matrix:
        """z as read back, N x D."""
        sample, place = np.nonzero(self.cells)
        feature = self.indices[sample, place] if self.indices.ndim == 2 else self.indices[place]
        coordinates = (sample, feature.astype(np.int64))
        flat = sparse.csr_array((self.cells[sample, place], coordinates), shape=(len(self.cells), len(self.quantum)))
        return from_cells(flat, self.quantum, signed=self.signed)

    def save(self, path: Path) -> None:
        """One .npz file, no pickles in it."""
        arrays = {"cells": self.cells, "indices": self.indices, "quantum": self.quantum}
        arrays["ids"] = np.array(self.ids, dtype=np.str_)
        if self.labels is not None:
            arrays["labels"] = self.labels
        with files.atomic(path) as temporary, temporary.open("wb") as f:
            np.savez_compressed(f, allow_pickle=False, **arrays)


def load_codes(path: Path) -> Codes:
    """Codes that `save` wrote."""
    try:
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as f:  # np.load leaves a bad path open
            made = Codes(f["cells"], f["indices"], f["quantum"], f.get("labels", None), [str(i) for i in f["ids"]])
    except FileNotFoundError:
        raise BadInput(f"{path} does not exist; make it with: nonneg select RUN --bytes 16") from None
    except (ValueError, KeyError, EOFError, OSError, zipfile.BadZipFile) as error:
        raise BadInput(f"{path} is damaged or not a file of codes ({error})") from None
    fits = made.cells.ndim == 2 and made.indices.shape in (made.cells.shape, made.cells.shape[1:])
    if not fits or len(made.ids) != len(made.cells) or made.indices.max(initial=0) >= len(made.quantum):
        raise BadInput(f"{path} is damaged: its arrays do not fit together")
    return made


@dataclass(frozen=True)
class Plan:
    """What is kept, decided on training features: `chosen` features of all samples, or each sample's `top` largest."""

    quantum: np.ndarray
    signed: bool
    chosen: np.ndarray | None = None
    top: int | None = None

    @property
    def name(self) -> str:
        return f"top{self.top}" if self.chosen is None else f"features{len(self.chosen)}"

    @property
    def about(self) -> str:
        width = len(self.quantum)
        if self.chosen is None:
            return f"the {self.top} largest activations of each sample, {index_bytes(width)}-byte index, 8-bit value"
        return f"the {len(self.chosen)} of {width} features of largest expected activation, 8-bit values"

    def codes(self, z: Matrix, *, labels: np.ndarray | None = None, ids: Sequence[str] | None = None) -> Codes:
        """z in records; ids are 0, 1, ... unless given."""
        z = as_csr(z)
        n, width = z.shape
        if width != len(self.quantum):
            raise BadInput(f"these vectors have {width} features, those of training {len(self.quantum)}: use one model")
        kind = np.dtype(f"u{index_bytes(width)}")
        if self.chosen is None:
            assert self.top is not None
            kept = to_cells(keep_top(z, self.top), self.quantum, signed=self.signed)
            sample = np.repeat(np.arange(n), np.diff(kept.indptr))
            place = np.arange(kept.nnz) - kept.indptr[sample]
            cells, indices = np.zeros((n, self.top), dtype=kept.dtype), np.zeros((n, self.top), dtype=kind)
            cells[sample, place], indices[sample, place] = kept.data, kept.indices
        else:
            cells = to_cells(z, self.quantum, signed=self.signed)[:, self.chosen].toarray()
            indices = self.chosen.astype(kind)
        return Codes(cells, indices, self.quantum, labels, list(ids) if ids is not None else [str(i) for i in range(n)])


def check_one(*, budget: int | None, features: int | None, top: int | None) -> None:
    """How short is said in exactly one way."""
    if sum(x is not None for x in (budget, features, top)) != 1:
        raise BadInput("say how short, in exactly one way: --bytes, --features or --top, as in --bytes 16")


def plan(z_train: Matrix, *, budget: int | None = None, features: int | None = None, top: int | None = None) -> Plan:
    """Keep the `features` of largest expected activation, each sample's `top` largest, or what fits `budget` bytes.

    With a budget the better of both is taken: that of the larger mean cosine between the training features and what is
    read back, which needs no labels.
    """
    check_one(budget=budget, features=features, top=top)
    z = as_csr(z_train)
    width, quantum, signed = z.shape[1], quanta(z), _signed(z)
    if budget is None:
        kept = features if features is not None else top
        assert kept is not None
        _check_kept(kept, width)
        chosen = rank(z, relu=not signed)[:kept] if features is not None else None
        return Plan(quantum, signed, chosen=chosen, top=top)
    if budget < 1:
        raise BadInput(f"{budget} bytes per vector hold nothing: give 1 or more")
    options = [Plan(quantum, signed, chosen=rank(z, relu=not signed)[: min(budget, width)])]
    if pairs := min(budget // bytes_per_vector(1, index_of=width), width):
        options.append(Plan(quantum, signed, top=pairs))
    return max(options, key=lambda p: reconstruction(z, p.codes(z).decode()))


def reconstruction(z: Matrix, read_back: Matrix) -> float:
    """The mean over samples of cosine(z_n, read back_n); 1 where both are zero, 0 where only one is."""
    z, read_back = as_csr(z).astype(np.float64), as_csr(read_back).astype(np.float64)
    if z.shape != read_back.shape or not z.shape[0]:
        raise BadInput(f"features of shapes {z.shape} and {read_back.shape} cannot be compared sample by sample")
    dot, a, b = (np.asarray(x.sum(axis=1)).ravel() for x in (z * read_back, z * z, read_back * read_back))
    size = np.sqrt(a * b)
    return float(np.where(size > 0, dot / np.where(size > 0, size, 1), (a == 0) & (b == 0)).mean())


# Precision against bytes


@dataclass(frozen=True)
class Row:
    """One point: how a vector was shortened, its bytes, how many values were kept, precision@k and mAP@k (min)."""

    method: str
    bytes: int
    kept: int
    precision: float
    map: float


def curve(
    z_train: Matrix,
    z_test: Matrix,
    labels: np.ndarray,
    *,
    budgets: Sequence[int] = BUDGETS,
    reductions: Sequence[str] = REDUCTIONS,
    bits: Sequence[int] = BITS,
    k: int = 10,
    queries: Sequence[int] | np.ndarray | None = None,
    rng: np.random.Generator | None = None,
    device: str | torch.device | None = None,
) -> list[Row]:
    """Retrieval on test features shortened to each budget, by every reduction and width of values; and in full.

    `features`: those of largest expected activation; `pca`: principal axes of the training rows at length 1, not
    centred; `projection`: Gaussian random directions from `rng`; each with values of 32 (float), 8, 4 or 1 (sign) bits.
    `activations`: each sample's largest, an index and 8 bits each. Ranks, axes and quanta come from training features.
    """
    rows = []
    for reduction in reductions:
        if reduction == "activations":
            rows += _activation_rows(z_train, z_test, labels, budgets=budgets, k=k, queries=queries, device=device)
            continue
        train, test = _reduced(z_train, z_test, reduction, rng)
        for width in bits:
            kept = sorted({min(b * 8 // width, test.shape[1]) for b in budgets if b * 8 >= width} | {test.shape[1]})
            coded = quantised(train, test, bits=width)
            order = np.arange(test.shape[1])
            by_size = metrics.retrieval_by_prefix(coded, labels, order, kept, k=k, queries=queries, device=device)
            for s, found in zip(kept, by_size, strict=True):
                size = bytes_per_vector(s, bits=width)
                rows.append(Row(f"{reduction}, {_width(width)}", size, s, found["precision"], found["map"]))
    return rows


def _activation_rows(
    z_train: Matrix,
    z_test: Matrix,
    labels: np.ndarray,
    *,
    budgets: Sequence[int],
    k: int,
    queries: Sequence[int] | np.ndarray | None,
    device: str | torch.device | None,
) -> list[Row]:
    z = as_csr(z_train)
    width, quantum, signed = z.shape[1], quanta(z), _signed(z)
    pair = bytes_per_vector(1, index_of=width)
    rows = []
    for top in sorted({min(b // pair, width) for b in budgets if b >= pair}):
        codes = Plan(quantum, signed, top=top).codes(z_test)
        found = metrics.retrieval(codes.decode(), labels, k=k, queries=queries, device=device)
        method = f"activations, {index_bytes(width)}-byte index and 8-bit values"
        rows.append(Row(method, codes.bytes_per_vector, top, found["precision"], found["map"]))
    return rows


def _reduced(z_train: Matrix, z_test: Matrix, reduction: str, rng: np.random.Generator | None) -> tuple[Matrix, Matrix]:
    """Both sets in coordinates whose first ones matter most."""
    train, test = as_csr(z_train), as_csr(z_test)
    if reduction == "features":
        order = rank(train, relu=not _signed(train))
        return train[:, order], test[:, order]
    if reduction == "pca":
        axes = _principal_axes(train)
    elif reduction == "projection":
        if rng is None:
            raise BadInput("a random projection needs a random generator: give rng=np.random.default_rng(seed)")
        axes = rng.standard_normal((train.shape[1], train.shape[1]))
    else:
        raise unknown("reduction", reduction, REDUCTIONS)
    return train @ axes, test @ axes


def _principal_axes(z: Matrix) -> np.ndarray:
    """Eigenvectors of sum_n z_n z_n^T / |z_n|^2, largest eigenvalue first: D x D."""
    return np.linalg.eigh(gram(unit_rows(z)))[1][:, ::-1]


def _levels(bits: int, signed: bool) -> int:
    if not 2 <= bits <= 8:
        raise BadInput(f"values of {bits} bits: give 2 to 8")
    return 2 ** (bits - 1) - 1 if signed else 2**bits - 1


def _signed(z: Matrix) -> bool:
    return bool((z.data < 0).any())


def _width(bits: int) -> str:
    return {32: "float32", 1: "1 bit"}.get(bits, f"{bits} bits")


def _check_kept(k: Any, width: int) -> None:
    if not 1 <= k <= width:
        raise BadInput(f"{k} of {width} features cannot be kept: give a number between 1 and {width}")
