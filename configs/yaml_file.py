"""YAML files of settings: every value is read as text, and a key may stand only once."""

from pathlib import Path
from typing import Any

import yaml

from configs.fields import SettingsError

_NULLS = ("~", "null", "Null", "NULL")


def read_yaml(path: str, flag: str) -> dict[str, Any]:
    """Return the keys of the file that `flag` names; values are texts, or lists and dicts of them.

    YAML's own reading would make 2024_01_01 the number 20240101, 12:30 750 and 010 8.

    Raises:
        SettingsError: the file cannot be read, or is no list of `name: value` lines.
    """
    try:
        content = yaml.load(Path(path).read_text("utf-8"), _StrictLoader)
    except RecursionError as error:
        raise SettingsError(
            f"--{flag} {path}: found lists nested too deeply; allowed: `name: value` lines"
        ) from error
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise SettingsError(
            f"--{flag} {path}: cannot be read: {error}; allowed: a YAML file"
        ) from error
    if content not in (None, "") and not isinstance(content, dict):
        raise SettingsError(
            f"--{flag} {path}: found {type(content).__name__}; allowed: `name: value` lines"
        )
    return content or {}


class _StrictLoader(yaml.BaseLoader):
    """YAML without types, in which a key may stand only once and nothing is null."""

    def construct_scalar(self, node: yaml.ScalarNode) -> str:
        if node.style is None and node.value in _NULLS:
            found = f"{node.value} for a value; a text is written in quotes"
            raise yaml.constructor.ConstructorError(None, None, found, node.start_mark)
        return super().construct_scalar(node)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        for key in keys:
            if keys.count(key) > 1:
                raise yaml.constructor.ConstructorError(
                    None, None, f"key {key!r} twice", node.start_mark
                )
        return super().construct_mapping(node, deep)
