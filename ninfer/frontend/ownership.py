"""Which control tokens of a rendered conversation the template itself wrote.

A user may type `<|im_end|>`; it must reach the model as ordinary text, while the template's own `<|im_end|>` must be
the control token, and the rendered text must be exactly what the template renders. So the *template* is marked, never
the user's text: in a second copy of its syntax tree every control token inside a literal that is written out gets an
invisible marker in front. Rendering both copies gives the same text but for the markers, and the markers say which
occurrences the template owns. User text is untouched in both, so everything a template does with it (trimming,
splitting at `</think>`, testing for `<tool_response>`) goes the same way.

Literals that are only compared or searched for (`'</think>' in content`, `split('</think>')`) are not marked. Should a
template nevertheless look at a marked literal, the two renderings differ and the caller notices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from jinja2 import nodes

# Filters whose arguments are written out, not compared.
_WRITING_FILTERS = ("join", "default", "d")


def mark_written_literals(tree: nodes.Template, mark: Callable[[str], str]) -> None:
    """Apply `mark` in place to every string literal of `tree` that can reach the output."""
    for output in tree.find_all(nodes.Output):
        _mark_all(output.nodes, mark)
    for assign in tree.find_all(nodes.Assign):
        _mark(assign.node, mark)


def _mark_all(expressions: Iterable[nodes.Node], mark: Callable[[str], str]) -> None:
    for expression in expressions:
        _mark(expression, mark)


def _mark(node: nodes.Node, mark: Callable[[str], str]) -> None:
    match node:
        case nodes.TemplateData():
            node.data = mark(node.data)
        case nodes.Const() if isinstance(node.value, str):
            node.value = mark(node.value)
        case nodes.Concat():
            _mark_all(node.nodes, mark)
        case nodes.Add() | nodes.Or() | nodes.And() | nodes.Mod() | nodes.Mul():
            _mark_all((node.left, node.right), mark)
        case nodes.CondExpr():
            _mark_all([node.expr1, *([node.expr2] if node.expr2 is not None else [])], mark)
        case nodes.Filter():
            subject = [node.node] if node.node is not None else []
            _mark_all([*subject, *(node.args if node.name in _WRITING_FILTERS else [])], mark)
        case nodes.Call():
            _mark_call(node, mark)
        case nodes.List() | nodes.Tuple():
            _mark_all(node.items, mark)
        case nodes.Dict():
            _mark_all((pair.value for pair in node.items), mark)
        case nodes.Getitem():
            _mark(node.node, mark)


def _mark_call(call: nodes.Call, mark: Callable[[str], str]) -> None:
    """A method's subject is written out and its arguments are not; a macro's or function's arguments are."""
    if isinstance(call.node, nodes.Getattr):
        _mark(call.node.node, mark)
        if call.node.attr not in ("format", "join"):
            return
    _mark_all([*call.args, *(keyword.value for keyword in call.kwargs)], mark)
