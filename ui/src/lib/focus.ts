// Moves the focus when the focused element is removed: to the nearest remaining place, not to the top of the page.

const PLACES = "section, form, nav, main, dialog, [role='region']";

/** Returns a function that moves the focus back to an element, or to what is left around it. */
export function remember(element: Element | null): () => void {
  const around: Element[] = [];
  for (let one = element; one && one !== document.body; one = one.parentElement) around.push(one);
  return () => {
    if (hasFocus()) return;
    if (element instanceof HTMLElement && element.isConnected && element !== document.body)
      element.focus({ preventScroll: true });
    if (hasFocus()) return;
    const left = around.find((one) => one.isConnected);
    const place = left?.closest<HTMLElement>(PLACES) ?? document.querySelector<HTMLElement>("dialog[open], main");
    if (place) focus(place);
  };
}

const hasFocus = () => document.activeElement !== null && document.activeElement !== document.body;

/** Makes an element without a tab stop focusable until it loses the focus. */
function focus(place: HTMLElement): void {
  if (!place.hasAttribute("tabindex")) {
    place.setAttribute("tabindex", "-1");
    place.addEventListener("blur", () => place.removeAttribute("tabindex"), { once: true });
  }
  place.focus({ preventScroll: true });
}

/** Watches for removed elements until the returned function is called. */
export function keepFocus(): () => void {
  let last: Element | null = null;
  let back: (() => void) | undefined;
  const follow = () => {
    last = document.activeElement;
    back = remember(last);
  };
  // A closing dialog returns the focus to its opener itself. That comes first.
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
