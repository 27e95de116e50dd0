"""The commands: one file for each with its arguments, which are read before MPI or torch load.

``hpcgnn NAME``, ``python -m hpcgnn NAME`` and ``python -m hpcgnn.NAME`` start the same command. A
`command.Command` names the function to run with the arguments; `launch` starts and ends its ranks.
"""
