"""The results as a table, on the terminal and as Markdown."""

from typing import Dict, List, Tuple

VERSION_NAMES = {3: "3.1", 4: "3.1.1", 5: "5"}

Column = Tuple[str, int]
# Maps scenario and column to "ok", "FAIL" or "–".
Results = Dict[Tuple[str, Column], str]


def features(columns: List[Column], names: List[str], results: Results) -> str:
    """Results with one row per scenario and one column per client and version."""
    clients: List[str] = []
    for client, _ in columns:
        if client not in clients:
            clients.append(client)
    rows = [["feature"] + [f"{client} {VERSION_NAMES[version]}" for client, version in columns]]
    for name in names:
        rows.append([name] + [results.get((name, column), "") for column in columns])
    return markdown(rows)


def markdown(rows: List[List[str]]) -> str:
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    lines = ["| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths)) + " |" for row in rows]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)
