"""The head that counts votes: plain cross entropy with identity, additive to float precision, alive at birth."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nonneg import backbones, classifier, encoder, files, maps
from nonneg.classifier import Classifier, NonNegativeClassifier
from nonneg.encoder import Encoder
from nonneg.errors import BadInput

MAPS = (maps.identity, maps.relu, maps.rep_relu, maps.softplus, maps.sigmoid, maps.exp)


def head(dim: int = 7, classes: int = 4, seed: int = 0, **how: Callable[[Tensor], Tensor]) -> NonNegativeClassifier:
    torch.manual_seed(seed)
    return NonNegativeClassifier(dim, classes, **how)


def features(n: int = 9, dim: int = 7) -> Tensor:
    return torch.randn(n, dim, generator=torch.Generator().manual_seed(1))


def test_identity_on_both_is_a_linear_layer_without_bias_from_the_same_draw() -> None:
    plain = head(map=maps.identity, weight_map=maps.identity)
    torch.manual_seed(0)
    linear = nn.Linear(7, 4, bias=False)
    assert torch.equal(plain.weight, linear.weight) and torch.equal(plain(features()), linear(features()))
    assert {name for name, _ in plain.named_parameters()} == {"weight"}  # no bias
    assert linear.load_state_dict(plain.state_dict()) is not None  # either way round
    plain.load_state_dict(linear.state_dict())


@pytest.mark.parametrize("map", MAPS)
@pytest.mark.parametrize("weight_map", MAPS)
def test_logits_are_the_double_sum(map: Callable, weight_map: Callable) -> None:
    made, x = head(map=map, weight_map=weight_map), features()
    with torch.no_grad():
        made.weight.sub_(0.1)  # some of each sign, as training leaves them
    logits = made(x).tolist()
    a, b = map(x).tolist(), weight_map(made.weight).tolist()
    for n in range(9):
        for c in range(4):
            assert logits[n][c] == pytest.approx(sum(a[n][j] * b[c][j] for j in range(7)), rel=1e-5, abs=1e-5)


@pytest.mark.parametrize(("map", "weight_map"), [(maps.relu, maps.relu), (maps.identity, maps.identity)])
@pytest.mark.parametrize("k", [1, 3, 200])
def test_votes_add_up_to_the_logit(map: Callable, weight_map: Callable, k: int) -> None:
    """What the k largest and the rest give is the logit to float64's rounding; votes are signed for CE alone."""
    made, x = head(200, 10, map=map, weight_map=weight_map), 5 * features(50, 200)
    with torch.no_grad():
        made.weight.sub_(made.weight.mean())
    found, logits = made.explain(x, k), made(x)
    assert torch.equal(found.classes, logits.argmax(1))
    every = made.votes(x, found.classes)
    unit, most = (
        torch.finfo(torch.float64).eps * every.abs().sum(1),
        torch.finfo(torch.float32).eps * every.abs().sum(1),
    )
    assert ((logits.amax(1) - found.logits).abs() <= 4 * most).all()  # the network's own is of float32
    for n in range(50):
        assert abs(sum(found.votes[n].tolist()) + found.rest[n].item() - found.logits[n].item()) <= 4 * unit[n]
        assert abs(sum(every[n].tolist()) - found.logits[n].item()) <= 4 * unit[n]
    assert (found.rest == 0).all() if k == 200 else (found.rest != 0).any()
    assert bool((every < 0).any()) is (map is maps.identity)


def test_the_features_that_are_named_are_the_largest_votes() -> None:
    made, x = head(30, 5, map=maps.identity, weight_map=maps.identity), features(20, 30)
    of = torch.arange(20) % 5
    found = made.explain(x, 4, of=of)
    for n in range(20):
        votes = [x[n, j].item() * made.weight[of[n], j].item() for j in range(30)]
        order = sorted(range(30), key=lambda j: -abs(votes[j]))[:4]
        assert found.features[n].tolist() == order
        assert found.votes[n].tolist() == pytest.approx([votes[j] for j in order])
        assert float(found.logits[n]) == pytest.approx(sum(votes), abs=1e-5)
        assert float(found.rest[n]) == pytest.approx(sum(votes) - sum(votes[j] for j in order), abs=1e-5)
    assert torch.equal(found.classes, of)


# --- the weights at birth, and which of them learn -----------------------------------------------------------------


def test_dead_weights_are_told_in_inference_mode_too() -> None:
    made = head(50, 6)
    with torch.no_grad():
        made.weight[:, :7] = -1
    with torch.inference_mode():
        assert made.dead().sum().item() == 6 * 7


@pytest.mark.parametrize("weight_map", MAPS)
def test_no_class_weight_is_dead_at_birth_and_gradient_reaches_all(weight_map: Callable) -> None:
    made = head(50, 6, weight_map=weight_map)
    assert not made.dead().any()
    F.cross_entropy(made(features(64, 50).abs() + 0.1), torch.arange(64) % 6).backward()
    assert made.weight.grad is not None and (made.weight.grad != 0).all()


def test_a_symmetric_draw_would_be_half_dead_and_gradient_reaches_the_other_half() -> None:
    made = head(500, 6)
    nn.init.kaiming_uniform_(made.weight, a=5**0.5)
    dead = made.dead()
    assert 0.4 < dead.float().mean() < 0.6 and torch.equal(dead, made.weight <= 0)
    F.cross_entropy(made(features(64, 500).abs() + 0.1), torch.arange(64) % 6).backward()
    assert made.weight.grad is not None and torch.equal(made.weight.grad == 0, dead)


def test_weights_at_birth_are_as_long_as_a_linear_layers_and_repeat_with_the_seed() -> None:
    a, b, plain = head(64, 10), head(64, 10), head(64, 10, weight_map=maps.identity)
    assert torch.equal(a.weight, b.weight) and not torch.equal(a.weight, head(64, 10, seed=1).weight)
    assert torch.equal(a.weight, plain.weight.abs()) and (plain.weight < 0).any()


def test_dead_knows_the_maps() -> None:
    w = torch.tensor([[-1.0, 0.0, 2.0], [-3.0, 1.0, -0.1]])
    expected = {maps.relu: [[True, True, False], [True, False, True]]}
    for weight_map in MAPS:
        made = head(3, 2, weight_map=weight_map)
        with torch.no_grad():
            made.weight.copy_(w)
            assert made.dead().tolist() == expected.get(weight_map, [[False] * 3] * 2)  # rep_relu's are off, not dead
        assert made.weight.grad is None


def test_a_feature_that_is_off_gets_no_gradient_from_relu_and_some_from_rep_relu() -> None:
    for map, passes in ((maps.relu, False), (maps.rep_relu, True)):
        x = (-features().abs() - 0.1).requires_grad_()
        F.cross_entropy(head(map=map)(x), torch.arange(9) % 4).backward()
        assert x.grad is not None and bool((x.grad != 0).any()) is passes


@pytest.mark.parametrize("map", MAPS)
@pytest.mark.parametrize("weight_map", MAPS)
def test_two_blobs_are_learned_with_any_maps(map: Callable, weight_map: Callable) -> None:
    y = torch.arange(64) % 2
    x = features(64, 8) + 2.0 * F.one_hot(y, 8)
    made = head(8, 2, map=map, weight_map=weight_map)
    first, optimizer = F.cross_entropy(made(x), y).item(), torch.optim.Adam(made.parameters(), lr=0.1)
    for _ in range(40):
        optimizer.zero_grad()
        F.cross_entropy(made(x), y).backward()
        optimizer.step()
    assert F.cross_entropy(made(x), y).item() < 0.9 * first


def test_logits_stay_in_float32_under_autocast() -> None:
    made, x = head(), features()
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(made(x), head()(x)) and made(x.bfloat16()).dtype == torch.float32


# --- bad input -----------------------------------------------------------------------------------------------------


def test_widths_and_numbers_that_do_not_fit_get_one_sentence() -> None:
    with pytest.raises(BadInput, match=r"reads N x 7 features, but was given 9 x 8"):
        head()(features(9, 8))
    with pytest.raises(BadInput, match=r"reads N x 7 features, but was given 7"):
        head()(torch.zeros(7))
    for dim, classes in ((0, 3), (4, 1), (4, 0)):
        with pytest.raises(BadInput, match="1 feature and 2 classes at least"):
            NonNegativeClassifier(dim, classes)
    for k in (0, 8):
        with pytest.raises(BadInput, match=f"k is {k}: ask for 1 to 7 features"):
            head().explain(features(), k)
    assert head().explain(features()).votes.shape[1] == 7  # no number was asked for, so none is wrong
    classes, n = len(head().weight), len(features())
    wrong = (classes, torch.full((n,), classes), torch.full((n,), -1), torch.zeros(n - 1, dtype=torch.long))
    for of in (*wrong, torch.full((n,), 0.5)):
        for ask in (head().votes, lambda x, of: head().explain(x, 2, of=of)):
            with pytest.raises(BadInput, match=f"of must be a tensor of {n} class numbers from 0 to {classes - 1}"):
                ask(features(), of)
    assert head().explain(features(), 2, of=torch.ones(n, dtype=torch.int32)).classes.tolist() == [1] * n


# --- the model and its files ---------------------------------------------------------------------------------------


def model(projector: tuple[int, ...] = (12, 6), **how: Callable[[Tensor], Tensor]) -> Classifier:
    torch.manual_seed(3)
    net = Encoder(
        partial(backbones.small_net, width=4), projector=projector, map=how.get("map", maps.relu), channels=1
    )  # fmt: skip
    return Classifier(net, ["cat", "dog", "a b"], weight_map=how.get("weight_map", maps.relu)).eval()


@pytest.mark.parametrize("projector", [(), (12, 6)])
@pytest.mark.parametrize("map", [maps.identity, maps.relu, maps.softplus])
def test_loading_rebuilds_the_exact_classifier(tmp_path: Path, projector: tuple[int, ...], map: Callable) -> None:
    made = model(projector, map=map, weight_map=map)
    classifier.save(made, tmp_path)
    loaded, x = classifier.load(tmp_path), torch.rand(5, 1, 16, 16)
    assert loaded.classes == ["cat", "dog", "a b"] and not loaded.training and loaded.head.weight_map is map
    assert torch.equal(loaded(x), made(x)) and loaded(x).shape == (5, 3)
    assert torch.equal(encoder.load(tmp_path)(x), made.encoder(x))  # to everything else it is a run with an encoder
    found = loaded.explain(x, 2)
    assert torch.allclose(found.logits.float(), made(x).amax(1), atol=1e-6)
    assert torch.allclose(loaded.head.votes(made.encoder(x), found.classes).sum(1), found.logits, atol=1e-12)


def test_the_features_are_mapped_once() -> None:
    """softplus(softplus(x)) is not softplus(x): the encoder maps, the head does not again."""
    made, x = model(map=maps.softplus), torch.rand(2, 1, 16, 16)
    h = made.encoder.features(x)
    assert torch.allclose(made(x), maps.softplus(made.encoder.projector(h)) @ maps.relu(made.head.weight).T, atol=1e-6)


def test_a_folder_that_is_no_classifiers_is_named(tmp_path: Path) -> None:
    encoder.save(model().encoder, tmp_path)
    with pytest.raises(BadInput, match=r"holds no classifier"):
        classifier.load(tmp_path)
    classifier.save(model(), tmp_path)
    for broken in ([1], {}, {"classes": 3, "weight_map": "relu"}):
        files.write_json(tmp_path / "head.json", broken)
        with pytest.raises(BadInput, match=r"head\.json is damaged"):
            classifier.load(tmp_path)
    files.write_json(tmp_path / "head.json", {"classes": ["a", "b"], "weight_map": "relu"})
    with pytest.raises(BadInput, match=r"head\.safetensors does not fit"):
        classifier.load(tmp_path)
    files.write_json(tmp_path / "head.json", {"classes": ["a", "b", "c"], "weight_map": "os.system"})
    with pytest.raises(BadInput, match="unknown map"):
        classifier.load(tmp_path)


def test_a_weight_map_from_outside_is_passed_in_again(tmp_path: Path) -> None:
    made = model(weight_map=torch.square)
    classifier.save(made, tmp_path)
    with pytest.raises(BadInput, match=r"weight map is not one of nonneg's"):
        classifier.load(tmp_path)
    x = torch.rand(3, 1, 16, 16)
    assert torch.equal(classifier.load(tmp_path, weight_map=torch.square)(x), made(x))
