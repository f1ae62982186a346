"""Option groups: a command takes a dataclass, the command line shows its fields as options.

Each option is spelled once, as a field of a frozen dataclass annotated for Typer; every command that takes the
dataclass offers the same options with the same help.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from typing import Annotated, Any, get_type_hints

import typer

DebugFlag = Annotated[bool, typer.Option("--debug", help="Show the traceback of a failure.")]


def spread(function: Callable[..., None]) -> Callable[..., None]:
    """Make a Typer callback of `function`: parameters annotated with dataclasses become their fields.

    `--debug` is added to every command; the entry point acts on it.
    """
    hints = get_type_hints(function, include_extras=True)
    groups = {name: hint for name, hint in hints.items() if is_dataclass(hint) and isinstance(hint, type)}
    parameters = [part for name in inspect.signature(function).parameters for part in _parts(function, name, hints)]
    parameters.append(_parameter("debug", DebugFlag, False))

    def command(**values: Any) -> None:
        values.pop("debug")
        gathered = {
            name: group(**{field.name: values.pop(field.name) for field in fields(hints[name])})
            for name, group in groups.items()
        }
        function(**values, **gathered)

    command.__name__, command.__doc__ = function.__name__, function.__doc__
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    command.__dict__["__signature__"] = inspect.Signature(parameters)
    return command


def _parts(function: Callable[..., None], name: str, hints: dict[str, Any]) -> list[inspect.Parameter]:
    if not is_dataclass(hints[name]):
        return [_parameter(name, hints[name], inspect.signature(function).parameters[name].default)]
    field_hints = get_type_hints(hints[name], include_extras=True)
    return [
        _parameter(
            field.name, field_hints[field.name], inspect.Parameter.empty if field.default is MISSING else field.default
        )
        for field in fields(hints[name])
    ]


def _parameter(name: str, annotation: object, default: object) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default)
