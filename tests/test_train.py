"""Training: it learns, it repeats, it survives a kill, and it stops at a NaN without harm."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from nonneg import augment, backbones, data, engine, files, loop, maps, optim, rundir
from nonneg.errors import BadInput
from nonneg.features import extract
from nonneg.loop import Interrupted
from nonneg.run import DIGITS, Run
from nonneg.steps import count_features, two_views
from nonneg.train import describe, fresh, train

TINY = replace(
    DIGITS,
    backbone=partial(backbones.small_net, width=4),
    projector=(32, 16),
    batch_size=128,
    epochs=3,
    checkpoint_seconds=0.0,
)
FLAGS = [
    "--backbone",
    "small_net:width=4",
    "--projector",
    "32",
    "16",
    "--batch-size",
    "128",
    "--checkpoint-seconds",
    "0",
]


@pytest.fixture(scope="module")
def digits() -> data.Dataset:
    return data.digits(split="train")


@pytest.fixture(scope="module")
def whole(digits: data.Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of twenty epochs that nothing interrupted."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    train(replace(TINY, epochs=20), folder, data=digits)
    return folder


def same_model(a: Path, b: Path) -> bool:
    x, y = files.read_tensors(a / "model.safetensors")[0], files.read_tensors(b / "model.safetensors")[0]
    return x.keys() == y.keys() and all(torch.equal(x[k], y[k]) for k in x)


@pytest.mark.parametrize("optimizer", [optim.lars, optim.sgd, optim.adamw])
def test_the_loss_falls(tmp_path: Path, digits: data.Dataset, optimizer) -> None:
    lr = {optim.lars: 0.4, optim.sgd: 0.05, optim.adamw: 2e-3}[optimizer]
    train(replace(TINY, optimizer=optimizer, lr=lr, epochs=4), tmp_path / "a", data=digits)
    losses = [line["loss"] for line in rundir.read_log(tmp_path / "a")]
    assert len(losses) == 4 and losses[-1] < losses[0] - 0.05


def test_equal_runs_give_equal_models_and_other_seeds_do_not(tmp_path: Path, digits: data.Dataset) -> None:
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        train(replace(TINY, epochs=1, seed=seed), tmp_path / name, data=digits)
    assert same_model(tmp_path / "a", tmp_path / "b")
    assert not same_model(tmp_path / "a", tmp_path / "c")


def test_cl_and_ncl_begin_from_the_same_weights(digits: data.Dataset) -> None:
    a, b = (fresh(replace(TINY, map=m), digits).model.state_dict() for m in (maps.identity, maps.rep_relu))
    assert all(torch.equal(a[k], b[k]) for k in a)


def test_one_step_is_the_papers_algorithm(digits: data.Dataset) -> None:
    """The step against the algorithm written out plainly, in the same order of random draws."""
    run = replace(TINY, optimizer=optim.sgd, lr=0.1, warmup_epochs=0, weight_decay=0.1)
    s, plain = fresh(run, digits), fresh(run, digits)
    two_views(run, s, len(digits) // 128)()
    noise = torch.rand(256, augment.NOISE, generator=plain.generator)
    x = digits.images[:128]
    views = run.augment(torch.cat([x, x]), noise)
    z = plain.model(views)
    loss = run.loss(z[:128], z[128:])
    gradients = torch.autograd.grad(loss, list(plain.model.parameters()))
    for p, g in zip(plain.model.parameters(), gradients, strict=True):
        p.data -= 0.05 * (g + run.weight_decay * p)  # 0.1 for a batch of 256 is 0.05 for 128
    for a, b in zip(s.model.parameters(), plain.model.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)
    assert s.totals[0].item() == pytest.approx(loss.item(), rel=1e-5)


def test_views_differ_and_batch_norm_statistics_can_be_per_view(digits: data.Dataset) -> None:
    losses = []
    for choice in ("joint", "per_view"):
        run = replace(TINY, epochs=1, batch_norm=choice)  # pyright: ignore[reportArgumentType]
        s, plain = fresh(run, digits), fresh(run, digits)
        two_views(run, s, 10)()
        losses.append(s.totals[0].item())
    noise = torch.rand(256, augment.NOISE, generator=plain.generator)
    views = run.augment(digits.images[:128].repeat(2, 1, 1, 1), noise)
    one, other = plain.model(views[:128]), plain.model(views[128:])
    assert losses[1] == pytest.approx(run.loss(one, other).item(), rel=1e-5)
    assert losses[0] != pytest.approx(losses[1], rel=5e-5) and losses[0] == pytest.approx(losses[1], rel=0.1)


def test_counters_count(digits: data.Dataset) -> None:
    s = fresh(TINY, digits)
    z = torch.tensor([[0.0, 1.0, 1e-6], [0.0, 0.0, 0.0], [0.0, 2.0, 0.0], [0.0, -3.0, 2e-5]])
    s.alive = torch.zeros(3, dtype=torch.bool)
    count_features(s, torch.tensor(2.0), z)
    assert s.totals.tolist() == [2.0, pytest.approx(8 / 12), 1.0, 1.0, 2.0, 0.0]
    count_features(s, torch.tensor(float("nan")), z)
    count_features(s, torch.tensor(float("nan")), z)
    assert s.totals[5] == 2  # the first bad step, kept


def test_every_image_is_seen_once_an_epoch(tmp_path: Path, digits: data.Dataset) -> None:
    seen = []
    few = digits.subset(torch.arange(256))

    def spy(images: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
        seen.extend(images[: len(images) // 2].flatten(1).long().mul(torch.arange(images[0].numel())).sum(1).tolist())
        return augment.none(images, noise)

    train(replace(TINY, epochs=1, augment=spy), tmp_path / "a", data=few)
    want = few.images[:].flatten(1).long().mul(torch.arange(few.images[:][0].numel())).sum(1).tolist()
    assert sorted(seen) == sorted(want) and seen != want


def command(out: Path, *more: str) -> list[str]:
    return [sys.executable, "-m", "nonneg", "train", "digits", "--out", str(out), "--epochs", "20", *FLAGS, *more]


def test_killed_between_two_renames_the_older_checkpoint_counts(tmp_path: Path, digits: data.Dataset) -> None:
    train(replace(TINY, epochs=2, checkpoint_seconds=0), tmp_path, data=digits)
    older = rundir.checkpoint_step(tmp_path, previous=True)
    (tmp_path / rundir.CHECKPOINT).unlink()
    found = rundir.load_checkpoint(tmp_path)
    assert older is not None and rundir.checkpoint_step(tmp_path) == older and found is not None and found[1] == older


def test_after_kill_minus_nine_resume_ends_with_the_identical_model(
    tmp_path: Path, digits: data.Dataset, whole: Path
) -> None:
    cut = tmp_path / "cut"
    process = subprocess.Popen(command(cut), stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not (cut / rundir.PREVIOUS).exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.15)
    assert process.poll() is None, "it must be killed before it is done"
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert 0 < (rundir.checkpoint_step(cut) or 0) < 200 and not (cut / "model.safetensors").exists()
    train(replace(TINY, epochs=20), cut, data=digits, resume=True)
    assert same_model(whole, cut)
    a, b = ([{k: v for k, v in line.items() if k != "seconds"} for line in rundir.read_log(f)] for f in (whole, cut))
    assert a == b


def test_ctrl_c_saves_and_says_how_to_resume(tmp_path: Path, whole: Path, tell: Callable) -> None:
    out = tmp_path / "cut"
    process = subprocess.Popen(command(out, "--checkpoint-seconds", "999"), stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not (out / "log.jsonl").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert f"nonneg train digits --out {out} --resume" in " ".join(err.split())
    assert "Traceback" not in err
    code, _, err = tell("train", "digits", "--out", out, "--resume")
    assert code == 0, err
    assert same_model(whole, out)


def test_a_nan_stops_the_run_names_the_step_and_keeps_the_checkpoint(tmp_path: Path, digits: data.Dataset) -> None:
    calls = [0]

    def poisoned(z1: torch.Tensor, z2: torch.Tensor) -> torch.Tensor:
        calls[0] += 1
        return TINY.loss(z1, z2) * (float("nan") if calls[0] >= 15 else 1.0)

    with pytest.raises(BadInput, match=r"not finite since step 15 \(epoch 2\).*checkpoint of step 14 is kept"):
        train(replace(TINY, loss=poisoned), tmp_path / "a", data=digits)
    tensors, at, _ = rundir.load_checkpoint(tmp_path / "a") or ({}, 0, 0.0)
    assert at == 14 and all(t.isfinite().all() for t in tensors.values() if t.is_floating_point())


def test_weights_that_overflow_are_never_saved(tmp_path: Path, digits: data.Dataset) -> None:
    """The loss may still be finite at the step whose update no longer is."""
    with pytest.raises(BadInput, match=r"not finite.*is kept"):
        train(replace(TINY, optimizer=optim.sgd, lr=1e6, warmup_epochs=0), tmp_path / "a", data=digits)
    for name in (rundir.CHECKPOINT, rundir.PREVIOUS):
        if (tmp_path / "a" / name).exists():
            tensors, _ = files.read_tensors(tmp_path / "a" / name)
            assert all(t.isfinite().all() for t in tensors.values() if t.is_floating_point()), name
    assert not (tmp_path / "a" / "model.safetensors").exists()


def test_what_a_step_needs_lives_as_long_as_what_executes_it(
    digits: data.Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A CUDA graph reads the addresses it was recorded with: nothing but `State` may hold tensors a step reads."""
    made: list[torch.Tensor] = []
    arange = torch.arange

    def spy(*args, **kwargs) -> torch.Tensor:
        made.append(arange(*args, **kwargs))
        return made[-1]

    s = fresh(TINY, digits)
    monkeypatch.setattr(torch, "arange", spy)
    two_views(TINY, s, 10)
    assert made == []  # index tensors are made inside the step


def test_a_run_of_another_kind_of_device_is_not_resumed(tmp_path: Path, digits: data.Dataset) -> None:
    train(replace(TINY, epochs=1), tmp_path / "a", data=digits)
    about = files.read_json(tmp_path / "a" / "run.json")
    files.write_json(tmp_path / "a" / "run.json", {**about, "device": "cuda"})
    with pytest.raises(BadInput, match=r"begun on a cuda .* cannot go on on a cpu"):
        train(replace(TINY, epochs=1), tmp_path / "a", data=digits, resume=True)


def test_inputs_skipped_while_streaming_stay_in_the_log_when_resumed(tmp_path: Path, digits: data.Dataset) -> None:
    train(replace(TINY, epochs=1), tmp_path / "a", data=digits)
    with (tmp_path / "a" / "log.jsonl").open("a") as f:
        f.write(json.dumps({"skipped": ["late.jpg: truncated"]}) + "\n")
    rundir.Log(tmp_path / "a", 10, ["early.jpg: empty"])
    assert rundir.read_skipped(tmp_path / "a") == ["early.jpg: empty", "late.jpg: truncated"]
    assert len(rundir.read_log(tmp_path / "a")) == 1


def test_temporary_files_of_a_killed_process_are_removed(tmp_path: Path, digits: data.Dataset) -> None:
    train(replace(TINY, epochs=1), tmp_path / "a", data=digits)
    left = tmp_path / "a" / ".checkpoint.safetensors.new.x1y2.tmp"
    left.write_bytes(b"half")
    train(replace(TINY, epochs=1), tmp_path / "a", data=digits, resume=True)
    assert not left.exists()


def test_a_run_folder_is_never_taken_by_accident(tmp_path: Path, digits: data.Dataset) -> None:
    run = replace(TINY, epochs=1)
    train(run, tmp_path / "a", data=digits)
    (tmp_path / "a" / "notes.txt").write_text("mine")
    with pytest.raises(BadInput, match=r"already exists; add --resume .* --overwrite"):
        train(run, tmp_path / "a", data=digits)
    train(replace(run, seed=5), tmp_path / "a", data=digits, overwrite=True)
    assert (tmp_path / "a" / "notes.txt").read_text() == "mine"
    assert files.read_json(tmp_path / "a" / "run.json")["run"]["seed"] == 5
    with pytest.raises(BadInput, match=r"begun with seed = 5, not 0"):
        train(run, tmp_path / "a", data=digits, resume=True)
    with pytest.raises(BadInput, match=r"begun on other images"):
        train(replace(run, seed=5), tmp_path / "a", data=digits.subset(torch.arange(300)), resume=True)
    with pytest.raises(BadInput, match=r"nothing to resume"):
        train(run, tmp_path / "b", data=digits, resume=True)


def test_a_truncated_checkpoint_is_named_and_the_previous_one_offered(tmp_path: Path, digits: data.Dataset) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    train(TINY, whole, data=digits)
    train(TINY, cut, data=digits)
    (cut / "model.safetensors").unlink()
    path = cut / rundir.CHECKPOINT
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(BadInput, match=r"checkpoint\.safetensors is damaged.*step 29, is intact: add --previous"):
        train(TINY, cut, data=digits, resume=True)
    with pytest.raises(BadInput, match="--previous says where --resume goes on from"):
        train(TINY, cut, data=digits, previous=True)
    train(TINY, cut, data=digits, resume=True, previous=True)
    assert same_model(whole, cut)
    (cut / rundir.PREVIOUS).write_bytes(b"")
    path.write_bytes(b"junk")
    with pytest.raises(BadInput, match=r"start the run again with --overwrite"):
        train(TINY, cut, data=digits, resume=True)


def test_what_a_killed_process_left_half_written_goes_when_the_file_is_written_again(tmp_path: Path) -> None:
    path, now = tmp_path / "lines[1].jsonl", time.time()
    left, fresh, other = (tmp_path / f".{name}.x1y2.tmp" for name in ("lines[1].jsonl", "lines[1].jsonl.b", "other"))
    at_work = tmp_path / ".lines[1].jsonl.z3.tmp"
    for file in (left, fresh, other, at_work):
        file.write_text("half")
    os.utime(left, (now, now - files.ABANDONED - 60))
    os.utime(other, (now, now - files.ABANDONED - 60))
    files.write_text(path, "whole")
    assert path.read_text() == "whole" and not left.exists()
    assert at_work.exists() and fresh.exists() and other.exists()  # of processes at work, and of other files
    assert path.stat().st_mode & 0o777 == 0o644  # others may read it, too


def test_a_full_disk_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.safetensors"
    files.write_tensors(path, {"a": torch.ones(3)}, {})

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(BadInput, match=r"cannot write .*No space left.*old file is unharmed"):
        files.write_tensors(path, {"a": torch.zeros(3)}, {})
    monkeypatch.undo()
    assert torch.equal(files.read_tensors(path)[0]["a"], torch.ones(3))
    assert [p.name for p in tmp_path.iterdir()] == ["model.safetensors"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_really_full_device_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="No space left"), files.atomic(tmp_path / "x"), Path("/dev/full").open("w") as f:
        f.write("x" * 100_000)


def test_batch_larger_than_the_data(tmp_path: Path, digits: data.Dataset) -> None:
    with pytest.raises(
        BadInput, match=r"--batch-size 5000 is larger than the 1347 images of digits to train on; lower it, to 512 say"
    ):
        train(replace(TINY, batch_size=5000), tmp_path / "a", data=digits)
    assert not (tmp_path / "a").exists()


def test_bf16_trains_and_stays_close(tmp_path: Path, digits: data.Dataset) -> None:
    losses = {}
    for precision in ("fp32", "bf16"):
        train(replace(TINY, precision=precision, epochs=2), tmp_path / precision, data=digits)  # pyright: ignore
        losses[precision] = rundir.read_log(tmp_path / precision)[-1]["loss"]
    assert losses["bf16"] != losses["fp32"] and losses["bf16"] == pytest.approx(losses["fp32"], rel=0.02)


def test_tensorboard_gets_a_copy_of_the_log(tmp_path: Path, digits: data.Dataset) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    train(replace(TINY, epochs=2, tensorboard=True), tmp_path / "a", data=digits)
    events = EventAccumulator(str(tmp_path / "a" / "tensorboard"))
    events.Reload()
    want = [line["loss"] for line in rundir.read_log(tmp_path / "a")]
    assert [e.value for e in events.Scalars("loss")] == pytest.approx(want)
    train(replace(TINY, epochs=2, tensorboard=True), tmp_path / "a", data=digits, resume=True)
    events = EventAccumulator(str(tmp_path / "a" / "tensorboard"))
    events.Reload()
    assert [e.value for e in events.Scalars("loss")] == pytest.approx(want)  # none is lost, none comes twice
    train(replace(TINY, epochs=1, seed=5, tensorboard=True), tmp_path / "a", data=digits, overwrite=True)
    events = EventAccumulator(str(tmp_path / "a" / "tensorboard"))
    events.Reload()
    want = [line["loss"] for line in rundir.read_log(tmp_path / "a")]
    assert [e.value for e in events.Scalars("loss")] == pytest.approx(want)


def test_a_new_run_leaves_no_weights_of_the_old_one(tmp_path: Path, digits: data.Dataset) -> None:
    train(replace(TINY, epochs=1), tmp_path / "a", data=digits)
    (tmp_path / "a" / "model.bf16.safetensors").write_bytes(b"the old run's weights, made smaller")
    (tmp_path / "a" / "notes.txt").write_text("somebody's own")
    train(replace(TINY, epochs=1, seed=1), tmp_path / "a", data=digits, overwrite=True)
    assert not (tmp_path / "a" / "model.bf16.safetensors").exists() and (tmp_path / "a" / "notes.txt").exists()


def test_a_custom_function_trains_and_its_features_come_out(tmp_path: Path, digits: data.Dataset) -> None:
    made = train(replace(TINY, epochs=1, map=lambda z: z.square()), tmp_path / "a", data=digits)
    z = extract(made, digits.subset(torch.arange(50))).z
    assert z.shape == (50, 16) and (z.data >= 0).all()
    assert json.loads((tmp_path / "a" / "run.json").read_text())["run"]["map"] == "custom"


def test_the_defaults_are_the_papers() -> None:
    run = Run()
    assert (run.lr, run.weight_decay, run.epochs, run.warmup_epochs, run.batch_size) == (0.4, 1e-4, 200, 10, 256)
    assert (run.projector, run.map, run.optimizer) == ((2048, 256), maps.rep_relu, optim.lars)
    assert Interrupted.__mro__[1] is BadInput


@pytest.mark.parametrize("epoch", [1, 2])  # of two: within the run, and in its very last step
def test_a_signal_that_comes_after_a_step_was_counted_loses_nothing(
    epoch: int, tmp_path: Path, digits: data.Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal may come while a checkpoint is not due any more: it must not end the run without one."""
    run, arrived = replace(TINY, epochs=2, checkpoint_seconds=1e9), engine.Reader.arrived
    train(run, tmp_path / "whole", data=digits)
    at, seen = epoch * (len(digits) // run.batch_size), [0]

    def interrupted(self: engine.Reader, *, wait: bool = False) -> list[tuple[int, list[float]]]:
        seen[0] += 1
        if seen[0] == at:
            os.kill(os.getpid(), signal.SIGINT)
        return arrived(self, wait=wait)

    with monkeypatch.context() as patch, pytest.raises(loop.Interrupted, match="nothing is lost"):
        patch.setattr(engine.Reader, "arrived", interrupted)
        train(run, tmp_path / "cut", data=digits)
    assert rundir.checkpoint_step(tmp_path / "cut") == seen[0] and not (tmp_path / "cut" / "model.safetensors").exists()
    train(run, tmp_path / "cut", data=digits, resume=True)
    assert (tmp_path / "cut" / "model.safetensors").read_bytes() == (
        tmp_path / "whole" / "model.safetensors"
    ).read_bytes()


def test_the_seconds_of_all_processes_are_counted(
    tmp_path: Path, digits: data.Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those between the last epoch that ended and the checkpoint."""
    now = [0.0]
    monkeypatch.setattr(loop.time, "monotonic", lambda: now[0])
    run, arrived = replace(TINY, epochs=1, checkpoint_seconds=1e9), engine.Reader.arrived
    steps = len(digits) // run.batch_size

    def slow(self: engine.Reader, *, wait: bool = False) -> list[tuple[int, list[float]]]:
        now[0] += 10.0  # a step
        if now[0] == 10.0 * 3:
            os.kill(os.getpid(), signal.SIGINT)
        return arrived(self, wait=wait)

    monkeypatch.setattr(engine.Reader, "arrived", slow)
    with pytest.raises(loop.Interrupted):
        train(run, tmp_path / "a", data=digits)
    now[0] += 1000.0  # nobody was at work
    train(run, tmp_path / "a", data=digits, resume=True)
    assert rundir.read_log(tmp_path / "a")[-1]["seconds"] == pytest.approx(10.0 * steps)


def test_a_finished_run_is_looked_at_on_any_device(tmp_path: Path, digits: data.Dataset) -> None:
    train(TINY, tmp_path / "a", data=digits)
    path = tmp_path / "a" / "run.json"
    files.write_json(path, {**files.read_json(path), "device": "cuda"})
    now = describe(TINY, digits)
    rundir.check_same(now, tmp_path / "a", defaults=Run().to_json(), finished=True)
    with pytest.raises(BadInput, match="was begun on a cuda"):
        rundir.check_same(now, tmp_path / "a", defaults=Run().to_json())
    with pytest.raises(BadInput, match="was begun with lr"):
        other = describe(replace(TINY, lr=3.0), digits)
        rundir.check_same(other, tmp_path / "a", defaults=Run().to_json(), finished=True)


def test_what_takes_long_on_a_cpu_is_said_once_with_what_takes_less(
    digits: data.Dataset, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    train(replace(TINY, epochs=1), tmp_path / "short", data=digits)
    assert "takes about" not in capsys.readouterr().err
    monkeypatch.setattr(loop, "LONG", 0.0)
    train(replace(TINY, epochs=2), tmp_path / "long", data=digits)
    said = capsys.readouterr().err
    assert said.count("on this CPU") == 1 and "resnet18:width=16" in said and "fewer --epochs" in said
