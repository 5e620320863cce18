// Saves data as a file.
import type { Problem } from "../api/generated";
import { RequestError } from "../api/request";
import { session } from "./session.svelte";

export function saveFile(name: string, content: Blob): void {
  const address = URL.createObjectURL(content);
  const link = document.createElement("a");
  [link.href, link.download] = [address, name.replace(/[^\w.-]+/g, "_")];
  link.click();
  URL.revokeObjectURL(address);
}

export const saveJson = (name: string, content: unknown): void =>
  saveFile(name, new Blob([JSON.stringify(content, null, 2)], { type: "application/json" }));

/** Downloads a file from the API. The browser keeps large bodies on disk. */
export async function download(path: string, name: string): Promise<void> {
  const answer = await fetch(path, { headers: { Authorization: `Bearer ${session.token ?? ""}` } });
  if (!answer.ok) throw new RequestError(answer.status, (await answer.json().catch(() => ({}))) as Partial<Problem>);
  saveFile(name, await answer.blob());
}
