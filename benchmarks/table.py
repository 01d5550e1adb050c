"""The record as Markdown, between two markers of a document."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from selfspec_runtime.atomic import write_atomically

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

BEGIN, END = "<!-- benchmarks: begin -->", "<!-- benchmarks: end -->"
MISSING = "–"


def write_between_markers(path: Path, text: str) -> None:
    """Replaces what stands between the markers; a document without them, or none, is made anew.

    Args:
        path: The document.
        text: What is to stand there.
    """
    before, after = f"{BEGIN}\n", f"\n{END}\n"
    if path.is_file():
        whole = path.read_text(encoding="utf-8")
        if BEGIN in whole and END in whole:
            before = whole[: whole.index(BEGIN) + len(BEGIN)] + "\n"
            after = "\n" + whole[whole.index(END) :]
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, f"{before}\n{text}\n{after}".encode())


def as_markdown(record: dict[str, Any]) -> str:
    """All tables of a record, with the command that made it."""
    machine = record["machine"]
    head = [
        f"Made by `{record['command']}` on {record['date']}, in {record['seconds'] / 60:.0f} minutes: "
        f"{machine['cpu']}, {record['threads']} threads on {record['cores']} cores, {machine['system']}; "
        f"torch {machine['torch']}, transformers {machine['transformers']}, "
        f"bitsandbytes {machine['bitsandbytes'] or MISSING}, "
        f"llama-cpp-python {record['llama_cpp'] or MISSING}, selfspec {machine['selfspec']}.",
    ]
    if record["is_quick"]:
        head.append("**A rehearsal on tiny models: no number here means anything.**")
    sections = [_contest(row) for row in record["rows"]]
    return "\n\n".join([*head, *sections, _passes(record["rows"]), _rounds(record["rows"])])


def _contest(row: dict[str, Any]) -> str:
    if row.get("failure"):
        return f"### {row['title']}\n\nNot measured: {row['failure']}"
    title = f"### {row['title']}"
    measured = (
        f"{row['num_prompts']} prompts, {row['tokens']} tokens, {row['repeats']} mirrored block(s) each; "
        f"reads {row['bandwidth']['bytes_per_s'] / 1e9:.1f} GB/s."
    )
    if row["acceptance"] is not None:
        measured += f" **Synthetic acceptance {row['acceptance']}: the text is not the model's.**"
    titles = (
        "decoding",
        "tokens/s",
        "over transformers",
        "peak memory",
        "of the read limit",
        "tokens/round",
        "same text",
    )
    lines = [_contender(each, row) for each in row["contenders"]]
    return "\n\n".join([title, measured, _table(titles, lines)])


def _contender(each: dict[str, Any], row: dict[str, Any]) -> list[str]:
    name = f"{each['name']} ({each['note']})" if each["note"] else each["name"]
    if each.get("tokens_per_s") is None:
        return [name, each["reason"] or MISSING, *[MISSING] * 5]
    memory = row["memory"].get(each["name"])
    rounds, same = each["tokens_per_round"], each["same_text_as_own_plain"]
    return [
        name,
        f"{each['tokens_per_s']:.1f}",
        interval_text(each["over_baseline"]),
        MISSING if memory is None else f"{memory / 2**20:,.0f} MiB",
        MISSING if each.get("share_of_limit") is None else f"{each['share_of_limit']:.0%}",
        MISSING if rounds is None else f"{rounds:.2f}",
        MISSING if same is None else f"{same}/{each['num_texts']}",
    ]


def _passes(rows: Sequence[dict[str, Any]]) -> str:
    measured = [row for row in rows if not row.get("failure")]
    if not measured:
        return ""
    widths = list(measured[0]["passes"][0]["pass_s"])
    lines = [
        [
            row["title"],
            str(each["positions"]),
            *(f"{each['pass_s'][width] * 1e3:.1f}" for width in widths),
            f"{each['flatness']:.2f}",
            "yes" if row["is_exact"] else "no",
        ]
        for row in measured
        for each in row["passes"]
    ]
    titles = ("model", "positions", *(f"T({width}), ms" for width in widths), "T(5)/T(1)", "exact")
    note = "Exact: the logits of blocks of all these widths are bit-equal to those of single steps."
    return "\n\n".join(["### Passes of several rows", _table(titles, lines), note])


def _rounds(rows: Sequence[dict[str, Any]]) -> str:
    lines = [_round(row) for row in rows if not row.get("failure")]
    titles = (
        "model",
        "host share, plain",
        "host share, plan",
        "c",
        "v",
        "ideal",
        "measured",
        "share",
        "draft step reads",
    )
    note = (
        "c and v: a draft pass and a verification over a plain step, timed on their own beforehand; ideal: "
        "E / (num_draft_tokens · c + v); measured: the plan over own plain decoding, from the blocks above. "
        "Draft step reads: weights of a draft pass over its seconds, and its share of the read bandwidth."
    )
    return "\n\n".join(["### What a round is made of", _table(titles, lines), note]) if lines else ""


def _round(row: dict[str, Any]) -> list[str]:
    hosts = [
        MISSING if share is None else f"{share:.1%}" for share in (row["host_share_plain"], row["host_share_plan"])
    ]
    parts, over = row["round_parts"], row["over_own_plain"]
    measured = interval_text(over)
    if parts is None:
        return [row["title"], *hosts, *[MISSING] * 3, measured, *[MISSING] * 2]
    ideal, reads = row["ideal"], parts["draft_bytes_per_s"]
    share = None if over is None or ideal is None else over["value"] / ideal
    return [
        row["title"],
        *hosts,
        f"{parts['c']:.3f}",
        f"{parts['v']:.3f}",
        MISSING if ideal is None else f"{ideal:.2f}x",
        measured,
        MISSING if share is None else f"{share:.2f}",
        f"{reads / 1e9:.1f} GB/s ({reads / row['bandwidth']['bytes_per_s']:.0%})",
    ]


def interval_text(interval: dict[str, Any] | None) -> str:
    """For example ``1.64x [1.30, 2.07]``."""
    if interval is None:
        return MISSING
    ends = "" if interval["low"] is None else f" [{interval['low']:.2f}, {interval['high']:.2f}]"
    return f"{interval['value']:.2f}x{ends}"


def _table(titles: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    rule = "|---|" + "---:|" * (len(titles) - 1)
    rows = ["| " + " | ".join(cell.replace("|", "/") for cell in line) + " |" for line in (titles, *lines)]
    return "\n".join([rows[0], rule, *rows[1:]])
