"""Measuring an Engine from outside, through the public API: traces, replay, reports and plots.

`trace` reads request traces, `synthesis` makes prompts of given lengths, `replay` drives and times requests (pure:
any event stream, any asyncio clock), `report` turns timings into numbers, `micro` measures fixed points, `client`
connects a real Engine, `tables` and `plot` show results.
"""
