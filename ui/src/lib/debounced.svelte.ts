// A value that follows an input after the user has stopped typing.

const DELAY_MS = 250;

export function debounced<T>(get: () => T): { readonly value: T } {
  let value = $state.raw(get());
  $effect(() => {
    const next = get();
    const timer = setTimeout(() => {
      value = next;
    }, DELAY_MS);
    return () => clearTimeout(timer);
  });
  return {
    get value() {
      return value;
    },
  };
}
