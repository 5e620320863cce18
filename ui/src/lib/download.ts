// Something to take along as a file.

export function saveFile(name: string, content: Blob): void {
  const address = URL.createObjectURL(content);
  const link = document.createElement("a");
  [link.href, link.download] = [address, name.replace(/[^\w.-]+/g, "_")];
  link.click();
  URL.revokeObjectURL(address);
}
