// A value that follows what is typed when the typing rests.

const REST_MS = 250;

export function settled<T>(get: () => T): { readonly value: T } {
  let value = $state.raw(get());
  $effect(() => {
    const next = get();
    const timer = setTimeout(() => { value = next; }, REST_MS);
    return () => clearTimeout(timer);
  });
  return { get value() { return value; } };
}
