"""Training with labels: cross entropy (CE) or, with non-negative features and class weights, the paper's NCE.

The loop is in loop.py, the step is `steps.labelled`; here is what is trained, how it is tested, and what is saved.
N images, C classes.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from nonneg import classifier, encoder, engine, features, finetune, loop, maps, metrics, names, progress, rundir, steps
from nonneg.classifier import Classifier
from nonneg.data import Dataset
from nonneg.data.dataset import HOW_TO_LABEL
from nonneg.data.splits import hold_out
from nonneg.encoder import BACKBONE, Encoder
from nonneg.errors import BadInput
from nonneg.finetune import WithHeads
from nonneg.loop import Job, Keep, Rows, State
from nonneg.run import ClassifierRun, anywhere
from nonneg.steps import EPS

HEAD = "z"  # the head reads the features


def train_classifier(
    run: ClassifierRun,
    folder: Path | str,
    *,
    data: tuple[Dataset, Dataset] | None = None,
    resume: bool = False,
    previous: bool = False,
    overwrite: bool = False,
    label: str = "training",
) -> Classifier:
    """min over all weights of mean CE(logits(view of x), y); tested by epoch, saved in `folder`; `resume` continues.

    `data` is the training and the test images, if not the run's own.
    """
    run = anywhere(run)
    train, test = split(run, *(data or (run.load("train"), run.load("test"))))
    classes = check(train, test)
    features.tell_skipped(test)
    if (run.map is maps.identity) != (run.weight_map is maps.identity):
        about = run.to_json()
        progress.say(
            f"features pass {about['map']}, class weights {about['weight_map']}; cross entropy has identity on both: "
            "--map identity --weight-map identity"
        )
    assert train.labels is not None
    device, n, folder = run.torch_device(), run.batch_size, Path(folder)
    mode, precision = engine.choose(run.mode, run.precision, device, short=True)
    rows, per_epoch = Rows(train, {"labels": train.labels}), len(train) // n
    model = fresh(run, train, classes).to(device, memory_format=torch.channels_last).train()  # pyright: ignore[reportCallIssue]
    inside = WithHeads(model.encoder, nn.ModuleDict({HEAD: model.head}))

    def begin() -> State:
        make = partial(run.optimizer, inside.parameters(), weight_decay=run.weight_decay)
        counters = steps.answers([HEAD])
        return loop.begin(inside, rows, optimizer=make, batch_size=n, seed=run.seed, device=device, counters=counters)

    def after_epoch(epoch: int) -> dict[str, Any]:
        if epoch % run.test_every and epoch < run.epochs:
            return {}
        found = finetune.scores(model.encoder, {HEAD: model.head}, test, device=device, precision=run.precision)[HEAD]
        model.train()
        dead = model.head.dead().double().mean().item()
        return {"test_accuracy": found.accuracy, "test_loss": found.loss, "dead_weights": dead}

    job = Job(
        rows=rows,
        batch_size=n,
        epochs=run.epochs,
        device=device,
        line=partial(_line, batch_size=n),
        note="loss {loss:.3f}  right {accuracy:.1%}",
        label=label,
        strict=run.strict,
        after_epoch=after_epoch,
        keep=Keep(
            folder,
            describe(run, train),
            defaults=ClassifierRun().to_json(),
            again=rundir.resume_words(run, folder),
            seconds=run.checkpoint_seconds,
            tensorboard=run.tensorboard,
            resume=resume,
            previous=previous,
            overwrite=overwrite,
        ),
    )
    how = {"rate": run.rate(per_epoch), "mode": mode, "precision": precision}
    step = partial(steps.labelled, batch_size=n, augmentation=run.augment, **how)  # pyright: ignore[reportArgumentType]
    loop.run_job(job, begin=begin, step=step)
    classifier.save(model, folder)
    return model.eval()


def _line(totals: dict[str, float], taken: int, *, batch_size: int) -> dict[str, Any]:
    """The mean loss and the share of right answers on training views, over the epoch so far."""
    found = steps.answers_line(totals, taken, batch_size=batch_size)
    return {"loss": found["loss"], "accuracy": found[f"accuracy_{HEAD}"]}


def describe(run: ClassifierRun, train: Dataset) -> dict[str, Any]:
    """What run.json says of this training."""
    return rundir.describe("classifier", run.to_json(), train, run.torch_device())


def split(run: ClassifierRun, train: Dataset, test: Dataset) -> tuple[Dataset, Dataset]:
    """The images to train and to test on: with `validation`, four fifths and a fifth of the training images."""
    if not run.validation:
        return train, test
    parts = [hold_out(train.ids, split) for split in ("train", "test")]
    if not all(parts):
        raise BadInput(f"--validation: {train.name} has {len(train)} training images, too few to hold out a fifth")
    first, second = (train.subset(part) for part in parts)
    return first, second


def check(train: Dataset, test: Dataset) -> list[str]:
    """Refuse what no classifier can be trained on; the names of the classes."""
    for data, split in ((train, "training"), (test, "test")):
        if data.labels is None:
            raise BadInput(
                f"{data.name}: the {split} images have no labels, and a classifier needs one for each; {HOW_TO_LABEL}, "
                "or train without: nonneg train"
            )
    assert train.labels is not None and test.labels is not None
    classes = train.classes or [str(i) for i in range(int(train.labels.max()) + 1)]
    counts = torch.bincount(train.labels, minlength=len(classes))
    if int((counts > 0).sum()) < 2:
        only = classes[int(counts.argmax())]
        raise BadInput(f"{train.name}: all {len(train)} training images are of one class, {only!r}; give two at least")
    if test.classes is not None and train.classes is not None and test.classes != train.classes:
        raise BadInput(f"{train.name}: training and test images do not have the same classes in the same order")
    if (largest := int(test.labels.max())) >= len(classes):
        raise BadInput(
            f"{test.name}: a test image has the label {largest}, but the training images know the classes 0 to "
            f"{len(classes) - 1}; remove it, or add images of its class"
        )
    if missing := [classes[i] for i in torch.nonzero(counts == 0).flatten().tolist()]:
        progress.say(
            f"{train.name}: {len(missing)} of {len(classes)} classes have no training image, first {missing[0]!r}"
        )
    return classes


def fresh(run: ClassifierRun, train: Dataset, classes: Sequence[str]) -> Classifier:
    """The classifier before the first step: drawn from `run.seed`, or with the backbone of a pretrained run."""
    start = None if run.pretrained is None else _start(run, train)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(run.seed)
        net = run.encoder(train, normalised_as=start)
        model = Classifier(net, classes, weight_map=run.weight_map)
    if start is not None:
        net.backbone.load_state_dict(start.backbone.state_dict())
    return model


def _start(run: ClassifierRun, train: Dataset) -> Encoder:
    """The pretrained encoder, if its backbone is the one that this run has and takes these images."""
    assert run.pretrained is not None
    try:
        start = encoder.load(run.pretrained)
    except BadInput as error:
        raise BadInput(f"--from {run.pretrained}: {error}") from None
    mine = names.spell_or_custom(run.backbone, BACKBONE)
    if start.about["backbone"] != mine:
        raise BadInput(
            f"--from {run.pretrained}: its backbone is {start.about['backbone']}, not {mine}; leave --backbone out"
        )
    if start.about["channels"] != train.channels:
        theirs, ours = start.about["channels"], train.channels
        raise BadInput(f"--from {run.pretrained}: its images have {theirs} channels, those of {train.name} {ours}")
    return start


def begin_with(folder: Path, run: ClassifierRun) -> ClassifierRun:
    """The run as it should be to begin with another run's backbone: the same network and size of images."""
    begun, about = rundir.read_any(folder)
    size = begun.image_size or (run.image_size if run.data is begun.data else about["data"]["image_size"])
    return replace(run, pretrained=folder, backbone=begun.backbone, image_size=size)


def epochs_to(levels: Sequence[float], log: Sequence[dict[str, Any]]) -> dict[float, int | None]:
    """The first epoch whose test accuracy reached each level; None where none did."""
    tested = [(line["epoch"], line["test_accuracy"]) for line in log if "test_accuracy" in line]
    return {level: next((epoch for epoch, right in tested if right >= level), None) for level in levels}


def trained(run: ClassifierRun, folder: Path, data: tuple[Dataset, Dataset], label: str) -> Classifier:
    """The run's classifier: loaded if it is finished, continued if it was begun, trained otherwise."""
    if (folder / "model.safetensors").exists():
        train, _ = split(run, *data)
        rundir.check_same(describe(anywhere(run), train), folder, defaults=ClassifierRun().to_json(), finished=True)
    else:
        train_classifier(run, folder, data=data, **loop.as_begun(folder), label=label)
    return classifier.load(folder)  # always from the file: what is measured is what anyone can load


def measures(
    model: Classifier,
    log: Sequence[dict[str, Any]],
    test: Dataset | None,
    *,
    levels: Sequence[int],
    device: torch.device,
) -> dict[str, float | None]:
    """Answers by the log, epochs to each level (in percent), class weights and, of test images, features."""
    last, reached = log[-1], epochs_to([n / 100 for n in levels], log)
    out: dict[str, float | None] = {k: last[k] for k in ("test_accuracy", "test_loss")}
    out["train_accuracy"] = last["accuracy"]
    out |= {f"epochs_to_{n}": reached[n / 100] for n in levels}
    weights = model.head.weight_map(model.head.weight).detach()
    out["dead_weights"] = model.head.dead().double().mean().item()
    out["zero_weights"] = (weights.abs() < EPS).double().mean().item()
    if test is not None:
        made = features.extract(model.encoder, test, device=device)
        out |= {"sparsity": metrics.sparsity(made.z), "live_features": metrics.live_features(made.z)}
        if made.labels is not None and out["live_features"]:
            out["class_consistency"] = metrics.class_consistency(made.z, made.labels)
    return out
