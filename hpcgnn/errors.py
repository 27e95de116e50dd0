"""The exceptions that a user can cause, and that every command turns into one line.

Anything else that escapes is a defect of the project and keeps its traceback.
"""

__all__ = ["InputError", "StorageFormatError"]


class InputError(ValueError):
    """The user's input or environment is at fault.

    The message is one line that names the thing (file, field, value) and the remedy.
    """


class StorageFormatError(InputError):
    """A file is not what its name promises: wrong format, version, shape or checksum."""
