// Numbers out of `/metrics`, for what no other address tells.

/** All of its labels together; none: the node does not have it. */
export function valueOf(text: string, name: string): number | undefined {
  const values = text.split("\n").filter((line) => line.startsWith(`${name} `) || line.startsWith(`${name}{`)).map((line) => Number(line.slice(line.lastIndexOf("}") + 1).trim().split(" ").find((word) => word !== name)));
  return values.length ? values.reduce((sum, value) => sum + value, 0) : undefined;
}
