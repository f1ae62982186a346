"""The one list of numeric tolerances: how far a route may be from its op's fp64 oracle.

The numbers are frozen: a route that misses one is wrong, or the op's contract has to say why its criterion
changes. Bounds hold element by element; equality of bits between shapes of a call is tested apart from these.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Tolerance:
    """|actual - expected| <= absolute + relative * |expected| + of_peak * max|expected| (max over the output).

    `of_peak` is for sums of many products, whose error follows the size of the terms and not of the sum.
    """

    absolute: float = 0.0
    relative: float = 0.0
    of_peak: float = 0.0


EXACT = Tolerance()
"""Copies, indices, comparisons: not one bit may differ."""

ELEMENTWISE = Tolerance(absolute=1e-30, relative=2e-6)
"""A handful of fp32 operations and one transcendental per element."""

ROW_NORM = Tolerance(absolute=1e-30, relative=4e-6)
"""One fp32 reduction along a row, then elementwise work."""

MATMUL = Tolerance(relative=1e-6, of_peak=3e-6)
"""fp32 dot products of up to some 17408 terms."""

MATMUL_CHAIN = Tolerance(relative=4e-6, of_peak=1e-5)
"""Two matrix products with an elementwise function between them."""

PROBABILITY = Tolerance(absolute=1e-30, relative=5e-6)
"""Softmax weights; small ones keep their relative accuracy."""

LOG_PROBABILITY = Tolerance(absolute=4e-6, relative=1e-6)
"""Natural logarithms of probabilities over up to some 250000 entries."""

CONVOLUTION = Tolerance(relative=1e-6, of_peak=1e-6)
"""A few products per element, whose sum may cancel, then SiLU."""

GATES = Tolerance(absolute=1e-30, relative=1e-5)
"""Softplus and sigmoid of sums: rounding the argument shows as a relative error of the small results."""

RECURRENCE = Tolerance(relative=1e-5, of_peak=1e-5)
"""A state carried in fp32 over some hundreds of tokens."""

ROTATION = Tolerance(relative=2e-6, of_peak=2e-6)
"""A norm along a row and a rotation by a represented angle."""

ATTENTION = Tolerance(relative=4e-6, of_peak=4e-6)
"""fp32 scores, softmax merged over pages and a weighted sum of represented values."""

ATTENTION_BF16 = Tolerance(relative=4e-3, of_peak=4e-3)
"""Queries, keys, weights and values rounded to 8 bits for the tensor cores, sums in fp32: 2**-9 each, and of a score
some 2**-9 of its terms, which the exponential turns into as much of the weight."""

WHOLE_MODEL = Tolerance(of_peak=1.5e-2)
"""Logits of a tiny random model on CUDA, against a CPU that rounds the inputs of linears alike. Measured: 7e-3, and
5e-4 on average where no prefill took part, whose attention rounds to 8 bits."""

WHOLE_MODEL_BF16 = Tolerance(of_peak=3e-2)
"""The same against the CPU as it is, dense models only. Measured: 1.7e-2, the CPU's 8-bit activations included."""
