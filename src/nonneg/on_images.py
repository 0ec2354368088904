"""What is measured on images through the model: two views, damaged images, other domains, and the paper's probes.

N images, D features, d backbone outputs, C classes. Everything comes as entries, like those of `evaluate`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from nonneg import augment, corruptions, features, finetune, probes, progress
from nonneg.data import Dataset, Files
from nonneg.data.stream import in_order
from nonneg.encoder import Encoder
from nonneg.errors import BadInput, listed
from nonneg.features import Features
from nonneg.measures import Entry, entry

BATCH = 500
KINDS = {"noise": slice(0, 3), "blur": slice(3, 7), "weather": slice(7, 11), "digital": slice(11, 15)}
LUMA = (0.299, 0.587, 0.114)


def sampled(data: Dataset, most: int, *, seed: int) -> Dataset:
    """At most so many of the images, drawn at random and in their old order."""
    if len(data) <= most:
        return data
    return data.subset(np.sort(np.random.default_rng(seed).permutation(len(data))[:most]).tolist())


# Two views


@torch.inference_mode()
def two_views(
    model: Encoder,
    data: Dataset,
    augmentation: Callable[[Tensor, Tensor], Tensor],
    *,
    seed: int,
    device: str | torch.device,
) -> tuple[Features, Features]:
    """z of two augmented views of every image, in evaluation mode; h is left out (N x 0)."""
    model, device = model.to(device).eval(), torch.device(device)
    generator = torch.Generator(device).manual_seed(seed)
    views: tuple[list[Any], list[Any]] = ([], [])
    ids: list[str] = []
    with progress.bar(f"views of {data.name}", len(data)) as advance:
        for (x, bad), names in zip(
            in_order(data.images, batch_size=BATCH, device=device), _parts(data.ids, BATCH), strict=True
        ):
            x = x.to(device, non_blocking=True)
            kept = [row for row in range(len(x)) if row not in bad]
            for view in views:
                z = model(augmentation(x, augment.draw_noise(len(x), generator=generator)))
                view.append(sparse.csr_array(z.float().cpu().numpy()[kept]))
            ids += [names[row] for row in kept]
            advance(len(x))
    none = np.zeros((len(ids), 0), np.float32)
    first, second = (Features(none, sparse.csr_array(sparse.vstack(view)), None, ids) for view in views)
    return first, second


# A probe trained on clean images, elsewhere


@dataclass(frozen=True)
class CleanProbe:
    """argmax over classes of h @ weight + bias, fitted on clean training images: weight d x C, bias C, classes C."""

    weight: Tensor
    bias: Tensor
    classes: Tensor
    l2: float
    clean: float  # its accuracy on the clean test images

    def right(self, h: Tensor, labels: Tensor) -> Tensor:
        """How many of these images it tells right, as a tensor where h is, so that nothing waits."""
        return (self.classes[(h @ self.weight + self.bias).argmax(1)] == labels).sum()


def clean_probe(train: Features, test: Features, *, device: str | torch.device, seed: int = 0) -> CleanProbe:
    """The logistic regression of `probes.linear_probe` on h, as something that can be asked about other images."""
    assert train.labels is not None and test.labels is not None
    found = probes.linear_probe(train.h, train.labels, test.h, test.labels, seed=seed, device=device)
    classes = torch.as_tensor(found.classes, device=device)
    return CleanProbe(found.model.weight.float(), found.model.bias.float(), classes, found.l2, found.accuracy)


@torch.inference_mode()
def corrupted(
    model: Encoder, probe: CleanProbe, data: Dataset, *, seed: int, device: str | torch.device
) -> dict[str, Entry]:
    """Accuracy of the clean-trained probe on 15 corruptions of these images at 5 severities, and on the images."""
    assert data.labels is not None
    model, device = model.to(device).eval(), torch.device(device)
    cells = [(name, severity) for name in corruptions.NAMES for severity in corruptions.SEVERITIES]
    generators = [torch.Generator(device).manual_seed(seed + i) for i in range(len(cells))]  # whatever is left out
    right, clean = torch.zeros(len(cells), dtype=torch.int64, device=device), torch.zeros((), device=device)
    seen = 0
    with progress.bar("corruptions", len(data) * len(cells)) as advance:
        for (x, bad), labels in zip(
            in_order(data.images, batch_size=BATCH, device=device), data.labels.split(BATCH), strict=True
        ):
            kept = [row for row in range(len(x)) if row not in bad]
            x, labels = (x[kept], labels[kept]) if bad else (x, labels)
            x, y = x.to(device, non_blocking=True), labels.to(device, non_blocking=True)
            clean += probe.right(model.features(x.float() / 255), y)
            for i, (name, severity) in enumerate(cells):
                damaged = corruptions.corrupt(x, name, severity, generator=generators[i])
                right[i] += probe.right(model.features(damaged.float() / 255), y)
                advance(len(kept) + len(bad), note=name)
            seen += len(kept)
    share = right.cpu().numpy().reshape(len(corruptions.NAMES), -1) / seen
    how = {"images": seen, "clean": clean.item() / seen, "seed": seed, "l2": probe.l2}
    text = (
        "accuracy of logistic regression on h, trained on clean images, on {} of the test images, mean over severities"
    )
    each = {
        name: {"mean": round(float(row.mean()), 6), "severity": [round(float(v), 6) for v in row]}
        for name, row in zip(corruptions.NAMES, share, strict=True)
    }
    found = {"corruption_accuracy": entry(share.mean(), text.format("15 corruptions"), **how) | {"each": each}}
    for kind, which in KINDS.items():
        found[f"corruption_{kind}"] = entry(share[which].mean(), text.format(f"the {kind} corruptions"), **how)
    return found


@dataclass(frozen=True)
class Elsewhere:
    """A labelled folder whose images are told by the run's probe; labels are the run's, `parts` its two splits."""

    name: str
    parts: list[Dataset]
    classes: int


def elsewhere(
    text: str, parts: Callable[..., Dataset], classes: list[str] | None, *, channels: int, image_size: int
) -> Elsewhere:
    """What NAME=FOLDER names, its labels renumbered as the run's; `parts` loads a split of a folder."""
    name, equals, place = text.partition("=")
    if not (equals and name and place and all(c.isalnum() or c in "-_." for c in name)):
        raise BadInput(f"--ood {text}: write NAME=FOLDER, as in sketch=path/to/sketches")
    if classes is None:
        raise BadInput(f"--ood {text}: the run's classes have no names, so no folder can match them")
    if not (there := Path(place).expanduser()).is_dir():
        raise BadInput(f"--ood {text}: {place} {'is not a folder' if there.exists() else 'does not exist'}")
    loaded = [parts(split=split, root=place, image_size=image_size) for split in ("train", "test")]
    if loaded[0].classes is None:
        raise BadInput(f"--ood {text}: {place} has no labels; give it one sub-folder a class ({listed(classes)})")
    try:
        number = loaded[0].numbers_among(classes, place)
    except BadInput as error:
        raise BadInput(f"--ood {text}: {error}") from None
    return Elsewhere(name, [_as_the_run(part, number, classes, channels, place) for part in loaded], len(number))


def _as_the_run(part: Dataset, number: Tensor, classes: list[str], channels: int, place: str) -> Dataset:
    """The same images with the run's labels and number of channels."""
    assert part.labels is not None
    images = part.images
    if channels == 1 and part.channels == 3:
        if isinstance(images, Files):
            raise BadInput(f"{place} holds too many colour images to turn grey in memory: save them grey and small")
        grey = (images.float() * torch.tensor(LUMA).view(1, 3, 1, 1)).sum(1, keepdim=True)
        images = grey.round().to(torch.uint8)
    return Dataset(part.name, images, number[part.labels], classes, part.ids, part.skipped)


def out_of_distribution(
    model: Encoder, probe: CleanProbe, place: Elsewhere, *, device: str | torch.device
) -> dict[str, Entry]:
    """Accuracy of the clean-trained probe on a folder of other images of the same classes."""
    right = total = 0
    for part in place.parts:
        made = features.extract(model, part, device=device)
        assert made.labels is not None
        h, y = (torch.as_tensor(a, device=device) for a in (made.h, made.labels))
        right, total = right + int(probe.right(h, y)), total + len(y)
    text = (
        f"accuracy of logistic regression on h, trained on clean images, on the {total} images of another folder, of "
        f"{place.classes} of {len(probe.classes)} classes"
    )
    return {
        f"ood_{place.name}": entry(
            right / total, text, images=total, classes=place.classes, clean=probe.clean, l2=probe.l2
        )
    }


# The paper's probes


def probed(
    model: Encoder, train: Dataset, test: Dataset, *, tune: bool, epochs: int, seed: int, device: str | torch.device
) -> dict[str, Entry]:
    """Test accuracy by the paper's protocol, on h and z: a linear classifier on random crops, model tuned or not."""
    run = partial(finetune.probe, model, train, test, tune=tune, epochs=epochs, seed=seed, device=device)
    together: tuple[tuple[finetune.Place, ...], ...] = (("h",), ("z",)) if tune else (("h", "z"),)
    found = {place: one for on in together for place, one in run(on=on).items()}
    what = "the model fine-tuned with a linear classifier" if tune else "a linear classifier on the frozen model's"
    where = {"h": "backbone outputs h", "z": "features z"}
    return {
        f"{'tune' if tune else 'probe'}_{place}": entry(
            one.accuracy,
            f"test accuracy of {what}{' on' if tune else ''} {where[place]}, trained on random crops and flips",
            train_accuracy=one.train_accuracy,
            epochs=epochs,
            train_images=len(train),
            test_images=len(test),
            seed=seed,
            seconds=round(one.seconds, 1),
        )
        for place, one in found.items()
    }


def _parts(names: list[str], size: int) -> list[list[str]]:
    return [names[at : at + size] for at in range(0, len(names), size)]
