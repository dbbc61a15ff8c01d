"""The `paylatch` command: one module per sub-command, and what the demo and the tests need to run a stack."""
