"""The API in machine-readable form: OpenAPI 3.1. `values_of` checks parameters by the same description."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any, Final

from wirelag import __version__
from wirelag.protocol.messages import MOST_TEXT
from wirelag.report import QUANTILES

LATEST: Final = 4e9  # seconds since 1970, in 2096
MOST: Final = 10_000  # reports per response
MOST_POINTS: Final = 2000  # that a screen can show
RESOLUTIONS: Final = ("interval", "minute", "hour")
Schema = dict[str, Any]

_NAME: Final = {"type": "string", "minLength": 1, "maxLength": MOST_TEXT, "pattern": "^[^\\u0000-\\u001f\\u007f]+$"}
_TIME: Final = {"type": "number", "minimum": 0, "maximum": LATEST}
_SEGMENT: Final = ("segment", True, _NAME, "The segment's name, A>B for example.")
_FROM: Final = ("from", False, _TIME, "Not before this time, in seconds since 1970.")
_TO: Final = ("to", False, _TIME, "Before this time, in seconds since 1970.")
PARAMETERS: Final[Mapping[str, tuple[tuple[str, bool, Schema, str], ...]]] = {
    "/api/v1/overview": (),
    "/api/v1/segments": (("segment", False, _NAME, "This one alone; default: all."),),
    "/api/v1/agents": (),
    "/api/v1/status": (),
    "/api/v1/reports": (
        _SEGMENT,
        ("class", False, _NAME, "A class of its traffic; default: everything."),
        ("resolution", False, {"type": "string", "enum": list(RESOLUTIONS)}, "What a report covers; else interval."),
        _FROM,
        _TO,
        ("limit", False, {"type": "integer", "minimum": 1, "maximum": MOST}, "Latest reports; default: 1000."),
        (
            "points",
            False,
            {"type": "integer", "minimum": 1, "maximum": MOST_POINTS},
            "Add up neighbours to this many.",
        ),
    ),
    "/api/v1/path": (
        ("source", True, _NAME, "The router where the path begins."),
        ("target", True, _NAME, "The router where the path ends."),
        _FROM,
        _TO,
    ),
    "/api/v1/topology": (
        _FROM,
        _TO,
        ("limit", False, {"type": "integer", "minimum": 1, "maximum": 1000}, "Latest changes; default: 20."),
    ),
    "/api/v1/events": (("segment", False, _NAME, "Results of this one alone; default: of all."),),
}
FORGET: Final = "DELETE /api/v1/agents"
DELETED: Final[Mapping[str, tuple[tuple[str, bool, Schema, str], ...]]] = {
    FORGET: (("point", True, _NAME, "The agent's name."),)
}


def values_of(path: str, query: list[tuple[str, str]]) -> dict[str, Any]:
    """The checked parameters of a request; a ValueError names the problem."""
    given = dict(query)
    if len(given) < len(query):
        raise ValueError("a parameter is given twice")
    known = {name: (required, schema) for name, required, schema, _ in {**PARAMETERS, **DELETED}[path]}
    if unknown := sorted(given.keys() - known.keys()):
        raise ValueError(f"{unknown[0][:40]!r} is not a parameter of {path}")
    for name, (required, _) in known.items():
        if required and name not in given:
            raise ValueError(f"{name} is missing")
    return {name: _value(name, text, known[name][1]) for name, text in given.items()}


def _value(name: str, text: str, schema: Schema) -> Any:
    if schema["type"] == "string":
        if "enum" in schema and text not in schema["enum"]:
            raise ValueError(f"{name} must be one of {', '.join(schema['enum'])}")
        if "enum" not in schema and not (
            0 < len(text) <= schema["maxLength"] and text.isprintable()  # as names in messages
        ):
            raise ValueError(f"{name} is not a valid name")
        return text
    try:
        number = int(text) if schema["type"] == "integer" else float(text)
    except ValueError:
        number = math.nan
    if "_" in text or not schema["minimum"] <= number <= schema["maximum"]:
        raise ValueError(f"{name} must be a number from {schema['minimum']:g} to {schema['maximum']:g}")
    return number


# ---- the document ----


def _object(properties: Mapping[str, Schema], **more: Any) -> Schema:
    return {"type": "object", "properties": dict(properties), "required": list(properties)} | more


def _array(items: Schema) -> Schema:
    return {"type": "array", "items": items}


_NUMBER: Final = {"type": "number"}
_COUNT: Final = {"type": "integer", "minimum": 0}
_TEXT: Final = {"type": "string"}
_TRUTH: Final = {"type": "boolean"}
_MAYBE_NUMBER: Final = {"type": ["number", "null"]}
_MAYBE_TEXT: Final = {"type": ["string", "null"]}
_BOUNDS: Final = {"type": "array", "items": _NUMBER, "minItems": 2, "maxItems": 2}


def _said(schema: Schema, text: str) -> Schema:
    return schema | {"description": text}


_CLOCK: Final = _said(
    _object({"error": _NUMBER, "synchronised": _TRUTH}) | {"type": ["object", "null"]},
    "Null if no interval was seen by both points.",
)
REPORT: Final = _object(
    {
        "start": _said(_NUMBER, "Seconds since 1970."),
        "end": _NUMBER,
        "settled": _said(_TRUTH, "False: packets in flight at its end, and some rounds, are still open."),
        "estimator": _TEXT,
        "mean": _said(_MAYBE_NUMBER, "One-way delay in seconds, as all of these."),
        "std": _MAYBE_NUMBER,
        "min": _said(_MAYBE_NUMBER, "Null if only some delays are known individually (samples < used); so is max."),
        "max": _MAYBE_NUMBER,
        "quantiles": _object(dict.fromkeys(QUANTILES, _MAYBE_NUMBER))
        | {"description": "Null if the sample is too small for bounds: request minutes."},
        "ci95": {
            "type": "object",
            "additionalProperties": _BOUNDS,
            "description": "95% intervals of mean, quantiles and loss. Those of delays include the clocks' error; "
            "there are none if a clock is not synchronised.",
        },
        "used": _said(_COUNT, "Packets whose delays are in the mean."),
        "samples": _said(_COUNT, "Single delays behind the quantiles."),
        "sent": _said({"type": ["integer", "null"]}, "Seen upstream; null for rli, which sees only what arrives."),
        "received": _COUNT,
        "lost": _said(_MAYBE_NUMBER, "Seen upstream, never arrived; null if unknown."),
        "loss": _said(_MAYBE_NUMBER, "The share, of packets sent in intervals whose loss is known."),
        "reordered": {"type": ["integer", "null"]},
        "order": _said(
            _object({"checked": _COUNT, "overtaken": _COUNT, "share": _NUMBER, "ci95": _BOUNDS})
            | {"type": ["object", "null"]},
            "For rda: packets checked, and how many of them came directly behind one sent later.",
        ),
        "duplicated": {"type": ["integer", "null"]},
        "references": _said(
            _object({"received": _COUNT, "lost": _COUNT}) | {"type": ["object", "null"]},
            "Reference packets of rli, by sequence number; null for other methods.",
        ),
        "unseen": _said(
            _object({"upstream": _COUNT, "downstream": _COUNT}), "Packets that captures dropped: never loss."
        ),
        "intervals": _said(_COUNT, "Intervals that both points saw."),
        "missed": _said(_COUNT, "Intervals that only one point saw."),
        "covered": _said(_NUMBER, "The share of the time that both points covered."),
        "clock": _CLOCK,
        "reason": _said(_MAYBE_TEXT, "Why figures are missing."),
    }
)
_AGENT: Final = _object(
    {
        "point": _TEXT,
        "alive": _TRUTH,
        "heard": _said(_NUMBER, "Time of its last message, in seconds since 1970."),
        "silent": _said(_NUMBER, "Seconds since its last message."),
        "behind": _said(_NUMBER, "The collector's clock minus the agent's, plus network delay; seconds."),
        "last_interval": _said(_MAYBE_NUMBER, "The end of the last interval that it reported."),
        "estimator": _MAYBE_TEXT,
        "packets": _COUNT,
        "unseen": _COUNT,
        "messages": _COUNT,
        "bytes": _COUNT,
        "clock": _object({"error": _NUMBER, "synchronised": _TRUTH, "source": _TEXT}),
        "says": _said({"type": "object"}, "Its own status."),
    }
)
_CHANGE: Final = _object(
    {
        "at": _said(_NUMBER, "When it was detected, in seconds since 1970."),
        "links_up": _array(_TEXT),
        "links_down": _array(_TEXT),
        "costs": _said(_array(_TEXT), "Links whose cost changed."),
        "routers": _said(_array(_TEXT), "Routers that appeared or disappeared."),
        "upgraded": _said(_array(_TEXT), "Routers that measure from now on."),
        "no_longer": _said(_array(_TEXT), "Routers that stopped measuring."),
        "new": _said(_array(_TEXT), "Segments."),
        "gone": _array(_TEXT),
        "rerouted": _said(_array(_TEXT), "Virtual links over other routers: not comparable with before."),
    }
)
_CI95: Final = _said({"type": "object", "additionalProperties": _BOUNDS}, "95% intervals of mean, p99 and loss.")
_SHORT: Final = {
    "type": "object",
    "required": ["segment", "upstream", "downstream", "sites", "end"],
    "properties": {
        "segment": _TEXT,
        "upstream": _MAYBE_TEXT,
        "downstream": _MAYBE_TEXT,
        "sites": _said({"type": ["array", "null"], "items": _TEXT}, "Where its two points are."),
        "end": _said(_MAYBE_NUMBER, "Of its latest interval, in seconds since 1970; null without any: no figures."),
        "length": _said(_NUMBER, "Of that interval."),
        "covers": _said(_BOUNDS, "The time that figures cover: the last minute, or one longer interval."),
        "mean": _MAYBE_NUMBER,
        "p99": _MAYBE_NUMBER,
        "loss": _MAYBE_NUMBER,
        "ci95": _CI95,
        "clock": _CLOCK,
        "unseen": _said(_COUNT, "Packets that captures dropped."),
        "missed": _said(_COUNT, "Intervals that only one point saw."),
        "reason": _said(_MAYBE_TEXT, "Why figures are missing."),
        "verdict": _said(
            {"type": ["string", "null"], "enum": ["missed", "unsure", "holds", None]},
            "The worst of its objectives; null without objectives, or without their figures.",
        ),
        "objectives": _array(
            _object({"objective": _TEXT, "bound": _NUMBER, "value": _MAYBE_NUMBER, "verdict": _MAYBE_TEXT})
        ),
    },
}
_ANSWERS: Final[Mapping[str, tuple[str, Schema]]] = {
    "/api/v1/overview": (
        "All segments, short: the figures of the last minute, judged by the operator's objectives.",
        _object({"now": _NUMBER, "segments": _array(_SHORT)}),
    ),
    "/api/v1/segments": (
        "Segments, each with its latest report and its latest settled one.",
        _object(
            {
                "now": _NUMBER,
                "segments": _array(
                    _object(
                        {
                            "segment": _TEXT,
                            "upstream": _MAYBE_TEXT,
                            "downstream": _MAYBE_TEXT,
                            "classes": _array(_TEXT),
                            "latest": {"anyOf": [REPORT, {"type": "null"}]},
                            "settled": {"anyOf": [REPORT, {"type": "null"}]},
                        }
                    )
                ),
            }
        ),
    ),
    "/api/v1/reports": (
        "Reports of a segment over time.",
        _object(
            {
                "segment": _TEXT,
                "class": _MAYBE_TEXT,
                "resolution": {"type": "string", "enum": list(RESOLUTIONS)},
                "length": _said(_MAYBE_NUMBER, "Of an interval, in seconds."),
                "reports": _array(REPORT),
                "gaps": _said(_array(_BOUNDS), "Time ranges without reports."),
            }
        ),
    ),
    "/api/v1/agents": ("The state of agents.", _object({"now": _NUMBER, "agents": _array(_AGENT)})),
    "/api/v1/status": (
        "The collector itself.",
        _object(
            {
                "version": _TEXT,
                "now": _NUMBER,
                "store_bytes": _COUNT,
                "retain": _said(
                    _object({"intervals": _NUMBER, "minutes": _NUMBER, "hours": _NUMBER, "bytes": _COUNT}),
                    "How many seconds results are kept, and the most bytes of all.",
                ),
                "topology": _MAYBE_TEXT,
                "routers": _array(_TEXT),
                "counted": {"type": "object", "additionalProperties": _COUNT},
            }
        ),
    ),
    "/api/v1/topology": (
        "The current network, its measured segments, and changes (from, to, limit).",
        _object(
            {
                "now": _NUMBER,
                "follows": _said(_TRUTH, "Whether it is read repeatedly."),
                "topology": _MAYBE_TEXT,
                "problem": _said(_MAYBE_TEXT, "Why it could not be read: the previous one stays."),
                "routers": _array(_TEXT),
                "links": _array(_object({"source": _TEXT, "target": _TEXT, "weight": _NUMBER})),
                "upgraded": _said(_array(_TEXT), "Routers that measure."),
                "segments": _said(
                    _array(
                        _object(
                            {
                                "segment": _TEXT,
                                "source": _said(_MAYBE_TEXT, "The address that its references come from."),
                                "target": _said(_MAYBE_TEXT, "The address that they go to."),
                                "until": _said(_MAYBE_NUMBER, "When it ends: routes may not have converged yet."),
                                "reason": _said(_MAYBE_TEXT, "Why it is not measured."),
                            }
                        )
                    ),
                    "Links and virtual links measured by references: m-sets of all agents.",
                ),
                "changes": _said(_array(_CHANGE), "Latest first."),
            }
        ),
    ),
    "/api/v1/path": (
        "The sum of a path's segments, in the format of `wirelag path --format json`.",
        {"type": "object", "required": ["command", "segments", "paths"]},
    ),
}


def document() -> dict[str, Any]:
    """The whole document."""
    wrong = _answer("What is wrong.", _object({"error": _TEXT}))
    paths: dict[str, Any] = {}
    for path, parameters in PARAMETERS.items():
        text, schema = _ANSWERS.get(path, ("Results as they come, as server-sent events.", {}))
        good = _answer(text, schema) if schema else {"description": text, "content": {"text/event-stream": {}}}
        answers = {"200": good, "400": wrong, "401": wrong}
        if path in ("/api/v1/reports", "/api/v1/path", "/api/v1/topology"):
            answers["404"] = wrong
        paths[path] = {"get": _operation(path.rpartition("/")[2], text, parameters, answers)}
    text = "Forget an agent that was removed; its results stay."
    forgotten = _answer(text, _object({"forgotten": _TEXT}))
    answers = {"200": forgotten, "400": wrong, "401": wrong, "404": wrong}
    paths["/api/v1/agents"]["delete"] = _operation("forget", text, DELETED[FORGET], answers)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "wirelag collector",
            "version": __version__,
            "description": "One-way latency of segments. Times are seconds. A token goes into Authorization: Bearer.",
        },
        "paths": paths,
        "components": {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
        "security": [{"token": []}, {}],
    }


def _operation(
    name: str, text: str, parameters: Iterable[tuple[str, bool, Schema, str]], answers: Mapping[str, Any]
) -> dict[str, Any]:
    return {
        "operationId": name,
        "summary": text,
        "parameters": [
            {"name": one, "in": "query", "required": required, "schema": schema, "description": says}
            for one, required, schema, says in parameters
        ],
        "responses": dict(answers),
    }


def _answer(text: str, schema: Schema) -> dict[str, Any]:
    return {"description": text, "content": {"application/json": {"schema": schema}}}


def written() -> str:
    """The contents of docs/reference/openapi.json."""
    return json.dumps(document(), indent=1) + "\n"


if __name__ == "__main__":
    print(written(), end="")
