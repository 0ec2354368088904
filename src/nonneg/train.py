"""Training an encoder without labels: the paper's algorithm. The loop is in loop.py, what a step does in steps.py."""

from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nonneg import encoder, loop, progress, rundir, steps
from nonneg.data import Dataset
from nonneg.data.dataset import HOW_TO_LABEL
from nonneg.encoder import Encoder
from nonneg.errors import BadInput
from nonneg.loop import Job, Keep, Rows, State
from nonneg.run import Run, anywhere, to_calm


def train(
    run: Run,
    folder: Path | str,
    *,
    data: Dataset | None = None,
    resume: bool = False,
    previous: bool = False,
    overwrite: bool = False,
    label: str = "training",
) -> Encoder:
    """Train `run` in `folder` and return the encoder, which is also saved there; `resume` continues exactly."""
    run = anywhere(run)
    data, folder = data or run.load("train"), Path(folder)
    job = Job(
        rows=_rows(run, data),
        batch_size=run.batch_size,
        epochs=run.epochs,
        device=run.torch_device(),
        line=steps.features_line,
        note="loss {loss:.3f}  alive {alive}  zeros {zeros:.0%}",
        label=label,
        advice=to_calm(run.loss),
        strict=run.strict,
        keep=Keep(
            folder,
            describe(run, data),
            again=rundir.resume_words(run, folder),
            defaults=Run().to_json(),
            seconds=run.checkpoint_seconds,
            tensorboard=run.tensorboard,
            resume=resume,
            previous=previous,
            overwrite=overwrite,
        ),
    )
    s = loop.run_job(job, begin=lambda: fresh(run, data), step=partial(steps.two_views, run))
    assert isinstance(s.model, Encoder)
    encoder.save(s.model, folder)
    return s.model.eval()


def describe(run: Run, data: Dataset) -> dict[str, Any]:
    """What run.json says of this training."""
    return rundir.describe("encoder", run.to_json(), data, run.torch_device())


def fresh(run: Run, data: Dataset) -> State:
    """The state before the first step; all randomness comes from `run.seed`."""
    device = run.torch_device()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(run.seed)
        model = run.encoder(data)
    model = model.to(device, memory_format=torch.channels_last).train()  # pyright: ignore[reportCallIssue]
    return loop.begin(
        model,
        _rows(run, data),
        optimizer=partial(run.optimizer, model.parameters(), weight_decay=run.weight_decay),
        batch_size=run.batch_size,
        seed=run.seed,
        device=device,
        counters=steps.FEATURES,
        features=model.dim,
        pairs=steps.class_pairs(_labels(run, data).to(device)) if run.positives == "class" else None,
    )


def _rows(run: Run, data: Dataset) -> Rows:
    """The images, and their labels where the loss takes them."""
    return Rows(data, {"labels": _labels(run, data)} if run.loss_takes_labels else {})


def _labels(run: Run, data: Dataset) -> Tensor:
    """The labels that a run needs; without any, or with one class only, it cannot be."""
    asks = "--positives class" if run.positives == "class" else f"--loss {run.to_json()['loss']}"
    if data.labels is None:
        raise BadInput(f"{data.name} has no labels, and {asks} needs them; {HOW_TO_LABEL}")
    sizes = data.labels.unique(return_counts=True)[1]
    if len(sizes) < 2:
        raise BadInput(f"all {len(data)} images of {data.name} are of one class, and {asks} needs two classes at least")
    if alone := int((sizes == 1).sum()):
        progress.say_once(
            f"{data.name}: {alone} of {len(sizes)} classes have one image only; what is like it is another view of it"
        )
    return data.labels
