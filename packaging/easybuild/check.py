"""``python packaging/easybuild/check.py``: what EasyBuild's own parser says of the easyconfig.

Needs the packages easybuild-framework, easybuild-easyblocks and easybuild-easyconfigs. Every
dependency must be an easyconfig that they bring. Nothing is built.
"""

from pathlib import Path

from easybuild.framework.easyconfig import easyconfig
from easybuild.tools.module_naming_scheme.utilities import det_full_ec_version
from easybuild.tools.options import set_up_configuration

RECIPE = next(Path(__file__).parent.glob("*.eb"))

_OPTIONS = [
    "--modules-tool=EnvironmentModules",
    "--module-syntax=Tcl",
    "--allow-use-as-root-and-accept-consequences",
]


class _Modules:
    """A tool for modules where none is installed."""

    def available(self) -> list[str]:
        return []

    def exist(self, names: list[str], **_: object) -> list[bool]:
        return [False] * len(names)


def main() -> None:
    """Parse the recipe, and look for each of its dependencies."""
    set_up_configuration(args=_OPTIONS, silent=True)
    # Parsing asks it what is installed: nothing.
    easyconfig.modules_tool = lambda: _Modules()
    recipe = easyconfig.EasyConfig(str(RECIPE), validate=False)
    recipe.validate(check_osdeps=False)
    wanted = recipe.dependencies()
    missing = [
        f"{each['name']} {det_full_ec_version(each)}"
        for each in wanted
        if not easyconfig.robot_find_easyconfig(each["name"], det_full_ec_version(each))
    ]
    for each in missing:
        print(f"no easyconfig for {each}")
    print(f"{RECIPE.name}: {recipe.name} {recipe.version}, {len(wanted)} dependencies")
    raise SystemExit(bool(missing))


if __name__ == "__main__":
    main()
