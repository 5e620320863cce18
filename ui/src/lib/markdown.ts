// Parses Markdown for text widgets into a tree: headings, paragraphs, lists, quotes, code, tables, emphasis, links.
// HTML stays plain text: the console neither renders nor runs it.

export type Inline =
  | { kind: "text" | "strong" | "emphasis" | "code"; text: string }
  | { kind: "link"; text: string; href: string }
  | { kind: "break" };
export type Block =
  | { kind: "heading"; level: number; inlines: Inline[] }
  | { kind: "paragraph" | "quote"; inlines: Inline[] }
  | { kind: "list"; isNumbered: boolean; items: Inline[][] }
  | { kind: "code"; text: string }
  | { kind: "table"; head: Inline[][]; rows: Inline[][][] }
  | { kind: "rule" };

const INLINE =
  /`([^`]+)`|\*\*(.+?)\*\*|__(.+?)__|\*([^\s*][^*]*)\*|(?<!\w)_([^_]+)_(?!\w)|\[([^\]]+)\]\(([^)\s]+)\)|( {2,}\n)/;

export function markdown(source: string): Block[] {
  const lines = source.replaceAll("\r\n", "\n").split("\n");
  const blocks: Block[] = [];
  for (let at = 0; at < lines.length;) {
    const line = lines[at] ?? "";
    const take = (fits: (line: string) => boolean): string[] => {
      const from = at;
      while (at < lines.length && fits(lines[at] ?? "")) at += 1;
      return lines.slice(from, at);
    };
    const heading = /^(#{1,6})\s+(.*?)\s*#*$/.exec(line);
    if (!line.trim()) at += 1;
    else if (heading) {
      blocks.push({ kind: "heading", level: heading[1]?.length ?? 1, inlines: inlines(heading[2] ?? "") });
      at += 1;
    } else if (/^```/.test(line)) {
      at += 1;
      blocks.push({ kind: "code", text: take((one) => !/^```/.test(one)).join("\n") });
      at += 1;
    } else if (/^\s*([-*_])(\s*\1){2,}\s*$/.test(line)) {
      blocks.push({ kind: "rule" });
      at += 1;
    } else if (BULLET.test(line) || NUMBER.test(line)) {
      const isNumbered = NUMBER.test(line);
      const mark = isNumbered ? NUMBER : BULLET;
      blocks.push({
        kind: "list",
        isNumbered,
        items: take((one) => mark.test(one)).map((one) => inlines(one.replace(mark, ""))),
      });
    } else if (/^>/.test(line))
      blocks.push({
        kind: "quote",
        inlines: inlines(
          take((one) => /^>/.test(one))
            .map((one) => one.replace(/^>\s?/, ""))
            .join("\n"),
        ),
      });
    else if (/^\|/.test(line) && /^\|[\s:|-]+$/.test(lines[at + 1] ?? "")) {
      const [head = [], , ...rows] = take((one) => /^\|/.test(one)).map(cells);
      blocks.push({ kind: "table", head, rows });
    } else {
      at += 1;
      const more = take(
        (one) => one.trim() !== "" && !/^(#{1,6}\s|```|>|\|)/.test(one) && !BULLET.test(one) && !NUMBER.test(one),
      );
      blocks.push({ kind: "paragraph", inlines: inlines([line, ...more].join("\n")) });
    }
  }
  return blocks;
}

const BULLET = /^\s*[-*+]\s+/;
const NUMBER = /^\s*\d{1,9}[.)]\s+/;
const cells = (line: string): Inline[][] =>
  line
    .trim()
    .replace(/^\||\|$/g, "")
    .split("|")
    .map((cell) => inlines(cell.trim()));

function inlines(text: string): Inline[] {
  const found = INLINE.exec(text);
  if (!found) return text ? [{ kind: "text", text }] : [];
  const [whole, code, strong, strong2, emphasis, emphasis2, label, href] = found;
  const before = text.slice(0, found.index);
  const after = inlines(text.slice(found.index + whole.length));
  return [...(before ? [{ kind: "text", text: before } as Inline] : []), one(), ...after];

  function one(): Inline {
    if (code !== undefined) return { kind: "code", text: code };
    const bold = strong ?? strong2;
    if (bold !== undefined) return { kind: "strong", text: bold };
    const slanted = emphasis ?? emphasis2;
    if (slanted !== undefined) return { kind: "emphasis", text: slanted };
    if (label === undefined || href === undefined) return { kind: "break" };
    // Links to scripts and files stay plain text.
    return /^(https?:|mailto:|#)/i.test(href) ? { kind: "link", text: label, href } : { kind: "text", text: label };
  }
}

/** Replaces `${temperature}` and `${temperature:1}` (one decimal) with values. */
export const filled = (pattern: string, value: (key: string) => unknown): string =>
  pattern.replace(/\$\{([^}:]+)(?::(\d))?\}/g, (_, key: string, digits: string | undefined) => {
    const found = value(key.trim());
    if (found === undefined) return "–";
    return digits !== undefined && Number.isFinite(Number(found))
      ? Number(found).toFixed(Number(digits))
      : String(found);
  });
