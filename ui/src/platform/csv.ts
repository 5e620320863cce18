// Parses comma-separated values as in RFC 4180. Semicolons and tabs work, too.

export interface Row {
  line: number;
  fields: Record<string, string>;
}

/** Rows by the column names of the first line. Throws an error if a needed column is missing. */
export function parse(text: string, needed: string[]): Row[] {
  const lines = split(text.replace(/^\uFEFF/, ""));
  const [head] = lines;
  if (!head) throw new Error("The file is empty.");
  const names = head.cells.map((name) => name.trim().toLowerCase());
  const missing = needed.filter((name) => !names.includes(name));
  if (missing.length)
    throw new Error(`The first line has no column ${missing.join(", ")}. Its columns are ${names.join(", ")}.`);
  return lines
    .slice(1)
    .filter(({ cells }) => cells.some((cell) => cell.trim()))
    .map(({ line, cells }) => ({
      line,
      fields: Object.fromEntries(names.map((name, at) => [name, cells[at]?.trim() ?? ""])),
    }));
}

function split(text: string): { line: number; cells: string[] }[] {
  const separator = [",", ";", "\t"].find((one) => text.split("\n", 1)[0]?.includes(one)) ?? ",";
  const lines: { line: number; cells: string[] }[] = [];
  let [cells, cell, isQuoted, line, begin] = [[] as string[], "", false, 1, 1];
  for (let at = 0; at < text.length; at += 1) {
    const letter = text[at] ?? "";
    if (letter === "\n") line += 1;
    if (isQuoted) {
      if (letter !== '"') cell += letter;
      else if (text[at + 1] === '"') {
        cell += '"';
        at += 1;
      } else isQuoted = false;
    } else if (letter === '"' && cell === "") isQuoted = true;
    else if (letter === separator) {
      cells.push(cell);
      cell = "";
    } else if (letter === "\n") {
      lines.push({ line: begin, cells: [...cells, cell] });
      [cells, cell, begin] = [[], "", line];
    } else if (letter !== "\r") cell += letter;
  }
  if (cell || cells.length) lines.push({ line: begin, cells: [...cells, cell] });
  return lines;
}

export const row = (cells: unknown[]): string =>
  cells
    .map((cell) =>
      /[",\r\n]/.test(String(cell ?? "")) ? `"${String(cell).replaceAll('"', '""')}"` : String(cell ?? ""),
    )
    .join(",");
