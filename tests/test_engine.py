"""How steps are executed: fall-backs that say so, counters read late, and on a GPU the same losses in every mode."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal

import pytest
import torch

from nonneg import augment, backbones, data, engine, optim
from nonneg.run import CIFAR, DIGITS, Run
from nonneg.steps import LOSS, two_views
from nonneg.train import fresh

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def test_auto_is_eager_float32_on_a_cpu() -> None:
    assert engine.choose("auto", "auto", CPU) == ("eager", "fp32")
    assert engine.choose("compiled", "bf16", CPU) == ("compiled", "bf16")


@pytest.mark.parametrize("mode", ["graph", "captured"])
def test_a_graph_without_a_gpu_runs_eagerly_and_says_so(mode: str, capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(3):
        assert engine.choose(mode, "fp32", CPU)[0] == "eager"  # pyright: ignore[reportArgumentType]
    assert capsys.readouterr().err.count("needs a GPU") == 1  # once, not at every probe of a run


def test_on_a_gpu_auto_is_graph_and_short_work_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "_cannot_compile", lambda _: "")
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **_: True)
    assert engine.choose("auto", "auto", CUDA) == ("graph", "bf16")
    assert engine.choose("auto", "auto", CUDA, short=True) == ("captured", "bf16")


def test_without_a_compiler_or_bfloat16_it_falls_back_in_one_line_each(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(engine, "_cannot_compile", lambda _: "no Triton")
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **_: False)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "An Old GPU")
    assert engine.choose("auto", "auto", CUDA) == ("captured", "fp32")
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 2 and "no Triton" in said[0] and "An Old GPU has no bfloat16" in said[1]
    assert engine.choose("compiled", "fp32", CUDA)[0] == "eager"


def test_why_nothing_can_be_compiled_is_the_cause_and_not_the_part_that_raised_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(text: str) -> None:
        def compiled(_: torch.Tensor) -> None:
            raise RuntimeError(text)

        monkeypatch.setattr(torch, "compile", lambda _: compiled)
        engine._cannot_compile.cache_clear()

    try:
        for text in ("backend='inductor' raised:\nno C compiler\n\nSet TORCHDYNAMO_VERBOSE=1", "no C compiler"):
            refuse(text)
            assert engine._cannot_compile(CPU) == "no C compiler"
        refuse("")
        assert engine._cannot_compile(CPU) == "RuntimeError"
    finally:
        engine._cannot_compile.cache_clear()


def test_the_compiler_is_silent_about_marks_for_a_profiler(caplog: pytest.LogCaptureFixture) -> None:
    from torch._dynamo.variables import ctx_manager  # here: it takes seconds to import
    from torch._logging._internal import warning_once

    def marked(x: torch.Tensor) -> torch.Tensor:
        with torch.autograd.profiler.record_function("as optimisers do"):
            return x + 1

    warning_once.cache_clear()
    engine.fuser("compiled")
    ctx_manager.log.addHandler(caplog.handler)
    try:
        assert torch.compile(marked, backend="eager")(torch.zeros(1)) == 1
        ctx_manager.log.warning("something else")
    finally:
        ctx_manager.log.removeHandler(caplog.handler)
    assert {r.getMessage() for r in caplog.records if r.name == ctx_manager.log.name} == {"something else"}


@pytest.mark.parametrize(("mode", "times"), [("eager", 0), ("captured", 0), ("compiled", 1), ("graph", 1)])
def test_that_the_first_step_takes_a_while_is_said_where_it_is_compiled(
    mode: str, times: int, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(2):
        engine.fuser(mode)
    assert capsys.readouterr().err.count("compiling the training step") == times


@pytest.mark.parametrize(("flags", "slow"), [("avx2 avx512f", True), ("avx512f avx512_bf16", False)])
def test_bfloat16_on_a_cpu_that_emulates_it_is_called_slower(
    flags: str, slow: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    info = tmp_path / "cpuinfo"
    assert engine._bf16_instructions(info)  # a system that does not say
    info.write_text(f"flags : fpu {flags}\n")
    monkeypatch.setattr(engine, "_bf16_instructions", partial(engine._bf16_instructions, info))
    assert engine.choose("auto", "fp32", CPU) == ("eager", "fp32") and not capsys.readouterr().err
    assert engine.choose("auto", "bf16", CPU) == ("eager", "bf16")  # what was asked for, the same numbers anywhere
    assert ("no bfloat16 instructions" in capsys.readouterr().err) is slow


def test_a_reader_returns_what_was_there_when_it_was_posted() -> None:
    reader, values = engine.Reader(), torch.tensor([1.0, 2.0])
    reader.post(16, values)
    values += 10
    reader.post(32, values)
    assert reader.arrived() == [(16, [1.0, 2.0]), (32, [11.0, 12.0])]
    assert reader.arrived(wait=True) == []


def test_outside_a_graph_the_step_is_itself() -> None:
    def step() -> None:
        raise AssertionError

    for mode in ("eager", "compiled"):
        assert engine.executor(step, mode, state=list, generator=torch.Generator()) is step


def losses(run: Run, images: data.Dataset, steps: int) -> list[float]:
    state = fresh(run, images)
    step, out, before = two_views(run, state, len(images) // run.batch_size), [], 0.0
    for _ in range(steps):
        step()
        after = state.totals[LOSS].item()
        out.append(after - before)
        before = after
    return out


@pytest.fixture(scope="module")
def images() -> data.Dataset:
    return data.digits(split="train", image_size=32)


# Warm-up and AdamW: weights off by a millionth change fifty losses by 0.0006, by a thousandth 0.003. With LARS at
# lr 0.4 and no warm-up it is 0.4 for both, on one CPU: no comparison could tell right from wrong.
RUN = replace(
    DIGITS,
    backbone=partial(backbones.small_net, width=16),
    optimizer=optim.adamw,
    lr=1e-3,
    batch_size=64,
    epochs=20,
    warmup_epochs=5,
)


@gpu
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_every_mode_gives_the_same_losses_for_fifty_steps(
    images: data.Dataset, precision: Literal["fp32", "bf16"]
) -> None:
    run = replace(RUN, device="cuda", precision=precision)
    eager = losses(replace(run, mode="eager"), images, 50)
    for mode in ("compiled", "captured", "graph"):
        other = losses(replace(run, mode=mode), images, 50)  # pyright: ignore[reportArgumentType]
        assert other == pytest.approx(eager, abs=0.02), mode
    assert eager[-1] < eager[0] - 0.1


@gpu
def test_every_mode_takes_the_same_steps_with_lars(images: data.Dataset) -> None:
    run = replace(RUN, device="cuda", precision="fp32", optimizer=optim.lars, lr=0.4)
    eager = losses(replace(run, mode="eager"), images, 10)  # off by a millionth: 0.00003 after ten steps
    for mode in ("compiled", "captured", "graph"):
        other = losses(replace(run, mode=mode), images, 10)  # pyright: ignore[reportArgumentType]
        assert other == pytest.approx(eager, abs=0.005), mode


@gpu
def test_the_recipe_for_cifar_gives_the_same_losses_in_every_mode(images: data.Dataset) -> None:
    tint = torch.tensor([1.0, 0.8, 0.5]).view(3, 1, 1)
    coloured = replace(images, images=(images.images[:] * tint).to(torch.uint8))  # three channels, as photographs have
    gently = {"optimizer": optim.adamw, "lr": 5e-5, "batch_size": 64, "epochs": 20, "warmup_epochs": 5}
    run = replace(CIFAR, device="cuda", precision="bf16", **gently)  # ResNet-18, all of simclr, kernels of our own
    eager = losses(replace(run, mode="eager"), coloured, 50)
    for mode in ("compiled", "captured", "graph"):
        other = losses(replace(run, mode=mode), coloured, 50)  # pyright: ignore[reportArgumentType]
        assert other == pytest.approx(eager, abs=0.05), mode


@gpu
def test_a_gpu_follows_the_cpu_on_the_same_noise(images: data.Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    found = {}
    for device in ("cpu", "cuda"):
        noise = torch.Generator().manual_seed(0)
        monkeypatch.setattr(
            augment,
            "draw_noise",
            lambda n, generator, g=noise: torch.rand(n, augment.NOISE, generator=g).to(generator.device),
        )
        found[device] = losses(replace(RUN, device=device, mode="eager", precision="fp32"), images, 50)
    assert found["cuda"] == pytest.approx(found["cpu"], abs=0.02)


@gpu
def test_recording_a_graph_leaves_the_state_as_it_was(images: data.Dataset) -> None:
    run = replace(RUN, device="cuda", mode="captured", precision="fp32")
    state = fresh(run, images)
    before = {k: v.clone() for k, v in state.model.state_dict().items()}
    random = state.generator.get_state()
    two_views(run, state, 10)
    assert all(torch.equal(v, before[k]) for k, v in state.model.state_dict().items())
    assert state.step.item() == 0 and torch.equal(state.generator.get_state(), random)
    assert all((v == 0).all() for slots in state.optimizer.state.values() for v in slots.values())
