"""Where the pages' templates are found."""

from jinja2 import Environment, PackageLoader, StrictUndefined, Template


def template(name: str) -> Template:
    """A template of src/p3o/templates, with everything from outside escaped."""
    environment = Environment(
        loader=PackageLoader("p3o"), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.get_template(name)
