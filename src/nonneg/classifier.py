"""Classifiers whose votes can be counted: logits = map(x) weight_map(W)^T, without a bias.

relu on features and class weights makes cross entropy the paper's non-negative cross entropy (NCE); identity on both is
plain cross entropy (CE). N samples, D features, C classes.
"""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nonneg import encoder, files, maps, names
from nonneg.encoder import MAP, Encoder
from nonneg.errors import BadInput


class Votes(NamedTuple):
    """Who voted for a class of each sample: votes.sum(1) + rest = logits."""

    classes: Tensor  # N, the class that is explained
    logits: Tensor  # N, of that class
    features: Tensor  # N x k, the features of largest |vote|, the largest first
    votes: Tensor  # N x k, theirs
    rest: Tensor  # N, the votes of all other features together


class NonNegativeClassifier(nn.Module):
    """`forward(x)` is the logits, N x C: logit_c = sum_j map(x)_j weight_map(W)_cj; x is N x D, of any sign.

    The weights begin as nn.Linear's, and for any weight_map but identity as their absolute values: under relu a weight
    that is negative is off and passes no gradient, so half of a symmetric draw would be dead before the first step.
    """

    def __init__(
        self,
        dim: int,
        classes: int,
        *,
        map: Callable[[Tensor], Tensor] = maps.relu,
        weight_map: Callable[[Tensor], Tensor] = maps.relu,
    ) -> None:
        super().__init__()
        if dim < 1 or classes < 2:
            raise BadInput(
                f"a classifier of {dim} features and {classes} classes: give 1 feature and 2 classes at least"
            )
        self.map, self.weight_map = map, weight_map
        self.weight = nn.Parameter(torch.empty(classes, dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the weights anew, as nn.Linear does, without their signs if weight_map does away with them."""
        nn.init.kaiming_uniform_(self.weight, a=math.sqrt(5))
        if self.weight_map is not maps.identity:
            with torch.no_grad():
                self.weight.abs_()

    def extra_repr(self) -> str:
        return f"dim={self.weight.shape[1]}, classes={self.weight.shape[0]}"

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast(x.device.type, enabled=False):  # a bfloat16 logit would be off by a hundredth
            return F.linear(self._mapped(x), self.weight_map(self.weight))

    def _mapped(self, x: Tensor) -> Tensor:
        if x.ndim != 2 or x.shape[1] != self.weight.shape[1]:
            given = " x ".join(map(str, x.shape))
            raise BadInput(f"the classifier reads N x {self.weight.shape[1]} features, but was given {given}")
        return self.map(x.to(self.weight.dtype))

    def votes(self, x: Tensor, of: Tensor) -> Tensor:
        """N x D, what each feature adds to the logit of class `of` (N): map(x)_j weight_map(W)_{of, j}, in float64."""
        return self._mapped(x).double() * self.weight_map(self.weight)[self._classes(of, x)].double()

    def _classes(self, of: Tensor, x: Tensor) -> Tensor:
        last = len(self.weight) - 1
        known = torch.arange(last + 1, device=x.device)
        if not isinstance(of, Tensor) or of.shape != x.shape[:1] or not torch.isin(of.to(x.device), known).all():
            raise BadInput(f"of must be a tensor of {len(x)} class numbers from 0 to {last}, one for each sample")
        return of.to(x.device, torch.int64)

    @torch.no_grad()
    def explain(self, x: Tensor, k: int | None = None, *, of: Tensor | None = None) -> Votes:
        """The k features (10, or all if they are fewer) that voted most for class `of`, or for the predicted one.

        Votes are float64, and the logit is their sum: to float64's rounding, sum(votes) + rest = logit.
        """
        k = min(10, self.weight.shape[1]) if k is None else k
        if not 1 <= k <= self.weight.shape[1]:
            raise BadInput(f"k is {k}: ask for 1 to {self.weight.shape[1]} features")
        chosen = self(x).argmax(1) if of is None else self._classes(of, x)
        votes = self.votes(x, chosen)
        features = votes.abs().topk(k).indices
        named, rest = votes.gather(1, features), votes.scatter(1, features, 0.0).sum(1)
        return Votes(chosen, named.sum(1) + rest, features, named, rest)

    def dead(self) -> Tensor:
        """C x D, the weights that no gradient reaches any more: where the derivative of weight_map is zero."""
        with torch.inference_mode(False), torch.enable_grad():
            w = self.weight.detach().clone().requires_grad_()
            (slope,) = torch.autograd.grad(self.weight_map(w).sum(), w)
        return slope == 0


class Classifier(nn.Module):
    """`forward(x)` is head(encoder(x)), N x C logits; x is N x channels x H x W in [0, 1].

    The map on features is the encoder's, so that what the head reads is what `encoder` embeds; the head's own map is
    identity.
    """

    def __init__(
        self, encoder: Encoder, classes: Sequence[str], *, weight_map: Callable[[Tensor], Tensor] = maps.relu
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = NonNegativeClassifier(encoder.dim, len(classes), map=maps.identity, weight_map=weight_map)
        self.classes = list(classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(x))

    @torch.no_grad()
    def explain(self, x: Tensor, k: int | None = None, *, of: Tensor | None = None) -> Votes:
        """`NonNegativeClassifier.explain` of images."""
        return self.head.explain(self.encoder(x), k, of=of)


def save(model: Classifier, folder: Path) -> None:
    """Write the encoder's two files and, beside them, head.json and head.safetensors, from which `load` rebuilds it."""
    about = {"classes": model.classes, "weight_map": names.spell_or_custom(model.head.weight_map, MAP)}
    files.write_json(folder / "head.json", about)
    files.write_tensors(folder / "head.safetensors", model.head.state_dict(), {"head": about})
    encoder.save(model.encoder, folder)  # last: its weights are the sign that all is there


def load(
    folder: Path | str,
    *,
    backbone: nn.Module | Callable[[int], nn.Module] | None = None,
    map: Callable[[Tensor], Tensor] | None = None,
    weight_map: Callable[[Tensor], Tensor] | None = None,
) -> Classifier:
    """The saved classifier in evaluation mode; a backbone or map from outside the package is passed in."""
    folder = Path(folder)
    if not (folder / "head.json").exists():
        raise BadInput(f"{folder} holds no classifier (it has no head.json); make one with: nonneg train-classifier")
    about = files.read_json(folder / "head.json")
    try:
        classes, weights = [str(name) for name in about["classes"]], about["weight_map"]
    except (KeyError, TypeError) as error:
        raise BadInput(f"{folder / 'head.json'} is damaged: {error!r}") from None
    if weights == names.CUSTOM and weight_map is None:
        raise BadInput(f"{folder}: the weight map is not one of nonneg's, so pass it: load(folder, weight_map=...)")
    made = Classifier(
        encoder.load(folder, backbone=backbone, map=map), classes, weight_map=weight_map or names.find(weights, MAP)
    )
    tensors, _ = files.read_tensors(folder / "head.safetensors")
    try:
        made.head.load_state_dict(tensors)
    except RuntimeError as error:
        raise BadInput(
            f"{folder}: head.safetensors does not fit head.json and encoder.json ({' '.join(str(error).split())})"
        ) from None
    return made.eval()
