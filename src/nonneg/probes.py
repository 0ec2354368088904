"""What the features are good for: a linear classifier and nearest neighbours, on features computed once.

N images, D features, C classes. Features come as N x D, sparse or dense; both are made dense here. Labels N integers.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from scipy import sparse
from torch import Tensor

from nonneg.errors import BadInput

Matrix: TypeAlias = Any  # scipy.sparse.csr_array, for which scipy ships no types, or np.ndarray
L2 = (1.0, 1e-1, 1e-2, 1e-3, 1e-4, 1e-5)  # from strong to weak: each fit starts from the one before
CHUNK = 2**24  # cosines held at once


@dataclass(frozen=True)
class ProbeResult:
    """Test accuracy, the regularisation and the validation accuracy that chose it, and whether the fit converged.

    `model` takes features as they are, and its columns are `classes`, the labels that occur.
    """

    accuracy: float
    l2: float
    validation_accuracy: float
    converged: bool
    model: "Logistic" = field(repr=False, compare=False)
    classes: np.ndarray = field(repr=False, compare=False)


@dataclass(frozen=True)
class Logistic:
    """argmax over classes of x @ weight + bias; weight is D x C, bias C, both float64."""

    weight: Tensor
    bias: Tensor
    converged: bool


def linear_probe(
    train_x: Matrix,
    train_y: np.ndarray,
    test_x: Matrix,
    test_y: np.ndarray,
    *,
    seed: int = 0,
    device: str | torch.device | None = None,
) -> ProbeResult:
    """Test accuracy of multinomial logistic regression, min_W mean CE + l2/2 |W|^2, fitted until it converges.

    Features are standardised by the training mean and deviation (constant ones become zero). l2 is the value of `L2`
    of least cross entropy on a stratified fifth of the training data; then all of it is fitted again. (Accuracy there
    has ties, which the last bits of the features would break.)
    """
    train, classes, y, test, answer = _check(train_x, train_y, test_x, test_y, device)
    mean, deviation = _mean_and_deviation(train)
    train, test = (train - mean) / deviation, (test - mean) / deviation
    # In the principal axes the penalty is the same and `logistic` scales each one rightly: 40 % fewer steps.
    axes = torch.linalg.eigh((train.T @ train).double())[1].to(train.dtype)
    train = train @ axes

    fit_on, held_out = _split(y.cpu().numpy(), seed=seed)
    best, least, model = (L2[0], None), math.inf, None
    x_fit, y_fit, x_held, y_held = train[fit_on], y[fit_on], train[held_out], y[held_out]
    for l2 in L2:
        model = logistic(x_fit, y_fit, classes=len(classes), l2=l2, start=model)
        loss = F.cross_entropy(_logits(model, x_held).double(), y_held).item()
        if loss < least:
            best, least = (l2, model), loss
    l2, start = best
    assert start is not None
    best_accuracy = _accuracy(start, x_held, y_held)
    model = logistic(train, y, classes=len(classes), l2=l2, start=start)
    weight = (axes.double() @ model.weight) / deviation.double()[:, None]
    whole = Logistic(weight, model.bias - mean.double() @ weight, model.converged)
    return ProbeResult(_accuracy(model, test @ axes, answer), l2, best_accuracy, model.converged, whole, classes)


def logistic(
    x: Tensor,
    y: Tensor,
    *,
    classes: int,
    l2: float,
    start: Logistic | None = None,
    tolerance: float = 1e-4,
    max_steps: int = 500,
) -> Logistic:
    """min over W, b of mean CE(x W + b, y) + l2/2 |W|^2 by L-BFGS on all the data, until max |gradient| <= tolerance.

    The gradient is that of the variables each scaled by 1/sqrt of its curvature (mean x_d^2 / C + l2), so half its
    squared length estimates the loss still to be gained. Scaling changes the path, not the solution.
    """
    (n, d), dtype, device = x.shape, x.dtype, x.device
    curvature = torch.cat([x.square().mean(0).double() / classes + l2, x.new_ones(1).double() / classes])
    scale = curvature.rsqrt()[:, None]  # (D + 1) x 1, the bias last

    v = torch.zeros(d + 1, classes, dtype=torch.float64, device=device)
    if start is not None:
        v.copy_(torch.cat([start.weight, start.bias[None]]) / scale)
    search = torch.optim.LBFGS(
        [v],
        max_iter=max_steps,
        max_eval=2 * max_steps,
        tolerance_grad=tolerance,
        tolerance_change=0.0,
        history_size=20,
        line_search_fn="strong_wolfe",
    )

    def objective() -> float:
        w, b = (v * scale).split([d, 1])
        log_p = F.log_softmax(torch.addmm(b.to(dtype), x, w.to(dtype)), dim=1)
        loss = F.nll_loss(log_p, y, reduction="none").double().mean() + l2 / 2 * w.square().sum()
        error = log_p.exp()
        error[torch.arange(n, device=device), y] -= 1
        slope = (error.T @ x).T.double() / n + l2 * w  # five times faster than x.T @ error on a CPU
        v.grad = torch.cat([slope, error.double().mean(0, keepdim=True)]) * scale
        return loss.item()

    with _threads(1 if x.numel() < 2**20 else torch.get_num_threads()):
        search.step(objective)
        objective()  # the gradient where the search ended; its last trial may lie elsewhere
    assert v.grad is not None
    return Logistic((v * scale)[:-1], (v * scale)[-1], v.grad.abs().max().item() <= tolerance)


def default_k(n: int) -> int:
    """How many neighbours vote among n training samples: sqrt(n), at most the usual 200 (reached at 40,000)."""
    return min(200, max(1, round(math.sqrt(n))))


def knn(
    train_x: Matrix,
    train_y: np.ndarray,
    test_x: Matrix,
    test_y: np.ndarray,
    *,
    k: int | None = None,
    temperature: float | None = 0.1,
    device: str | torch.device | None = None,
) -> float:
    """Test accuracy when the k training samples of largest cosine vote, each with weight exp(cosine / temperature).

    k is `default_k` unless given, at most N; without a temperature every vote counts the same. Equally similar
    neighbours that have no room among the k share the places that are left, so the order of the training data does not
    matter; of equal votes the smallest class wins; zero rows have cosine 0.
    """
    train, classes, y, test, answer = _check(train_x, train_y, test_x, test_y, device)
    k = default_k(len(train)) if k is None else min(k, len(train))
    if k < 1 or (temperature is not None and not temperature > 0):
        raise BadInput(f"k is {k} and temperature {temperature}: give k of 1 or more and a temperature above 0")
    train, right = _unit(train), 0
    for queries, truth in zip(*(t.split(max(1, CHUNK // len(train))) for t in (_unit(test), answer)), strict=True):
        cosine = queries @ train.T  # queries x N
        values, columns = cosine.topk(min(k + 1, len(train)), dim=1)
        heard = _heard(values[:, :k], values[:, :1], temperature)
        votes = heard.new_zeros(len(queries), len(classes)).scatter_add_(1, y[columns[:, :k]], heard)
        if (tied := (values[:, k:] == values[:, k - 1 : k]).any(1)).any():
            bar, nearest = values[tied, k - 1 : k], values[tied, :1]
            above, level = cosine[tied] > bar, cosine[tied] == bar
            place = above + level * (k - above.sum(1, keepdim=True)).double() / level.sum(1, keepdim=True)
            heard = place * _heard(cosine[tied], nearest, temperature)
            votes[tied] = torch.zeros_like(votes[tied]).index_add_(1, y, heard)
        right += int((votes.argmax(1) == truth).sum())
    return right / len(test)


def _heard(cosine: Tensor, nearest: Tensor, temperature: float | None) -> Tensor:
    """The weight of a vote, relative to the nearest's, so that exp cannot overflow."""
    if temperature is None:
        return torch.ones_like(cosine, dtype=torch.float64)
    return ((cosine.double() - nearest) / temperature).exp()


def _unit(x: Tensor) -> Tensor:
    """Rows of length 1, rows of zeros left alone."""
    x = x / x.abs().amax(1, keepdim=True).clamp_min(torch.finfo(x.dtype).tiny)  # squares of small numbers vanish
    return x / x.norm(dim=1, keepdim=True).clamp_min(1)  # at least 1 after that, but for rows of zeros


@contextmanager
def _threads(n: int) -> Iterator[None]:
    """Run on n CPU threads: on a busy machine, threads that wait for each other slow small work down tenfold."""
    before = torch.get_num_threads()
    torch.set_num_threads(n)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _mean_and_deviation(x: Tensor) -> tuple[Tensor, Tensor]:
    """Of each column; a column constant up to rounding gets deviation infinity, so that standardised it is zero."""
    deviation, mean = torch.std_mean(x, dim=0, correction=0)
    return mean, torch.where(deviation > 1e-6 * mean.abs(), deviation, torch.inf)


def _logits(model: Logistic, x: Tensor) -> Tensor:
    return x @ model.weight.to(x.dtype) + model.bias.to(x.dtype)


def _accuracy(model: Logistic, x: Tensor, y: Tensor) -> float:
    return (_logits(model, x).argmax(1) == y).double().mean().item()


def _split(y: np.ndarray, *, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Indices to fit on and a fifth of each class held out (at least one, but never a class's only sample)."""
    order = np.random.default_rng(seed).permutation(len(y))
    held_out = []
    for c in np.unique(y):
        members = order[y[order] == c]
        held_out.append(members[: min(len(members) - 1, max(1, len(members) // 5))])
    held_out = np.sort(np.concatenate(held_out))
    if not len(held_out):
        raise BadInput("no class has two training samples: a linear probe needs some to fit and some to validate")
    return np.setdiff1d(np.arange(len(y)), held_out), held_out


def _check(
    train_x: Matrix, train_y: np.ndarray, test_x: Matrix, test_y: np.ndarray, device: str | torch.device | None
) -> tuple[Tensor, np.ndarray, Tensor, Tensor, Tensor]:
    """Training features, classes and labels as 0..C-1, test features and labels; a class never trained on is -1."""
    train, test = _dense(train_x, "training"), _dense(test_x, "test")
    if train.shape[1] != test.shape[1]:
        raise BadInput(f"training features have {train.shape[1]} columns, test features {test.shape[1]}: use one model")
    classes, y = np.unique(_labels(train_y, len(train), "training"), return_inverse=True)
    if len(classes) < 2:
        raise BadInput(f"every training label is {classes[0]}: a probe needs at least two classes")
    truth = _labels(test_y, len(test), "test")
    answer = np.where(np.isin(truth, classes), np.searchsorted(classes, truth), -1)
    tensors = (torch.as_tensor(a, device=device) for a in (train, y, test, answer))
    train_t, y_t, test_t, answer_t = tensors
    return train_t, classes, y_t, test_t, answer_t


def _dense(x: Matrix, part: str) -> np.ndarray:
    """Features as a dense float32 array."""
    dense = x.toarray() if sparse.issparse(x) else np.asarray(x)
    if dense.ndim != 2 or not dense.size:
        raise BadInput(f"{part} features have shape {dense.shape}: give one row per sample, one column per feature")
    dense = dense.astype(np.float32, copy=False)
    if not np.isfinite(dense).all():
        raise BadInput(f"{part} features hold NaN or infinite values: the model diverged, or the file is damaged")
    return dense


def _labels(y: np.ndarray | None, n: int, part: str) -> np.ndarray:
    if y is None:
        raise BadInput(f"the {part} data have no labels: a probe needs labelled data")
    y = np.asarray(y)
    if y.shape != (n,):
        raise BadInput(f"there are {n} {part} samples but labels of shape {y.shape}: give one label per sample")
    if y.dtype.kind not in "iu" or y.min() < 0:
        raise BadInput(f"{part} labels must be whole numbers from 0: leave out samples that have no label")
    return y.astype(np.int64)
