"""YAML files of settings, in which a key may stand only once."""

from pathlib import Path
from typing import Any

import yaml

from configs.fields import SettingsError


def read_yaml(path: str, flag: str) -> dict[str, Any]:
    """The keys and values in the file that `flag` names; none of an empty file. A SettingsError for other content."""
    try:
        content = yaml.load(Path(path).read_text("utf-8"), _StrictLoader)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise SettingsError(
            f"--{flag} {path}: cannot be read: {error}; allowed: a YAML file"
        ) from error
    if content is not None and not isinstance(content, dict):
        raise SettingsError(
            f"--{flag} {path}: found {type(content).__name__}; allowed: `name: value` lines"
        )
    return content or {}


class _StrictLoader(yaml.SafeLoader):
    """YAML in which a key may stand only once."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        for key in keys:
            if keys.count(key) > 1:
                raise yaml.constructor.ConstructorError(
                    None, None, f"key {key!r} twice", node.start_mark
                )
        return super().construct_mapping(node, deep)
