"""What a node says: sub-tokens, hashed into buckets."""

import ast
import functools
import re
import token
import zlib

__all__ = ["CANDIDATE_LABEL", "HOLE_LABEL", "buckets_of", "name_label", "node_label", "token_label"]

MAX_SUBTOKENS = 6
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+|[^\sA-Za-z0-9_]")

HOLE_LABEL = ("kind:hole",)
CANDIDATE_LABEL = "kind:candidate"


def node_label(node: ast.AST) -> tuple[str, ...]:
    """Return the label of a node of the syntax tree: its class, and its operators."""
    operators = getattr(node, "ops", None) or [getattr(node, "op", None)]
    names = [type(each).__name__ for each in operators[:2] if isinstance(each, ast.AST)]
    return (f"ast:{type(node).__name__}", *(f"ast:{name}" for name in names))


def token_label(kind: int, text: str) -> tuple[str, ...]:
    """Return the label of a token; literals carry their kind and how they begin."""
    if kind == token.NUMBER:
        return ("kind:number", text[:8])
    if kind == token.STRING:
        return ("kind:string", *subtokens(text[:60])[: MAX_SUBTOKENS - 1])
    return name_label(text)


@functools.lru_cache(maxsize=1 << 14)
def name_label(text: str) -> tuple[str, ...]:
    """Return the sub-tokens of an identifier, keyword or operator."""
    return subtokens(text)[:MAX_SUBTOKENS] or (text,)


def subtokens(text: str) -> tuple[str, ...]:
    """Split at underscores, changes of case and digits, in lower case."""
    return tuple(word.lower() for word in _WORD.findall(text))


@functools.lru_cache(maxsize=1 << 16)
def buckets_of(label: tuple[str, ...], num_buckets: int) -> tuple[int, ...]:
    """Return the bucket of each sub-token."""
    return tuple(zlib.crc32(word.encode("utf-8", "replace")) % num_buckets for word in label)
