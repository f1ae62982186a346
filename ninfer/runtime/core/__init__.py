"""The control plane: request lifecycle, order, cache policy and publication. Pure: standard library only.

engine_core   submit, close, stats from any thread; the one worker and its sleep
loop          what the worker does at each boundary, in order
scheduler     FIFO, backfill protection, prefill/decode fairness, round membership
resources     lanes and resource transactions: asks Program, adopts its complete results
cache         what to capture, keep, reuse and give up: catalog, planner, retention, sessions, reasons
units         one model unit: run, preview, commit, settle
request       the record and state machine of one request
channel, handle, capacity   how a consumer reads, cancels and gives back its share
program, output   the protocols of the physical side and of output semantics
"""
