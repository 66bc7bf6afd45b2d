"""Every function that decodes bytes of others is reached by a fuzz target."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import CodeType, FrameType

import pytest

from fuzz.targets import TARGETS
from tests.support.source_tree import PACKAGE

Function = tuple[str, str]
"""A module of the package, and a function of it."""

DECODERS = {
    "msgspec.json.decode",
    "msgspec.json.Decoder",
    "msgspec.msgpack.decode",
    "msgspec.msgpack.Decoder",
    "msgspec.convert",
    "json.loads",
    "int.from_bytes",
    "struct.unpack",
    "struct.unpack_from",
    "struct.Struct",
}

# Whose bytes are not others', by module or function.
OWN = {
    "admin.cards": "files of this user, in a directory of mode 0700",
    "admin.histories": "answers of the user's own node, which JSON has read already",
    "admin.job_queues": "answers of the user's own node, which JSON has read already",
    "admin.operations.flows._check_arguments": "values that were read already",
    "admin.pipeline._to_dead": "the node's own store",
    "admin.pipeline._to_waiting": "likewise",
    "admin.pipeline_runs": "files of this user",
    "admin.schemas": "files that a person names",
    "admin.sync_client": "answers of the user's own node, which JSON has read already",
    "admin.remote.ask": "gives decoders to communication, which maps whatever they raise",
    "admin.remote.open": "likewise",
    "admin.watchers": "files of this user",
    "node.jobs._replace_on": "settings that were read already",
    "cells.routing.rendezvous": "a digest of names",
    "cli": "what a person wrote in a terminal",
    "core.cluster_secret._join": "writes",
    "durable.config": "the node's own store",
    "durable.stored_messages.decode_stored_message": "the node's own store",
    "durable.producer": "what the application sends",
    "durable.store": "the node's own store",
    "flows.definition": "arguments of the application's own functions",
    "flows.engine.tables": "the node's own store",
    "flows.history_files": "files that a person names; tests damage them in every way",
    "flows.machine.values": "caught whatever it raises, by Machine._conclude_read",
    "node.consumers": "the application's own functions",
    "node.reading": "the node's configuration",
    "pipeline.acks": "a digest of names",
    "pipeline.compiled_job": "the job itself",
    "pipeline.connectors": "gives decoders to decode_or_reject, which keeps what they refuse",
    "pipeline.coordinator.job_store": "the node's own store",
    "pipeline.coordinator.records.to_root_input": "the node's own store",
    "pipeline.coordinator.spark_windows": "the node's own store and the job's checkpoint",
    "pipeline.coordinator.window_deltas": "the node's own store and the job's checkpoint",
    "pipeline.job_files": "the job itself",
    "pipeline.spark": "the job's own coordinator and checkpoint",
    "pipeline.validation": "the job itself",
    "pipeline.vectorized": "what processes of one job say to each other, as Spark protects it",
    "pipeline.windows": "the node's own store",
    "services.method_params": "annotations of the application's functions",
    "services.ring": "a digest of names",
    "services.serializers.cbor_writer": "writes",
    "services.transporters.tcp_frames.encode_header": "writes",
    "services.validation": "parameters that were read already",
    "wire.codecs.version3.encode_trace_context": "writes",
    "wire.handshake.encode_preamble": "writes",
}


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts)


@cache
def sources() -> dict[str, ast.Module]:
    return {module_name(path): ast.parse(path.read_bytes()) for path in PACKAGE.rglob("*.py")}


def functions_of(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


NAMES = {name.rpartition(".")[2] for name in DECODERS}


def is_decoder(node: ast.AST) -> bool:
    is_named_so = isinstance(node, ast.Attribute) and node.attr in NAMES
    return is_named_so and ast.unparse(node) in DECODERS


@cache
def decoding_functions() -> set[Function]:
    """Functions that decode, themselves or by something their module made for it."""
    found = set()
    for module, tree in sources().items():
        made = {
            target.id
            for statement in tree.body
            if isinstance(statement, ast.Assign | ast.AnnAssign)
            and statement.value is not None
            and any(is_decoder(node) for node in ast.walk(statement.value))
            for target in ast.walk(statement)
            if isinstance(target, ast.Name) and isinstance(target.ctx, ast.Store)
        }
        for function in functions_of(tree):
            for node in ast.walk(function):
                if is_decoder(node) or (isinstance(node, ast.Name) and node.id in made):
                    found.add((module, function.name))
    return found


def reached_functions() -> set[Function]:
    """Functions of the package that the valid inputs of all targets come by."""
    codes: set[CodeType] = set()

    def note(frame: FrameType, event: str, argument: object) -> None:
        codes.add(frame.f_code)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        for target in TARGETS.values():
            for data in target.seeds:
                target.check(data)
    finally:
        sys.setprofile(before)
    root = str(PACKAGE)
    return {
        (module_name(Path(code.co_filename)), code.co_name)
        for code in codes
        if code.co_filename.startswith(root)
    }


def is_own(function: Function) -> bool:
    name = ".".join(function)
    return any(name == own or name.startswith(f"{own}.") for own in OWN)


@pytest.mark.slow
def test_functions_that_decode_bytes_of_others_are_all_fuzzed() -> None:
    unreached = decoding_functions() - reached_functions()
    missing = sorted(function for function in unreached if not is_own(function))
    assert not missing, f"add a fuzz target, or say in OWN whose bytes these read: {missing}"


def test_functions_said_to_decode_own_bytes_exist() -> None:
    names = {".".join(function) for function in decoding_functions()}
    stale = [own for own in OWN if not any(f"{name}.".startswith(f"{own}.") for name in names)]
    assert not stale
