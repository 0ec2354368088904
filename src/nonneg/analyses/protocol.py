"""What the authors' probe does otherwise: how much of a linear probe's accuracy that takes, the encoder being the same.

Claim to be tested: on CIFAR-100 our probe is 1.7 to 2.2 points above the paper's, while fine-tuning and CIFAR-10 agree.
Three things in the authors' code hit a frozen encoder and not one that is fine-tuned. Their probes normalise
CIFAR-100's images by CIFAR-10's mean and deviation, the pretraining by CIFAR-100's own; some of their features are
taken in training mode, each batch normalised by its own statistics; and their training logs the accuracy of a
classifier that learns along with the encoder, from the same hard views, at a rate of 0.1. Were the paper's number that
one, a head trained on such views should be about two points worse than one trained on crops and flips, on CIFAR-100 and
not on CIFAR-10. A third head, on the views but at the probe's rate and decay, tells what the views take from what the
rate takes.
Cost: on one CPU core two or three minutes a run, and for the heads of a narrow net's 15 epochs some ten more.
Outcome, of one narrow net on each set: normalisation takes nothing, training mode 0.3 points on CIFAR-100 and 1.4 on
CIFAR-10, hard views at their low rate 2.6 and 1.1; at the probe's rate the views alone 1.4 and 0.9. Not decided.
Run: nonneg reproduce protocol --data-root DIR
"""

import copy
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from nonneg import charts, experiments, features, finetune, probes
from nonneg.analyses import Analysis, Line, Subject
from nonneg.data import Dataset
from nonneg.encoder import Encoder
from nonneg.experiments import method_of
from nonneg.progress import track
from nonneg.run import Run

CIFAR10 = ((0.4914, 0.4822, 0.4465), (0.247, 0.243, 0.261))  # mean and deviation, as the authors' probes have them
BATCH = 256
HEAD_EPOCHS = 50  # at most; a net trained for fewer is given heads of as many
WAYS = {
    "ours": "logistic regression, as we do",
    "cifar10": "the same, normalised by CIFAR-10's",
    "batch": "the same, batch norm in training mode",
    "crops": "the paper's head, on crops and flips",
    "views_alone": "a head on the views of pretraining",
    "views": "on pretraining's views, at its rate",
}


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


def heads(encoder: Encoder, run: Run, train: Dataset, test: Dataset, *, device: torch.device) -> dict[str, float]:
    """Accuracy of a linear head on h, trained as the paper's probe, and as the authors' pretraining trains its own.

    Between them one on those views that is else the paper's probe.
    """
    head = partial(finetune.probe, encoder, train, test, epochs=min(HEAD_EPOCHS, run.epochs), seed=run.seed)
    head = partial(head, device=device, mode=run.mode, precision=run.precision)
    on_views = partial(head, augmentation=run.augment)
    ways = {"crops": head, "views_alone": on_views, "views": partial(on_views, lr=0.1, weight_decay=0.0)}
    return {way: train_head()["h"].accuracy for way, train_head in ways.items()}


def ask(subjects: Sequence[Subject]) -> dict[str, Any]:
    """Linear classifiers of h of the same frozen encoder: logistic regression in three ways, and two trained heads."""
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
    assert isinstance(subject.run, Run)
    found |= heads(subject.model, subject.run, train, test, device=subject.device)
    found |= {f"{k}_lost": found["ours"] - found[k] for k in ("cifar10", "batch")}
    return found | {f"{k}_lost": found["crops"] - found[k] for k in ("views_alone", "views")}


def draw(lines: Mapping[str, Line]) -> bytes | None:
    """The accuracy of each way, a group of bars for each run."""
    called = {f"{of}-{k}": f"{text}, {of}" for of in ANALYSIS.of for k, text in experiments.find(of).methods.items()}
    shown = {f"{called[method_of(k)]}, seed {k.rpartition('-s')[2]}": line["measures"] for k, line in lines.items()}
    asked = {way: text for way, text in WAYS.items() if any(way in numbers for numbers in shown.values())}
    return charts.ways(shown, asked) if lines else None


ANALYSIS = Analysis(
    of=("cifar10", "cifar100", "recipe"),
    ask=ask,
    table={
        "ours": ("logistic regression on h, as we do", 100.0),
        "cifar10": ("images normalised by CIFAR-10's mean and deviation", 100.0),
        "cifar10_lost": ("lost by that normalisation", 100.0),
        "batch": ("batch norm in training mode", 100.0),
        "batch_lost": ("lost by training mode", 100.0),
        "crops": ("head trained on crops and flips, the paper's probe", 100.0),
        "views_alone": ("head trained on the views of pretraining", 100.0),
        "views_alone_lost": ("lost by those views", 100.0),
        "views": ("head trained on those views at pretraining's rate, without decay", 100.0),
        "views_lost": ("lost by those views and that rate", 100.0),
    },
    draw=draw,
)
