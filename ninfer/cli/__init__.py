"""The command line: thin Typer commands over the public API.

`main` is the entry point. One module per command lives in `commands/`; what they share has one owner each: `flags`
(option groups and their translation), `models` (which model), `prompts` (which input), `answers` (streaming output),
`outputs` (streams and files), `progress`, `failures` (exit codes), `factories` (where heavy libraries enter).
"""
