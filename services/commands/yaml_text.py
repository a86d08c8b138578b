"""YAML from people and from whoever they had it from: plain values, of bounded size, each key once.

Aliases are taken, as far as what they stand for is not more than a file may hold. Knows nothing of what the
values mean.
"""

from typing import Any

import yaml

from services.chassis.fatal import ConfigError

MAX_NODES = 200_000
"""Values of one document, those behind an alias counted each time."""


def from_yaml(text: str, what: str) -> Any:
    """Read one document.

    Args:
        what: Begins the error.

    Raises:
        ConfigError: It is no YAML, too large or too deep, or names a key twice.
    """
    try:
        return yaml.load(text, _Loader)
    except yaml.YAMLError as exc:
        raise ConfigError(f"{what}: {exc}") from exc
    except RecursionError as exc:
        raise ConfigError(f"{what}: it is nested too deeply") from exc
    except (ValueError, OverflowError) as exc:  # A date or number that Python does not have.
        raise ConfigError(f"{what}: {exc}") from exc


class _Loader(yaml.SafeLoader):  # type: ignore[misc]
    """Counts what is expanded before anything is: aliases of aliases grow by powers."""

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._num_nodes = 0
        self._sizes: dict[int, int] = {}
        """Values in each node that is complete, by the node's id."""

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        is_alias = self.check_event(yaml.AliasEvent)
        event = self.peek_event()
        before = self._num_nodes
        node = super().compose_node(parent, index)
        if is_alias and id(node) not in self._sizes:
            raise yaml.composer.ComposerError(None, None, "found a value inside itself", event.start_mark)
        self._num_nodes += self._sizes[id(node)] if is_alias else 1
        if self._num_nodes > MAX_NODES:
            raise yaml.composer.ComposerError(None, None, f"found over {MAX_NODES} values", event.start_mark)
        if not is_alias:
            self._sizes[id(node)] = self._num_nodes - before
        return node

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        # Here, because what a merge brings may be named again.
        node = super().compose_mapping_node(anchor)
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    raise yaml.composer.ComposerError(
                        None, None, f"found {key.value!r} twice", key.start_mark
                    )
                seen.add(key.value)
        return node
