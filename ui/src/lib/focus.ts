// Where the focus goes when what had it goes: to what is left around it, not to the beginning of the page. Who works with the keyboard stays where they are.

const PLACES = "section, form, nav, main, dialog, [role='region']";

/** Brings the focus back to an element later, or to what is left around it. */
export function remember(element: Element | null): () => void {
  const around: Element[] = [];
  for (let one = element; one && one !== document.body; one = one.parentElement) around.push(one);
  return () => {
    if (hasFocus()) return;
    if (element instanceof HTMLElement && element.isConnected && element !== document.body) element.focus({ preventScroll: true });
    if (hasFocus()) return;
    const left = around.find((one) => one.isConnected);
    const place = left?.closest<HTMLElement>(PLACES) ?? document.querySelector<HTMLElement>("dialog[open], main");
    if (place) focus(place);
  };
}

const hasFocus = () => document.activeElement !== null && document.activeElement !== document.body;

/** Also what takes no focus by itself, until it goes on. */
function focus(place: HTMLElement): void {
  if (!place.hasAttribute("tabindex")) {
    place.setAttribute("tabindex", "-1");
    place.addEventListener("blur", () => place.removeAttribute("tabindex"), { once: true });
  }
  place.focus({ preventScroll: true });
}

/** Until what it returns is called. */
export function keepFocus(): () => void {
  let last: Element | null = null;
  let back: (() => void) | undefined;
  const follow = () => {
    last = document.activeElement;
    back = remember(last);
  };
  // A dialog that goes brings the focus back to what opened it: it is first.
  const observer = new MutationObserver(() => {
    if (!last || last.isConnected || hasFocus()) return;
    last = null;
    const late = back;
    setTimeout(() => late?.());
  });
  document.addEventListener("focusin", follow);
  observer.observe(document.body, { childList: true, subtree: true });
  return () => {
    document.removeEventListener("focusin", follow);
    observer.disconnect();
  };
}
