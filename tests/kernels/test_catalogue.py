"""Every op of the catalogue has the parts that the catalogue promises."""

from __future__ import annotations

import importlib
import inspect

import pytest

from ninfer import kernels
from ninfer.kernels import CATALOGUE

SECTIONS = ("Math", "Shapes", "Dtypes", "Domain", "Effects", "Workspace", "Numeric criterion")


def test_the_catalogue_is_what_the_package_exports() -> None:
    assert sorted(CATALOGUE) == sorted(
        name for name in kernels.__all__ if name not in ("CATALOGUE", "has_compiled_routes")
    )


@pytest.mark.parametrize("op", sorted(CATALOGUE))
def test_op_is_exported_from_its_module(op: str) -> None:
    assert getattr(kernels, op) is getattr(importlib.import_module(CATALOGUE[op]), op)


@pytest.mark.parametrize("op", sorted(CATALOGUE))
def test_contract_has_every_section_in_order(op: str) -> None:
    contract = importlib.import_module(CATALOGUE[op]).__doc__ or ""
    found = [contract.find(f"\n{section}") for section in SECTIONS]
    assert -1 not in found, f"sections missing: {[s for s, at in zip(SECTIONS, found, strict=True) if at < 0]}"
    assert found == sorted(found)
    assert op in contract


@pytest.mark.parametrize("op", sorted(CATALOGUE))
def test_op_has_routes(op: str) -> None:
    assert importlib.import_module(CATALOGUE[op]).IMPLEMENTATIONS[op]


@pytest.mark.parametrize("module", sorted(set(CATALOGUE.values())))
def test_folder_has_oracle_cases_and_plan(module: str) -> None:
    oracle, cases, plan = (importlib.import_module(f"{module}.{part}") for part in ("oracle", "cases", "plan"))
    functions = inspect.getmembers(oracle, inspect.isfunction)
    assert any(f.__module__ == oracle.__name__ and not name.startswith("_") for name, f in functions)
    assert cases.CASES
    assert set(cases.CASES) <= {op for op, home in CATALOGUE.items() if home == module}
    for named in cases.CASES.values():
        names = [case.name for case in named]
        assert names
        assert len(names) == len(set(names))
    assert callable(plan.plan)


@pytest.mark.parametrize("module", sorted(set(CATALOGUE.values())))
def test_oracle_stands_alone(module: str) -> None:
    source = inspect.getsource(importlib.import_module(f"{module}.oracle"))
    imports = [line for line in source.splitlines() if line.startswith(("import ", "from "))]
    assert not any("torch" in line for line in imports)
    assert not any("torch_cpu" in line or "exact" in line for line in imports)
