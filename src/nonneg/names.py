"""Functions by name, at two edges only: the command line and run.json.

`info_nce:temperature=0.05` is `partial(losses.info_nce, temperature=0.05)`; a bare value goes to the first knob, so
`timm:resnet50` is `partial(backbones.timm, name="resnet50")`. A name resolves to a function *defined in* one room of
this package whose first parameters are that room's; a file can never name code from anywhere else.
"""

import ast
import inspect
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any, get_args

from tyro.constructors import PrimitiveConstructorSpec

from nonneg.errors import BadInput, unknown

CUSTOM = "custom"  # stands in a file for a function from outside the package, which must be passed in again


@dataclass(frozen=True)
class Role:
    """What a function is for: the room it lives in and the parameters all functions of that role begin with."""

    kind: str
    room: ModuleType
    begins: tuple[str, ...]

    def functions(self) -> dict[str, Callable[..., Any]]:
        """The functions of this role by name."""
        found = {}
        for name, f in vars(self.room).items():
            ours = inspect.isfunction(f) and f"{f.__module__}.".startswith(f"{self.room.__name__}.")
            if (
                ours
                and not name.startswith("_")
                and tuple(inspect.signature(f).parameters)[: len(self.begins)] == self.begins
            ):
                found[name] = f
        return found


def find(text: str, role: Role) -> Callable[..., Any]:
    """The function that `text` names, its knobs bound."""
    name, _, rest = text.partition(":")
    options = role.functions()
    if name not in options:
        raise unknown(role.kind, name, options)
    f = options[name]
    knobs = _knobs(f, role)
    bound: dict[str, Any] = {}
    for i, item in enumerate(part for part in re.split(r",(?=\w+=|$)", rest) if part):  # a path may hold commas
        key, eq, value = item.partition("=")
        if not eq:
            if i or not knobs:
                raise BadInput(f"{role.kind} {text!r}: write knobs as name=value ({', '.join(knobs) or 'it has none'})")
            key, value = next(iter(knobs)), item
        if key not in knobs:
            raise unknown(f"knob of {role.kind} {name}", key, knobs)
        bound[key] = _literal(value, knobs[key], f"{role.kind} {text!r}")
    missing = [k for k, p in knobs.items() if p.default is inspect.Parameter.empty and k not in bound]
    if missing:
        whole = ",".join([*(f"{k}={v}" for k, v in bound.items()), *(f"{k}=..." for k in missing)])
        raise BadInput(f"{role.kind} {name!r} needs {', '.join(missing)}: write {name}:{whole}")
    return partial(f, **bound) if bound else f


def spell(f: Callable[..., Any], role: Role) -> str:
    """The text from which `find` makes an equal function; BadInput for code from outside the room."""
    bound: dict[str, Any] = {}
    while isinstance(f, partial):
        if f.args:
            raise BadInput(f"{role.kind}: bind knobs of {f.func.__name__} by name, not by position")
        bound = {**f.keywords, **bound}
        f = f.func
    name = getattr(f, "__name__", repr(f))
    if role.functions().get(name) is not f:
        raise BadInput(f"{role.kind} {name!r} is not a function of {role.room.__name__}, so it has no name in a file")
    return name + (":" + ",".join(f"{k}={v}" for k, v in sorted(bound.items())) if bound else "")


def spell_or_custom(f: Callable[..., Any], role: Role) -> str:
    """`spell`, or "custom" for a function from outside the room."""
    try:
        return spell(f, role)
    except BadInput:
        return CUSTOM


def flag(role: Role) -> PrimitiveConstructorSpec[Callable[..., Any]]:
    """How the command line reads and shows a function of this role."""
    return PrimitiveConstructorSpec(
        nargs=1,
        metavar="|".join(role.functions()),
        instance_from_str=lambda words: find(words[0], role),
        is_instance=callable,
        str_from_instance=lambda f: [spell_or_custom(f, role)],
    )


def _knobs(f: Callable[..., Any], role: Role) -> dict[str, inspect.Parameter]:
    parameters = inspect.signature(f, eval_str=True).parameters.items()
    return {k: p for k, p in parameters if k not in role.begins and p.kind is p.KEYWORD_ONLY}


def _literal(value: str, knob: inspect.Parameter, where: str) -> Any:
    """`value` as the type the knob declares, by Python's literals; text stays text."""
    if knob.annotation is str:
        return value
    try:
        parsed = ast.literal_eval(value)
    except (ValueError, SyntaxError):
        parsed = {"true": True, "false": False, "inf": math.inf}.get(value.lower(), value)
    choices = getattr(knob.annotation, "__args__", ()) if "Literal" in str(knob.annotation) else ()
    if choices and parsed not in choices:
        raise unknown(f"{knob.name} of {where}", str(parsed), map(str, choices))
    kinds = [t for t in get_args(knob.annotation) or (knob.annotation,) if t in (int, float, bool)]
    if kinds and not (parsed is None and type(None) in get_args(knob.annotation)):
        number = isinstance(parsed, (int, float)) and (isinstance(parsed, bool) == (kinds[0] is bool))
        if not number or (kinds[0] is int and not isinstance(parsed, int)):
            kind = {int: "a whole number", float: "a number", bool: "true or false"}[kinds[0]]
            raise BadInput(f"{where}: {knob.name}={value} should be {kind}")
        return kinds[0](parsed)  # pyright: ignore[reportArgumentType] (a number, as just checked)
    return parsed
