// Something to take along as a file.

export function saveFile(name: string, content: Blob): void {
  const address = URL.createObjectURL(content);
  const link = document.createElement("a");
  [link.href, link.download] = [address, name.replace(/[^\w.-]+/g, "_")];
  link.click();
  URL.revokeObjectURL(address);
}

export const saveJson = (name: string, content: unknown): void => saveFile(name, new Blob([JSON.stringify(content, null, 2)], { type: "application/json" }));
