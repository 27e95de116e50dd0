"""Program graphs for variable misuse: hide uses of variables and list candidates for each hole.

Nodes that cannot reach a candidate are dropped; the others are ordered for a low bandwidth.
"""

from hpcgnn.convert.programs.conversion import convert_programs
from hpcgnn.convert.programs.options import ProgramOptions
from hpcgnn.convert.programs.release import convert_release

__all__ = ["ProgramOptions", "convert_programs", "convert_release"]
