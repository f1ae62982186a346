"""Prefix reuse, the logical half: what to capture, what to keep, what to reuse, what to give up, and why.

catalog         every checkpoint that exists, as a tree of prefixes, shortlisted by digest
prefix_digest   digests of a history at given frontiers
sessions        which continuation a session key means, by publication order
captures        where a request's prefill is to leave checkpoints
sharing         which of those are worth publishing for everyone
cost            nanoseconds of prefill and of transfers
portfolio       what losing checkpoints would cost later
victims         cheap sets of checkpoints to give up, in a monotone order
planner, search the source and end state of a materialisation
retention       whether a new checkpoint may displace old ones
reuse           which checkpoints a prompt could start from, and why it reused what it did
context_cache   the policy of one Engine over all of these

Pure policy: Program alone says what is exact and what is possible.
"""
