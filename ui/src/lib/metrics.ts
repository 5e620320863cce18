// Reads numbers from `/metrics` that no API endpoint returns.

/** Returns the sum over all labels, or undefined if the node does not have the metric. */
export function valueOf(text: string, name: string): number | undefined {
  const values = text
    .split("\n")
    .filter((line) => line.startsWith(`${name} `) || line.startsWith(`${name}{`))
    .map((line) =>
      Number(
        line
          .slice(line.lastIndexOf("}") + 1)
          .trim()
          .split(" ")
          .find((word) => word !== name),
      ),
    );
  return values.length ? values.reduce((sum, value) => sum + value, 0) : undefined;
}
