"""Programs as graphs: holes in Python sources, and the variables that may stand in them.

`convert_programs` reads folders of Python; `convert_release` reads the published data set of the
VarMisuse task. Both compile each graph: nodes that no candidate hears of are dropped, the others
are ordered for a low bandwidth.
"""

from hpcgnn.convert.programs.conversion import convert_programs
from hpcgnn.convert.programs.options import ProgramOptions
from hpcgnn.convert.programs.release import convert_release

__all__ = ["ProgramOptions", "convert_programs", "convert_release"]
