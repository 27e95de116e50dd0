"""Programs as graphs: holes in Python sources, and the variables that may stand in them.

Nodes that no candidate hears of are dropped, the others ordered for a low bandwidth.
"""

from hpcgnn.convert.programs.conversion import convert_programs
from hpcgnn.convert.programs.options import ProgramOptions
from hpcgnn.convert.programs.release import convert_release

__all__ = ["ProgramOptions", "convert_programs", "convert_release"]
