"""Program graphs for variable misuse: hide uses of variables and list candidates for each hole.

Nodes that cannot reach a candidate are dropped; the others are ordered for a low bandwidth. Names
are loaded on first use, since the help of ``hpcgnn convert`` needs the options alone.
"""

from typing import TYPE_CHECKING

from hpcgnn import lazily

if TYPE_CHECKING:
    from hpcgnn.convert.programs.conversion import convert_programs
    from hpcgnn.convert.programs.options import ProgramOptions
    from hpcgnn.convert.programs.release import convert_release

__getattr__ = lazily(
    __name__,
    {
        "hpcgnn.convert.programs.conversion": "convert_programs",
        "hpcgnn.convert.programs.options": "ProgramOptions",
        "hpcgnn.convert.programs.release": "convert_release",
    },
)
