"""The commands: a file each with its arguments, which are read before MPI or torch are loaded.

``hpcgnn NAME``, ``python -m hpcgnn NAME`` and ``python -m hpcgnn.NAME`` start the same command. A
`command.Command` names the function that runs with the arguments; `launch` starts and ends the
ranks around it.
"""
