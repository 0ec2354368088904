"""What the authors' probe does otherwise: how much of a linear probe's accuracy that takes, the encoder being the same.

Claim to be tested: on CIFAR-100 our probe is 1.5 to 2.1 points above the paper's, while fine-tuning agrees. Two things
in the authors' evaluation hit a frozen encoder and not one that is fine-tuned. Their probes normalise CIFAR-100's
images by CIFAR-10's mean and deviation, the pretraining by CIFAR-100's own; and features are taken in training mode,
each batch normalised by its own statistics.
Cost: two or three minutes a run of CIFAR-100 on one CPU core; on a GPU less.
Run: nonneg reproduce protocol --data-root DIR
"""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from nonneg import charts, experiments, features, probes
from nonneg.analyses import Analysis, Line, Subject
from nonneg.data import Dataset
from nonneg.encoder import Encoder
from nonneg.experiments import method_of
from nonneg.progress import track

CIFAR10 = ((0.4914, 0.4822, 0.4465), (0.247, 0.243, 0.261))  # mean and deviation, as the authors' probes have them
BATCH = 256
WAYS = {"ours": "as we do", "cifar10": "normalised by CIFAR-10's", "batch": "batch norm in training mode"}


def otherwise_normalised(encoder: Encoder, mean: Sequence[float], deviation: Sequence[float]) -> Encoder:
    """The encoder, taking images to be of that mean and deviation."""
    other = copy.deepcopy(encoder)
    other.mean.copy_(torch.tensor(mean).view(1, -1, 1, 1))
    other.std.copy_(torch.tensor(deviation).view(1, -1, 1, 1))
    return other


@torch.inference_mode()
def in_training_mode(encoder: Encoder, data: Dataset, device: torch.device) -> Tensor:
    """h of every image, each batch of `BATCH` normalised by its own statistics; the encoder given is left as it was.

    Batches are drawn at random: files may be sorted by class, and statistics of one class would take the class away.
    """
    other = copy.deepcopy(encoder).to(device).train()
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(0))
    parts = order.split(BATCH)
    shown = track(parts, f"features of {data.name} in training mode", len(parts))
    h = torch.cat([other.features(data.images[part].to(device).float() / 255).cpu() for part in shown])
    return h[order.argsort()]


def ask(subjects: Sequence[Subject]) -> dict[str, Any]:
    """Logistic regression on h of the same frozen encoder, three ways, trained and tested alike."""
    (subject,) = subjects
    train, test = (subject.run.load(split) for split in ("train", "test"))
    other = otherwise_normalised(subject.model, *CIFAR10)
    h = {
        "ours": [subject.features(split).h for split in ("train", "test")],
        "cifar10": [features.extract(other, data, device=subject.device).h for data in (train, test)],
        "batch": [in_training_mode(subject.model, data, subject.device).numpy() for data in (train, test)],
    }
    y = [subject.features(split).labels for split in ("train", "test")]
    assert y[0] is not None and y[1] is not None
    found = {k: probes.linear_probe(a, y[0], b, y[1], device=subject.device).accuracy for k, (a, b) in h.items()}
    return found | {f"{k}_lost": found["ours"] - found[k] for k in ("cifar10", "batch")}


def draw(lines: Mapping[str, Line]) -> bytes | None:
    """The accuracy of each way, a group of bars for each run."""
    called = {f"{of}-{method}": text for of in ANALYSIS.of for method, text in experiments.find(of).methods.items()}
    shown = {f"{called[method_of(k)]}, seed {k.rpartition('-s')[2]}": line["measures"] for k, line in lines.items()}
    return charts.ways(shown, WAYS) if lines else None


ANALYSIS = Analysis(
    of=("cifar100", "recipe"),
    ask=ask,
    table={
        "ours": ("logistic regression on h, as we do", 100.0),
        "cifar10": ("images normalised by CIFAR-10's mean and deviation", 100.0),
        "cifar10_lost": ("lost by that normalisation", 100.0),
        "batch": ("batch norm in training mode", 100.0),
        "batch_lost": ("lost by training mode", 100.0),
    },
    draw=draw,
)
