"""Every mathematical operation the models use, one folder per op, on torch tensors.

A folder holds `__init__.py` (the contract: Math, Shapes, Dtypes, Domain, Effects, Workspace, Numeric
criterion; then checks and dispatch), `oracle.py` (fp64 NumPy from the represented inputs, one function per
op under the op's own name), `cases.py` (`CASES`: op name -> the shapes it is checked and timed at),
`plan.py` (`Problem`, and `plan(problem)`: the routes that serve it, best first) and one module per route.
A folder's `IMPLEMENTATIONS` maps each op name to its routes, so that a test can run them all.

What every op keeps:
- A row's result has the same bits whatever the number of rows, its position among them and the batch.
- Results go to tensors given by the caller; inputs are never modified.
- Activations are fp32 and contiguous. A wrong shape, dtype or stride is a ValueError that names op and
  argument; a combination of formats that an op cannot compute is a ConfigError.
- Ops never set torch's thread count; its value does not change any result.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

CATALOGUE: Mapping[str, str] = MappingProxyType({})
"""Op name -> the module that holds its contract, `oracle`, `cases` and `plan`."""
